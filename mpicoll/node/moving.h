/* Messages move while their rank does something else. */
#ifndef MPICOLL_MOVING_H
#define MPICOLL_MOVING_H

/* Something that has to go on: the messages of a communicator, or its collectives. */
typedef struct Moved {
    void *of;
    int (*is_open)(const void *of);      /* whether something is under way; for any thread, as the next one */
    int (*has_come)(const void *of);     /* whether something has come for it */
    unsigned long (*move)(void *of);     /* under Python's lock: goes on without a wait. How much that was so far */
    struct Moved *next, *before;
} Moved;

void keep_moving(Moved *it);
void stop_moving(Moved *it);

/* Python is about to end: its lock is not taken any more. The caller does not hold it. */
void end_moving(void);

/* A transfer is under way that nobody waits for now. */
void move_on(void);

#endif
