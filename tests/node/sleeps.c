/* A thread sleeps in another one's place: it is woken, and by the clock, it serves one at a time, and a forked child has
 * one of its own. `sleeps 1`, or `sleeps 0` where there is no such thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sleeper.h"
#include "waiting.h"

#define LONG 100000000000 /* ns */

/* For ThreadSanitizer: a child of several threads may begin threads. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }

static _Atomic uint32_t word;
static int is_there;

static void expect(int is, const char *what) {
    if (is) return;
    printf("%s\n", what);
    exit(1);
}

static void *wakes(void *unused) {
    struct timespec soon = {0, 1000000};
    while (sleep_by_thread(&word, 1, LONG)) nanosleep(&soon, NULL); /* until the other one sleeps: it serves one */
    atomic_store(&word, 1);
    futex_wake(&word);
    return unused;
}

static void all(void) {
    pthread_t other;
    expect(sleep_by_thread(&word, 0, 1000000) == is_there, "it does not sleep for a time");
    expect(sleep_by_thread(&word, 1, LONG) == is_there, "it sleeps where the word is another one");
    if (!is_there) return;
    expect(pthread_create(&other, NULL, wakes, NULL) == 0, "no thread");
    while (!sleep_by_thread(&word, 0, LONG)) sched_yield(); /* the other one asks, too */
    expect(atomic_load(&word) == 1, "it sleeps no longer, and was not woken");
    pthread_join(other, NULL);
    atomic_store(&word, 0);
}

int main(int argc, char **argv) {
    is_there = argc > 1 && atoi(argv[1]);
    all();
    fflush(stdout);
    pid_t child = fork();
    all();
    fflush(stdout);
    if (!child) _exit(0); /* a sanitizer would look for the other threads of its parent */
    int code;
    expect(waitpid(child, &code, 0) == child && code == 0, "the child's thread does not sleep");
    return 0;
}
