/* What the kernel knows of a program's arrays. See arrays.h. */
#include "arrays.h"

#include <stdint.h>

#define KINDS 8
PyObject *ndarray;
static PyObject *subclasses[KINDS]; /* of it */
static PyObject *buffers[KINDS]; /* types of what lends its memory by Python's buffer protocol */
static PyObject *dtypes[256];    /* NumPy's for a format of such memory, by its character. Complex ones are behind. */
enum { OF_COMPLEX = 128 };

/* DLPack's table of functions of a type of tensors (https://dmlc.github.io/dlpack, version 1.2), as far as it is
 * used. */
typedef struct {
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t offset;
} Tensor;
typedef struct Exchange {
    struct { uint32_t major, minor; } version;
    struct Exchange *previous;
    void *allocate, *from_object, *to_object;
    int (*look)(void *object, Tensor *tensor);
} Exchange;
enum { HOST = 1, COMPLEX = 5, KNOWN_MAJOR = 1 };

static struct { PyObject *type, *is_neg, *is_conj; const Exchange *exchange; } tensors[KINDS];

/* know_arrays(array, address, shape, dtype, flags): NumPy's type of arrays, if this one has all of that where it is
 * looked for. */
PyObject *know_arrays(PyObject *module, PyObject *args) {
    PyObject *given, *address, *shape, *dtype;
    int flags;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO!Oi", &given, &address, &PyTuple_Type, &shape, &dtype, &flags)) return NULL;
    const NumpyArray *array = (const NumpyArray *)given;
    int same = array->data == PyLong_AsVoidPtr(address) && array->nd == PyTuple_Size(shape) && array->dtype == dtype &&
               array->flags == flags;
    for (int i = 0; same && i < array->nd; i++) same = array->shape[i] == PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
    if (PyErr_Occurred()) return NULL;
    if (same) ndarray = Py_NewRef((PyObject *)Py_TYPE(given));
    return PyBool_FromLong(same);
}

/* know_subclass(type): what lies in the memory of such an array is what it stands for. */
PyObject *know_subclass(PyObject *module, PyObject *type) {
    (void)module;
    int at = 0;
    while (at < KINDS && subclasses[at] && subclasses[at] != type) at++;
    if (at < KINDS && ndarray && !subclasses[at]) subclasses[at] = Py_NewRef(type);
    Py_RETURN_NONE;
}

/* know_buffers(types, NumPy's dtypes by their formats) */
PyObject *know_buffers(PyObject *module, PyObject *args) {
    PyObject *types, *by_format, *format, *dtype;
    Py_ssize_t at = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &types, &PyDict_Type, &by_format)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(types) && i < KINDS; i++) buffers[i] = Py_NewRef(PyTuple_GetItem(types, i));
    while (PyDict_Next(by_format, &at, &format, &dtype)) {
        PyObject *bytes = PyUnicode_AsASCIIString(format);
        if (!bytes) return NULL;
        const char *text = PyBytes_AsString(bytes);
        int is_complex = *text == 'Z';
        dtypes[(text[is_complex] & 127) + is_complex * OF_COMPLEX] = Py_NewRef(dtype);
        Py_DECREF(bytes);
    }
    Py_RETURN_NONE;
}

/* know_tensors(types of tensors ...): those that have a table. */
PyObject *know_tensors(PyObject *module, PyObject *types) {
    (void)module;
    for (Py_ssize_t i = 0; i < PyTuple_Size(types) && i < KINDS; i++) {
        PyObject *type = PyTuple_GetItem(types, i);
        PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
        const Exchange *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
        Py_XDECREF(capsule);
        PyErr_Clear();
        if (!found || found->version.major != KNOWN_MAJOR) continue;
        tensors[i].is_neg = PyObject_GetAttrString(type, "is_neg");
        tensors[i].is_conj = PyObject_GetAttrString(type, "is_conj");
        if (!tensors[i].is_neg || !tensors[i].is_conj) return NULL;
        tensors[i].exchange = found, tensors[i].type = Py_NewRef(type);
    }
    Py_RETURN_NONE;
}

static int says_no(PyObject *method, PyObject *x) {
    PyObject *answer = PyObject_CallFunctionObjArgs(method, x, NULL);
    Py_XDECREF(answer);
    return answer == Py_False;
}

/* Whether it is a tensor in memory of the host that is what lies there. The table does not see that a tensor is the
 * conjugate or the negative of that. */
static int look_at_tensor(PyObject *x, Tensor *t) {
    int at = 0;
    while (at < KINDS && tensors[at].type != (PyObject *)Py_TYPE(x)) at++;
    if (at == KINDS || tensors[at].exchange->look(x, t) || t->device.type != HOST) return 0;
    return says_no(tensors[at].is_neg, x) && (t->dtype.code != COMPLEX || says_no(tensors[at].is_conj, x));
}

static void describe_looked_at(const Tensor *t, Array *array, int with_shape) {
    int64_t elements = 1;
    uint64_t layout = 1;
    int has_gaps = 0;
    for (int i = t->ndim - 1; i >= 0; i--) {
        int64_t stride = t->strides ? t->strides[i] : elements;
        has_gaps |= t->shape[i] != 1 && stride != elements;
        layout = mixed(mixed(layout, (uint64_t)t->shape[i]), (uint64_t)stride);
        elements *= t->shape[i];
    }
    uint64_t dtype = (uint64_t)t->dtype.code << 32 | (uint64_t)t->dtype.bits << 16 | t->dtype.lanes;
    *array = (Array){(char *)t->data + t->offset, elements, dtype, has_gaps || with_shape ? layout : 0, TENSOR};
}

static int describe_tensor(PyObject *x, Array *array, int with_shape) {
    Tensor t;
    return look_at_tensor(x, &t) && (describe_looked_at(&t, array, with_shape), 1);
}

static int is_one_of(PyObject *const *types, PyObject *x) {
    int at = 0;
    while (at < KINDS && types[at] && types[at] != (PyObject *)Py_TYPE(x)) at++;
    return at < KINDS && types[at];
}

static PyObject *dtype_of_format(const char *format) {
    int is_complex = format && *format == 'Z';
    if (!format) return dtypes['B'];
    format += is_complex;
    return *format > 0 && !format[1] ? dtypes[*format + is_complex * OF_COMPLEX] : NULL;
}

static int describe_buffer(PyObject *x, Array *array, int with_shape, Py_buffer *held) {
    if (PyObject_GetBuffer(x, held, PyBUF_FULL_RO)) return held->obj = NULL, 0;
    PyObject *dtype = dtype_of_format(held->format);
    int is_aligned = held->itemsize && !((uintptr_t)held->buf % (size_t)held->itemsize);
    if (!dtype || held->suboffsets || !held->len || !is_aligned) return release(held), 0;
    int lies_together = PyBuffer_IsContiguous(held, 'C'), kind = NUMPY | ALIGNED | (held->readonly ? 0 : WRITEABLE);
    uint64_t layout = lies_together && !with_shape ? 0 : layout_of_dims(held->ndim, held->shape, held->strides);
    *array = (Array){held->buf, held->len / held->itemsize, (uintptr_t)dtype, layout, kind};
    return 1;
}

int describe_other(PyObject *x, Array *array, int with_shape, Py_buffer *held) {
    if (is_one_of(buffers, x)) return describe_buffer(x, array, with_shape, held);
    if (!is_one_of(subclasses, x)) return describe_tensor(x, array, with_shape);
    return describe_numpy(x, array, with_shape), 1;
}

/* Its program may release a memoryview, and make a bytearray longer. */
PyObject *holder_of(PyObject *x, const Py_buffer *held) {
    return held->obj ? PyMemoryView_FromObject(x) : Py_NewRef(x ? x : Py_None);
}

PyObject *dtype_of(PyObject *x) {
    int is_array = x && ((PyObject *)Py_TYPE(x) == ndarray || is_one_of(subclasses, x));
    return is_array ? Py_NewRef(((const NumpyArray *)x)->dtype) : NULL;
}

enum { MOST_TENSOR_DIMS = 16 };
static int layout_of_looked_at(const Tensor *t, Layout *l) {
    int64_t steps[MOST_TENSOR_DIMS], step;
    if (t->ndim > MOST_TENSOR_DIMS || t->dtype.bits % 8) return 0;
    step = t->dtype.bits / 8 * t->dtype.lanes;
    size_t itemsize = (size_t)step;
    for (int i = t->ndim - 1; i >= 0; i--) {
        steps[i] = t->strides ? t->strides[i] * (int64_t)itemsize : step;
        step *= t->shape[i];
    }
    return !layout_of(l, (char *)t->data + t->offset, itemsize, t->ndim, t->shape, steps);
}

static int layout_of_tensor(PyObject *x, Layout *l) {
    Tensor t;
    return look_at_tensor(x, &t) && layout_of_looked_at(&t, l);
}

int copy_tensors(PyObject *tensors, char *memory, size_t nbytes, int back) {
    Layout l;
    for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); i++, memory += l.nbytes, nbytes -= l.nbytes) {
        int known = layout_of_tensor(PyTuple_GetItem(tensors, i), &l);
        if (!known || l.nbytes > nbytes) return PyErr_Clear(), 0;
        if (back) scatter_bytes(&l, 0, l.nbytes, memory);
        else gather_bytes(&l, 0, l.nbytes, memory);
    }
    return !nbytes;
}

PyObject *lists_changed(void) {
    const char *what = "the tensors of a list have changed during the call";
    return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_RuntimeError, what), NULL);
}

int describe_list(PyObject *tensors, int64_t *numbers, size_t *many, size_t most) {
    Py_ssize_t n = PyTuple_Size(tensors);
    if (*many + 3 * (size_t)n + 1 > most) return 0;
    numbers[(*many)++] = n;
    for (Py_ssize_t i = 0; i < n; i++) {
        Tensor t;
        Array array;
        Layout l;
        int known = look_at_tensor(PyTuple_GetItem(tensors, i), &t) && layout_of_looked_at(&t, &l);
        if (!known) return PyErr_Clear(), 0;
        describe_looked_at(&t, &array, 1);
        numbers[(*many)++] = array.elements;
        numbers[(*many)++] = (int64_t)array.dtype;
        numbers[(*many)++] = (int64_t)array.layout;
    }
    return 1;
}

/* lie_together(tuple of tensors): whether they lie one after another, without gaps */
PyObject *lie_together(PyObject *module, PyObject *tensors) {
    char *end = NULL;
    Layout l;
    (void)module;
    if (!PyTuple_Check(tensors)) return PyErr_Format(PyExc_TypeError, "lie_together: expected a tuple");
    for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); i++, end = l.address + l.nbytes) {
        if (!layout_of_tensor(PyTuple_GetItem(tensors, i), &l)) return PyErr_Clear(), Py_NewRef(Py_False);
        if (l.dims || (i && l.address != end)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* pack(tuple of tensors, address, bytes that are there, whether to unpack): copy_tensors, for Python */
PyObject *pack(PyObject *module, PyObject *args) {
    PyObject *tensors, *address;
    Py_ssize_t nbytes;
    int unpacks;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!Onp", &PyTuple_Type, &tensors, &address, &nbytes, &unpacks)) return NULL;
    char *at = PyLong_AsVoidPtr(address);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(copy_tensors(tensors, at, (size_t)nbytes, unpacks));
}
