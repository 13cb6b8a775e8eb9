/* Messages of Python's objects: what is known of one before it is sent or has come. */
#include "transfers.h"

static PyTypeObject *type_of_objects;

typedef struct {
    PyObject_HEAD
    PyObject *messages, *convert; /* what makes bytes of an object, or an object of bytes */
    int receives, peer, tag;
} ObjectMessage;

/* ObjectMessage(messages, receives, peer, tag, what makes bytes of an object that is sent, or an object of what
 * came) */
static PyObject *objects_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *messages, *convert;
    int receives, peer, tag;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "ObjectMessage takes no keywords");
    if (!PyArg_ParseTuple(args, "OpiiO", &messages, &receives, &peer, &tag, &convert)) return NULL;
    if (!are_messages(messages)) return PyErr_Format(PyExc_TypeError, "ObjectMessage: expected Messages");
    ObjectMessage *self = (ObjectMessage *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->messages = Py_NewRef(messages), self->convert = Py_NewRef(convert);
    self->receives = receives, self->peer = peer, self->tag = tag;
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

PyObject *bytes_of(PyObject *message, PyObject *object) {
    PyObject *bytes = PyObject_CallFunctionObjArgs(((ObjectMessage *)message)->convert, object, NULL);
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
    PyObject *object = came ? PyObject_CallFunctionObjArgs(self->convert, came, NULL) : NULL;
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
