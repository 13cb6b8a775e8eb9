/* Collectives of the ranks of one node, in memory that they share. */
#ifndef MPICOLL_COLLECTIVES_H
#define MPICOLL_COLLECTIVES_H

#include "layouts.h"
#include "meeting.h"
#include "peers.h"
#include "reductions.h"

/* What a collective means: the row of the table in mpicoll/algorithms/collectives.py. */
typedef enum { NOTHING, ONE, ONE_EACH } Extent; /* how many blocks a rank gives or gets */
typedef enum { NO_ROOT, ROOT_GIVES, ROOT_GETS } Root;
typedef enum { ALL_RANKS, INCLUSIVE, EXCLUSIVE } Prefix; /* over which ranks a reduction goes */

#define PLACE_WORDS 12
#define UNITS 16    /* short calls have a slot of one unit */
#define LONG_SLOT 8 /* units of the others' slots */
/* Of one rank's memory, through the system, where more would wait for each other (Chakraborty et al.,
 * "Contention-aware kernel-assisted MPI collectives for multi-/many-core systems", Cluster 2017). */
#define MOST_READERS 4

typedef struct {
    Extent gives, gets;
    Root rooted;
    Prefix prefix;
    int reduces, root, blocks;
    Reduction reduction;
    Factor factor;
    size_t *given, *taken; /* where each block begins in the whole vector, in bytes, and where the last one ends: as
                            * ranks give them, and as they get them. Only in an alltoallv these differ. */
    int is_private;        /* whether a rank knows its own lengths alone, as in an alltoallv */
    const char *input;     /* NULL where the rank has none */
    char *output;
    Layout *from, *to;     /* where the elements of the input and the output lie, if there are gaps between them */
    uint64_t digest;

    int needs_all;   /* whether each rank waits for all, and not only for those whose data it wants */
    int may_share;   /* whether ranks look whether their arrays lie in memory that others can open */
    int only_shared; /* whether slots are not the fastest way where not all of them do. Then no array has gaps. */
    uint64_t version;            /* of this rank's arrays; 0 if others cannot open them */
    int64_t places[PLACE_WORDS]; /* where they lie */
    uint64_t *versions;          /* by rank: those for which these addresses hold */
    const char **inputs;
    char **outputs;
    int in_place; /* whether the last call was made where the arrays lie */
} Call;

/* What a rank says of a call in which all wait for all. */
typedef struct {
    Factor factor;
    uint64_t version; /* a number of the memory where its arrays lie, 0 where other ranks cannot open it */
    int64_t places[PLACE_WORDS];
    uint64_t longest; /* bytes of its longest block */
    uint64_t balance; /* of what it gives and what it expects: where all ranks' agree, the sum is 0 */
    Self self; /* where others find its memory, and its arrays there */
    uint64_t input, output;
    int failed; /* whether it could not read or write another rank's memory */
    uint64_t ends[];  /* where its block for each rank begins, and where the last one ends */
} Page;

typedef struct Node Node;

/* What a rank waits for before it goes on with a call. */
typedef enum { FOR_NOTHING, FOR_SLOT, FOR_OTHERS } Wait; /* until nobody reads its slot; until others have come */
typedef int (*Step)(Node *node, Call *call);

struct Node {
    Meeting meeting;
    size_t page_size, unit_size; /* bytes; a unit has more than UNITS lines */
    char **blocks;     /* by rank: its flags, two pages, and UNITS units for slots */
    int unit, units;   /* of the slots of this piece, or the next one */
    size_t slot_at, room; /* where they begin in blocks, and the bytes of a rank's block that they have room for */
    uint64_t read_at[UNITS]; /* the meeting after which this unit was last read */
    uint64_t said[2];  /* the version of the places in each of this rank's pages */
    const char **rows; /* room for what is combined */
    Factor *factors;
    char *packed, *made; /* room for pieces of an input and a result that have gaps */
    enum { UNKNOWN, REACHED, OUT_OF_REACH } reach; /* whether ranks can read and write each other's memory */
    int other;         /* of UNEQUAL: the rank that gives another number of bytes */
    size_t expected, found;

    /* Of the call under way: */
    Step next; /* what comes after the next wait; NULL if the call is complete */
    Wait wait;
    uint64_t free_at; /* FOR_SLOT: the meeting with which all must have caught up */
    int has_arrived;  /* FOR_OTHERS: whether the rank itself has */
    size_t longest;   /* bytes of the longest block */
    size_t first;     /* where this piece begins in the blocks */
};

/* Bytes of a rank's block before its slots. */
size_t page_size(int size);
size_t head_size(int size);

/* What has come of a call, besides 0, MISMATCH, LATER and ENDED (meeting.h). */
enum {
    ELSEWHERE = 3, /* other ranks' arrays are out of reach: take the other route */
    LOOK = 4,      /* all are, and some lie elsewhere than is known: find them, and go on */
    UNEQUAL = 5,   /* another rank gives this one another number of bytes. The others get MISMATCH. */
};

/* Say in this rank's pages where others find its memory. The ranks meet after that. */
void node_begin(Node *node);

/* `start` a call, and `go_on` with it until it returns anything but LATER or LOOK. Where `waits` is 0, it goes on as
 * far as that needs no wait. Between these the rank may do anything but another call. */
void start(Node *node, Call *call);
int go_on(Node *node, Call *call, int waits);
/* Whether it would go on without a wait. The rank has arrived, if it was time to. */
int is_ready(Node *node, const Call *call);

/* What a rank has said in the last meeting. */
const Page *page_of(const Node *node, int rank);

#endif
