/* Messages between two ranks of one node, in memory that they share. */
#ifndef MPICOLL_MESSAGES_H
#define MPICOLL_MESSAGES_H

#include "layouts.h"
#include "peers.h"
#include "waiting.h"

#define ANY (-1) /* a receive from any source, or of any tag */

typedef struct {
    int source, tag; /* a tag below ANY is the library's own: no receive of any tag takes its message */
    size_t nbytes;   /* of the whole message */
} Envelope;

/* A send or a receive. It and its array stay where they are until it is complete, or given up. */
typedef struct Transfer {
    int receives; /* or else it sends */
    int peer, tag;
    Layout memory;
    Home home; /* of what is sent, if it lies in a file that the receiver may map */
    _Atomic int complete;
    Envelope message; /* what a receive has taken: it may be shorter than the array, or longer, and is cut off then */

    struct Transfer *next, *before; /* the rest is messages.c's */
    int is_posted;
    size_t moved, wanted;
    uint64_t number, address; /* `address`: where its elements are to be read, or 0 */
    const char *mapped;       /* where they lie in this process's memory, or NULL */
    int put_off;              /* how often it was not granted, because its sender computes */
    int is_halved, is_read;   /* whether its sender writes a half of it now, and whether the other one is here */
} Transfer;

typedef struct { Transfer *first, *last; } Queue;

/* What is announced of a long message: its number, and where its elements lie in its sender's memory, or 0. */
typedef struct {
    uint64_t number, address;
    Home home;
} Source;

/* A message that no receive has asked for yet, taken out of a ring. Of a long one there is only the announcement. */
typedef struct Passed {
    Envelope message;
    struct Passed *next;
    int is_long;
    uint64_t arrival;
    Source where; /* of a long one */
    char bytes[];
} Passed;

/* How far a ring has been used, in bytes since the beginning. Some processors fetch two cache lines at a time. */
#define APART 128
typedef struct {
    _Atomic uint64_t sent __attribute__((aligned(APART)));  /* its sender writes this one */
    _Atomic uint64_t taken __attribute__((aligned(APART))); /* and its receiver this one */
} Ends;

/* What a rank knows of another one, or of itself as one. */
typedef struct {
    Bed bed;
    const Self *self; /* what it says of itself */
    int readable;     /* whether its memory can be read; -1 while that is not known */
    Ends *out, *in;   /* of the ring to it, and of the one from it */
    char *to, *from;  /* the bytes of these rings */
    uint64_t sent, free_until; /* how far the ring to it is used, and may be */
    uint64_t cleared;          /* where no record begins yet, beyond the next one if that takes a line */
    uint64_t announced_ever, heard_ever; /* long messages to it, and from it: these are their numbers */
    uint64_t published;        /* what it knows of `taken` */
    _Atomic uint64_t taken;    /* how far the ring from it is read */
    _Atomic uint64_t needs;    /* how far it has to read the ring to it, so that what is queued can go on; or 0 */
    Queue unsent, announced, flowing; /* sends: not in the ring yet, not granted yet, and those whose pieces leave */
    Queue granted;             /* receives of long messages, in the order in which their pieces come */
    _Atomic int unread;        /* receives of messages that are to be read */
    Transfer *ungranted;       /* the first of them of which it has not been told */
    int writes;                /* what it is to hear of a half: NOT_WRITTEN, ALL_WRITTEN, or 0 */
    Passed *first, **end;      /* messages from it */
    _Atomic int *attends;      /* not 0 while it waits, and so sends at once what is granted of its long messages */
    _Atomic int *core;         /* where it ran when it last waited, from 1 on; 0 if that is not known */
} Peer;

typedef struct {
    int rank, size;
    size_t ring, eager, piece; /* bytes of a ring, of the longest message that goes at once, and of a piece of others */
    Peer *peers;
    Queue posted;
    int crowded;             /* whether ranks take turns on cores */
    int turn;                /* with whom the next round begins */
    _Atomic size_t open;     /* transfers that are started and not complete, nor given up */
    size_t lying;            /* messages that no receive has asked for yet */
    _Atomic uint64_t passed; /* how many there have been */
    uint64_t moves, looks;
    int asleep;              /* threads of this rank in a long wait */
    int starts;              /* whether a transfer is started now, whose caller does not wait */
    Waiter waiter;
    int longs;               /* long messages of this rank that are sent and not complete */
    int attending;           /* threads of this rank that wait while there are some */
} Messages;

/* All calls of a rank are made by one thread at a time. In a long wait, after `leave` and before `enter` of the host,
 * other threads may make calls. Functions return 0 or, where they wait, ENDED (waiting.h), or OUT_OF_MEMORY: there was
 * none for a message that no receive has asked for. After each of these, transfers go on at the next call.
 *
 * Nothing moves but in these calls. While transfers are open, a rank that waits for anything else calls move_messages()
 * now and then, or others may wait for it for ever. */
enum { OUT_OF_MEMORY = 6 };

/* The bytes of a rank's block, which are 0 before all ranks begin, at a multiple of APART. Bytes that no message needs
 * are never touched. */
size_t messages_block_size(int size, int crowded);
int messages_begin(Messages *m, int rank, int size, char *const *blocks, int crowded, Host host);
void messages_end(Messages *m);

/* Start a transfer and wait for it. Others know that this rank sends what they grant at once. */
int carry_transfer(Messages *m, Transfer *t);
int start_transfer(Messages *m, Transfer *t);
int wait_for_transfer(Messages *m, Transfer *t);
int look_for_transfer(Messages *m, Transfer *t); /* the same without sleep: it may not be complete then */
int wait_for_any(Messages *m, Transfer *const *transfers, int count);

/* Move all that can be moved without a wait. */
int move_messages(Messages *m);

/* For any thread: whether there are transfers under way, and whether records or room for some have come. */
int has_open_transfers(const Messages *m);
int something_has_come(const Messages *m);

/* Give up a receive: 1 if it will take no message, 0 if it takes one, or has. */
int cancel_receive(Messages *m, Transfer *t);

/* The message that a receive would take now. `probe_message` says by `found` whether there is one; the other waits. */
int probe_message(Messages *m, int source, int tag, Envelope *message, int *found);
int wait_for_message(Messages *m, int source, int tag, Envelope *message);

/* The messages that no receive has asked for, of those that have been moved: the first one after NULL. */
const Passed *next_passed(const Messages *m, const Passed *after);

#endif
