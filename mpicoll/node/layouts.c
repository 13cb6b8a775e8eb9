/* Copies of parts of arrays. See layouts.h. */
#include "layouts.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

int layout_of(Layout *l, char *address, size_t itemsize, int dims, const int64_t *shape, const int64_t *strides) {
    int64_t shapes[MOST_DIMS], steps[MOST_DIMS]; /* the innermost dimension first */
    int kept = 0, too_many = 0;
    *l = (Layout){.address = address, .nbytes = itemsize, .run = itemsize};
    for (int d = dims - 1; d >= 0; d--) {
        l->nbytes *= (size_t)shape[d];
        if (shape[d] == 1) continue;
        if (!kept && strides[d] == (int64_t)l->run) l->run *= (size_t)shape[d];
        else if (kept && strides[d] == steps[kept - 1] * shapes[kept - 1]) shapes[kept - 1] *= shape[d];
        else if (kept == MOST_DIMS) too_many = 1;
        else shapes[kept] = shape[d], steps[kept++] = strides[d];
    }
    if (!l->nbytes) return 0;
    l->dims = kept;
    for (int d = 0; d < kept; d++) l->shape[d] = shapes[kept - 1 - d], l->strides[d] = steps[kept - 1 - d];
    return too_many ? -1 : 0;
}

INLINE void copy(char *array, char *bytes, size_t n, int gathers) {
    if (gathers) memcpy(bytes, array, n);
    else memcpy(array, bytes, n);
}

/* Four runs of a known length at once. The compiler makes one move of each copy, and one store of those that go to
 * memory without gaps. */
#define FOUR 4
INLINE int64_t copy_fours(char *at, int64_t stride, int64_t count, size_t run, char *bytes, int gathers) {
    int64_t i = 0;
    for (; i + FOUR <= count; i += FOUR, at += FOUR * stride, bytes += FOUR * run) {
        char four[FOUR * 16];
        if (!gathers) memcpy(four, bytes, FOUR * run);
        for (int j = 0; j < FOUR; j++) copy(at + j * stride, four + (size_t)j * run, run, gathers);
        if (gathers) memcpy(bytes, four, FOUR * run);
    }
    return i;
}

INLINE void copy_row(char *at, int64_t stride, int64_t count, size_t run, char *bytes, int gathers) {
    int64_t i = 0;
    switch (run) {
    case 1: i = copy_fours(at, stride, count, 1, bytes, gathers); break;
    case 2: i = copy_fours(at, stride, count, 2, bytes, gathers); break;
    case 4: i = copy_fours(at, stride, count, 4, bytes, gathers); break;
    case 8: i = copy_fours(at, stride, count, 8, bytes, gathers); break;
    case 16: i = copy_fours(at, stride, count, 16, bytes, gathers); break;
    }
    for (; i < count; i++) copy(at + i * stride, bytes + (size_t)i * run, run, gathers);
}

/* The first run and the last one may be cut anywhere. */
INLINE void move(const Layout *l, size_t first, size_t n, char *bytes, int gathers) {
    int last = l->dims - 1;
    int64_t at[MOST_DIMS], number = (int64_t)(first / l->run);
    size_t skipped = first % l->run, now;
    for (int d = last; d >= 0; d--) at[d] = number % l->shape[d], number /= l->shape[d];
    for (; n; bytes += now, n -= now) {
        char *here = l->address;
        for (int d = 0; d <= last; d++) here += at[d] * l->strides[d];
        int64_t count = l->shape[last] - at[last];
        if (skipped || n < l->run) {
            now = l->run - skipped < n ? l->run - skipped : n;
            copy(here + skipped, bytes, now, gathers);
            skipped = 0, count = 1;
        } else {
            if (n / l->run < (size_t)count) count = (int64_t)(n / l->run);
            now = (size_t)count * l->run;
            copy_row(here, l->strides[last], count, l->run, bytes, gathers);
        }
        at[last] += count;
        for (int d = last; d > 0 && at[d] == l->shape[d]; d--) at[d] = 0, at[d - 1]++;
    }
}

void gather_bytes(const Layout *l, size_t first, size_t n, char *to) {
    if (l->dims) move(l, first, n, to, 1);
    else if (n) memcpy(to, l->address + first, n);
}

void scatter_bytes(const Layout *l, size_t first, size_t n, const char *from) {
    if (l->dims) move(l, first, n, (char *)from, 0);
    else if (n) memcpy(l->address + first, from, n);
}
