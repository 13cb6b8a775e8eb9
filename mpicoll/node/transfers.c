/* Messages of a node for Python: a Message is bound to its memory, and a Begun is one of its times under way. */
#include "transfers.h"

#include <stdlib.h>
#include <string.h>

#include "moving.h"

static PyTypeObject *messages_type, *message_type, *begun_type;

typedef struct {
    PyObject_HEAD
    Messages m;
    Moved moved;
    PyObject *memory;    /* what holds the blocks */
    PyObject *meanwhile; /* called now and then in long waits: it moves what MPI has, and may raise */
} MessagesObject;

/* A transfer and what it needs until it is complete. What it refers to refers to no request, so that Python's collector
 * need not know it. */
typedef struct {
    PyObject_HEAD
    MessagesObject *of;
    Transfer t;
    PyObject *held; /* the bytes that are sent, if a program's object has no array */
    char *copy;     /* of what is sent from memory into which something comes */
} BegunObject;

typedef struct {
    PyObject_HEAD
    MessagesObject *of;
    Transfer bound; /* what each time begins with */
    size_t itemsize;
    PyObject *beside; /* the message that leaves, if this one comes in a sendrecv; else NULL */
    int is_one;       /* whether both have one memory */
    BegunObject *spare;
    Envelope last;    /* of what came `now` */
} MessageObject;

static int failed(int code) {
    if (code == OUT_OF_MEMORY) PyErr_NoMemory();
    return code ? -1 : 0; /* after ENDED, an exception is set */
}

/* Messages */

static int has_open(const void *of) { return has_open_transfers(of); }
static int has_come(const void *of) { return something_has_come(of); }
static unsigned long move(void *of) {
    if (has_open_transfers(of)) move_messages(of); /* if memory is short, its rank will be told */
    return (unsigned long)((Messages *)of)->moves;
}

/* Messages(addresses of the ranks' blocks, what holds them, rank, whether ranks take turns on cores, meanwhile). In
 * long waits, `meanwhile` is told how much has moved so far. */
static PyObject *messages_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *addresses, *memory, *meanwhile;
    int rank, crowded;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Messages takes no keywords");
    if (!PyArg_ParseTuple(args, "O!OipO", &PyTuple_Type, &addresses, &memory, &rank, &crowded, &meanwhile)) return NULL;
    int size = (int)PyTuple_Size(addresses);
    MessagesObject *self = (MessagesObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    char **blocks = PyMem_Calloc(size, sizeof *blocks);
    if (!self || !blocks) {
        Py_XDECREF((PyObject *)self);
        PyMem_Free(blocks);
        return PyErr_NoMemory();
    }
    self->memory = Py_NewRef(memory), self->meanwhile = Py_NewRef(meanwhile);
    for (int r = 0; r < size; r++) blocks[r] = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, r));
    int code = PyErr_Occurred() ? -1 : 0;
    if (!code) code = failed(messages_begin(&self->m, rank, size, blocks, crowded, host_of((PyObject *)self)));
    PyMem_Free(blocks);
    if (!code) {
        self->moved = (Moved){&self->m, has_open, has_come, move, NULL, NULL};
        keep_moving(&self->moved);
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

static int messages_traverse(MessagesObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->memory);
    Py_VISIT(self->meanwhile);
    return 0;
}

static int messages_clear(MessagesObject *self) {
    Py_CLEAR(self->meanwhile);
    return 0;
}

static void messages_dealloc(MessagesObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    if (self->moved.of) stop_moving(&self->moved);
    messages_end(&self->m);
    Py_CLEAR(self->memory);
    Py_CLEAR(self->meanwhile);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *messages_call(MessagesObject *self, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    return PyObject_CallFunction(self->meanwhile, "K", (unsigned long long)self->m.moves);
}

static PyObject *envelope(Envelope e) { return Py_BuildValue("iin", e.source, e.tag, (Py_ssize_t)e.nbytes); }

/* probe(source, tag, whether to wait for it): the source, tag and bytes of the first message that such a receive would
 * take, or None */
static PyObject *messages_probe(MessagesObject *self, PyObject *args) {
    int source, tag, waits, found = 1;
    Envelope e;
    if (!PyArg_ParseTuple(args, "iip", &source, &tag, &waits)) return NULL;
    if (failed(waits ? wait_for_message(&self->m, source, tag, &e)
                     : probe_message(&self->m, source, tag, &e, &found)))
        return NULL;
    return found ? envelope(e) : Py_NewRef(Py_None);
}

/* lying(whether to look for more): the source, tag and bytes of the program's messages that are here, and that no
 * receive has asked for */
static PyObject *messages_lying(MessagesObject *self, PyObject *looks) {
    if (looks == Py_True && failed(move_messages(&self->m))) return NULL;
    size_t count = self->m.lying, at = 0;
    Envelope *all = PyMem_Calloc(count + 1, sizeof *all); /* first: Python may run where objects are made */
    if (!all) return PyErr_NoMemory();
    for (const Passed *p = next_passed(&self->m, NULL); p && at < count; p = next_passed(&self->m, p))
        if (p->message.tag >= 0) all[at++] = p->message;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < at; i++) {
        PyObject *each = envelope(all[i]);
        if (!each || PyList_Append(list, each)) Py_CLEAR(list);
        Py_XDECREF(each);
    }
    PyMem_Free(all);
    return list;
}

/* Begun */

static BegunObject *new_begun(MessagesObject *of, const Transfer *bound) {
    BegunObject *self = (BegunObject *)((allocfunc)PyType_GetSlot(begun_type, Py_tp_alloc))(begun_type, 0);
    if (!self) return NULL;
    self->of = (MessagesObject *)Py_NewRef((PyObject *)of);
    self->t = *bound;
    self->t.complete = 1; /* it is not begun yet */
    return self;
}

static int is_over(const BegunObject *self) { return atomic_load_explicit(&self->t.complete, memory_order_relaxed); }

static void begun_dealloc(BegunObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (!is_over(self) && !cancel_receive(&self->of->m, &self->t)) {
        move_on(); /* nobody waits for it any more, and another rank has been told of it: it stays in memory for ever */
        Py_CLEAR(self->of);
        return;
    }
    free(self->copy);
    Py_CLEAR(self->held);
    Py_CLEAR(self->of);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int begin(BegunObject *self) {
    int code = failed(start_transfer(&self->of->m, &self->t));
    if (!code && !is_over(self)) move_on();
    return code;
}

static int wait_for(BegunObject *self) {
    return is_over(self) ? 0 : failed(wait_for_transfer(&self->of->m, &self->t));
}

int is_begun(PyObject *object) { return Py_TYPE(object) == begun_type; }
int is_complete(const PyObject *begun) { return is_over((const BegunObject *)begun); }
const Transfer *transfer_of(const PyObject *begun) { return &((const BegunObject *)begun)->t; }
int wait_for_begun(PyObject *begun) { return wait_for((BegunObject *)begun); }
int look_for_begun(PyObject *begun) {
    BegunObject *self = (BegunObject *)begun;
    return failed(look_for_transfer(&self->of->m, &self->t));
}

static PyObject *begun_wait(BegunObject *self, PyObject *unused) {
    (void)unused;
    return wait_for(self) ? NULL : Py_NewRef(Py_None);
}

static PyObject *begun_test(BegunObject *self, PyObject *unused) {
    (void)unused;
    if (!is_over(self) && failed(move_messages(&self->of->m))) return NULL;
    return PyBool_FromLong(is_over(self));
}

/* Message */

int read_layout(Layout *l, char *address, size_t itemsize, PyObject *shape, PyObject *strides) {
    enum { MOST = 64 };
    int64_t lengths[MOST], steps[MOST];
    Py_ssize_t dims = PyTuple_Size(shape);
    if (dims > MOST || PyTuple_Size(strides) != dims) {
        PyErr_SetString(PyExc_ValueError, "expected a stride for each of at most 64 dimensions");
        return -1;
    }
    for (Py_ssize_t i = 0; i < dims; i++) {
        lengths[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        steps[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
    }
    if (PyErr_Occurred()) return -1;
    if (!layout_of(l, address, itemsize, (int)dims, lengths, steps)) return 0;
    PyErr_SetString(PyExc_ValueError, "the elements lie in too many pieces");
    return -1;
}

/* Message(messages, receives, peer, tag, address, itemsize, shape, strides in bytes, the message that leaves or None,
 *         the file in which the array lies: its number, device, inode, address and bytes) */
static PyObject *message_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *of, *address, *shape, *strides, *beside;
    int receives, peer, tag, file;
    unsigned device;
    unsigned long long inode, start, nbytes;
    Py_ssize_t itemsize;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Message takes no keywords");
    if (!PyArg_ParseTuple(args, "O!piiOnO!O!O(iIKKK)", messages_type, &of, &receives, &peer, &tag, &address, &itemsize,
                          &PyTuple_Type, &shape, &PyTuple_Type, &strides, &beside, &file, &device, &inode, &start,
                          &nbytes))
        return NULL;
    if (peer < (receives ? ANY : 0) || peer >= ((MessagesObject *)of)->m.size)
        return PyErr_Format(PyExc_ValueError, "Message: there is no rank %d", peer);
    if (beside != Py_None && Py_TYPE(beside) != message_type)
        return PyErr_Format(PyExc_TypeError, "Message: expected another Message beside it");
    MessageObject *self = (MessageObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->of = (MessagesObject *)Py_NewRef(of), self->itemsize = (size_t)itemsize;
    self->bound = (Transfer){.receives = receives, .peer = peer, .tag = tag, .home = {file, device, inode, start,
                                                                                      nbytes}};
    char *at = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred() || read_layout(&self->bound.memory, at, self->itemsize, shape, strides)) {
        Py_DECREF(self);
        return NULL;
    }
    if (beside != Py_None) {
        self->beside = Py_NewRef(beside);
        self->is_one = ((MessageObject *)beside)->bound.memory.address == at;
    }
    return (PyObject *)self;
}

static int message_traverse(MessageObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->of);
    Py_VISIT(self->beside);
    return 0;
}

static void message_dealloc(MessageObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->spare);
    Py_CLEAR(self->beside);
    Py_CLEAR(self->of);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* What stands for it this time: the one of the last time, if nobody has that now. */
static BegunObject *begun_of(MessageObject *self) {
    BegunObject *begun = self->spare;
    self->spare = NULL;
    return begun ? begun : new_begun(self->of, &self->bound);
}

/* It is complete. A handler of a signal may have made the message meanwhile, and left another one. */
static void give_back(MessageObject *self, BegunObject *begun) {
    if (self->spare) Py_DECREF(begun);
    else self->spare = begun;
}

/* What is sent lies where something comes. A long message says where it lies: it is copied before that. A short one may
 * still wait for room. */
static int set_aside(BegunObject *sent) {
    Layout *l = &sent->t.memory;
    sent->copy = malloc(l->nbytes);
    if (!sent->copy) return PyErr_NoMemory(), -1;
    gather_bytes(l, 0, l->nbytes, sent->copy);
    *l = (Layout){.address = sent->copy, .nbytes = l->nbytes};
    sent->t.home.file = 0;
    return 0;
}

static int sendrecv(MessageObject *self, BegunObject *sent, BegunObject *comes) {
    Messages *m = &self->of->m;
    int is_long = sent->t.memory.nbytes > m->eager;
    if (self->is_one && is_long && set_aside(sent)) return -1;
    if (failed(start_transfer(m, &sent->t))) return -1;
    if (self->is_one && !is_long && !is_over(sent) && set_aside(sent)) return -1;
    return failed(start_transfer(m, &comes->t)) || wait_for(comes) || wait_for(sent) ? -1 : 0;
}

int carry_message(PyObject *message) {
    MessageObject *self = (MessageObject *)message, *other = (MessageObject *)self->beside;
    BegunObject *begun = begun_of(self), *sent = begun && other ? begun_of(other) : NULL;
    if (!begun || (other && !sent)) {
        Py_XDECREF((PyObject *)begun);
        return -1;
    }
    Messages *m = &self->of->m;
    int code = other ? sendrecv(self, sent, begun) : failed(carry_transfer(m, &begun->t)) ? -1 : 0;
    if (code) { /* what other ranks know of stays in memory */
        Py_DECREF(begun);
        Py_XDECREF((PyObject *)sent);
        return -1;
    }
    self->last = begun->t.message;
    give_back(self, begun);
    if (sent && sent->copy) Py_DECREF(sent);
    else if (sent) give_back(other, sent);
    return 0;
}

static PyObject *message_now(PyObject *self, PyObject *unused) {
    (void)unused;
    return carry_message(self) ? NULL : Py_NewRef(Py_None);
}

PyObject *start_message(PyObject *message) {
    BegunObject *begun = begun_of((MessageObject *)message);
    if (begun && begin(begun)) Py_CLEAR(begun);
    return (PyObject *)begun;
}

void end_message(PyObject *message, PyObject *begun) {
    BegunObject *it = (BegunObject *)begun;
    if (Py_REFCNT(begun) == 1 && is_over(it)) give_back((MessageObject *)message, it);
    else Py_DECREF(begun);
}

static PyObject *message_start(PyObject *self, PyObject *unused) {
    (void)unused;
    return start_message(self);
}

static BegunObject *checked(PyObject *begun) {
    if (Py_TYPE(begun) == begun_type) return (BegunObject *)begun;
    PyErr_SetString(PyExc_TypeError, "expected a message that is under way");
    return NULL;
}

static PyObject *message_wait(PyObject *self, PyObject *begun) {
    (void)self;
    return checked(begun) ? begun_wait((BegunObject *)begun, NULL) : NULL;
}

static PyObject *message_test(PyObject *self, PyObject *begun) {
    (void)self;
    return checked(begun) ? begun_test((BegunObject *)begun, NULL) : NULL;
}

static PyObject *refuse(const char *why) {
    PyObject *errors = PyImport_ImportModule("mpicoll.errors");
    PyObject *type = errors ? PyObject_GetAttrString(errors, "StateError") : NULL;
    if (type) PyErr_SetString(type, why);
    Py_XDECREF(type);
    Py_XDECREF(errors);
    return NULL;
}

/* cancel(begun): give up receiving. False if the message has come already. */
static PyObject *message_cancel(MessageObject *self, PyObject *given) {
    BegunObject *begun = checked(given);
    if (!begun) return NULL;
    if (!self->bound.receives) return refuse("cancel: only a receive can be given up: others know of what is sent");
    if (!is_over(begun) && cancel_receive(&self->of->m, &begun->t)) {
        atomic_store_explicit(&begun->t.complete, 1, memory_order_relaxed);
        Py_RETURN_TRUE;
    }
    return wait_for(begun) ? NULL : Py_NewRef(Py_False);
}

/* Of which message something is asked: one that was begun, or else the last one that came now. */
static const Envelope *asked(MessageObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!n || args[0] == Py_None) return &self->last;
    BegunObject *begun = checked(args[0]);
    return begun ? &begun->t.message : NULL;
}

static PyObject *message_source(MessageObject *self, PyObject *const *args, Py_ssize_t n) {
    const Envelope *e = asked(self, args, n);
    return e ? PyLong_FromLong(e->source) : NULL;
}

static PyObject *message_tag(MessageObject *self, PyObject *const *args, Py_ssize_t n) {
    const Envelope *e = asked(self, args, n);
    return e ? PyLong_FromLong(e->tag) : NULL;
}

/* arrived(begun): the elements that came, None if the message ends within one */
static PyObject *message_arrived(MessageObject *self, PyObject *const *args, Py_ssize_t n) {
    const Envelope *e = asked(self, args, n);
    if (!e) return NULL;
    if (!self->itemsize || e->nbytes % self->itemsize) return Py_NewRef(Py_None);
    return PyLong_FromSize_t(e->nbytes / self->itemsize);
}

int came_whole(PyObject *message) {
    MessageObject *self = (MessageObject *)message;
    return !self->bound.receives || self->last.nbytes == self->bound.memory.nbytes;
}

PyObject *message_of(PyObject *now) {
    return PyCFunction_Check(now) && PyCFunction_GetFunction(now) == message_now ? PyCFunction_GetSelf(now) : NULL;
}

/* Exchange: messages that leave and come at once, such as those of a collective among neighbours */

typedef struct {
    PyObject_HEAD
    PyObject *messages;     /* a tuple */
    PyObject *wrong_length; /* called with the source and the bytes of a message that is shorter or longer: it raises */
} ExchangeObject;

static PyObject *exchange_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *messages, *wrong_length;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Exchange takes no keywords");
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &messages, &wrong_length)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(messages); i++)
        if (Py_TYPE(PyTuple_GetItem(messages, i)) != message_type)
            return PyErr_Format(PyExc_TypeError, "Exchange: expected Messages that are bound");
    ExchangeObject *self = (ExchangeObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) self->messages = Py_NewRef(messages), self->wrong_length = Py_NewRef(wrong_length);
    return (PyObject *)self;
}

static int exchange_traverse(ExchangeObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->messages);
    Py_VISIT(self->wrong_length);
    return 0;
}

static void exchange_dealloc(ExchangeObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->messages);
    Py_CLEAR(self->wrong_length);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static MessageObject *exchanged(ExchangeObject *self, Py_ssize_t i) {
    return (MessageObject *)PyTuple_GetItem(self->messages, i);
}

/* Start all in their order, and wait for all. */
static int carry_all(ExchangeObject *self, BegunObject **begun, Py_ssize_t many) {
    for (Py_ssize_t i = 0; i < many; i++) {
        begun[i] = begun_of(exchanged(self, i));
        if (!begun[i] || failed(start_transfer(&begun[i]->of->m, &begun[i]->t))) return -1;
    }
    for (Py_ssize_t i = 0; i < many; i++)
        if (wait_for(begun[i])) return -1;
    for (Py_ssize_t i = 0; i < many; i++) {
        const Transfer *t = &begun[i]->t;
        if (t->receives && t->message.nbytes != t->memory.nbytes)
            return taken(PyObject_CallFunction(self->wrong_length, "in", t->message.source,
                                               (Py_ssize_t)t->message.nbytes));
    }
    return 0;
}

/* run(): the arrays must be kept for ever where that fails, since other ranks may still write to them */
static PyObject *exchange_run(ExchangeObject *self, PyObject *unused) {
    enum { FEW = 16 };
    BegunObject *few[FEW] = {NULL}, **begun = few;
    Py_ssize_t many = PyTuple_Size(self->messages);
    (void)unused;
    if (many > FEW && !(begun = PyMem_Calloc((size_t)many, sizeof *begun))) return PyErr_NoMemory();
    int code = carry_all(self, begun, many);
    for (Py_ssize_t i = 0; i < many && begun[i]; i++) {
        if (code) Py_DECREF((PyObject *)begun[i]);
        else give_back(exchanged(self, i), begun[i]);
    }
    if (begun != few) PyMem_Free(begun);
    return code ? NULL : Py_NewRef(Py_None);
}

/* Objects, as bytes */

int are_messages(PyObject *object) { return Py_TYPE(object) == messages_type; }

PyObject *send_bytes(PyObject *messages, PyObject *bytes, int dest, int tag) {
    Transfer t = {.peer = dest, .tag = tag};
    t.memory = (Layout){.address = PyBytes_AsString(bytes), .nbytes = (size_t)PyBytes_Size(bytes)};
    BegunObject *begun = new_begun((MessagesObject *)messages, &t);
    if (!begun) return NULL;
    begun->held = Py_NewRef(bytes);
    if (begin(begun)) Py_CLEAR(begun);
    return (PyObject *)begun;
}

PyObject *recv_bytes(PyObject *messages, int source, int tag) {
    MessagesObject *of = (MessagesObject *)messages;
    Transfer t = {.receives = 1};
    Envelope e;
    BegunObject *begun = new_begun(of, &t); /* first: from the look at the message on, no Python may run */
    if (!begun) return NULL;
    if (!failed(wait_for_message(&of->m, source, tag, &e)))
        begun->held = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)e.nbytes);
    PyObject *bytes = Py_XNewRef(begun->held);
    if (bytes) {
        begun->t.peer = e.source, begun->t.tag = e.tag;
        begun->t.memory = (Layout){.address = PyBytes_AsString(bytes), .nbytes = e.nbytes};
        if (begin(begun) || wait_for(begun)) Py_CLEAR(bytes);
    }
    Py_DECREF((PyObject *)begun);
    return bytes;
}

/* send(bytes, dest, tag) -> what stands for the message under way */
static PyObject *messages_send(PyObject *self, PyObject *args) {
    PyObject *bytes;
    int dest, tag;
    if (!PyArg_ParseTuple(args, "O!ii", &PyBytes_Type, &bytes, &dest, &tag)) return NULL;
    return send_bytes(self, bytes, dest, tag);
}

/* recv(source, tag) -> the bytes of a message, when it has come */
static PyObject *messages_recv(PyObject *self, PyObject *args) {
    int source, tag;
    return PyArg_ParseTuple(args, "ii", &source, &tag) ? recv_bytes(self, source, tag) : NULL;
}

#define METHOD(name, of, how) {#name, (PyCFunction)(void (*)(void))of##_##name, how, NULL}
static PyMethodDef messages_methods[] = {METHOD(probe, messages, METH_VARARGS), METHOD(lying, messages, METH_O),
                                         METHOD(send, messages, METH_VARARGS), METHOD(recv, messages, METH_VARARGS),
                                         {0}};
static PyType_Slot messages_slots[] = {
    {Py_tp_new, messages_new}, {Py_tp_traverse, messages_traverse}, {Py_tp_clear, messages_clear},
    {Py_tp_dealloc, messages_dealloc}, {Py_tp_methods, messages_methods}, {Py_tp_call, messages_call}, {0}};
static PyType_Spec messages_spec = {"mpicoll.node.kernel.Messages", sizeof(MessagesObject), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, messages_slots};

static PyMethodDef begun_methods[] = {METHOD(wait, begun, METH_NOARGS), METHOD(test, begun, METH_NOARGS), {0}};
static PyType_Slot begun_slots[] = {{Py_tp_dealloc, begun_dealloc}, {Py_tp_methods, begun_methods}, {0}};
static PyType_Spec begun_spec = {"mpicoll.node.kernel.Begun", sizeof(BegunObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, begun_slots};

static PyMethodDef message_methods[] = {
    METHOD(now, message, METH_NOARGS), METHOD(start, message, METH_NOARGS), METHOD(wait, message, METH_O),
    METHOD(test, message, METH_O), METHOD(cancel, message, METH_O), METHOD(source, message, METH_FASTCALL),
    METHOD(tag, message, METH_FASTCALL), METHOD(arrived, message, METH_FASTCALL), {0}};
static PyType_Slot message_slots[] = {{Py_tp_new, message_new}, {Py_tp_traverse, message_traverse},
                                      {Py_tp_dealloc, message_dealloc}, {Py_tp_methods, message_methods}, {0}};
static PyType_Spec message_spec = {"mpicoll.node.kernel.Message", sizeof(MessageObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, message_slots};

static PyMethodDef exchange_methods[] = {METHOD(run, exchange, METH_NOARGS), {0}};
static PyType_Slot exchange_slots[] = {{Py_tp_new, exchange_new}, {Py_tp_traverse, exchange_traverse},
                                       {Py_tp_dealloc, exchange_dealloc}, {Py_tp_methods, exchange_methods}, {0}};
static PyType_Spec exchange_spec = {"mpicoll.node.kernel.Exchange", sizeof(ExchangeObject), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, exchange_slots};

int add_transfers(PyObject *module) {
    messages_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &messages_spec, NULL);
    begun_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &begun_spec, NULL);
    message_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &message_spec, NULL);
    PyTypeObject *exchange_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &exchange_spec, NULL);
    if (!messages_type || !begun_type || !message_type || !exchange_type) return -1;
    if (PyObject_SetAttrString((PyObject *)message_type, "overruns", Py_False)) return -1;
    return add_requests(module) || add_objects(module) || PyModule_AddType(module, messages_type) ||
           PyModule_AddType(module, message_type) || PyModule_AddType(module, begun_type) ||
           PyModule_AddType(module, exchange_type);
}
