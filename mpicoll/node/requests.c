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
    PyObject *message, *under_way, *array, *begun, *failed, *finish, *result;
    PyObject *transfer;     /* what stands for it. NULL while somebody waits for it, or where there are turns */
    PyObject *turn, *since; /* made when Python asks for them */
    PyObject *ring, *pending; /* of one that was made here; else NULL */
    double when;
    char done, is_open;
    PyObject **kept_in; /* where it is kept to serve again, or NULL */
} RequestObject;

static PyTypeObject *class; /* Python's */
static PyObject *open;      /* all that is begun and not complete */
static Py_ssize_t weak_at;  /* bytes to its weak references; 0 if it has none */
static PyObject *name_lost, *name_timeout, *name_waits, *name_raise, *name_complete, *name_unheard;

/* prepare_requests(the class, the set of what is under way) */
static PyObject *prepare_requests(PyObject *module, PyObject *args) {
    PyObject *given, *set;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &given, &PySet_Type, &set)) return NULL;
    class = (PyTypeObject *)Py_NewRef(given), open = Py_NewRef(set);
    PyObject *offset = PyObject_GetAttrString(given, "__weakrefoffset__");
    weak_at = offset ? PyLong_AsSsize_t(offset) : -1;
    Py_XDECREF(offset);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static void set(PyObject **field, PyObject *value) {
    PyObject *old = *field;
    *field = value;
    Py_XDECREF(old);
}

/* What is kept holds nothing that the program has dropped, such as an error of which nobody has heard. */
static void set_failed(RequestObject *self, PyObject *failed) {
    set(&self->failed, failed);
    if (failed && failed != Py_None && self->kept_in) forget_request(self->kept_in);
}

void keep_request(PyObject *request, PyObject **in) {
    forget_request(in);
    ((RequestObject *)request)->kept_in = in, *in = Py_NewRef(request);
}

void forget_request(PyObject **in) {
    PyObject *request = *in;
    *in = NULL;
    if (!request) return;
    ((RequestObject *)request)->kept_in = NULL;
    Py_DECREF(request);
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
            set_failed(self, failed);
        }
    }
    self->done = 1;
    set(&self->array, NULL);
    return self->is_open && PySet_Discard(open, (PyObject *)self) < 0 ? -1 : 0;
}

/* The transfer of a request, if nobody waits for it now and nothing is to be done after it. Borrowed, or NULL. */
static PyObject *transfer_in(const RequestObject *self) {
    if (self->finish && self->finish != Py_None) return NULL;
    if (self->transfer) return self->transfer;
    if (!self->turn || PyList_Size(self->turn) != 1) return NULL;
    PyObject *begun = PyList_GetItem(self->turn, 0);
    return is_begun(begun) || is_begun_call(begun) ? begun : NULL;
}

/* Others find nobody's turn until it is handed back. */
static int take_turn(RequestObject *self, PyObject *begun) {
    Py_INCREF(begun);
    if (self->transfer) return set(&self->transfer, NULL), 0;
    if (!PyList_SetSlice(self->turn, 0, 1, NULL)) return 0;
    Py_DECREF(begun);
    return -1;
}

static void hand_back(RequestObject *self, PyObject *begun) {
    if (!self->turn) {
        self->transfer = begun;
        return;
    }
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (PyList_Append(self->turn, begun)) PyErr_Clear();
    PyErr_Restore(type, error, trace);
    Py_DECREF(begun);
}

/* The list in which it stands while nobody waits for it. */
static PyObject *request_get_turn(RequestObject *self, void *unused) {
    (void)unused;
    if (!self->turn) {
        PyObject *turn = PyList_New(0);
        if (!turn || (self->transfer && PyList_Append(turn, self->transfer))) {
            Py_XDECREF(turn);
            return NULL;
        }
        set(&self->turn, turn);
        set(&self->transfer, NULL);
    }
    return Py_NewRef(self->turn);
}

static int request_set_turn(RequestObject *self, PyObject *list, void *unused) {
    (void)unused;
    set(&self->turn, Py_XNewRef(list));
    return 0;
}

static PyObject *request_get_failed(RequestObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(self->failed ? self->failed : Py_None);
}

static int request_set_failed(RequestObject *self, PyObject *failed, void *unused) {
    (void)unused;
    set_failed(self, Py_XNewRef(failed));
    return 0;
}

/* What is pending, and since when. */
static PyObject *request_get_since(RequestObject *self, void *unused) {
    (void)unused;
    if (!self->since && self->pending) set(&self->since, Py_BuildValue("Od", self->pending, self->when));
    return self->since ? Py_NewRef(self->since) : self->pending ? NULL : Py_NewRef(Py_None);
}

static int request_set_since(RequestObject *self, PyObject *since, void *unused) {
    (void)unused;
    set(&self->since, Py_XNewRef(since));
    return 0;
}

/* Let go what is complete by now, whether or not the program has kept the request. Nothing is moved for that. */
static int let_go_of_complete(void) {
    PyObject *all = PySequence_List(open);
    int code = all ? 0 : -1;
    for (Py_ssize_t i = 0; !code && i < PyList_Size(all); i++) {
        RequestObject *each = (RequestObject *)PyList_GetItem(all, i);
        int may_end = PyObject_TypeCheck((PyObject *)each, class) && each->pending && !each->done;
        PyObject *begun = may_end ? transfer_in(each) : NULL;
        if (begun && is_over(begun)) code = complete(each, begun);
    }
    Py_XDECREF(all);
    return code;
}

/* Until it is complete, the set keeps it. */
static int put_under_way(RequestObject *self, PyObject *begun) {
    static size_t bytes;
    if (PySet_Add(open, (PyObject *)self)) return -1;
    self->is_open = 1;
    bytes += (is_begun_call(begun) ? 0 : transfer_of(begun)->memory.nbytes) + OVERHEAD;
    if (bytes < LOOK_AFTER) return 0;
    bytes = 0;
    return let_go_of_complete();
}

int is_request_type(PyObject *object) {
    return PyType_Check(object) && PyType_IsSubtype((PyTypeObject *)object, class);
}

PyObject *new_request(PyObject *kind, PyObject *message, PyObject *under_way, PyObject *result) {
    PyTypeObject *type = kind ? (PyTypeObject *)kind : class;
    RequestObject *self = (RequestObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->message = Py_NewRef(message), self->under_way = Py_NewRef(under_way), self->result = Py_XNewRef(result);
    return (PyObject *)self;
}

PyObject *used_again(PyObject *last, PyObject *message) {
    RequestObject *self = (RequestObject *)last;
    if (!last || Py_REFCNT(last) != 1) return NULL; /* one that is under way is in the set, too */
    if (weak_at && *(PyObject **)((char *)last + weak_at)) return NULL; /* to those it would be the old one */
    PyObject *begun = self->begun;
    self->begun = NULL, self->done = 0, self->is_open = 0;
    set(&self->turn, NULL), set(&self->since, NULL), set(&self->transfer, NULL), set(&self->result, NULL);
    if (begun) end_message(message, begun);
    return Py_NewRef(last);
}

int begin_request(PyObject *request, PyObject *begun, PyObject *array, const Noted *noted) {
    RequestObject *self = (RequestObject *)request;
    if (is_over(begun)) return complete(self, begun);
    set(&self->ring, Py_NewRef(noted->ring)), set(&self->pending, Py_NewRef(noted->pending)), self->when = noted->when;
    set(&self->array, Py_NewRef(array)), set(&self->transfer, Py_NewRef(begun));
    return put_under_way(self, begun);
}

static int is_not_lost(const RequestObject *self) {
    PyObject *lost = PyObject_GetAttr(self->under_way, name_lost);
    int is = lost && PyUnicode_Check(lost) && PyUnicode_GetLength(lost) == 0;
    Py_XDECREF(lost);
    return is;
}

static int has_no_limit(const RequestObject *self) {
    PyObject *timeout = PyObject_GetAttr(self->under_way, name_timeout);
    Py_XDECREF(timeout);
    return timeout == Py_None;
}

static int wait_here(RequestObject *self, PyObject *begun) {
    PyObject *waits = PyObject_GetAttr(self->under_way, name_waits);
    PyObject *since = waits ? request_get_since(self, NULL) : NULL;
    if (since) wait_as(waits, PyTuple_GetItem(since, 0), since);
    int code = !since ? -1 : is_begun_call(begun) ? wait_for_call(begun) : wait_for_begun(begun);
    wait_as(NULL, NULL, NULL);
    Py_XDECREF(waits);
    Py_XDECREF(since);
    return code;
}

/* Wait for what was begun here, unless somebody notes when each wait begins and ends. Most messages are complete
 * soon: nobody needs to know that those are waited for. Returns 1 if it is complete, 0 if Python must wait for it,
 * -1 with an exception. */
static int try_to_wait(RequestObject *self) {
    PyObject *begun = self->ring && !is_taped(self->ring) ? transfer_in(self) : NULL;
    if (!begun || !is_not_lost(self) || take_turn(self, begun)) return PyErr_Clear(), 0;
    int code = is_begun_call(begun) ? 0 : look_for_begun(begun), waits = !code && !is_over(begun) && has_no_limit(self);
    if (waits) code = wait_here(self, begun);
    if (!code && is_over(begun) && !self->done) code = complete(self, begun);
    if (code && is_begun_call(begun) && is_call_complete(begun) < 0) code = 0, PyErr_Clear(); /* Python says why */
    hand_back(self, begun);
    return code ? -1 : self->done;
}

static PyObject *request_wait(PyObject *of, PyObject *unused) {
    RequestObject *self = (RequestObject *)of;
    (void)unused;
    int code = self->done ? 1 : try_to_wait(self);
    if (code < 0 || (!code && taken(PyObject_CallMethodObjArgs(of, name_complete, NULL)))) return NULL;
    if (!self->failed || self->failed == Py_None) Py_RETURN_NONE;
    return PyObject_CallMethodObjArgs(of, name_raise, NULL);
}

/* Nobody can ask any more what has failed. */
static void request_finalize(PyObject *of) {
    const RequestObject *self = (RequestObject *)of;
    if (!self->failed || self->failed == Py_None) return;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (taken(PyObject_CallMethodObjArgs(of, name_unheard, NULL))) PyErr_WriteUnraisable(of);
    PyErr_Restore(type, error, trace);
}

static int request_traverse(RequestObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (PyObject **field = &self->message; field <= &self->pending; field++) Py_VISIT(*field);
    return 0;
}

static int request_clear(RequestObject *self) {
    for (PyObject **field = &self->message; field <= &self->pending; field++) set(field, NULL);
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
    MEMBER(message), MEMBER(under_way), MEMBER(array), MEMBER(begun), MEMBER(finish),
    {"result", T_OBJECT, offsetof(RequestObject, result), 0, NULL},
    {"done", T_BOOL, offsetof(RequestObject, done), 0, NULL}, {0}};
static PyGetSetDef getset[] = {{"_failed", (getter)request_get_failed, (setter)request_set_failed, NULL, NULL},
                               {"_turn", (getter)request_get_turn, (setter)request_set_turn, NULL, NULL},
                               {"_since", (getter)request_get_since, (setter)request_set_since, NULL, NULL}, {0}};
static PyMethodDef methods[] = {{"wait", request_wait, METH_NOARGS, NULL}, {0}};
static PyMethodDef functions[] = {{"prepare_requests", prepare_requests, METH_VARARGS, NULL}, {0}};
static PyType_Slot slots[] = {{Py_tp_traverse, request_traverse}, {Py_tp_clear, request_clear},
                              {Py_tp_dealloc, request_dealloc}, {Py_tp_finalize, request_finalize},
                              {Py_tp_members, members}, {Py_tp_getset, getset}, {Py_tp_methods, methods}, {0}};
static PyType_Spec spec = {"mpicoll.node.kernel.Request", sizeof(RequestObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

int add_requests(PyObject *module) {
    struct { PyObject **name; const char *text; } names[] = {
        {&name_lost, "lost"}, {&name_timeout, "timeout"}, {&name_waits, "waits"}, {&name_unheard, "_unheard"},
        {&name_raise, "_raise"}, {&name_complete, "complete"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    return !type || PyModule_AddType(module, (PyTypeObject *)type) || PyModule_AddFunctions(module, functions) ? -1 : 0;
}
