/* Ranks wait for each other. See meeting.h.
 *
 * A rank that arrives writes the number of the meeting to its flag, with release order. A rank that reads this number,
 * with acquire order, has seen all that was written before it. So plain loads and stores of the data are enough.
 *
 * Waiting costs nobody's core: a rank looks some times, yields a few times where ranks take turns on cores, and then
 * sleeps on the flag (a futex). The rank that arrives wakes it. No wake-up is lost: the one that sleeps first counts
 * itself and then looks at the flag; the one that arrives first writes the flag and then looks at the count. In the
 * order of all sequentially consistent operations, one of them comes second and sees what the other has done. If the
 * flag changes after the sleeper's look, the system itself refuses to sleep.
 */
#define _GNU_SOURCE
#include "meeting.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SOON 30000            /* ns: a wait that ends within this is cheaper without sleep */
#define LONG_YIELD 200000     /* ns: a yield that takes this long has given the core to a program that computes */
#define HURRIED 100
#define FIRST_NAP 20000       /* ns of the first sleep; each further one is twice as long, up to LAST_NAP */
#define LAST_NAP 2000000

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void meeting_begin(Meeting *m, int rank, int size, Flag **flags, int crowded, Host host) {
    *m = (Meeting){.rank = rank, .size = size, .flags = flags, .host = host};
    m->fewest_looks = crowded ? 20 : 200;
    m->most_looks = crowded ? 50 : 3000;
    m->looks = m->most_looks;
    m->yields = crowded ? 20 : 0;
}

/* Numbers of meetings wrap around: what counts is their difference. */
static inline int has_arrived(Flag *flag, uint32_t turn) {
    return (int32_t)(atomic_load_explicit(&flag->arrived, memory_order_acquire) - turn) >= 0;
}

static void arrive(Flag *flag, uint32_t turn) {
    atomic_store_explicit(&flag->arrived, turn, memory_order_seq_cst);
    if (atomic_load_explicit(&flag->sleepers, memory_order_seq_cst))
        syscall(SYS_futex, &flag->arrived, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int sleep_until(Flag *flag, uint32_t turn, int64_t ns) {
    atomic_fetch_add_explicit(&flag->sleepers, 1, memory_order_seq_cst);
    uint32_t seen = atomic_load_explicit(&flag->arrived, memory_order_seq_cst);
    if ((int32_t)(seen - turn) < 0) {
        struct timespec most = {ns / 1000000000, ns % 1000000000};
        syscall(SYS_futex, &flag->arrived, FUTEX_WAIT, seen, &most, NULL, 0);
    }
    /* No order is needed: who still sees the larger count makes a system call in vain. */
    atomic_fetch_sub_explicit(&flag->sleepers, 1, memory_order_relaxed);
    return has_arrived(flag, turn);
}

static int yield_until(Meeting *m, Flag *flag, uint32_t turn) {
    if (m->hurried) {
        m->hurried--;
        return 0;
    }
    for (int i = 0; i < m->yields; i++) {
        int64_t before = now();
        sched_yield();
        if (has_arrived(flag, turn)) return 1;
        if (now() - before > LONG_YIELD) {
            m->hurried = HURRIED;
            return 0;
        }
    }
    return 0;
}

static int wait_long(Meeting *m, Flag *flag, uint32_t turn) {
    int64_t since = now(), nap = FIRST_NAP;
    int ended = 0;
    m->host.leave(m->host.of);
    if (!yield_until(m, flag, turn)) {
        while (!ended && !sleep_until(flag, turn, nap)) {
            nap = nap < LAST_NAP / 2 ? 2 * nap : LAST_NAP;
            ended = m->host.between(m->host.of);
        }
        /* Looks that were in vain cost time that others may need. Looks that would have been enough save a sleep. */
        int looks = now() - since < SOON ? 2 * m->looks : m->looks / 2;
        m->looks = looks < m->fewest_looks ? m->fewest_looks : looks > m->most_looks ? m->most_looks : looks;
    }
    m->host.enter(m->host.of);
    return ended ? ENDED : 0;
}

static inline int wait_for(Meeting *m, Flag *flag, uint32_t turn) {
    for (int i = 0; i < m->looks; i++) {
        if (has_arrived(flag, turn)) return 0;
        relax();
    }
    return wait_long(m, flag, turn);
}

static int flat(Meeting *m, Word word) {
    uint32_t turn = m->turn;
    int differ = 0;
    m->flags[m->rank][0].word[turn & 1] = word;
    arrive(&m->flags[m->rank][0], turn);
    for (int i = 1; i < m->size; i++) {
        Flag *flag = &m->flags[(m->rank + i) % m->size][0];
        int code = wait_for(m, flag, turn);
        if (code) return code;
        differ |= flag->word[turn & 1].digest != word.digest;
    }
    return differ ? MISMATCH : 0;
}

/* Dissemination (Hensgen, Finkel and Manber 1988): in round k a rank hears from the one 2^k before it, which has heard
 * from the 2^k - 1 before that. A rank that knows of different digests says so from then on, by a digest of all ones. */
static int in_rounds(Meeting *m, Word word) {
    uint32_t turn = m->turn;
    int round = 0, differ = 0;
    for (int distance = 1; distance < m->size; distance *= 2, round++) {
        Flag *mine = &m->flags[m->rank][round];
        mine->word[turn & 1] = (Word){differ ? UINT64_MAX : word.digest, word.version};
        arrive(mine, turn);
        Flag *flag = &m->flags[(m->rank - distance + m->size) % m->size][round];
        int code = wait_for(m, flag, turn);
        if (code) return code;
        differ |= flag->word[turn & 1].digest != word.digest;
    }
    return differ ? MISMATCH : 0;
}

int arrive_and_wait(Meeting *m, Word word) {
    m->turn++;
    return m->size <= FLAT ? flat(m, word) : in_rounds(m, word);
}
