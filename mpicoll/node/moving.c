/* A thread moves messages and collectives while their rank does something else. See moving.h.
 *
 * A rank may begin one and then wait in a call of MPI's that knows nothing of it, or compute for long. MPI promises
 * that its peer goes on. So the thread looks each few milliseconds, at atomics alone, whether something has come for
 * transfers under way; only then it takes Python's lock, which the rank does not hold while it waits. It sleeps while
 * there are no such transfers. It belongs to C: Python knows nothing of it, but while it has the lock.
 */
#include "module.h" /* Python's header comes before the system's */

#include "moving.h"

#include <pthread.h>
#include <time.h>

#include "sleeper.h"
#include "waiting.h"

#define NAP 1000000      /* ns between two looks */
#define SHORT_NAP 50000  /* after a look that was not in vain */
#define LONG_NAP 4000000 /* while nothing comes for what is under way: each look interrupts a rank that computes */
#define SOON 4           /* looks at which nothing has come */
#define LOOKS_IN_VAIN 20 /* at nothing under way, before it sleeps */
#define MOST_TURNS 1000  /* with Python's lock */
#define TURNS_IN_VAIN 300 /* more than the looks after which a receiver reads by itself (messages.c) */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;
static Moved *first;
static Moved *next_moved; /* of move_each */
static _Atomic int is_there, sleeps, is_over, moves_now;
static _Atomic unsigned begun_ever; /* transfers */

static void insert(Moved *it) {
    it->next = first, it->before = NULL;
    if (first) first->before = it;
    first = it;
}

void keep_moving(Moved *it) {
    pthread_mutex_lock(&mutex);
    insert(it);
    pthread_mutex_unlock(&mutex);
}

void stop_moving(Moved *it) {
    pthread_mutex_lock(&mutex);
    if (it->before) it->before->next = it->next;
    else first = it->next;
    if (it->next) it->next->before = it->before;
    if (next_moved == it) next_moved = it->next;
    pthread_mutex_unlock(&mutex);
}

/* How many communicators have transfers under way, and for how many of these something has come. */
static int look(int *come) {
    int under_way = 0;
    *come = 0;
    pthread_mutex_lock(&mutex);
    for (Moved *it = first; it; it = it->next) {
        if (!it->is_open(it->of)) continue;
        under_way++;
        *come += it->has_come(it->of);
    }
    pthread_mutex_unlock(&mutex);
    return under_way;
}

/* Under Python's lock only what a move runs itself changes the list, and the lock may change hands there: a call that
 * ends lets go of its arrays, whose destructors may end communicators, also the one that moves. */
static unsigned long move_each(void) {
    unsigned long moves = 0;
    for (Moved *it = first; it; it = next_moved) {
        next_moved = it->next;
        moves += it->move(it->of);
    }
    return moves;
}

/* The other rank fills its ring while this one empties it, and to get the lock again may take long. */
static void move_all(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    unsigned long moves = move_each();
    for (int i = 0, in_vain = 0; i < MOST_TURNS && in_vain < TURNS_IN_VAIN; i++) {
        unsigned long now = move_each();
        in_vain = now == moves ? in_vain + 1 : 0;
        moves = now;
        relax();
    }
    PyGILState_Release(state);
}

/* Unless something has begun since this number was read. */
static void sleep_until_begun(unsigned seen) {
    pthread_mutex_lock(&mutex);
    atomic_store(&sleeps, 1);
    if (atomic_load(&begun_ever) != seen) atomic_store(&sleeps, 0);
    while (atomic_load(&sleeps)) pthread_cond_wait(&begun, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void *thread_main(void *unused) {
    int in_vain = 0, idle = 0, come;
    for (struct timespec nap = {0, NAP};; nap.tv_nsec = come ? SHORT_NAP : idle < SOON ? NAP : LONG_NAP) {
        nanosleep(&nap, NULL);
        unsigned seen = atomic_load(&begun_ever);
        in_vain = look(&come) ? 0 : in_vain + 1;
        idle = come ? 0 : idle + 1;
        atomic_store(&moves_now, 1);
        if (come && !atomic_load(&is_over)) move_all();
        atomic_store(&moves_now, 0);
        if (in_vain > LOOKS_IN_VAIN) sleep_until_begun(seen);
    }
    return unused;
}

/* A forked child has no such thread, which may have had the mutex, or have waited for Python's lock: the fork had it. */
static void begin_child(void) {
    pthread_mutex_init(&mutex, NULL);
    atomic_store(&moves_now, 0);
}

static void begin(void) {
    static int is_known;
    if (!is_known++) pthread_atfork(NULL, NULL, begin_child);
    if (!begin_thread(thread_main)) atomic_store(&is_there, 0); /* the next transfer tries again */
}

void end_moving(void) {
    const struct timespec nap = {0, SHORT_NAP};
    atomic_store(&is_over, 1);
    while (atomic_load(&moves_now)) nanosleep(&nap, NULL);
}

void move_on(void) {
    atomic_fetch_add(&begun_ever, 1);
    if (!atomic_exchange(&is_there, 1)) begin();
    if (!atomic_load(&sleeps)) return;
    pthread_mutex_lock(&mutex);
    atomic_store(&sleeps, 0);
    pthread_cond_signal(&begun);
    pthread_mutex_unlock(&mutex);
}
