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

/* The beginning of NumPy's arrays. Its macros read these fields in each extension that was compiled with its
 * headers, so that NumPy cannot change them. `know_arrays` compares them with what Python says all the same. */
typedef struct {
    PyObject_HEAD
    void *data;
    int nd;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;
} NumpyArray;
enum { C_CONTIGUOUS = 1, ALIGNED = 0x100, WRITEABLE = 0x400 };
extern PyObject *ndarray; /* NumPy's type of arrays */

static inline uint64_t layout_of_dims(int dims, const Py_ssize_t *shape, const Py_ssize_t *strides) {
    uint64_t layout = 1;
    for (int i = 0; i < dims; i++) layout = mixed(mixed(layout, (uint64_t)shape[i]), (uint64_t)strides[i]);
    return layout;
}

static inline void describe_numpy(PyObject *x, Array *array, int with_shape) {
    const NumpyArray *numpy = (const NumpyArray *)x;
    Py_ssize_t elements = 1;
    uint64_t layout = 0;
    for (int i = 0; i < numpy->nd; i++) elements *= numpy->shape[i];
    if (with_shape || !(numpy->flags & C_CONTIGUOUS)) layout = layout_of_dims(numpy->nd, numpy->shape, numpy->strides);
    *array = (Array){numpy->data, elements, (uintptr_t)numpy->dtype, layout,
                     NUMPY | (numpy->flags & (ALIGNED | WRITEABLE))};
}

int describe_other(PyObject *x, Array *array, int with_shape, Py_buffer *held);

/* Whether it is an array in memory of the host, or None, and which one. A memoryview and its like are described as the
 * array of NumPy's over their memory. Their memory is `held`, and stays where it is until that is released. The
 * commonest arrays come first, without a call. */
static inline int describe(PyObject *x, Array *array, int with_shape, Py_buffer *held) {
    held->obj = NULL;
    if (!x || x == Py_None) return *array = (Array){0}, 1;
    if ((PyObject *)Py_TYPE(x) != ndarray) return describe_other(x, array, with_shape, held);
    return describe_numpy(x, array, with_shape), 1;
}

static inline void release(Py_buffer *held) {
    if (held->obj) PyBuffer_Release(held);
}
/* A new reference to what holds an array's memory, as long as it lives. */
PyObject *holder_of(PyObject *x, const Py_buffer *held);
/* A new reference to the dtype of an array of NumPy's, else NULL. */
PyObject *dtype_of(PyObject *x);

/* The tensors of a tuple, without where they lie: three numbers are added for each. 0 where they cannot be copied. */
int describe_list(PyObject *tensors, int64_t *numbers, size_t *many, size_t most);
/* Copy the elements of the tensors of a tuple, one after another, to memory without gaps, or back. 0 if one of them
 * cannot be copied, or if they do not have so many bytes. */
int copy_tensors(PyObject *tensors, char *memory, size_t nbytes, int back);
/* The exception where that is so for a result. Returns NULL. */
PyObject *lists_changed(void);

PyObject *know_arrays(PyObject *module, PyObject *args);
PyObject *know_subclass(PyObject *module, PyObject *type);
PyObject *know_buffers(PyObject *module, PyObject *args);
PyObject *know_tensors(PyObject *module, PyObject *types);
PyObject *lie_together(PyObject *module, PyObject *list);
PyObject *pack(PyObject *module, PyObject *args);

#endif
