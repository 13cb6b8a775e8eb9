/* What the programs of this folder share: ranks that are threads, their blocks, and numbers that all draw alike. */
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "waiting.h"

#define MOST_RANKS 64

static int ranks;
static char *blocks[MOST_RANKS];

typedef struct { uint64_t state; } Random;
static inline uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}
static inline int draw(Random *r, int below) { return (int)(mix(r->state++) % (uint64_t)below); }

static inline char *new_block(size_t nbytes) {
    size_t pages = (nbytes + 4095) / 4096;
    return memset(aligned_alloc(4096, pages * 4096), 0, nbytes);
}

/* Runs the ranks from `first` on, each in a thread of its own, until all have ended. */
static inline void run_ranks(void *(*rank_main)(void *), void **all, int first) {
    pthread_t threads[MOST_RANKS];
    for (int r = first; r < ranks; r++)
        if (pthread_create(&threads[r], NULL, rank_main, all[r])) _exit(2);
    for (int r = first; r < ranks; r++) pthread_join(threads[r], NULL);
}
