/* Requests: what Python's class Request keeps, and how one of the kernel's messages or calls is begun and waited for.
 *
 * One that is complete at once leaves nothing behind. Others are in a set of Python's until they are complete, so
 * that their arrays stay, whatever the program does with the request.
 */
#include "transfers.h"

#include <stddef.h>
#include <structmember.h>

#define OVERHEAD 4096         /* bytes that a message counts for besides its own */
#define LOOK_AFTER (16 << 20) /* bytes begun and not complete at once, before the program looks what of it is */

typedef struct {
    PyObject_HEAD
    PyObject *message, *under_way, *array, *turn, *begun, *failed, *finish, *result, *since;
    char done;
    char is_plain; /* made here, so that nothing but its length is to be compared */
} RequestObject;

static PyTypeObject *class; /* Python's */
static PyObject *open;      /* all that is begun and not complete */
static PyObject *name_lost, *name_timeout, *name_waits, *name_pending, *name_raise, *name_complete, *name_tape;

/* prepare_requests(the class, the set of what is under way) */
static PyObject *prepare_requests(PyObject *module, PyObject *args) {
    PyObject *given, *set;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &given, &PySet_Type, &set)) return NULL;
    class = (PyTypeObject *)Py_NewRef(given), open = Py_NewRef(set);
    Py_RETURN_NONE;
}

static void set(PyObject **field, PyObject *value) {
    PyObject *old = *field;
    *field = value;
    Py_XDECREF(old);
}

static int is_over(PyObject *begun) {
    return is_begun_call(begun) ? is_call_complete(begun) > 0 : is_complete(begun);
}

/* It has arrived, or left. What came must have the array's length. */
static int complete(RequestObject *self, PyObject *begun) {
    const Transfer *t = is_begun_call(begun) ? NULL : transfer_of(begun);
    if (t && t->receives) {
        set(&self->begun, Py_NewRef(begun));
        if (t->message.nbytes != t->memory.nbytes) {
            PyObject *failed = PyObject_CallMethod(self->message, "wrong_length", "O", begun);
            if (!failed) return -1;
            set(&self->failed, failed);
        }
    }
    self->done = 1;
    set(&self->array, NULL);
    return PySet_Discard(open, (PyObject *)self) < 0 ? -1 : 0;
}

static PyObject *pair(PyObject *pending) {
    return Py_BuildValue("Od", pending, seconds());
}

/* The transfer of a request, if nobody waits for it now and nothing is to be done after it. Borrowed, or NULL. */
static PyObject *transfer_in(const RequestObject *self) {
    if (!self->turn || PyList_Size(self->turn) != 1 || (self->finish && self->finish != Py_None)) return NULL;
    PyObject *begun = PyList_GetItem(self->turn, 0);
    return is_begun(begun) || is_begun_call(begun) ? begun : NULL;
}

/* Let go what is complete by now, whether or not the program has kept the request. Nothing is moved for that. */
static int let_go_of_complete(void) {
    PyObject *all = PySequence_List(open);
    int code = all ? 0 : -1;
    for (Py_ssize_t i = 0; !code && i < PyList_Size(all); i++) {
        RequestObject *each = (RequestObject *)PyList_GetItem(all, i);
        int may_end = Py_TYPE((PyObject *)each) == class && each->is_plain && !each->done;
        PyObject *begun = may_end ? transfer_in(each) : NULL;
        if (begun && is_over(begun)) code = complete(each, begun);
    }
    Py_XDECREF(all);
    return code;
}

/* The transfer stands in a list, from which the one that waits for it takes it: other threads may wait, too. */
static int put_under_way(RequestObject *self, PyObject *begun, PyObject *pending) {
    static size_t bytes;
    self->turn = PyList_New(1), self->since = pair(pending);
    if (!self->turn || !self->since || PyList_SetItem(self->turn, 0, Py_NewRef(begun))) return -1;
    if (PySet_Add(open, (PyObject *)self)) return -1;
    bytes += (is_begun_call(begun) ? 0 : transfer_of(begun)->memory.nbytes) + OVERHEAD;
    if (bytes < LOOK_AFTER) return 0;
    bytes = 0;
    return let_go_of_complete();
}

PyObject *new_request(PyObject *message, PyObject *begun, PyObject *array, PyObject *under_way, PyObject *pending,
                      PyObject *result) {
    RequestObject *self = (RequestObject *)((allocfunc)PyType_GetSlot(class, Py_tp_alloc))(class, 0);
    if (!self) return NULL;
    self->message = Py_NewRef(message), self->under_way = Py_NewRef(under_way), self->is_plain = 1, self->result = Py_XNewRef(result);
    if (is_over(begun)) {
        if (!complete(self, begun)) return (PyObject *)self;
    } else {
        self->array = Py_NewRef(array);
        if (!put_under_way(self, begun, pending)) return (PyObject *)self;
    }
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* The transfer, if this thread may simply wait for it: nobody else does, there is no limit of time, and nobody notes when
 * each wait begins and ends. Else NULL. */
static PyObject *take_turn(RequestObject *self) {
    PyObject *begun = transfer_in(self);
    if (!begun) return NULL;
    PyObject *lost = PyObject_GetAttr(self->under_way, name_lost);
    PyObject *timeout = lost ? PyObject_GetAttr(self->under_way, name_timeout) : NULL;
    PyObject *waits = timeout ? PyObject_GetAttr(self->under_way, name_waits) : NULL;
    PyObject *tape = waits ? PyObject_GetAttr(waits, name_tape) : NULL;
    int free = timeout == Py_None && tape == Py_None && PyUnicode_Check(lost) && PyUnicode_GetLength(lost) == 0;
    Py_XDECREF(lost);
    Py_XDECREF(timeout);
    Py_XDECREF(waits);
    Py_XDECREF(tape);
    if (!free) return PyErr_Clear(), NULL;
    Py_INCREF(begun);
    if (!PyList_SetSlice(self->turn, 0, 1, NULL)) return begun;
    PyErr_Clear();
    Py_DECREF(begun);
    return NULL;
}

static int wait_here(RequestObject *self, PyObject *begun) {
    PyObject *waits = PyObject_GetAttr(self->under_way, name_waits);
    PyObject *pending = PyObject_GetAttr(self->message, name_pending);
    if (waits && pending) wait_as(waits, pending, self->since);
    int code = !waits || !pending ? -1 : is_begun_call(begun) ? wait_for_call(begun) : wait_for_begun(begun);
    wait_as(NULL, NULL, NULL);
    Py_XDECREF(waits);
    Py_XDECREF(pending);
    if (!code && !self->done) code = complete(self, begun);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (PyList_Append(self->turn, begun)) PyErr_Clear();
    PyErr_Restore(type, error, trace);
    return code;
}

static PyObject *request_wait(PyObject *of, PyObject *unused) {
    RequestObject *self = (RequestObject *)of;
    (void)unused;
    if (!self->done) {
        PyObject *begun = take_turn(self);
        int code = begun ? wait_here(self, begun) : 0;
        if (begun && is_begun_call(begun) && is_call_complete(begun) < 0) PyErr_Clear(); /* Python says what comes of that */
        if (!begun || (code && !PyErr_Occurred())) code = taken(PyObject_CallMethodObjArgs(of, name_complete, NULL));
        Py_XDECREF(begun);
        if (code) return NULL;
    }
    if (!self->failed || self->failed == Py_None) Py_RETURN_NONE;
    return PyObject_CallMethodObjArgs(of, name_raise, NULL);
}

static int request_traverse(RequestObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (PyObject **field = &self->message; field <= &self->since; field++) Py_VISIT(*field);
    return 0;
}

static int request_clear(RequestObject *self) {
    for (PyObject **field = &self->message; field <= &self->since; field++) set(field, NULL);
    return 0;
}

static void request_dealloc(RequestObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    request_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

#define MEMBER(name) {"_" #name, T_OBJECT, offsetof(RequestObject, name), 0, NULL}
static PyMemberDef members[] = {
    MEMBER(message), MEMBER(under_way), MEMBER(array), MEMBER(turn), MEMBER(begun), MEMBER(failed), MEMBER(finish),
    MEMBER(since), {"result", T_OBJECT, offsetof(RequestObject, result), 0, NULL},
    {"done", T_BOOL, offsetof(RequestObject, done), 0, NULL}, {0}};
static PyMethodDef methods[] = {{"wait", request_wait, METH_NOARGS, NULL}, {0}};
static PyMethodDef functions[] = {{"prepare_requests", prepare_requests, METH_VARARGS, NULL}, {0}};
static PyType_Slot slots[] = {{Py_tp_traverse, request_traverse}, {Py_tp_clear, request_clear},
                              {Py_tp_dealloc, request_dealloc}, {Py_tp_members, members}, {Py_tp_methods, methods}, {0}};
static PyType_Spec spec = {"mpicoll.node.kernel.Request", sizeof(RequestObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

int add_requests(PyObject *module) {
    struct { PyObject **name; const char *text; } names[] = {
        {&name_lost, "lost"}, {&name_timeout, "timeout"}, {&name_waits, "waits"}, {&name_pending, "pending"},
        {&name_raise, "_raise"}, {&name_complete, "complete"}, {&name_tape, "tape"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    return !type || PyModule_AddType(module, (PyTypeObject *)type) || PyModule_AddFunctions(module, functions) ? -1 : 0;
}
