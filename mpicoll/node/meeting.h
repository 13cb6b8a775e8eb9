/* Where the ranks of a node wait for each other: flags in memory that all of them have mapped. */
#ifndef MPICOLL_MEETING_H
#define MPICOLL_MEETING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LINE 64
/* Up to so many ranks look at each other's flags. More ranks meet in rounds, so that none looks at all lines. */
#define FLAT 16
#define ROUNDS 16

/* What a rank says of the call with which it arrives. */
typedef struct {
    uint64_t digest;  /* a hash of the call: ranks that make different calls have different ones */
    uint64_t version; /* a number of the memory where its arrays lie, 0 where other ranks cannot open it */
} Word;

/* A cache line of one rank. Its rank alone writes it, but for `sleepers`. */
typedef struct {
    _Atomic uint32_t arrived;  /* how often the rank has arrived; ranks that wait long sleep on it (a futex) */
    _Atomic uint32_t sleepers; /* how many do */
    Word word[2];              /* by the parity of the meeting */
    char rest[LINE - 8 - 2 * sizeof(Word)];
} Flag;

/* What the program that waits does meanwhile. */
typedef struct {
    void (*leave)(void *of); /* before a long wait: other threads of this process may go on */
    void (*enter)(void *of); /* after it */
    int (*between)(void *of); /* now and then during a long wait; not 0 ends the wait */
    void *of;
} Host;

typedef struct {
    int rank, size;
    Flag **flags; /* by rank: ROUNDS flags each, of which a flat meeting uses the first */
    uint32_t turn;
    int looks, fewest_looks, most_looks, yields;
    int hurried; /* so many waits pass over the yields, because others want the core */
    Host host;
} Meeting;

/* `crowded` says whether ranks take turns on cores. */
void meeting_begin(Meeting *m, int rank, int size, Flag **flags, int crowded, Host host);

/* Arrive, say this word, and wait until all ranks have arrived. What a rank wrote before it arrived, to any memory that
 * they share, the others read after it. Returns 0, MISMATCH where the ranks' digests differ, or ENDED. */
enum { MISMATCH = 1, ENDED = 2 };
int arrive_and_wait(Meeting *m, Word word);

/* What a rank has said in the last meeting. Valid until this rank arrives again. */
static inline Word said(const Meeting *m, int rank) { return m->flags[rank][0].word[m->turn & 1]; }

#endif
