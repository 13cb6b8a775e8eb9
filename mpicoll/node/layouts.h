/* Where the elements of an array lie, and copies of parts of them. */
#ifndef MPICOLL_LAYOUTS_H
#define MPICOLL_LAYOUTS_H

#include <stddef.h>
#include <stdint.h>

#define MOST_DIMS 4

/* An array's elements in C order. Bytes that lie together are a run. */
typedef struct {
    char *address; /* of the first element */
    size_t nbytes; /* of all elements */
    size_t run;
    int dims;      /* 0 where all elements lie together: only address and nbytes count then */
    int64_t shape[MOST_DIMS], strides[MOST_DIMS]; /* of runs, and in bytes; the outermost dimension first */
} Layout;

/* The fewest dimensions are found. Returns 0, or -1 where more than MOST_DIMS are left. */
int layout_of(Layout *l, char *address, size_t itemsize, int dims, const int64_t *shape, const int64_t *strides);

/* Copy `n` bytes of the elements, from this byte of them on, to or from memory without gaps. */
void gather_bytes(const Layout *l, size_t first, size_t n, char *to);
void scatter_bytes(const Layout *l, size_t first, size_t n, const char *from);

#endif
