/* A rank stays away, and what the others do meanwhile ends their call, and then their wait for a message.
 *
 *     ended RANKS
 */
#include "threads.h"

#include "collectives.h"
#include "messages.h"

static char *of_messages[MOST_RANKS];
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
    start(&node, &barrier);
    self->code = go_on(&node, &barrier, 1);
    wait_for_message_of_first(self, host);
    return NULL;
}

int main(int argc, char **argv) {
    Rank self[MOST_RANKS] = {{0}};
    void *all[MOST_RANKS];
    ranks = argc == 2 ? atoi(argv[1]) : 0;
    if (ranks < 2 || ranks > MOST_RANKS) return 2;
    for (int r = 0; r < ranks; r++) {
        blocks[r] = new_block(head_size(ranks) + UNITS * 2048);
        flags[r] = (Flag *)blocks[r];
        of_messages[r] = new_block(messages_block_size(ranks, 1));
        self[r].rank = r, all[r] = &self[r];
    }
    run_ranks(rank_main, all, 1); /* rank 0 stays away */
    int wrong = 0;
    for (int r = 1; r < ranks; r++) {
        Rank *of = &self[r];
        int ended = of->code == ENDED && of->code_of_wait == ENDED && of->given_up;
        if (ended && of->asked == 6 && of->left == of->entered) continue;
        wrong = 1;
        fprintf(stderr, "rank %d of %d: returned %d and %d, asked %d times, left %d times and entered %d times\n", r,
                ranks, of->code, of->code_of_wait, of->asked, of->left, of->entered);
    }
    for (int r = 0; r < ranks; r++) free(blocks[r]), free(of_messages[r]);
    return wrong;
}
