/* A rank sends a long message and calls nothing until the other one has received it: that one reads it by itself.
 *
 *     absent RANKS
 */
#include "threads.h"

#include "messages.h"

#define MANY (64 << 10)

static pthread_barrier_t received;

typedef struct { int rank, code; char *array; } Rank;

static void nothing(void *of) { (void)of; }
static int keep_on(void *of) { return (void)of, 0; }

/* Rank 0 sends, first an array that lies together and then one that is received into one with gaps. */
static void *rank_main(void *of) {
    Rank *self = of;
    Messages m;
    self->code = messages_begin(&m, self->rank, ranks, blocks, 0, (Host){nothing, nothing, keep_on, NULL});
    for (int turn = 0; turn < 2 && !self->code; turn++) {
        Transfer t = {.receives = self->rank, .peer = !self->rank, .memory = {.address = self->array, .nbytes = MANY}};
        if (self->rank && turn) {
            t.memory.run = 8, t.memory.dims = 1;
            t.memory.shape[0] = MANY / 8, t.memory.strides[0] = 16;
        }
        self->code = start_transfer(&m, &t);
        if (!self->code && self->rank) self->code = wait_for_transfer(&m, &t);
        pthread_barrier_wait(&received);
        if (!self->code && !self->rank) self->code = wait_for_transfer(&m, &t);
        for (int i = 0; self->rank && i < MANY; i++) {
            char found = self->array[turn ? i / 8 * 16 + i % 8 : i];
            if (found != (char)(i % 251)) self->code = -1;
        }
        if (self->rank) memset(self->array, 0, 2 * MANY);
    }
    messages_end(&m);
    return NULL;
}

int main(int argc, char **argv) {
    Rank self[2] = {{0}};
    void *all[2];
    ranks = argc == 2 ? atoi(argv[1]) : 0;
    if (ranks != 2 || pthread_barrier_init(&received, NULL, 2)) return 2;
    for (int r = 0; r < ranks; r++) {
        blocks[r] = new_block(messages_block_size(ranks, 0));
        self[r].rank = r, self[r].array = calloc(2, MANY), all[r] = &self[r];
        for (int i = 0; r == 0 && i < MANY; i++) self[r].array[i] = (char)(i % 251);
    }
    run_ranks(rank_main, all, 0);
    int wrong = self[0].code || self[1].code;
    if (wrong) fprintf(stderr, "ranks returned %d and %d\n", self[0].code, self[1].code);
    for (int r = 0; r < ranks; r++) free(blocks[r]), free(self[r].array);
    return wrong;
}
