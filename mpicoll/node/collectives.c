/* Collectives of one node. See collectives.h.
 *
 * There are two ways. *Through slots*: each rank copies its input, or a piece of it, to a slot of its own, and
 * arrives; each one waits for the ranks whose data it wants, and reads it in their slots. Several slots take turns:
 * a rank that has arrived at the next meeting does not read the slots of the meeting before any more, so that one
 * meeting a piece is enough. (In MPI libraries this is called copy-in-copy-out: Graham and Shipman, "MPI support for
 * multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008.) *In place*: where all arrays
 * lie in memory that all ranks can open, each one reads inputs and writes outputs where they lie, between two
 * meetings (as through XPMEM: Hashmi et al., "Designing efficient shared address space reduction collectives for
 * multi-/many-cores", IPDPS 2018). Long arrays that only one process has are moved so, too, if the system lets ranks read
 * and write each other's memory (Ma et al., "Kernel assisted collective intra-node MPI communication among multi-core and
 * many-core CPUs", ICPP 2011).
 *
 * Both read from one table who gives what to whom: `has`, `wants` and `source` are those of
 * mpicoll/algorithms/collectives.py.
 */
#include "collectives.h"

#include <string.h>

#define LEAST_SLICED (64 << 10) /* bytes of the shortest vector of which each of several ranks reduces a slice */
#define PIECE (16 << 10)        /* bytes that are reduced and written at once: they stay in the first-level cache */

typedef struct { int from, to; } Range;

static size_t rounded(size_t nbytes, size_t step) { return (nbytes + step - 1) / step * step; }
size_t page_size(int size) { return rounded(sizeof(Page) + (size_t)(size + 1) * sizeof(uint64_t), LINE); }
/* Each unit has a line for a short call, too: its tag, and its data. */
static size_t short_at(int size) { return ROUNDS * sizeof(Flag) + 2 * page_size(size); }
size_t head_size(int size) { return rounded(short_at(size) + UNITS * LINE, 4096); }

static Page *page(const Node *node, int rank, uint64_t meeting) {
    return (Page *)(node->blocks[rank] + ROUNDS * sizeof(Flag) + (meeting & 1) * node->page_size);
}
const Page *page_of(const Node *node, int rank) { return page(node, rank, node->meeting.turn); }
void node_begin(Node *node) {
    for (int i = 0; i < 2; i++) introduce(&page(node, node->meeting.rank, (uint64_t)i)->self);
}

static char *slot(const Node *node, int rank) { return node->blocks[rank] + node->slot_at; }

/* The table: which blocks a rank has, which it wants, and where a block of its result comes from. */

static Range has(const Call *c, int rank) {
    if (c->gives == ONE && c->gets == ONE_EACH) return (Range){rank, rank + 1};
    int none = c->gives == NOTHING || (c->rooted == ROOT_GIVES && rank != c->root);
    return (Range){0, none ? 0 : c->blocks};
}

static Range wants(const Call *c, int rank) {
    if (c->gives == ONE_EACH && c->gets == ONE) return (Range){rank, rank + 1};
    int none = c->gives == NOTHING || (c->rooted == ROOT_GETS && rank != c->root) || (c->prefix == EXCLUSIVE && !rank);
    return (Range){0, none ? 0 : c->blocks};
}

static Range source(const Call *c, int rank, int size, int block, int *which) {
    *which = block;
    if (c->rooted == ROOT_GIVES) return (Range){c->root, c->root + 1};
    if (c->gets == ONE_EACH) {
        if (c->gives == ONE_EACH) *which = rank;
        return (Range){block, block + 1};
    }
    return (Range){0, c->prefix == ALL_RANKS ? size : rank + (c->prefix == INCLUSIVE)};
}

static size_t length(const size_t *starts, int block) { return starts[block + 1] - starts[block]; }

/* The bytes of a piece of a block: it begins `first` bytes into the block, and has at most `room` bytes. */
static size_t part(size_t nbytes, size_t first, size_t room) {
    return nbytes <= first ? 0 : nbytes - first < room ? nbytes - first : room;
}

/* Where such a part of the bytes begins. Two ranks that write to one line of a cache slow each other. */
static size_t cut(size_t nbytes, int of, int parts) {
    size_t at = rounded(nbytes / parts * of + nbytes % parts * of / parts, LINE);
    return at < nbytes ? at : nbytes;
}

static void copy(char *to, const char *from, size_t nbytes) {
    if (nbytes && to != from) memcpy(to, from, nbytes);
}

static void copy_to_output(const Call *c, size_t at, const char *from, size_t nbytes) {
    if (c->to) scatter_bytes(c->to, at, nbytes, from);
    else copy(c->output + at, from, nbytes);
}

static void combine(Node *node, const Call *c, int count, char *out, char *second, size_t nbytes) {
    reduce_rows(&c->reduction, node->rows, count, c->reduction.scales ? node->factors : NULL, out, second,
                nbytes / c->reduction.itemsize);
}

static size_t longest_block(const Call *c) {
    size_t longest = 0;
    for (int b = 0; b < c->blocks; b++)
        if (length(c->given, b) > longest) longest = length(c->given, b);
    return longest;
}

/* Through slots. */

static size_t room_of(const Node *node, const Call *c, int units) {
    size_t nbytes = units > 1 ? units * node->unit_size : node->unit_size - UNITS * LINE;
    return nbytes / (c->gives == ONE_EACH ? (size_t)node->meeting.size : 1) / LINE * LINE;
}

/* A short call's data lies behind its tag. It has one meeting, after which all ranks of its line have read it. */
static size_t short_room(const Node *node, const Call *c) {
    size_t blocks = c->gives == ONE_EACH ? (size_t)node->meeting.size : 1;
    return (LINE - sizeof(Tag)) / blocks / sizeof(uint64_t) * sizeof(uint64_t);
}

static int is_short(const Node *node, const Call *c) {
    return node->longest && node->longest <= short_room(node, c) && !c->is_private && !c->may_share &&
           node->meeting.size <= FLAT;
}

/* What comes after a wait. */

static int after_others(Node *node, Step next) {
    node->next = next, node->wait = FOR_OTHERS, node->has_arrived = 0;
    return 0;
}

static int at_once(Node *node, Step next) {
    node->next = next, node->wait = FOR_NOTHING;
    return 0;
}

/* Choose the slots of the next piece, the same on all ranks. The rank waits until nobody reads them any more. The first
 * lines of units would share a set of the first-level cache. */
static int after_slot(Node *node, const Call *c, Step next) {
    node->room = room_of(node, c, 1);
    node->units = 1;
    size_t first = (size_t)node->unit * LINE;
    if (node->longest > node->room || c->is_private) {
        node->room = room_of(node, c, LONG_SLOT);
        node->units = LONG_SLOT;
        node->unit = (node->unit + LONG_SLOT - 1) / LONG_SLOT * LONG_SLOT % UNITS;
        first = 0;
    }
    node->slot_at = head_size(node->meeting.size) + (size_t)node->unit * node->unit_size + first;
    node->meeting.tag_at = 0;
    if (is_short(node, c)) {
        node->room = short_room(node, c);
        node->meeting.tag_at = short_at(node->meeting.size) + (size_t)node->unit * LINE;
        node->slot_at = node->meeting.tag_at + sizeof(Tag);
    }
    uint64_t last = 0;
    for (int i = 0; i < node->units; i++)
        if (node->read_at[node->unit + i] > last) last = node->read_at[node->unit + i];
    node->next = next, node->wait = FOR_SLOT, node->free_at = last ? last + 1 : 0;
    return 0;
}

static void end_slot(Node *node) {
    for (int i = 0; i < node->units; i++) node->read_at[node->unit + i] = node->meeting.turn;
    node->unit = (node->unit + node->units) % UNITS;
}

/* The ranks whose data this one wants. */
static Range awaited_by(const Call *c, int rank, int size) {
    if (c->needs_all) return (Range){0, size};
    if (c->rooted == ROOT_GIVES) return (Range){c->root, c->root + 1};
    if (c->rooted == ROOT_GETS) return (Range){0, rank == c->root ? size : 0};
    return (Range){0, rank};
}

static int wait_for_awaited(Node *node, const Call *c, int waits) {
    Meeting *m = &node->meeting;
    if (c->needs_all) return wait_for_all(m, waits);
    Range awaited = awaited_by(c, m->rank, m->size);
    int differ = 0;
    for (int r = awaited.from; r < awaited.to; r++) {
        int code = r == m->rank ? 0 : wait_for(m, r, waits);
        if (code == ENDED || code == LATER) return code;
        differ |= code;
    }
    return differ;
}

/* Arrive, and wait for them. */
static int meet(Node *node, const Call *c, int waits) {
    int code = node->has_arrived ? 0 : arrive(&node->meeting, c->digest, waits);
    if (code) return code;
    node->has_arrived = 1;
    return wait_for_awaited(node, c, waits);
}

static int wait_as_needed(Node *node, const Call *c, int waits) {
    if (node->wait == FOR_OTHERS) return meet(node, c, waits);
    return node->wait == FOR_SLOT ? catch_up(&node->meeting, node->free_at, waits) : 0;
}

int is_ready(Node *node, const Call *c) { return wait_as_needed(node, c, 0) != LATER; }

static int is_sliced(const Node *node, const Call *c) {
    return c->needs_all && c->reduces && c->gives == ONE && c->gets == ONE && c->prefix == ALL_RANKS &&
           node->meeting.size > 2 && node->longest >= LEAST_SLICED;
}

static void copy_in(Node *node, const Call *c) {
    int rank = node->meeting.rank;
    Range mine = has(c, rank);
    size_t room = node->room, first = node->first;
    int others_read = c->rooted != ROOT_GETS || rank != c->root || is_sliced(node, c);
    int is_read = node->meeting.size > 1 && others_read;
    for (int b = mine.from; b < mine.to && c->input; b++) {
        size_t at = c->given[b] - c->given[mine.from] + first, nbytes = part(length(c->given, b), first, room);
        size_t in_slot = (size_t)(b - mine.from) * room;
        const char *from = c->input + at;
        if (c->from) gather_bytes(c->from, at, nbytes, node->packed + in_slot), from = node->packed + in_slot;
        if (is_read && (c->gives != ONE_EACH || b != rank)) copy(slot(node, rank) + in_slot, from, nbytes);
    }
}

/* A piece of a rank's block, which this one reads. Others may write to this rank's own slot, so that it reads its own
 * block elsewhere. */
static const char *row(const Node *node, const Call *c, int rank, int block) {
    int begins = has(c, rank).from;
    size_t in_slot = (size_t)(block - begins) * node->room;
    if (rank != node->meeting.rank) return slot(node, rank) + in_slot;
    return c->from ? node->packed + in_slot : c->input + (c->given[block] - c->given[begins]) + node->first;
}

static void take(Node *node, const Call *c) {
    int rank = node->meeting.rank, size = node->meeting.size;
    Range wanted = wants(c, rank);
    size_t room = node->room, first = node->first;
    int one_reader = size == 2 || c->gives == ONE_EACH || c->rooted == ROOT_GETS;
    if (!c->output) return;
    for (int i = wanted.from; i < wanted.to; i++) {
        int b = wanted.to - wanted.from == size ? (rank + i) % size : i, which; /* ranks begin with different blocks */
        size_t nbytes = part(length(c->taken, b), first, room);
        Range from = source(c, rank, size, b, &which);
        if (!nbytes) continue;
        for (int r = from.from; r < from.to; r++) node->rows[r - from.from] = row(node, c, r, which);
        size_t at = c->taken[b] - c->taken[wanted.from] + first;
        const char *out = node->rows[0];
        if (c->reduces) {
            char *made = c->to ? node->made : c->output + at;
            combine(node, c, from.to - from.from, made, NULL, nbytes);
            out = made;
        }
        copy_to_output(c, at, out, nbytes);
        for (int r = from.from; r < from.to && one_reader; r++)
            if (r != rank) let_go(node->rows[r - from.from], nbytes);
    }
}

static int fill_slot(Node *node, Call *c);

static int end_piece(Node *node, const Call *c) {
    end_slot(node);
    node->first += node->room;
    return node->first < node->longest ? after_slot(node, c, fill_slot) : at_once(node, NULL);
}

static int take_slices(Node *node, Call *c) {
    int rank = node->meeting.rank, size = node->meeting.size;
    size_t first = node->first, now = part(c->given[1], first, node->room);
    for (int i = 0; c->output && i < size; i++) { /* ranks begin with different slices */
        int r = (rank + i) % size;
        size_t at = cut(now, r, size);
        copy_to_output(c, first + at, slot(node, r) + at, cut(now, r + 1, size) - at);
    }
    return end_piece(node, c);
}

static int combine_slice(Node *node, const Call *c) {
    int rank = node->meeting.rank, size = node->meeting.size;
    size_t now = part(c->given[1], node->first, node->room);
    size_t start = cut(now, rank, size), stop = cut(now, rank + 1, size);
    for (int r = 0; r < size; r++) node->rows[r] = slot(node, r) + start;
    if (stop > start) combine(node, c, size, slot(node, rank) + start, NULL, stop - start);
    for (int r = 0; r < size; r++)
        if (r != rank && stop > start) let_go(node->rows[r], stop - start);
    return after_others(node, take_slices);
}

/* The piece is in the slots, and the ranks have met. */
static int take_piece(Node *node, Call *c) {
    if (is_sliced(node, c)) return combine_slice(node, c);
    take(node, c);
    return end_piece(node, c);
}

static int fill_slot(Node *node, Call *c) {
    copy_in(node, c);
    return after_others(node, take_piece);
}

/* In place. */

/* Combine these bytes of all ranks' inputs, and write the result to the one output there is for them, or to all. */
static void combine_in_place(Node *node, const Call *c, size_t start, size_t stop, size_t skipped) {
    int rank = node->meeting.rank, size = node->meeting.size;
    int outputs = c->gives == ONE_EACH || c->rooted == ROOT_GETS ? 1 : size;
    int first = c->rooted == ROOT_GETS ? c->root : rank; /* and those after it */
    for (size_t now; start < stop; start += now) {
        size_t at = start - skipped;
        now = part(stop, start, PIECE);
        for (int r = 0; r < size; r++) node->rows[r] = c->inputs[r] + start;
        char *made = c->outputs[first] + at;
        combine(node, c, size, made, outputs > 1 ? c->outputs[(first + 1) % size] + at : NULL, now);
        for (int i = 2; i < outputs; i++) copy(c->outputs[(first + i) % size] + at, made, now);
    }
}

/* Where one rank gives or gets everything, all ranks work as long: the root copies so much of each of the others'
 * blocks, from its beginning. Within a process, a copy takes a quarter of the time that one through the system takes. */
static double share_of_root(const Node *node, const Call *c) {
    int size = node->meeting.size;
    double own = 0, others = 0;
    for (int r = 0; r < size; r++) {
        Range wanted = wants(c, r);
        for (int b = wanted.from; b < wanted.to; b++) {
            if (c->gives == c->gets ? r != c->root : b != c->root) others += (double)length(c->taken, b);
            else if (c->gives != c->gets) own += (double)length(c->taken, b);
        }
    }
    if (!c->in_place) own /= 4;
    double share = others ? (own + others - size * own) / (size * others) : 0;
    return share > 0 ? share : 0;
}

/* One end may lie in another process's memory. */
static void move(Node *node, const Call *c, int giving, int wanting, char *to, const char *from, size_t nbytes) {
    int rank = node->meeting.rank, code = 0;
    if (c->in_place || giving == wanting) copy(to, from, nbytes);
    else if (wanting == rank) code = read_memory(&page_of(node, giving)->self, (uint64_t)(uintptr_t)from, to, nbytes);
    else code = write_memory(&page_of(node, wanting)->self, (uint64_t)(uintptr_t)to, from, nbytes);
    if (code) page(node, rank, node->meeting.turn + 1)->failed = 1;
}

/* In this process's memory, or through the system where the call is not `in_place`. */
static void move_in_place(Node *node, const Call *c) {
    int rank = node->meeting.rank, size = node->meeting.size;
    double share = c->rooted == NO_ROOT ? 0 : share_of_root(node, c);
    for (int i = 0; i < size; i++) {
        int wanting = c->rooted == NO_ROOT ? rank : (rank + i) % size;
        Range wanted = wants(c, wanting);
        char *output = c->outputs[wanting];
        if (!output || (c->rooted == NO_ROOT && i)) continue;
        for (int j = wanted.from; j < wanted.to; j++) {
            int b = wanted.to - wanted.from == size ? (rank + j) % size : j, which;
            int giving = source(c, wanting, size, b, &which).from;
            if (c->rooted != NO_ROOT && rank != giving && rank != wanting) continue;
            size_t nbytes = length(c->taken, b);
            size_t at = c->is_private ? page_of(node, giving)->ends[which]
                                      : c->given[which] - c->given[has(c, giving).from];
            const char *from = c->inputs[giving] + at;
            char *to = output + (c->taken[b] - c->taken[wanted.from]);
            if (!nbytes) continue;
            if (c->rooted != NO_ROOT && giving != wanting) {
                size_t end = rounded((size_t)(share * (double)nbytes), LINE);
                if (end > nbytes) end = nbytes;
                if (rank == c->root) nbytes = end;
                else from += end, to += end, nbytes -= end;
            }
            move(node, c, giving, wanting, to, from, nbytes);
        }
    }
}

static int leave(Node *node, Call *c) {
    (void)c;
    return at_once(node, NULL);
}

static int work_in_place(Node *node, Call *c) {
    Meeting *m = &node->meeting;
    c->in_place = 1;
    if (c->reduces && c->gives == ONE_EACH)
        combine_in_place(node, c, c->given[m->rank], c->given[m->rank + 1], c->given[m->rank]);
    else if (c->reduces)
        combine_in_place(node, c, cut(c->given[1], m->rank, m->size), cut(c->given[1], m->rank + 1, m->size), 0);
    else
        move_in_place(node, c);
    return after_others(node, leave);
}

/* In place, in other processes' memory. */

static int may_reach_others(const Node *node, const Call *c) {
    int few_at_a_time = node->meeting.size <= MOST_READERS || node->meeting.waiter.yields;
    return few_at_a_time && node->reach != OUT_OF_REACH && !c->reduces && !c->is_private;
}

/* If one rank could not, all take the other route: what ranks give is still there. */
static int leave_others(Node *node, Call *c) {
    (void)c;
    node->reach = REACHED;
    for (int r = 0; r < node->meeting.size; r++)
        if (page_of(node, r)->failed) node->reach = OUT_OF_REACH;
    return node->reach == REACHED ? at_once(node, NULL) : ELSEWHERE;
}

static int work_in_others(Node *node, Call *c) {
    Page *mine = page(node, node->meeting.rank, node->meeting.turn + 1);
    mine->failed = 0;
    for (int r = 0; r < node->meeting.size; r++) {
        const Page *its = page_of(node, r);
        if (node->reach == UNKNOWN && r != node->meeting.rank && !is_readable(&its->self)) mine->failed = 1;
        c->versions[r] = 0; /* these addresses are not in this process */
        c->inputs[r] = (const char *)(uintptr_t)its->input, c->outputs[r] = (char *)(uintptr_t)its->output;
    }
    if (!mine->failed) move_in_place(node, c);
    return after_others(node, leave_others);
}

/* Both. */

/* What a rank adds to its balance for so many bytes from one rank to another: each pair has a factor of its own, so
 * that differences do not cancel each other. */
static uint64_t weighed(int from, int to, size_t nbytes) {
    uint64_t factor = ((uint64_t)from << 32 | (uint64_t)to) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03;
    factor = (factor ^ factor >> 32) * 0xD6E8FEB86659FD93;
    return ((factor ^ factor >> 32) | 1) * nbytes;
}

static void say_more(Node *node, const Call *c) {
    uint64_t next = node->meeting.turn + 1;
    Page *mine = page(node, node->meeting.rank, next);
    if (c->reduces && c->reduction.scales) mine->factor = c->factor;
    if (c->is_private) {
        memcpy(mine->ends, c->given, (size_t)(c->blocks + 1) * sizeof *c->given);
        mine->longest = node->longest, mine->balance = 0;
        for (int b = 0, rank = node->meeting.rank; b < c->blocks; b++)
            mine->balance += weighed(rank, b, length(c->given, b)) - weighed(b, rank, length(c->taken, b));
    }
    if (c->only_shared) mine->input = (uint64_t)(uintptr_t)c->input, mine->output = (uint64_t)(uintptr_t)c->output;
    if (c->may_share) mine->version = c->version;
    if (c->version && node->said[next & 1] != c->version) {
        memcpy(mine->places, c->places, sizeof c->places);
        node->said[next & 1] = c->version;
    }
}

/* In an alltoallv, what others give must be what this rank expects. If it is not so for one rank, all find out, so that
 * none begins. The longest block is that of all. */
static int compare(Node *node, const Call *c) {
    int rank = node->meeting.rank, code = 0;
    uint64_t balance = 0;
    for (int r = 0; r < node->meeting.size; r++) {
        const Page *other = page_of(node, r);
        if (other->longest > node->longest) node->longest = other->longest;
        balance += other->balance;
        size_t found = other->ends[rank + 1] - other->ends[rank], expected = length(c->taken, r);
        if (found != expected && !code) {
            node->other = r, node->expected = expected, node->found = found;
            code = UNEQUAL;
        }
    }
    return code ? code : balance ? MISMATCH : 0;
}

static int copies_at_once(const Call *c) { return !c->may_share || !(c->version || c->only_shared); }

/* All have said what there is to know. */
static int choose_way(Node *node, Call *c) {
    Meeting *m = &node->meeting;
    int code = 0, shared = 0, known = 1;
    for (int r = 0; r < m->size && c->reduces && c->reduction.scales; r++) node->factors[r] = page_of(node, r)->factor;
    if (c->is_private && (code = compare(node, c))) return code;
    if (!c->may_share) return take_piece(node, c);
    for (int r = 0; r < m->size; r++) {
        uint64_t version = page_of(node, r)->version;
        shared += version != 0;
        known &= version == c->versions[r];
    }
    if (shared == m->size) return at_once(node, work_in_place), known ? 0 : LOOK;
    if (c->only_shared) return may_reach_others(node, c) ? at_once(node, work_in_others) : ELSEWHERE;
    if (!shared) return take_piece(node, c);
    if (!copies_at_once(c)) copy_in(node, c); /* what does not lie in memory of the slots is copied there now */
    return after_others(node, take_piece);
}

static int begin(Node *node, Call *c) {
    c->in_place = 0;
    say_more(node, c);
    if (copies_at_once(c)) copy_in(node, c);
    return after_others(node, choose_way);
}

void start(Node *node, Call *c) {
    int says_more = c->may_share || c->is_private || (c->reduces && c->reduction.scales);
    node->longest = longest_block(c), node->first = 0;
    after_slot(node, c, begin);
    /* Nobody reads the page of the meeting before the last one any more. */
    if (says_more && node->free_at < node->meeting.turn) node->free_at = node->meeting.turn;
}

int go_on(Node *node, Call *c, int waits) {
    while (node->next) {
        int code = wait_as_needed(node, c, waits);
        if (!code) code = node->next(node, c);
        if (code) return code;
    }
    return 0;
}
