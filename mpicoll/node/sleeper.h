/* A thread that sleeps in another one's place, and how the kernel begins its threads. */
#ifndef MPICOLL_SLEEPER_H
#define MPICOLL_SLEEPER_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleep until the word is another than `seen` and somebody wakes those that sleep on it, for `ns` at most. Returns 0
 * at once if there is no such thread, or if it already sleeps for another one. */
int sleep_by_thread(_Atomic uint32_t *word, uint32_t seen, int64_t ns);

/* Begin a thread that no signal interrupts, and that nobody joins. Returns 0 if there can be none. */
int begin_thread(void *(*run)(void *));

#endif
