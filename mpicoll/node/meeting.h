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

/* In front of the data of a short call: who waits for that reads one line, and not two. A call has a tag where its
 * rank waits for one meeting alone. */
typedef struct {
    _Atomic uint64_t arrived; /* the meeting */
    uint32_t history, unused;
} Tag;

typedef struct {
    int rank, size;
    Flag **flags; /* by rank: ROUNDS flags each, of which a flat meeting uses the first */
    size_t tag_at; /* bytes from a rank's flags to its tag of this call; 0 if it has none */
    uint64_t turn, history;
    uint64_t all; /* the last meeting at which all ranks are known to have arrived */
    int round, differ; /* of `wait_for_all` */
    Waiter waiter;
} Meeting;

void meeting_begin(Meeting *m, int rank, int size, Flag **flags, int crowded, Host host);

/* What has come of a wait, besides 0 and ENDED (waiting.h): the ranks' calls differ or have differed; or the rank would
 * have to wait, and may not. */
enum { MISMATCH = 1, LATER = 7 };

/* Wait until all ranks have arrived at this meeting, which is over for this rank. Where `waits` is 0, here as below,
 * the result may be LATER. */
int catch_up(Meeting *m, uint64_t turn, int waits);

/* Arrive at the next meeting, with the digest of a call, a hash of it. What a rank wrote before it arrived, to any
 * memory that they share, those read that wait for it after that. Before a rank arrives, none may be AHEAD meetings
 * behind. */
int arrive(Meeting *m, uint64_t digest, int waits);
int wait_for(Meeting *m, int rank, int waits);
int wait_for_all(Meeting *m, int waits);

uint64_t arrivals(const Meeting *m); /* of all ranks so far: it tells whether one has arrived since */

#endif
