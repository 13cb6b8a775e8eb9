/* A rank waits. See waiting.h.
 *
 * Waiting costs nobody's core: a rank looks some times, yields a few times where ranks take turns on cores, and then
 * sleeps (a futex, or a nap where the system has none). Where others compute on its core, another thread sleeps in its
 * place (sleeper.h). No wake-up is lost: the one that sleeps first counts itself and then looks; the one that writes
 * first writes and then looks at the count. In the order of all sequentially consistent operations, one of them comes
 * second and sees what the other has done. If the word changes after the sleeper's look, the system itself refuses to
 * sleep.
 */
#define _GNU_SOURCE
#include "waiting.h"

#include "sleeper.h"

#include <sched.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define SOON 100000           /* ns: a wait that ends within this is cheaper without sleep */
#ifndef LATE
#define LATE 1000000          /* ns: after a yield or a nap that takes so much too long, others compute on this core; a
                               * hypervisor mostly takes the core for a shorter time */
#endif
#define CONTENDED 100         /* waits in which that is so */
#define FIRST_NAP 20000       /* ns of the first sleep; each further one is twice as long, up to LAST_NAP */
#define LAST_NAP 2000000

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void waiter_begin(Waiter *w, int crowded, Host host) {
    *w = (Waiter){.host = host};
    w->fewest_looks = crowded ? 20 : 200;
    w->most_looks = crowded ? 50 : 3000;
    w->looks = w->most_looks;
    w->yields = crowded ? 20 : 0;
}

#ifdef __linux__
#define NAP_OF_THREAD LAST_NAP /* of the thread that sleeps in a rank's place; 0 if there is none */

int core_of_this(void) { return sched_getcpu() + 1; }

void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns) {
    struct timespec most = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}
#else
#define NAP_OF_THREAD 0

int core_of_this(void) { return 0; }

void futex_wake(_Atomic uint32_t *word) { (void)word; }

void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns) {
    struct timespec most = {ns / 1000000000, ns % 1000000000};
    if (atomic_load(word) == seen) nanosleep(&most, NULL);
}
#endif

void wake(Bed bed) {
    if (atomic_load_explicit(bed.sleepers, memory_order_seq_cst)) futex_wake(bed.word);
}

static int sleep_once(const Waiter *w, Bed bed, Ready ready, const void *of, int64_t ns) {
    atomic_fetch_add_explicit(bed.sleepers, 1, memory_order_seq_cst);
    uint32_t seen = atomic_load_explicit(bed.word, memory_order_seq_cst);
    if (!ready(of) && !(w->contended && sleep_by_thread(bed.word, seen, ns))) futex_wait(bed.word, seen, ns);
    /* No order is needed: who still sees the larger count makes a system call in vain. */
    atomic_fetch_sub_explicit(bed.sleepers, 1, memory_order_relaxed);
    return ready(of);
}

static int yield_until(Waiter *w, Ready ready, const void *of) {
    for (int i = 0; i < w->yields && !w->contended; i++) {
        int64_t before = now();
        sched_yield();
        if (ready(of)) return 1;
        if (now() - before > LATE) w->contended = CONTENDED;
    }
    return 0;
}

/* The yields come before the program's other threads may go on: between ranks that take turns on cores, most waits end
 * with them, and to let the lock go and take it again costs as much as a change of ranks. */
int wait_long(Waiter *w, Bed bed, Ready ready, const void *of) {
    int64_t since = now(), nap = FIRST_NAP;
    int ended = 0;
    if (w->contended) w->contended--;
    else if (yield_until(w, ready, of)) return 0;
    w->host.leave(w->host.of);
    while (!ended) {
        int64_t before = now(), most = w->contended && NAP_OF_THREAD > 0 ? NAP_OF_THREAD : nap;
        int is_ready = sleep_once(w, bed, ready, of, most);
        if (!w->contended && now() - before > most + LATE) w->contended = CONTENDED;
        if (is_ready) break;
        nap = nap < LAST_NAP / 2 ? 2 * nap : LAST_NAP;
        ended = w->host.between(w->host.of);
    }
    /* Looks that were in vain cost time that others may need. Looks that would have been enough save a sleep. */
    int looks = now() - since < SOON ? 2 * w->looks : w->looks / 2;
    w->looks = looks < w->fewest_looks ? w->fewest_looks : looks > w->most_looks ? w->most_looks : looks;
    w->host.enter(w->host.of);
    return ended ? ENDED : 0;
}
