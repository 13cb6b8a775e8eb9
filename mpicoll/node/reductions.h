/* Arithmetic on vectors: what a reduction makes of the ranks' values. */
#ifndef MPICOLL_REDUCTIONS_H
#define MPICOLL_REDUCTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef int Dtype; /* the number that the kernel has for a dtype */
/* The order is that of COMBINE (mpicoll/arrays/kernels.py). */
typedef enum { SUM, PROD, MIN, MAX, BAND, BOR, BXOR, LAND, LOR, LXOR, OPS } Op;

/* Arrays may begin at any address: the compiler must not take it for a multiple of a number's size. */
#define ANYWHERE __attribute__((aligned(1)))
typedef uint16_t Short ANYWHERE; /* a 16-bit float */

typedef void (*Combine)(const void *x, const void *y, void *out, void *copy, size_t n);

typedef struct {
    Dtype dtype;
    Op op;
    int averages;        /* whether the result is divided by the number of rows */
    int scales;          /* whether each row has a factor */
    size_t itemsize;
    Combine combine;     /* of two vectors, in the type in which values are combined */
} Reduction;

typedef struct { double real, imag; } Factor;

/* The dtype of this name, or -1 if the kernel does not know it. */
Dtype dtype_named(const char *name);

/* Returns 0, or -1 if the operation is not defined on the dtype. */
int reduction_of(Reduction *r, Dtype dtype, Op op, int averages, int scales);

/* `out` = the rows combined in their order, element by element. `copy`, if it is not NULL, becomes the same. Each may
 * be one of the rows.
 * 16-bit floats are combined in float32 and rounded once, to nearest even. A NaN among the values of an element makes
 * it a NaN. Integers wrap around, and are divided toward zero. */
void reduce_rows(const Reduction *r, const char *const *rows, int count, const Factor *factors, char *out, char *copy,
                 size_t n);

/* Between 16-bit floats and float32. */
void widen(Dtype dtype, const Short *from, float *to, size_t n);
void narrow(Dtype dtype, const float *from, Short *to, size_t n);

#endif
