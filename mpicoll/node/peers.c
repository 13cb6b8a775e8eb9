/* Another process's memory. See peers.h. */
#define _GNU_SOURCE
#include "peers.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#endif

void introduce(Self *self) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    self->process = (uint32_t)getpid();
    self->address = (uint64_t)(uintptr_t)self;
    self->mark = ((uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec ^ (uint64_t)self->process << 40) | 1;
}

#ifdef __linux__
typedef ssize_t (*Copy)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);

static int copy(Copy copies, const Self *other, uint64_t there, char *here, size_t n) {
    while (n) {
        struct iovec own = {here, n}, its = {(void *)(uintptr_t)there, n};
        ssize_t now = copies((pid_t)other->process, &own, 1, &its, 1, 0);
        if (now <= 0) return -1;
        here += now, there += (uint64_t)now, n -= (size_t)now;
    }
    return 0;
}

int read_memory(const Self *other, uint64_t from, char *to, size_t n) {
    return copy(process_vm_readv, other, from, to, n);
}

int write_memory(const Self *other, uint64_t to, const char *from, size_t n) {
    return copy(process_vm_writev, other, to, (char *)(uintptr_t)from, n);
}

#define MOST_MAPPED 1024
static struct { uint32_t process; Home home; const char *at; } mapped[MOST_MAPPED];

static int is_meant(const Home *home, const struct stat *found) {
    return S_ISREG(found->st_mode) && found->st_ino == home->inode && found->st_dev == home->device &&
           (uint64_t)found->st_size >= home->nbytes;
}

/* In another namespace the number may be another process's, and the file a device, which must not be opened. */
static const char *map_file(const Self *other, const Home *home) {
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%u/fd/%d", (unsigned)other->process, (int)home->file);
    if (stat(path, &found) || !is_meant(home, &found)) return NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    void *at = fstat(file, &found) || !is_meant(home, &found) ? MAP_FAILED
               : mmap(NULL, home->nbytes, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return NULL;
    madvise(at, home->nbytes, MADV_DONTFORK);
    return at;
}

static int is_mapped(int i, const Self *other, const Home *home) {
    const Home *known = &mapped[i].home;
    return mapped[i].process == other->process && known->inode == home->inode && known->device == home->device;
}

const char *map_home(const Self *other, const Home *home) {
    int i = 0;
    while (i < MOST_MAPPED && mapped[i].home.file && !is_mapped(i, other, home)) i++;
    if (i == MOST_MAPPED) return NULL;
    if (!mapped[i].home.file)
        mapped[i].process = other->process, mapped[i].at = map_file(other, home), mapped[i].home = *home;
    return mapped[i].at;
}
#else
const char *map_home(const Self *other, const Home *home) {
    (void)other, (void)home;
    return NULL;
}

int read_memory(const Self *other, uint64_t from, char *to, size_t n) {
    (void)other, (void)from, (void)to, (void)n;
    return -1;
}

int write_memory(const Self *other, uint64_t to, const char *from, size_t n) {
    (void)other, (void)from, (void)to, (void)n;
    return -1;
}
#endif

int is_readable(const Self *other) {
    uint64_t mark = 0;
    return other->mark && !read_memory(other, other->address + offsetof(Self, mark), (char *)&mark, sizeof mark) &&
           mark == other->mark;
}
