/* A thread that sleeps in another one's place. See sleeper.h.
 *
 * Where other programs compute on the same cores, a thread that has used its share of a core and is woken waits until
 * their turn is over: some milliseconds on Linux. A thread that has hardly run goes first, and what it wakes comes
 * next. So a rank that computes and waits in turn sleeps on this process's own word, and this thread, which does
 * nothing else, on the word that others change. Threads that wait for sockets, such as gloo's, go first, too.
 * (How Linux chooses: Stoica and Abdel-Wahab, "Earliest eligible virtual deadline first", 1995.)
 */
#define _GNU_SOURCE
#include "sleeper.h"

#include <pthread.h>
#include <signal.h>
#ifdef __linux__
#include "waiting.h"
#endif

int begin_thread(void *(*run)(void *)) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* signals are the program's */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed && !pthread_detach(thread);
}

#ifdef __linux__
/* What one thread asks for at a time: it has `is_taken`, writes the rest, and adds 1 to `asked`. */
static _Atomic int is_taken;
static _Atomic uint32_t asked, answered;
static _Atomic uint32_t *slept_on;
static uint32_t value;
static int64_t most;
static int is_there;

static void *sleep_for_another(void *unused) {
    uint32_t before = atomic_load(&answered), now;
    for (;; before = now) {
        while ((now = atomic_load(&asked)) == before) futex_wait(&asked, before, INT64_MAX);
        futex_wait(slept_on, value, most);
        atomic_store(&answered, now);
        futex_wake(&answered);
    }
    return unused;
}

static void begin_child(void) {
    atomic_store(&is_taken, 0), atomic_store(&asked, 0), atomic_store(&answered, 0);
    is_there = 0;
}

static int is_ready(void) {
    static int is_known;
    if (is_there) return 1;
    if (!is_known++) pthread_atfork(NULL, NULL, begin_child);
    return is_there = begin_thread(sleep_for_another);
}

int sleep_by_thread(_Atomic uint32_t *word, uint32_t seen, int64_t ns) {
    if (atomic_exchange(&is_taken, 1)) return 0;
    int ready = is_ready();
    if (ready) {
        slept_on = word, value = seen, most = ns;
        uint32_t now = atomic_fetch_add(&asked, 1) + 1, is;
        futex_wake(&asked);
        while ((is = atomic_load(&answered)) != now) futex_wait(&answered, is, INT64_MAX);
    }
    atomic_store(&is_taken, 0);
    return ready;
}
#else
int sleep_by_thread(_Atomic uint32_t *word, uint32_t seen, int64_t ns) {
    (void)word, (void)seen, (void)ns;
    return 0;
}
#endif
