/* Messages move while their rank does something else. */
#ifndef MPICOLL_MOVING_H
#define MPICOLL_MOVING_H

#include "messages.h"

/* Of one communicator. */
typedef struct Moved {
    Messages *messages;
    struct Moved *next, *before;
} Moved;

void keep_moving(Moved *it);
void stop_moving(Moved *it);

/* Python is about to end: its lock is not taken any more. The caller does not hold it. */
void end_moving(void);

/* A transfer is under way that nobody waits for now. */
void move_on(void);

#endif
