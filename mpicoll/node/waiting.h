/* How a rank waits for what another process writes to memory that they share. */
#ifndef MPICOLL_WAITING_H
#define MPICOLL_WAITING_H

#include <stdatomic.h>
#include <stdint.h>

#include "lines.h"

/* What the program that waits does meanwhile. */
typedef struct {
    void (*leave)(void *of); /* before a long wait: other threads of this process may go on */
    void (*enter)(void *of); /* after it */
    int (*between)(void *of); /* now and then during a long wait; not 0 ends the wait */
    void *of;
} Host;

/* How a rank waits: so many looks, then yields where ranks take turns on cores, then sleeps. */
typedef struct {
    int looks, fewest_looks, most_looks, yields;
    int contended; /* so many waits pass over the yields, because others compute on the core */
    Host host;
} Waiter;

/* What ranks sleep on (a futex), and how many do. */
typedef struct { _Atomic uint32_t *word, *sleepers; } Bed;

/* `crowded` says whether ranks take turns on cores. */
void waiter_begin(Waiter *w, int crowded, Host host);

/* Wait until `ready(of)`, after `w->looks` looks in vain. What `ready` looks at is read and written with sequential
 * consistency. Returns 0, or ENDED. */
enum { ENDED = 2 };
typedef int (*Ready)(const void *of);
int wait_long(Waiter *w, Bed bed, Ready ready, const void *of);

/* The number of the core on which this thread runs, from 1 on; 0 if the system does not say. */
int core_of_this(void);

/* Sleep on a word, for `ns` at most, unless it is another than `seen`; wake all that do. */
void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns);
void futex_wake(_Atomic uint32_t *word);

/* Wake those that sleep there, if there are any. The word has changed, and so has what they look at. */
void wake(Bed bed);

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
