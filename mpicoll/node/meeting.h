/* Where the ranks of a node wait for each other: flags in memory that all of them have mapped. */
#ifndef MPICOLL_MEETING_H
#define MPICOLL_MEETING_H

#include <stddef.h>

#include "waiting.h"

/* Up to so many ranks look at each other's flags. More ranks meet in rounds, so that none looks at all lines. */
#define FLAT 16
#define ROUNDS 16

/* A rank may be so many meetings ahead of another one, less one: what it says of a meeting is kept so long. */
#define AHEAD 12

/* A cache line of one rank. Its rank alone writes it, but for `sleepers`. */
typedef struct {
    _Atomic uint64_t arrived;  /* how often the rank has arrived; ranks that wait long sleep on its lower half */
    _Atomic uint32_t sleepers; /* how many do */
    uint32_t histories[AHEAD]; /* by the meeting: a hash of all calls up to this one, other ones if calls differed */
    uint32_t unused;
} Flag;

typedef struct {
    int rank, size;
    Flag **flags; /* by rank: ROUNDS flags each, of which a flat meeting uses the first */
    uint64_t turn, history;
    uint64_t all; /* the last meeting at which all ranks are known to have arrived */
    Waiter waiter;
} Meeting;

void meeting_begin(Meeting *m, int rank, int size, Flag **flags, int crowded, Host host);

/* Arrive at a call with this digest, a hash of it, and wait until all ranks have arrived. What a rank wrote before
 * it arrived, to any memory that they share, the others read after it. Returns 0, MISMATCH where the ranks' calls
 * differ or have differed, or ENDED. */
enum { MISMATCH = 1 };
int arrive_and_wait(Meeting *m, uint64_t digest);

/* In parts, for calls in which a rank does not wait for all. `catch_up` waits until all ranks have arrived at this
 * meeting, which is over for this rank. Before a rank arrives, none may be AHEAD meetings behind. */
int catch_up(Meeting *m, uint64_t turn);
int has_caught_up(Meeting *m, uint64_t turn); /* whether it would not wait */
uint64_t latest(const Meeting *m); /* the meeting with which all must have caught up before this rank arrives */
int has_arrived(const Meeting *m, int rank);
uint64_t arrivals(const Meeting *m); /* of all ranks so far: it tells whether one has arrived since */
int arrive(Meeting *m, uint64_t digest);
int wait_for(Meeting *m, int rank);

#endif
