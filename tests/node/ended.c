/* A rank stays away, and what the others do meanwhile ends their call, and then their wait for a message.
 *
 *     ended RANKS
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives.h"
#include "messages.h"

#define MOST_RANKS 64

static int ranks;
static char *blocks[MOST_RANKS], *of_messages[MOST_RANKS];
static Flag *flags[MOST_RANKS];

typedef struct { int rank, left, entered, asked, code, code_of_wait, given_up; } Rank;

static void leave(void *of) { ((Rank *)of)->left++; }
static void enter(void *of) { ((Rank *)of)->entered++; }
static int end_soon(void *of) { return ++((Rank *)of)->asked % 3 == 0; }

static void wait_for_message_of_first(Rank *self, Host host) {
    Messages m;
    Transfer t = {.receives = 1, .tag = ANY};
    if (messages_begin(&m, self->rank, ranks, of_messages, 1, host) || start_transfer(&m, &t)) return;
    self->code_of_wait = wait_for_transfer(&m, &t);
    self->given_up = cancel_receive(&m, &t) && !m.open;
    messages_end(&m);
}

static void *rank_main(void *of) {
    Rank *self = of;
    size_t starts[] = {0};
    Call barrier = {.digest = 1, .given = starts, .taken = starts, .needs_all = 1};
    Host host = {leave, enter, end_soon, self};
    Node node = {.page_size = page_size(ranks), .unit_size = 2048, .blocks = blocks};
    meeting_begin(&node.meeting, self->rank, ranks, flags, 1, host);
    self->code = run(&node, &barrier);
    wait_for_message_of_first(self, host);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MOST_RANKS];
    Rank all[MOST_RANKS] = {{0}};
    ranks = argc == 2 ? atoi(argv[1]) : 0;
    if (ranks < 2 || ranks > MOST_RANKS) return 2;
    for (int r = 0; r < ranks; r++) {
        size_t nbytes = head_size(ranks) + UNITS * 2048;
        blocks[r] = aligned_alloc(4096, nbytes);
        memset(blocks[r], 0, nbytes);
        flags[r] = (Flag *)blocks[r];
        of_messages[r] = aligned_alloc(4096, messages_block_size(ranks));
        memset(of_messages[r], 0, messages_block_size(ranks));
        all[r].rank = r;
    }
    for (int r = 1; r < ranks; r++)
        if (pthread_create(&threads[r], NULL, rank_main, &all[r])) return 2;
    for (int r = 1; r < ranks; r++) pthread_join(threads[r], NULL);
    int wrong = 0;
    for (int r = 1; r < ranks; r++) {
        Rank *of = &all[r];
        int ended = of->code == ENDED && of->code_of_wait == ENDED && of->given_up;
        if (ended && of->asked == 6 && of->left == of->entered) continue;
        wrong = 1;
        fprintf(stderr, "rank %d of %d: returned %d and %d, asked %d times, left %d times and entered %d times\n", r,
                ranks, of->code, of->code_of_wait, of->asked, of->left, of->entered);
    }
    for (int r = 0; r < ranks; r++) free(blocks[r]), free(of_messages[r]);
    return wrong;
}
