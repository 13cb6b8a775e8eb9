/* Reads and writes another process's memory, where the system permits that. */
#ifndef MPICOLL_PEERS_H
#define MPICOLL_PEERS_H

#include <stddef.h>
#include <stdint.h>

/* What a process says of itself in memory that it shares. */
typedef struct {
    uint64_t mark;    /* a number that no other process has there */
    uint64_t address; /* of this in its own memory */
    uint32_t process;
} Self;

void introduce(Self *self);

/* Whether its memory can be read and written: its mark is where it says. In another namespace, its number is another
 * process's. */
int is_readable(const Self *other);

/* Where a file that a process keeps open lies in its memory. `file` is 0 for none. */
typedef struct {
    int32_t file;
    uint32_t device;
    uint64_t inode, address, nbytes;
} Home;

/* The same file in this process's memory, from now on. NULL if it cannot be opened. */
const char *map_home(const Self *other, const Home *home);

/* Copy `n` bytes from an address of its memory, or to one. Returns 0, or -1 if not all could be copied. */
int read_memory(const Self *other, uint64_t from, char *to, size_t n);
int write_memory(const Self *other, uint64_t to, const char *from, size_t n);

#endif
