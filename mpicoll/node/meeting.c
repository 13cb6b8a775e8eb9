/* Ranks wait for each other. See meeting.h.
 *
 * A rank that arrives writes the number of the meeting to its flag, with release order. A rank that reads this number,
 * with acquire order, has seen all that was written before it. So plain loads and stores of the data are enough.
 */
#include "meeting.h"

void meeting_begin(Meeting *m, int rank, int size, Flag **flags, int crowded, Host host) {
    *m = (Meeting){.rank = rank, .size = size, .flags = flags};
    waiter_begin(&m->waiter, crowded, host);
}

static inline uint64_t read_acquire(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_acquire); }
static inline uint64_t arrived(Flag *flag) { return read_acquire(&flag->arrived); }

static Tag *tag_of(const Meeting *m, int rank) {
    return m->tag_at ? (Tag *)((char *)m->flags[rank] + m->tag_at) : NULL;
}

/* A futex has 32 bits. The lower half comes first in memory on all processors that Linux runs on but a few old ones. */
static Bed bed_of(Flag *flag) { return (Bed){(_Atomic uint32_t *)&flag->arrived, &flag->sleepers}; }

typedef struct { Flag *flag; uint64_t turn; } Awaited;
static int has_come(const void *of) {
    const Awaited *it = of;
    return atomic_load_explicit(&it->flag->arrived, memory_order_seq_cst) >= it->turn;
}

/* Look at the tag, if there is one, and sleep at the flag: who sleeps reads many lines anyway. A rank that makes another
 * call may write no tag. */
static inline int wait_at(Meeting *m, Flag *flag, Tag *tag, uint64_t turn, int waits) {
    _Atomic uint64_t *word = tag ? &tag->arrived : &flag->arrived;
    if (read_acquire(word) >= turn) return 0;
    if (!waits) return arrived(flag) >= turn ? 0 : LATER;
    for (int i = 0; i < m->waiter.looks; i++) {
        if (read_acquire(word) >= turn) return 0;
        relax();
    }
    Awaited awaited = {flag, turn};
    return wait_long(&m->waiter, bed_of(flag), has_come, &awaited);
}

int catch_up(Meeting *m, uint64_t turn, int waits) {
    if (m->all >= turn) return 0;
    uint64_t all = m->turn;
    for (int i = 1; i < m->size; i++) {
        Flag *flag = &m->flags[(m->rank + i) % m->size][0];
        int code = wait_at(m, flag, NULL, turn, waits);
        if (code) return code;
        uint64_t there = arrived(flag);
        if (there < all) all = there;
    }
    m->all = all;
    return 0;
}

uint64_t arrivals(const Meeting *m) {
    uint64_t sum = 0;
    for (int r = 0; r < m->size; r++)
        for (int round = 0; !round || (m->size > FLAT && 1 << round < m->size); round++)
            sum += arrived(&m->flags[r][round]);
    return sum;
}

/* The hash of all calls so far. Whoever compares it finds that calls have differed, also in meetings at which it did
 * not wait. */
static void remember(Meeting *m, uint64_t digest) {
    m->turn++;
    m->history = (m->history ^ digest) * 0x9E3779B97F4A7C15u;
    m->history ^= m->history >> 32;
    m->round = m->differ = 0;
}

static uint32_t *history_at(Flag *flag, uint64_t turn) { return &flag->histories[turn % AHEAD]; }

static void say(Flag *flag, uint64_t turn, uint32_t history) {
    *history_at(flag, turn) = history;
    atomic_store_explicit(&flag->arrived, turn, memory_order_seq_cst);
    wake(bed_of(flag));
}

int arrive(Meeting *m, uint64_t digest, int waits) {
    int code = catch_up(m, m->turn + 1 >= AHEAD ? m->turn + 2 - AHEAD : 0, waits);
    if (code) return code;
    remember(m, digest);
    Tag *tag = tag_of(m, m->rank);
    if (tag) {
        tag->history = (uint32_t)m->history;
        atomic_store_explicit(&tag->arrived, m->turn, memory_order_release);
    }
    say(&m->flags[m->rank][0], m->turn, (uint32_t)m->history);
    return 0;
}

int wait_for(Meeting *m, int rank, int waits) {
    Flag *flag = &m->flags[rank][0];
    Tag *tag = tag_of(m, rank);
    int code = wait_at(m, flag, tag, m->turn, waits);
    if (code) return code;
    int is_tagged = tag && read_acquire(&tag->arrived) == m->turn;
    return (is_tagged ? tag->history : *history_at(flag, m->turn)) != (uint32_t)m->history ? MISMATCH : 0;
}

static int flat(Meeting *m, int waits) {
    int differ = 0;
    for (int i = 1; i < m->size; i++) {
        int code = wait_for(m, (m->rank + i) % m->size, waits);
        if (code == ENDED || code == LATER) return code;
        differ |= code;
    }
    return differ;
}

/* Dissemination (Hensgen, Finkel and Manber 1988): in round k a rank hears from the one 2^k before it, which has heard
 * from the 2^k - 1 before that. A rank that knows of different calls says so from then on, by another history. */
static int in_rounds(Meeting *m, int waits) {
    while (1 << m->round < m->size) {
        Flag *flag = &m->flags[(m->rank - (1 << m->round) + m->size) % m->size][m->round];
        int code = wait_at(m, flag, NULL, m->turn, waits);
        if (code) return code;
        m->differ |= *history_at(flag, m->turn) != (uint32_t)m->history;
        m->round++;
        if (1 << m->round < m->size)
            say(&m->flags[m->rank][m->round], m->turn, m->differ ? ~(uint32_t)m->history : (uint32_t)m->history);
    }
    return m->differ ? MISMATCH : 0;
}

int wait_for_all(Meeting *m, int waits) {
    int code = m->size <= FLAT ? flat(m, waits) : in_rounds(m, waits);
    if (code != ENDED && code != LATER) m->all = m->turn;
    return code;
}
