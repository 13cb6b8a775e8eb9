/* Random messages of the kernel among threads as ranks.
 *
 *     random_messages RANKS MESSAGES SEED
 *
 * All ranks draw the same batches of messages from the same seed, so that each one knows what comes from whom, and in
 * which order. How it sends and receives them it draws itself, but so that no rank waits for ever. A second thread of
 * each rank waits for one message all the time: they take turns as those of a program in Python do.
 */
#include "threads.h"

#include "messages.h"

#include <sys/mman.h>
#include <sys/stat.h>

#define MOST_MESSAGES 48 /* of a batch */
#define UNTOUCHED 0xA5
#define IN_FILE 8                  /* arrays of a rank that may lie in a file which others map */
#define LONGEST_IN_FILE (512 << 10)
enum { FEW_TAGS = 3, FIRST_OF_ITS_OWN = 1000, NEVER = 1 << 30, LAST = NEVER + 1 };

/* In which order ranks send and receive. In IN_ORDER a message is sent and received before those after it, and each of
 * both may wait. In SENDS_FIRST and RECEIVES_FIRST those that come first do not wait. In ANYTHING receives take any
 * message. */
typedef enum { IN_ORDER, SENDS_FIRST, RECEIVES_FIRST, ANYTHING, MODES } Mode;

typedef struct { uint64_t number; int source, tag, dest, is_taken; size_t nbytes; } Message;
typedef struct { Mode mode; int count; Message messages[MOST_MESSAGES]; } Batch;
typedef struct { char *memory; size_t nbytes, itemsize; char *first; int dims; int64_t shape[MOST_DIMS],
                 strides[MOST_DIMS]; } Array;
typedef struct { Transfer transfer; Array array; Message *message; int is_checked; } Op;
typedef struct {
    Messages messages;
    Random own;
    pthread_mutex_t turn; /* what the lock of a Python interpreter does */
    Batch batch;
    Op ops[2 * MOST_MESSAGES];
    int count; /* of ops */
} Rank;

static int messages;
static uint64_t seed;
static size_t ring, eager, piece;
static pthread_barrier_t all_there;
static Home file; /* where it lies in the memory of all ranks */

static void wrong(const Rank *self, const char *format, ...) {
    va_list words;
    va_start(words, format);
    fprintf(stderr, "rank %d of %d, a batch of mode %d from message %llu on: ", self->messages.rank, ranks,
            self->batch.mode, (unsigned long long)self->batch.messages[0].number);
    vfprintf(stderr, format, words);
    fputc('\n', stderr);
    _exit(1);
}

static void expect(const Rank *self, int found, int expected, const char *what) {
    if (found != expected) wrong(self, "%s returned %d in place of %d", what, found, expected);
}

static void leave(void *of) { pthread_mutex_unlock(&((Rank *)of)->turn); }
static void enter(void *of) { pthread_mutex_lock(&((Rank *)of)->turn); }
static int keep_on(void *of) { return (void)of, 0; }

static void pause_a_while(Rank *self) {
    int how = draw(&self->own, 200);
    leave(self);
    if (how == 0) usleep(2000);
    else if (how < 8) usleep((useconds_t)draw(&self->own, 200));
    else if (how < 20) sched_yield();
    enter(self);
    if (how > 180) expect(self, move_messages(&self->messages), 0, "move_messages");
}

/* Now and then another process's memory is copied in part alone, as if it had ended or forbidden that. */
static size_t copied(size_t n) {
    static _Atomic unsigned calls;
    unsigned call = atomic_fetch_add(&calls, 1) * 2654435761u;
    return call >> 29 ? n : call % (n + 1) / 2;
}

int __real_read_memory(const Self *other, uint64_t from, char *to, size_t n);
int __wrap_read_memory(const Self *other, uint64_t from, char *to, size_t n) {
    size_t now = copied(n);
    return __real_read_memory(other, from, to, now) || now < n ? -1 : 0;
}

int __real_write_memory(const Self *other, uint64_t to, const char *from, size_t n);
int __wrap_write_memory(const Self *other, uint64_t to, const char *from, size_t n) {
    size_t now = copied(n);
    return __real_write_memory(other, to, from, now) || now < n ? -1 : 0;
}

/* Ranks are threads of one process here, and each one may map the file first. */
const char *__real_map_home(const Self *other, const Home *home);
const char *__wrap_map_home(const Self *other, const Home *home) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&turn);
    const char *at = __real_map_home(other, home);
    pthread_mutex_unlock(&turn);
    return at;
}

static size_t draw_length(Random *r) {
    size_t few = (size_t)draw(r, 3);
    switch (draw(r, 12)) {
    case 0: return 0;
    case 1: return eager - 1 + few;
    case 2: return piece - 1 + few;
    case 3: return 2 * piece + few;
    case 4: return (size_t)draw(r, (int)(3 * ring));
    case 5: case 6: return (size_t)draw(r, (int)eager);
    default: return (size_t)draw(r, 100);
    }
}

static void draw_batch(Random *r, Batch *batch, uint64_t first) {
    batch->mode = (Mode)draw(r, MODES);
    batch->count = 1 + draw(r, draw(r, 3) ? 8 : MOST_MESSAGES);
    int floods = draw(r, 6) == 0; /* more than a ring holds */
    int dest = draw(r, 4) && !floods ? -1 : draw(r, ranks), source = draw(r, 4) && !floods ? -1 : draw(r, ranks);
    if (floods) batch->count = MOST_MESSAGES;
    for (int i = 0; i < batch->count; i++) {
        int tag = draw(r, 4) ? draw(r, FEW_TAGS) : FIRST_OF_ITS_OWN + (int)first + i;
        batch->messages[i] = (Message){.number = first + (uint64_t)i, .tag = tag,
                                       .nbytes = floods ? eager - (size_t)draw(r, 2000) : draw_length(r),
                                       .source = source < 0 ? draw(r, ranks) : source,
                                       .dest = dest < 0 ? draw(r, ranks) : dest};
    }
}

/* An array of so many bytes: of up to so many dimensions, any order of them in memory, gaps, and negative strides. It
 * may lie in the file, if there is a place for it. */
static void draw_array(Random *r, Array *a, size_t nbytes, char *in_file) {
    static const size_t ITEMSIZES[] = {1, 2, 4, 8, 16, 3, 24, 40};
    size_t itemsize = ITEMSIZES[draw(r, 8)];
    if (nbytes % itemsize) itemsize = 1;
    *a = (Array){.itemsize = itemsize, .nbytes = nbytes, .dims = draw(r, 3) ? 1 + draw(r, MOST_DIMS) : 1};
    int has_gaps = draw(r, 3) != 0, widest = nbytes > 20000 ? 3 : 40, is_placed[MOST_DIMS] = {0};
    int64_t count = (int64_t)(nbytes / itemsize), step = (int64_t)itemsize, before = 0;
    for (int d = a->dims - 1; d >= 0; d--) {
        int64_t factor = 1 + draw(r, 6);
        a->shape[d] = d == 0 ? count : count % factor ? 1 : factor;
        count /= a->shape[d] ? a->shape[d] : 1;
    }
    for (int i = 0; i < a->dims; i++) {
        int d = a->dims - 1;
        if (has_gaps) d = draw(r, a->dims);
        while (is_placed[d]) d = (d + a->dims - 1) % a->dims;
        is_placed[d] = 1;
        if (has_gaps && draw(r, 2)) step += draw(r, widest);
        int is_negative = has_gaps && draw(r, 3) == 0;
        a->strides[d] = is_negative ? -step : step;
        if (is_negative && a->shape[d]) before += step * (a->shape[d] - 1);
        step *= a->shape[d];
    }
    size_t odd = (size_t)draw(r, 16);
    a->nbytes = odd + (size_t)step + 16;
    a->memory = in_file && a->nbytes <= LONGEST_IN_FILE && draw(r, 2) ? in_file : malloc(a->nbytes);
    a->first = a->memory + odd + before;
    memset(a->memory, UNTOUCHED, a->nbytes);
}

static int is_in_file(const Array *a) {
    return (uint64_t)(uintptr_t)a->memory - file.address < file.nbytes;
}
static void end_array(Array *a) {
    if (!is_in_file(a)) free(a->memory);
}

static Layout layout(const Rank *self, const Array *a) {
    Layout l;
    expect(self, layout_of(&l, a->first, a->itemsize, a->dims, a->shape, a->strides), 0, "layout_of");
    return l;
}

/* Write the message to the array's elements, as far as they reach, in the plainest way. `memory` is laid out like the
 * array's. */
static void put(const Array *a, const Message *m, char *memory) {
    size_t i = 0;
    int64_t at[MOST_DIMS] = {0};
    for (int d = 0; d < a->dims; d++)
        if (!a->shape[d]) return;
    while (i < m->nbytes) {
        char *to = memory + (a->first - a->memory);
        for (int d = 0; d < a->dims; d++) to += at[d] * a->strides[d];
        for (size_t j = 0; j < a->itemsize && i < m->nbytes; j++, i++)
            to[j] = (char)(m->number * 37 + i * 131 + (i >> 8) * 29);
        int d = a->dims - 1;
        while (d >= 0 && ++at[d] == a->shape[d]) at[d--] = 0;
        if (d < 0) return;
    }
}

static Op *new_op(Rank *self, Message *message, size_t nbytes) {
    Op *op = &self->ops[self->count++];
    int number = self->count - 1;
    char *in_file = (char *)(uintptr_t)file.address + (self->messages.rank * IN_FILE + number) * LONGEST_IN_FILE;
    *op = (Op){.message = message};
    draw_array(&self->own, &op->array, nbytes, number < IN_FILE ? in_file : NULL);
    op->transfer.memory = layout(self, &op->array);
    if (is_in_file(&op->array) && !op->transfer.memory.dims) op->transfer.home = file;
    return op;
}

static void check(const Rank *self, Op *op) {
    const Transfer *t = &op->transfer;
    const Array *a = &op->array;
    const Message *m = op->message;
    if (op->is_checked || !t->receives) return;
    op->is_checked = 1;
    if (t->message.source != m->source || t->message.tag != m->tag || t->message.nbytes != m->nbytes)
        wrong(self, "took %zu bytes of tag %d from %d in place of message %llu: %zu of tag %d from %d",
              t->message.nbytes, t->message.tag, t->message.source, (unsigned long long)m->number, m->nbytes, m->tag,
              m->source);
    char *expected = malloc(a->nbytes);
    memset(expected, UNTOUCHED, a->nbytes);
    put(a, m, expected);
    for (size_t i = 0; i < a->nbytes; i++)
        if (a->memory[i] != expected[i])
            wrong(self, "message %llu of %zu bytes: byte %zu of %zu of memory", (unsigned long long)m->number,
                  m->nbytes, i, a->nbytes);
    free(expected);
}

static void wait_for(Rank *self, Op *op) {
    expect(self, wait_for_transfer(&self->messages, &op->transfer), 0, "wait_for_transfer");
    if (!op->transfer.complete) wrong(self, "a wait has ended too early");
    if (self->batch.mode != ANYTHING) check(self, op);
}

static void start(Rank *self, Op *op) {
    expect(self, start_transfer(&self->messages, &op->transfer), 0, "start_transfer");
}

static void send_one(Rank *self, Message *message, int may_wait) {
    Op *op = new_op(self, message, message->nbytes);
    put(&op->array, message, op->array.memory);
    op->transfer.peer = message->dest, op->transfer.tag = message->tag;
    start(self, op);
    if (may_wait && draw(&self->own, 2)) wait_for(self, op);
}

/* The first one that is not taken, from this source, and with this tag if it is not ANY. */
static Message *first_message(Rank *self, int source, int tag) {
    Batch *batch = &self->batch;
    for (int i = 0; i < batch->count; i++) {
        Message *m = &batch->messages[i];
        if (m->dest == self->messages.rank && m->source == source && (tag == ANY || m->tag == tag) && !m->is_taken)
            return m;
    }
    wrong(self, "there is no message from %d any more", source);
    return NULL;
}

/* What is to be received takes the message, and could take no other one. */
static void choose_what(Rank *self, Op *op) {
    Transfer *t = &op->transfer;
    Message *m = op->message;
    t->peer = m->source, t->tag = m->tag;
    int how = draw(&self->own, 3);
    if (how == 1 && first_message(self, m->source, ANY) == m) t->tag = ANY;
    if (how == 2 && m->tag >= FIRST_OF_ITS_OWN) t->peer = ANY;
    m->is_taken = 1;
}

static void compare(const Rank *self, const Envelope *found, const Message *m) {
    if (found->source != m->source || found->tag != m->tag || found->nbytes != m->nbytes)
        wrong(self, "a probe found %zu bytes of tag %d from %d", found->nbytes, found->tag, found->source);
}

static void probe(Rank *self, const Op *op) {
    const Transfer *t = &op->transfer;
    Envelope found;
    int is_there = 0;
    if (draw(&self->own, 2)) {
        expect(self, wait_for_message(&self->messages, t->peer, t->tag, &found), 0, "wait_for_message");
    } else {
        while (!is_there) {
            expect(self, probe_message(&self->messages, t->peer, t->tag, &found, &is_there), 0, "probe_message");
            pause_a_while(self);
        }
    }
    compare(self, &found, op->message);
}

static void receive_one(Rank *self, Message *message, int may_wait) {
    int how = draw(&self->own, 8), waits = may_wait && draw(&self->own, 2);
    size_t room = how == 0 ? message->nbytes / 2 : how == 1 ? message->nbytes + 33 : how == 2 ? 0 : message->nbytes;
    Message *taken = first_message(self, message->source, message->tag);
    Op *op = new_op(self, taken, room);
    op->transfer.receives = 1;
    choose_what(self, op);
    if (waits && how == 3) probe(self, op);
    start(self, op);
    if (how == 4 && cancel_receive(&self->messages, &op->transfer)) start(self, op);
    if (waits) wait_for(self, op);
}

static void give_one_up(Rank *self) {
    Op *op = new_op(self, NULL, 8);
    op->transfer.receives = 1, op->transfer.peer = draw(&self->own, ranks + 1) - 1, op->transfer.tag = NEVER;
    start(self, op);
    pause_a_while(self);
    expect(self, cancel_receive(&self->messages, &op->transfer), 1, "cancel_receive");
    self->count--;
    end_array(&op->array);
}

static void receive_anything(Rank *self, int may_wait) {
    Op *op = new_op(self, NULL, draw_length(&self->own));
    Transfer *t = &op->transfer;
    t->receives = 1, t->peer = ANY, t->tag = ANY;
    int is_alone = 1, waits = may_wait && draw(&self->own, 2);
    for (Op *other = self->ops; other < op; other++) is_alone &= !other->transfer.receives || other->message != NULL;
    if (waits && is_alone && draw(&self->own, 2)) {
        Envelope found;
        expect(self, wait_for_message(&self->messages, ANY, ANY, &found), 0, "wait_for_message");
        op->message = first_message(self, found.source, found.tag);
        compare(self, &found, op->message);
        t->peer = found.source, t->tag = found.tag, op->message->is_taken = 1;
    }
    start(self, op);
    if (waits) wait_for(self, op);
}

/* For all that is to be done still: one by one, or whichever comes first. */
static void wait_for_all(Rank *self) {
    Transfer *open[2 * MOST_MESSAGES];
    int one_by_one = draw(&self->own, 2), count;
    do {
        count = 0;
        for (int i = 0; i < self->count; i++)
            if (!self->ops[i].transfer.complete) open[count++] = &self->ops[i].transfer;
        if (!count) break;
        if (one_by_one) expect(self, wait_for_transfer(&self->messages, open[draw(&self->own, count)]), 0, "a wait");
        else expect(self, wait_for_any(&self->messages, open, count), 0, "wait_for_any");
    } while (1);
    for (int i = 0; i < self->count; i++) {
        Op *op = &self->ops[i];
        if (!op->message) { /* receives of anything take the messages of a source in their order */
            op->message = first_message(self, op->transfer.message.source, ANY);
            op->message->is_taken = 1;
        }
        check(self, op);
        end_array(&op->array);
    }
    self->count = 0;
}

static void in_order(Rank *self) {
    int rank = self->messages.rank;
    for (int i = 0; i < self->batch.count; i++) {
        Message *m = &self->batch.messages[i];
        if (m->source == rank) send_one(self, m, m->dest != rank);
        if (m->dest == rank) receive_one(self, m, 1);
        if (self->count && draw(&self->own, 4) == 0) wait_for(self, &self->ops[draw(&self->own, self->count)]);
        pause_a_while(self);
    }
}

static void all_sends(Rank *self, int may_wait) {
    for (int i = 0; i < self->batch.count; i++)
        if (self->batch.messages[i].source == self->messages.rank) {
            send_one(self, &self->batch.messages[i], may_wait);
            pause_a_while(self);
        }
}

/* In any order: from the middle on, and backwards. */
static void all_receives(Rank *self, int may_wait) {
    int count = self->batch.count, from = draw(&self->own, count), step = draw(&self->own, 2) ? 1 : count - 1;
    for (int i = 0; i < count; i++) {
        Message *m = &self->batch.messages[(from + i * step) % count];
        if (m->dest != self->messages.rank) continue;
        if (self->batch.mode == ANYTHING) receive_anything(self, may_wait);
        else receive_one(self, m, may_wait);
        pause_a_while(self);
    }
}

static void carry_out(Rank *self) {
    Mode mode = self->batch.mode;
    if (draw(&self->own, 8) == 0) give_one_up(self);
    if (mode == IN_ORDER) {
        in_order(self);
    } else if (mode == SENDS_FIRST || (mode == ANYTHING && self->batch.messages[0].number % 2)) {
        all_sends(self, 0);
        all_receives(self, 1);
    } else {
        all_receives(self, 0);
        all_sends(self, 1);
    }
    wait_for_all(self);
    if (mode != ANYTHING) return;
    leave(self); /* nobody's next messages come here yet */
    pthread_barrier_wait(&all_there);
    enter(self);
}

static void *wait_for_the_last(void *of) {
    Rank *self = of;
    Transfer t = {.receives = 1, .peer = self->messages.rank, .tag = LAST};
    enter(self);
    expect(self, start_transfer(&self->messages, &t), 0, "start_transfer");
    expect(self, wait_for_transfer(&self->messages, &t), 0, "wait_for_transfer");
    leave(self);
    return NULL;
}

static void *rank_main(void *of) {
    Rank *self = of;
    Random common = {seed << 32};
    pthread_t second;
    if (pthread_create(&second, NULL, wait_for_the_last, self)) _exit(2);
    enter(self);
    for (int i = 0; i < messages; i += self->batch.count) {
        draw_batch(&common, &self->batch, (uint64_t)i);
        carry_out(self);
    }
    Message last = {.dest = self->messages.rank, .tag = LAST, .nbytes = draw_length(&self->own)};
    send_one(self, &last, 1);
    wait_for_all(self);
    leave(self);
    pthread_join(second, NULL);
    pthread_barrier_wait(&all_there);
    expect(self, move_messages(&self->messages), 0, "move_messages");
    if (next_passed(&self->messages, NULL) || self->messages.lying || self->messages.open)
        wrong(self, "something is left");
    return NULL;
}

/* How many dimensions are left of an array of float64. */
static int dims_of(int dims, const int64_t *shape, const int64_t *strides) {
    static char memory[1];
    Layout l;
    return layout_of(&l, memory, 8, dims, shape, strides) ? -1 : l.dims;
}

static void check_dims(void) {
    int64_t shape[] = {2, 3, 1, 2, 2, 2}, together[] = {192, 64, 5, 32, 16, 8}, in_two[] = {480, 160, 5, 32, 16, 8};
    int64_t columns[] = {480, 160, 5, 80, 40, 20}, all_apart[] = {4000, 1000, 5, 200, 50, 20};
    int64_t none[] = {2, 3, 1, 2, 2, 0};
    int found[] = {dims_of(6, shape, together), dims_of(6, shape, in_two), dims_of(6, shape, columns),
                   dims_of(6, shape, all_apart), dims_of(6, none, all_apart), dims_of(0, NULL, NULL)};
    int expected[] = {0, 1, 1, -1, 0, 0};
    for (int i = 0; i < 6; i++)
        if (found[i] != expected[i]) fprintf(stderr, "layout %d has %d dimensions\n", i, found[i]), _exit(1);
}

static Home new_file(void) {
    size_t nbytes = (size_t)(ranks * IN_FILE * LONGEST_IN_FILE);
    struct stat found;
    int opened = fileno(tmpfile());
    if (ftruncate(opened, (off_t)nbytes) || fstat(opened, &found)) _exit(2);
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    if (at == MAP_FAILED) _exit(2);
    return (Home){opened, (uint32_t)found.st_dev, found.st_ino, (uint64_t)(uintptr_t)at, nbytes};
}

static Rank *rank_of(int rank) {
    Rank *self = calloc(1, sizeof *self);
    self->own.state = (seed << 32) + ((uint64_t)(rank + 1) << 24);
    pthread_mutex_init(&self->turn, NULL);
    if (messages_begin(&self->messages, rank, ranks, blocks, ranks > 2, (Host){leave, enter, keep_on, self})) _exit(2);
    ring = self->messages.ring, eager = self->messages.eager, piece = self->messages.piece;
    return self;
}

int main(int argc, char **argv) {
    void *all[MOST_RANKS];
    if (argc != 4) return 2;
    ranks = atoi(argv[1]), messages = atoi(argv[2]), seed = strtoull(argv[3], NULL, 10);
    if (ranks < 1 || ranks > MOST_RANKS || pthread_barrier_init(&all_there, NULL, (unsigned)ranks)) return 2;
    check_dims();
    file = new_file();
    for (int r = 0; r < ranks; r++) blocks[r] = new_block(messages_block_size(ranks, ranks > 2));
    for (int r = 0; r < ranks; r++) all[r] = rank_of(r);
    run_ranks(rank_main, all, 0);
    for (int r = 0; r < ranks; r++) messages_end(&((Rank *)all[r])->messages), free(all[r]), free(blocks[r]);
    return 0;
}
