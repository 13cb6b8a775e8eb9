/* What the kernel knows of a program's arrays: where they lie now, and what lies there. */
#ifndef MPICOLL_ARRAYS_H
#define MPICOLL_ARRAYS_H

#include "module.h"

typedef struct {
    const void *address;
    Py_ssize_t elements;
    uint64_t dtype;  /* of an array of NumPy's, the address of its dtype, to which there is a reference in the entry */
    uint64_t layout; /* a hash of its shape and strides; 0 where the elements lie together and the shape is not asked */
    int kind;        /* of an array of NumPy's, some flags are beside it */
} Array;
enum { NONE, TENSOR, NUMPY, LIST };

static inline uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/* Whether it is an array in memory of the host, or None, and which one. A memoryview and its like are described as the
 * array of NumPy's over their memory. Their memory is `held`, and stays where it is until that is released. */
int describe(PyObject *x, Array *array, int with_shape, Py_buffer *held);
void release(Py_buffer *held);
/* A new reference to what holds an array's memory, as long as it lives. */
PyObject *holder_of(PyObject *x, const Py_buffer *held);
/* A new reference to the dtype of an array of NumPy's, else NULL. */
PyObject *dtype_of(PyObject *x);

/* The tensors of a list, without where they lie: three numbers are added for each. 0 if they are not known. */
int describe_list(PyObject *list, int64_t *numbers, size_t *many, size_t most);
/* Copy the elements of the tensors of a list or tuple, one after another, to memory without gaps, or back. 0 if one of
 * them is not known. */
int copy_tensors(PyObject *given, char *memory, int back);

PyObject *know_arrays(PyObject *module, PyObject *args);
PyObject *know_subclass(PyObject *module, PyObject *type);
PyObject *know_buffers(PyObject *module, PyObject *args);
PyObject *know_tensors(PyObject *module, PyObject *types);
PyObject *lie_together(PyObject *module, PyObject *list);
PyObject *pack(PyObject *module, PyObject *args);

#endif
