/* Messages of Python's objects: what is known of one before it is sent or has come.
 *
 * Bytes, texts, numbers, None, True and False are pickled here, so that two short messages do not wait for Python's
 * pickle four times. What is sent is a pickle like any other (PEP 3154), and only such pickles are read here.
 */
#include "transfers.h"

#include <string.h>

static PyTypeObject *type_of_objects;

typedef struct {
    PyObject_HEAD
    PyObject *messages, *convert; /* what makes bytes of an object, or an object of bytes */
    int receives, peer, tag;
    int by_pickle; /* whether `convert` pickles what is pickled here */
} ObjectMessage;

/* ObjectMessage(messages, receives, peer, tag, what makes bytes of an object that is sent, or an object of what
 * came, whether that pickles as Python does) */
static PyObject *objects_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *messages, *convert;
    int receives, peer, tag, by_pickle;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "ObjectMessage takes no keywords");
    if (!PyArg_ParseTuple(args, "OpiiOp", &messages, &receives, &peer, &tag, &convert, &by_pickle)) return NULL;
    if (!are_messages(messages)) return PyErr_Format(PyExc_TypeError, "ObjectMessage: expected Messages");
    ObjectMessage *self = (ObjectMessage *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->messages = Py_NewRef(messages), self->convert = Py_NewRef(convert);
    self->receives = receives, self->peer = peer, self->tag = tag, self->by_pickle = by_pickle;
    return (PyObject *)self;
}

static int objects_traverse(ObjectMessage *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->messages);
    Py_VISIT(self->convert);
    return 0;
}

static void objects_dealloc(ObjectMessage *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->messages);
    Py_CLEAR(self->convert);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int is_object_message(PyObject *message) { return Py_TYPE(message) == type_of_objects; }
int sends_object(PyObject *message) { return !((ObjectMessage *)message)->receives; }

/* A pickle: its protocol, one operation with a number or with so many bytes behind their number, and the end. */
enum { PROTO = 0x80, VERSION = 4, STOP = '.', NONE = 'N', TRUE = 0x88, FALSE = 0x89, LONG1 = 0x8a, FLOAT = 'G',
       BYTES = 'B', TEXT = 'X' };
enum { HEAD = 3, COUNT = 4, NUMBER = 8 };

static void put_number(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t number_at(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)from[i] << 8 * i;
    return value;
}

static uint64_t turned(uint64_t value) { /* a pickle's floats have their highest byte first */
    unsigned char bytes[NUMBER];
    put_number(bytes, value, NUMBER);
    for (int i = 0; i < NUMBER / 2; i++) {
        unsigned char other = bytes[i];
        bytes[i] = bytes[NUMBER - 1 - i], bytes[NUMBER - 1 - i] = other;
    }
    return number_at(bytes, NUMBER);
}

/* A pickle with room for so many bytes behind the operation. */
static PyObject *new_pickle(int operation, Py_ssize_t room, unsigned char **behind) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, HEAD + room + 1);
    if (!bytes) return NULL;
    unsigned char *at = (unsigned char *)PyBytes_AsString(bytes);
    at[0] = PROTO, at[1] = VERSION, at[2] = (unsigned char)operation, at[HEAD + room] = STOP;
    *behind = at + HEAD;
    return bytes;
}

static PyObject *pickled_bytes(int operation, const char *from, Py_ssize_t n) {
    unsigned char *to;
    PyObject *bytes = from && n <= INT32_MAX ? new_pickle(operation, COUNT + n, &to) : NULL;
    if (bytes) put_number(to, (uint64_t)n, COUNT), memcpy(to + COUNT, from, (size_t)n);
    return bytes;
}

static PyObject *pickled_int(PyObject *object) {
    unsigned char *to;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    PyObject *bytes = overflow ? NULL : new_pickle(LONG1, 1 + NUMBER, &to);
    if (bytes) *to = NUMBER, put_number(to + 1, (uint64_t)value, NUMBER);
    return bytes;
}

static PyObject *pickled_float(PyObject *object) {
    unsigned char *to;
    double value = PyFloat_AsDouble(object);
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    PyObject *bytes = new_pickle(FLOAT, NUMBER, &to);
    if (bytes) put_number(to, turned(bits), NUMBER);
    return bytes;
}

/* NULL where it is something else, or with an exception. */
static PyObject *pickled(PyObject *object) {
    unsigned char *to;
    Py_ssize_t n;
    if (object == Py_None) return new_pickle(NONE, 0, &to);
    if (object == Py_True || object == Py_False) return new_pickle(object == Py_True ? TRUE : FALSE, 0, &to);
    if (PyBytes_CheckExact(object)) return pickled_bytes(BYTES, PyBytes_AsString(object), PyBytes_Size(object));
    if (PyLong_CheckExact(object)) return pickled_int(object);
    if (PyFloat_CheckExact(object)) return pickled_float(object);
    if (!PyUnicode_CheckExact(object)) return NULL;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n); /* NULL for half of a pair of surrogates */
    return pickled_bytes(TEXT, text, text ? n : 0);
}

/* NULL where it is something else, or with an exception. */
static PyObject *unpickled(PyObject *bytes) {
    const unsigned char *at = (const unsigned char *)PyBytes_AsString(bytes);
    Py_ssize_t n = PyBytes_Size(bytes) - HEAD - 1; /* behind the operation */
    if (n < 0 || at[0] != PROTO || at[1] != VERSION || at[HEAD + n] != STOP) return NULL;
    int operation = at[2], is_counted = n >= COUNT && number_at(at + HEAD, COUNT) == (uint64_t)(n - COUNT);
    const char *counted = (const char *)at + HEAD + COUNT;
    if (operation == BYTES && is_counted) return PyBytes_FromStringAndSize(counted, n - COUNT);
    if (operation == TEXT && is_counted) return PyUnicode_DecodeUTF8(counted, n - COUNT, "surrogatepass");
    if (operation == LONG1 && n == 1 + NUMBER && at[HEAD] == NUMBER)
        return PyLong_FromLongLong((int64_t)number_at(at + HEAD + 1, NUMBER));
    if (operation == FLOAT && n == NUMBER) {
        uint64_t bits = turned(number_at(at + HEAD, NUMBER));
        double value;
        memcpy(&value, &bits, sizeof value);
        return PyFloat_FromDouble(value);
    }
    if (n) return NULL;
    PyObject *known = operation == NONE ? Py_None : operation == TRUE ? Py_True : operation == FALSE ? Py_False : NULL;
    return Py_XNewRef(known);
}

PyObject *bytes_of(PyObject *message, PyObject *object) {
    ObjectMessage *self = (ObjectMessage *)message;
    PyObject *bytes = self->by_pickle ? pickled(object) : NULL;
    if (bytes) return bytes;
    PyErr_Clear();
    bytes = PyObject_CallFunctionObjArgs(self->convert, object, NULL);
    if (bytes && PyBytes_CheckExact(bytes)) return bytes;
    if (bytes || PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear(); /* Python tries again, and says why */
    Py_XDECREF(bytes);
    return NULL;
}

PyObject *carry_object(PyObject *message, PyObject *bytes) {
    ObjectMessage *self = (ObjectMessage *)message;
    if (!self->receives) {
        PyObject *begun = send_bytes(self->messages, bytes, self->peer, self->tag);
        int code = begun ? wait_for_begun(begun) : -1;
        Py_XDECREF(begun);
        return code ? NULL : Py_NewRef(Py_None);
    }
    PyObject *came = recv_bytes(self->messages, self->peer, self->tag);
    wait_as(NULL, NULL, NULL); /* what the program's own code may wait for is something else */
    PyObject *object = came && self->by_pickle ? unpickled(came) : NULL;
    if (came && !object && !PyErr_Occurred()) object = PyObject_CallFunctionObjArgs(self->convert, came, NULL);
    Py_XDECREF(came);
    return object;
}

static PyType_Slot slots[] = {{Py_tp_new, objects_new}, {Py_tp_traverse, objects_traverse},
                              {Py_tp_dealloc, objects_dealloc}, {0}};
static PyType_Spec spec = {"mpicoll.node.kernel.ObjectMessage", sizeof(ObjectMessage), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int add_objects(PyObject *module) {
    type_of_objects = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return type_of_objects ? PyModule_AddType(module, type_of_objects) : -1;
}
