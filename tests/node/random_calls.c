/* Random collectives of the kernel among threads as ranks, compared with a plain computation.
 *
 *     random_calls RANKS PLANS SEED SLOT
 *
 * SLOT is the bytes of a long slot. All ranks draw the same plans from the same seed, so that each one knows what the
 * others give. A few calls expect wrong lengths on one rank, and those after them must be right. In the last one, a rank
 * makes another call.
 */
#include "threads.h"

#include "collectives.h"

typedef struct { const char *name; Extent gives, gets; Root rooted; Prefix prefix; int reduces; } Kind;
static const Kind KINDS[] = {
    {"allreduce", ONE, ONE, NO_ROOT, ALL_RANKS, 1},
    {"reduce", ONE, ONE, ROOT_GETS, ALL_RANKS, 1},
    {"bcast", ONE, ONE, ROOT_GIVES, ALL_RANKS, 0},
    {"scatter", ONE_EACH, ONE, ROOT_GIVES, ALL_RANKS, 0},
    {"gather", ONE, ONE_EACH, ROOT_GETS, ALL_RANKS, 0},
    {"allgather", ONE, ONE_EACH, NO_ROOT, ALL_RANKS, 0},
    {"reduce_scatter", ONE_EACH, ONE, NO_ROOT, ALL_RANKS, 1},
    {"alltoall", ONE_EACH, ONE_EACH, NO_ROOT, ALL_RANKS, 0},
    {"scan", ONE, ONE, NO_ROOT, INCLUSIVE, 1},
    {"exscan", ONE, ONE, NO_ROOT, EXCLUSIVE, 1},
    {"barrier", NOTHING, NOTHING, NO_ROOT, ALL_RANKS, 0},
};
typedef enum { INTEGER, SHORT_FLOAT, FLOAT, COMPLEX } Values;
static const struct { const char *dtype; Values values; } OF_REDUCTIONS[] = {
    {"uint8", INTEGER}, {"int16", INTEGER}, {"int32", INTEGER}, {"int64", INTEGER}, {"float16", SHORT_FLOAT},
    {"bfloat16", SHORT_FLOAT}, {"float32", FLOAT}, {"float64", FLOAT}, {"complex64", COMPLEX}, {"complex128", COMPLEX}};

/* The same on all ranks. */
typedef struct {
    const Kind *kind;
    uint64_t number; /* of the plan: what all values come from */
    int size, root, in_place, is_uneven, is_private, blocks;
    Reduction reduction;
    Values values;
    size_t itemsize, elements;
    int visible, only_shared; /* whose arrays others can open: nobody's, everybody's or some ranks' */
    int repeats;
    int stray, strays; /* a rank whose call is another one, or which expects another number of bytes, in the first call */
} Plan;
enum { NOBODY, EVERYBODY, SOME };
enum { WELL, OTHER_CALL, OTHER_LENGTH };

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return mix(a ^ mix(b ^ mix(c ^ mix(d)))); }

static int plans;
static size_t slot_size;
static uint64_t seed;
static _Atomic int *agreed; /* by plan and turn: what has come of a call that may go through other processes' memory */
static _Atomic int reads, moved;

/* Now and then, memory cannot be read. */
int __real_read_memory(const Self *other, uint64_t from, char *to, size_t n);
int __wrap_read_memory(const Self *other, uint64_t from, char *to, size_t n);
int __wrap_read_memory(const Self *other, uint64_t from, char *to, size_t n) {
    return atomic_fetch_add(&reads, 1) % 8 < 7 ? __real_read_memory(other, from, to, n) : -1;
}

static void wrong(int rank, const Plan *p, const char *format, ...) {
    va_list words;
    va_start(words, format);
    fprintf(stderr, "rank %d of %d, plan %llu, %s of %zu elements of dtype %d, root %d, %s: ", rank, p->size,
            (unsigned long long)p->number, p->kind->name, p->elements, p->reduction.dtype, p->root,
            p->in_place ? "in place" : "apart");
    vfprintf(stderr, format, words);
    fputc('\n', stderr);
    _exit(1);
}

static Plan plan_of(Random *r, uint64_t number) {
    Plan p = {.number = number, .size = ranks, .kind = &KINDS[draw(r, sizeof KINDS / sizeof *KINDS)]};
    int by_rank = p.kind->gives == ONE_EACH || p.kind->gets == ONE_EACH, moves = p.kind->gives != NOTHING;
    p.blocks = by_rank ? ranks : moves;
    p.root = draw(r, ranks);
    p.in_place = draw(r, 2) && !(p.kind->gives == ONE_EACH && p.kind->gets == ONE_EACH);
    p.is_uneven = by_rank && draw(r, 2);
    p.is_private = p.is_uneven && p.kind->gives == p.kind->gets;
    int of = draw(r, sizeof OF_REDUCTIONS / sizeof *OF_REDUCTIONS), is_float = OF_REDUCTIONS[of].values != INTEGER;
    p.values = OF_REDUCTIONS[of].values;
    Dtype dtype = dtype_named(OF_REDUCTIONS[of].dtype);
    Op ops[] = {SUM, MAX, MIN, BXOR}, op = p.values == COMPLEX ? SUM : ops[draw(r, is_float ? 3 : 4)];
    int scales = is_float && op == SUM && draw(r, 8) == 0, averages = op == SUM && !scales && draw(r, 4) == 0;
    if (reduction_of(&p.reduction, dtype, op, averages, scales)) wrong(0, &p, "there is no such reduction");
    if (!p.kind->reduces) p.reduction.scales = 0;
    p.itemsize = p.reduction.itemsize;
    size_t longest = ranks <= 5 ? 256 << 10 : 80 << 10; /* bytes: of several slices, and pieces */
    size_t most = draw(r, 12) ? draw(r, 3) ? 256 : 8192 : by_rank ? longest / (size_t)ranks : longest; /* of a block */
    p.elements = (size_t)draw(r, 8) ? 1 + (size_t)draw(r, (int)(most / p.itemsize)) : 0;
    p.repeats = 1 + draw(r, 3);
    int may_share = p.is_private || (moves && p.kind->prefix == ALL_RANKS && !p.reduction.scales);
    p.visible = may_share && (p.is_private || draw(r, 2)) ? draw(r, 3) : -1;
    p.only_shared = p.visible >= 0 && draw(r, 4) == 0;
    p.stray = draw(r, ranks);
    int with_fault = draw(r, 16) == 0, is_last = number + 1 == (uint64_t)plans;
    p.strays = is_last ? OTHER_CALL : with_fault && p.is_private ? OTHER_LENGTH : WELL;
    if (is_last) p.repeats = 1, p.elements %= 16; /* in one piece: a rank that finds it leaves the others alone */
    return p;
}

/* The elements of a block that `from` has for `to`. Where all ranks know the lengths, they depend on one of them. */
static size_t count_of(const Plan *p, int from, int to) {
    if (!p->is_uneven) return p->elements;
    int block = p->kind->gives == ONE ? from : to;
    uint64_t drawn = hash(p->number, 1, p->is_private ? (uint64_t)from : 0, (uint64_t)(p->is_private ? to : block));
    return drawn % 4 ? drawn / 4 % (2 * p->elements + 1) : 0;
}

/* An element that a rank gives, and what is to become of all ranks' elements, computed in the plainest way. */
static int64_t number_at(const Plan *p, int turn, int rank, int block, size_t i) {
    int most = p->itemsize == 1 || p->values == SHORT_FLOAT ? 3 : 1000;
    return (int64_t)(hash(p->number * 4 + (uint64_t)turn, (uint64_t)rank, (uint64_t)block, i) % (uint64_t)most);
}
static double factor_of(int rank) { return 1 + rank % 3; }

static void encode(const Plan *p, double real, double imag, char *to) {
    int64_t whole = (int64_t)real;
    float f = (float)real, complex[] = {f, (float)imag};
    double wide[] = {real, imag};
    uint16_t shorter;
    int is_double = p->itemsize == (p->values == COMPLEX ? 16 : 8);
    if (p->values == SHORT_FLOAT) narrow(p->reduction.dtype, &f, &shorter, 1), memcpy(to, &shorter, 2);
    else if (p->values != INTEGER && is_double) memcpy(to, wide, p->itemsize);
    else if (p->values != INTEGER) memcpy(to, complex, p->itemsize);
    else memcpy(to, &whole, p->itemsize); /* the low bytes come first */
}

static void given_element(const Plan *p, int turn, int rank, int block, size_t i, char *to) {
    double number = (double)number_at(p, turn, rank, block, i);
    encode(p, number, number + 1, to);
}

static void taken_element(const Plan *p, int turn, int rank, int block, size_t i, char *to) {
    const Kind *k = p->kind;
    if (!k->reduces) {
        if (k->rooted == ROOT_GIVES) given_element(p, turn, p->root, block, i, to);
        else if (k->gives == ONE) given_element(p, turn, block, block, i, to);
        else given_element(p, turn, block, rank, i, to);
        return;
    }
    int of = k->prefix == ALL_RANKS ? p->size : k->prefix == INCLUSIVE ? rank + 1 : rank;
    double total = 0, imag = 0;
    for (int r = 0; r < of; r++) {
        double factor = p->reduction.scales ? factor_of(r) : 1, next = (double)number_at(p, turn, r, block, i) * factor;
        imag += next + factor;
        switch (r ? p->reduction.op : SUM) {
            case SUM: total += next; break;
            case MAX: total = next > total ? next : total; break;
            case MIN: total = next < total ? next : total; break;
            default: total = (double)((int64_t)total ^ (int64_t)next);
        }
    }
    if (p->reduction.averages) total /= of, imag /= of;
    encode(p, total, imag, to);
}

/* One rank */

typedef struct {
    int rank;
    Node node;
    Random own;
    uint64_t version;
    Call call;
    size_t given[MOST_RANKS + 1], taken[MOST_RANKS + 1];
    uint64_t versions[MOST_RANKS];
    const char *inputs[MOST_RANKS];
    char *outputs[MOST_RANKS];
    char *input, *output, *memory[2];
    size_t apart[2]; /* bytes from one element of these to the next one */
    Layout layouts[2];
} Rank;

static void nothing(void *of) { (void)of; }
static int keep_on(void *of) { return (void)of, 0; }

static void pause_a_while(Rank *self) {
    int how = draw(&self->own, 200);
    if (how == 0) usleep(3000);
    else if (how < 10) usleep((useconds_t)draw(&self->own, 300));
    else if (how < 30) sched_yield();
}

/* The blocks of a rank's input or output, and where its block for itself begins there. */
static int is_whole(const Plan *p, int is_input) {
    return p->kind->gives == ONE && p->kind->gets == ONE ? 1 : (is_input ? p->kind->gives : p->kind->gets) == ONE_EACH;
}
static size_t bytes_of(const Rank *self, const Plan *p, int is_input) {
    const size_t *starts = is_input ? self->given : self->taken;
    return is_whole(p, is_input) ? starts[p->blocks] : starts[self->rank + 1] - starts[self->rank];
}

static void allocate(Rank *self, const Plan *p) {
    int gives = p->kind->gives != NOTHING && (p->kind->rooted != ROOT_GIVES || self->rank == p->root);
    int gets = p->kind->gives != NOTHING && (p->kind->rooted != ROOT_GETS || self->rank == p->root);
    free(self->memory[0]), free(self->memory[1]);
    self->memory[0] = self->memory[1] = self->input = self->output = NULL;
    size_t odd = draw(&self->own, 4) == 0; /* arrays may begin at any address */
    int visible = p->visible == EVERYBODY || (p->visible == SOME && draw(&self->own, 2));
    int in_part = p->in_place && !(is_whole(p, 0) && is_whole(p, 1));
    int have_gaps = !visible && !in_part && !p->only_shared;
    size_t gaps[] = {have_gaps ? 1 + (size_t)draw(&self->own, 3) : 1, have_gaps ? 1 + (size_t)draw(&self->own, 3) : 1};
    if (p->in_place) gaps[1] = gaps[0];
    self->apart[0] = gaps[0] * p->itemsize, self->apart[1] = gaps[1] * p->itemsize;
    if (gives) self->memory[0] = malloc(gaps[0] * bytes_of(self, p, 1) + odd), self->input = self->memory[0] + odd;
    if (p->kind->gives == p->kind->gets && p->kind->rooted == ROOT_GIVES && gives) gets = 0; /* the root of a bcast */
    if (gets && gives && p->in_place && is_whole(p, 1)) {
        self->output = self->input + (is_whole(p, 0) ? 0 : self->given[self->rank]);
    } else if (gets) {
        self->memory[1] = malloc(gaps[1] * bytes_of(self, p, 0) + odd), self->output = self->memory[1] + odd;
        if (gives && p->in_place) {
            free(self->memory[0]);
            self->memory[0] = NULL, self->input = self->output + self->taken[self->rank];
        }
    }
    self->call.input = self->input, self->call.output = self->output;
    char *ends[] = {self->input, self->output};
    for (int i = 0; i < 2; i++) {
        size_t nbytes = ends[i] ? bytes_of(self, p, !i) : 0;
        self->layouts[i] = (Layout){.address = ends[i], .nbytes = nbytes, .run = p->itemsize, .dims = nbytes > 0,
                                    .shape = {(int64_t)(nbytes / p->itemsize)}, .strides = {(int64_t)self->apart[i]}};
    }
    self->call.from = gaps[0] > 1 && self->input ? &self->layouts[0] : NULL;
    self->call.to = gaps[1] > 1 && self->output ? &self->layouts[1] : NULL;
    self->call.version = visible ? ++self->version : 0;
    memset(self->call.places, 0, sizeof self->call.places);
    int64_t at[] = {(int64_t)(intptr_t)self->input, (int64_t)(intptr_t)self->output};
    if (visible) memcpy(self->call.places + PLACE_WORDS - 2, at, sizeof at);
}

static void fill(Rank *self, const Plan *p, int turn) {
    if (self->output) memset(self->output, 0xA5, bytes_of(self, p, 0) / p->itemsize * self->apart[1]);
    if (!self->input) return;
    int whole = is_whole(p, 1);
    char *to = self->input;
    for (int b = whole ? 0 : self->rank; b < (whole ? p->blocks : self->rank + 1); b++)
        for (size_t i = 0; i < (self->given[b + 1] - self->given[b]) / p->itemsize; i++, to += self->apart[0])
            given_element(p, turn, self->rank, b, i, to);
}

static void check(const Rank *self, const Plan *p, int turn, int is_untouched) {
    if (!self->output || (is_untouched && p->in_place)) return;
    int whole = is_whole(p, 0), none = is_untouched || (p->kind->prefix == EXCLUSIVE && !self->rank && !p->in_place);
    if (p->kind->prefix == EXCLUSIVE && !self->rank && p->in_place) return;
    const char *found = self->output;
    char expected[16];
    for (int b = whole ? 0 : self->rank; b < (whole ? p->blocks : self->rank + 1); b++)
        for (size_t i = 0; i < (self->taken[b + 1] - self->taken[b]) / p->itemsize; i++, found += self->apart[1]) {
            memset(expected, 0xA5, sizeof expected);
            if (!none) taken_element(p, turn, self->rank, b, i, expected);
            if (memcmp(found, expected, p->itemsize)) wrong(self->rank, p, "element %zu of block %d", i, b);
            for (size_t gap = p->itemsize; gap < self->apart[1]; gap++)
                if ((unsigned char)found[gap] != 0xA5) wrong(self->rank, p, "after element %zu of block %d", i, b);
        }
}

static int waits_for_all(const Plan *p) {
    return p->visible >= 0 || p->reduction.scales || (p->kind->rooted == NO_ROOT && p->kind->prefix == ALL_RANKS);
}

/* Whether the rank waits for one that makes another call, or makes that one and waits for any other rank. */
static int sees(int rank, const Plan *p) {
    if (p->strays == OTHER_LENGTH || waits_for_all(p)) return 1;
    int first = p->kind->rooted == ROOT_GIVES ? p->root : 0;
    int past = p->kind->rooted == ROOT_GIVES ? p->root + 1 : p->kind->rooted != ROOT_GETS ? rank
               : rank == p->root ? ranks : 0;
    if (rank == p->stray) return past - first - (first <= rank && rank < past) > 0;
    return first <= p->stray && p->stray < past;
}

/* As each rank draws: with waits, or in parts between which it does something else. */
static int carry(Rank *self, Call *c, int waits) {
    int code;
    while ((code = go_on(&self->node, c, waits)) == LATER) {
        waits = draw(&self->own, 20) == 0; /* from here on */
        if (draw(&self->own, 2)) pause_a_while(self);
        while (draw(&self->own, 4) && !is_ready(&self->node, c)) sched_yield();
    }
    return code;
}

static void make_call(Rank *self, const Plan *p, int turn) {
    Call *c = &self->call;
    int strays = turn == 0 ? p->strays : WELL, is_stray = strays != WELL && self->rank == p->stray;
    c->digest = p->number ^ (strays == OTHER_CALL && is_stray);
    start(&self->node, c);
    int waits = draw(&self->own, 2), code = carry(self, c, waits), looks = code == LOOK;
    if (code == LOOK) {
        for (int r = 0; r < ranks; r++) {
            const int64_t *at = page_of(&self->node, r)->places + PLACE_WORDS - 2;
            c->versions[r] = page_of(&self->node, r)->version;
            c->inputs[r] = (const char *)(intptr_t)at[0], c->outputs[r] = (char *)(intptr_t)at[1];
        }
        pause_a_while(self);
        code = carry(self, c, waits);
    }
    int may_move = !p->kind->reduces && !p->is_private, none = 0;
    int expected = strays == OTHER_LENGTH && is_stray             ? UNEQUAL
                   : strays != WELL                               ? sees(self->rank, p) * MISMATCH
                   : p->only_shared && !c->in_place && !may_move ? ELSEWHERE
                                                                  : 0;
    if (p->only_shared && !c->in_place && may_move && strays == WELL) {
        if (!atomic_compare_exchange_strong(&agreed[4 * p->number + (uint64_t)turn], &none, 1 + code) && none != 1 + code)
            wrong(self->rank, p, "other ranks have returned %d, this one %d", none - 1, code);
        if (code == ELSEWHERE) return;
        moved++;
    }
    int must_share = p->visible == EVERYBODY && strays == WELL, must_not = p->visible == NOBODY || p->visible < 0;
    if (c->in_place ? must_not : must_share || looks) wrong(self->rank, p, "in place: %d", c->in_place);
    if (code != expected) wrong(self->rank, p, "returned %d in place of %d", code, expected);
    check(self, p, turn, code != 0);
}

static void carry_out(Rank *self, const Plan *p) {
    self->given[0] = self->taken[0] = 0;
    for (int b = 0; b < p->blocks; b++) {
        size_t given = p->is_private ? count_of(p, self->rank, b) : count_of(p, b, b);
        size_t taken = p->is_private ? count_of(p, b, self->rank) : given;
        self->given[b + 1] = self->given[b] + given * p->itemsize;
        self->taken[b + 1] = self->taken[b] + taken * p->itemsize;
    }
    memset(self->versions, 0, sizeof self->versions);
    if (p->number % 4 == 0) self->node.reach = UNKNOWN; /* as on a new communicator */
    self->call = (Call){.gives = p->kind->gives, .gets = p->kind->gets, .rooted = p->kind->rooted,
                        .prefix = p->kind->prefix, .reduces = p->kind->reduces, .root = p->root, .blocks = p->blocks,
                        .reduction = p->reduction, .factor = {factor_of(self->rank), 0}, .given = self->given,
                        .taken = self->taken, .is_private = p->is_private, .may_share = p->visible >= 0,
                        .needs_all = waits_for_all(p),
                        .only_shared = p->only_shared, .versions = self->versions, .inputs = self->inputs,
                        .outputs = self->outputs};
    for (int turn = 0; turn < p->repeats; turn++) {
        size_t more = turn == 0 && p->strays == OTHER_LENGTH && self->rank == p->stray ? p->itemsize : 0;
        self->taken[p->blocks] += more; /* it expects this of the last rank */
        if (turn <= 1 || draw(&self->own, 3) == 0) allocate(self, p);
        fill(self, p, turn);
        pause_a_while(self);
        make_call(self, p, turn);
        self->taken[p->blocks] -= more;
    }
}

static void *rank_main(void *of) {
    Rank *self = of;
    Random common = {seed << 32};
    for (int i = 0; i < plans; i++) {
        Plan p = plan_of(&common, (uint64_t)i);
        carry_out(self, &p);
    }
    return NULL;
}

static Rank *rank_of(int rank, Flag **flags, Host host) {
    static const char *rows[MOST_RANKS][MOST_RANKS];
    static Factor factors[MOST_RANKS][MOST_RANKS];
    Rank *self = calloc(1, sizeof *self);
    self->rank = rank, self->own.state = (seed << 32) + ((uint64_t)(rank + 1) << 24);
    self->node = (Node){.page_size = page_size(ranks), .unit_size = slot_size / LONG_SLOT, .blocks = blocks,
                        .rows = rows[rank],
                        .factors = factors[rank], .packed = malloc(2 * slot_size)};
    self->node.made = self->node.packed + slot_size;
    meeting_begin(&self->node.meeting, rank, ranks, flags, ranks > 2, host);
    node_begin(&self->node);
    return self;
}

int main(int argc, char **argv) {
    static Flag *flags[MOST_RANKS];
    void *all[MOST_RANKS];
    if (argc != 5) return 2;
    ranks = atoi(argv[1]), plans = atoi(argv[2]), seed = strtoull(argv[3], NULL, 10);
    slot_size = (size_t)atol(argv[4]);
    if (ranks < 2 || ranks > MOST_RANKS) return 2;
    for (int r = 0; r < ranks; r++) {
        blocks[r] = new_block(head_size(ranks) + UNITS * slot_size / LONG_SLOT);
        flags[r] = (Flag *)blocks[r];
    }
    for (int r = 0; r < ranks; r++) all[r] = rank_of(r, flags, (Host){nothing, nothing, keep_on, NULL});
    agreed = calloc(4 * (size_t)plans, sizeof *agreed);
    run_ranks(rank_main, all, 0);
    free(agreed);
    for (int r = 0; r < ranks; r++) {
        Rank *of = all[r];
        free(of->memory[0]), free(of->memory[1]), free(of->node.packed), free(of), free(blocks[r]);
    }
#ifdef __linux__
    if (plans >= 300 && !moved) return puts("no call went through other processes' memory"), 1;
#endif
    return 0;
}
