/* A repeated call, from a program's arguments to its plan, and the note of it that the watcher reads.
 *
 * A Method is what a program calls: `comm.allreduce(x, out=y)`. If the Calls of its communicator know a plan for these
 * arguments, on the memory that the arrays have now, the Ring notes the call, and the plan runs. For all else it calls
 * the Python function of this name, which checks the call, binds a plan and gives it to the Calls.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "transfers.h"

#include "arrays.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

/* Vectorcall is part of the limited API from 3.12 on. 3.11 has it with the same values. */
#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#define Py_TPFLAGS_METHOD_DESCRIPTOR (1UL << 17)
typedef PyObject *(*vectorcallfunc)(PyObject *, PyObject *const *, size_t, PyObject *);
#define PyVectorcall_NARGS(n) ((Py_ssize_t)((n) & ~((size_t)1 << (8 * sizeof(size_t) - 1))))
#endif

static PyTypeObject *ring_type, *calls_type, *base_type, *method_type;
static PyObject *is_library; /* by file, whether it belongs to a library */
static uint64_t no_board, *board = &no_board; /* where the number of this process's last call is noted */
static PyObject *bound_method; /* Python's type of bound methods */
static PyObject *name_back, *name_lasti, *name_filename, *name_number, *name_digest, *name_run, *name_record;
static PyObject *name_profiles, *name_turn, *name_who, *name_waiting;

/* PyFrame_GetLasti, which all Pythons from 3.11 on have. The limited API does not promise it. */
static int (*get_lasti)(PyObject *frame);

/* Ring: the last calls of a communicator, and its last messages. A ring has LENGTH calls (supervise/record.py). Those
 * of the ring before are kept, too. */

#define LENGTH 256
#define KEPT (2 * LENGTH)
#define MESSAGES 256

/* What is noted of a call: its record, and what is read of that once for all calls of a plan. */
typedef struct {
    PyObject *record;
    uint64_t number;
    char digest[8];
} Recorded;

typedef struct {
    Recorded what;
    PyObject *code;
    int place;
} Made;

typedef struct {
    PyObject_HEAD
    Made made[KEPT];         /* by their numbers */
    Py_ssize_t begun, first; /* calls; the number of the ring's first one */
    unsigned long thread; /* of the last call */
    char under_way;
    char taped;           /* whether Python notes when each call begins and ends. Then it makes all calls */
    uint64_t messages;    /* that have begun */
    PyObject *pendings[MESSAGES];
    double whens[MESSAGES]; /* seconds of time.monotonic() */
} RingObject;

#define MOST_DEEP 32 /* frames through which the kernel looks for the program's */
#define CODES 128
static struct { PyObject *code; int library; } codes[CODES]; /* kept, so that no other code gets their addresses */

static int is_of_library(PyObject *code) {
    unsigned at = (unsigned)((uintptr_t)code >> 5) % CODES;
    if (codes[at].code == code) return codes[at].library;
    PyObject *file = PyObject_GetAttr(code, name_filename);
    PyObject *known = file && is_library ? PyDict_GetItemWithError(is_library, file) : NULL;
    Py_XDECREF(file);
    if (!known) return -1;
    PyObject *old = codes[at].code;
    codes[at].code = Py_NewRef(code), codes[at].library = known == Py_True;
    Py_XDECREF(old);
    return known == Py_True;
}

static int place_of(PyObject *frame) {
    if (get_lasti) return get_lasti(frame);
    PyObject *place = PyObject_GetAttr(frame, name_lasti);
    int value = place ? (int)PyLong_AsLong(place) : -1;
    Py_XDECREF(place);
    return value;
}

/* The innermost frame of the program: its code and its place in that. 0 if Python must look. */
static int find_site(PyObject **code, int *place) {
    PyObject *frame = Py_XNewRef((PyObject *)PyEval_GetFrame());
    int library = 1;
    for (int depth = 0; frame && frame != Py_None && depth < MOST_DEEP; depth++) {
        *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        library = is_of_library(*code);
        if (library == 0) *place = place_of(frame);
        else Py_CLEAR(*code);
        if (library <= 0) break;
        PyObject *back = PyObject_GetAttr(frame, name_back);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    if (library) PyErr_Clear();
    return library == 0;
}

/* Python looks, where that is not enough. */
static int find_any_site(RingObject *ring, PyObject **code, int *place) {
    if (find_site(code, place)) return 0;
    PyObject *site = PyObject_CallMethod((PyObject *)ring, "_found", NULL);
    int failed = !site || !PyArg_ParseTuple(site, "Oi", code, place);
    if (!failed) Py_INCREF(*code);
    Py_XDECREF(site);
    return failed ? -1 : 0;
}

static Made *made_as(RingObject *ring, Py_ssize_t number) { return &ring->made[number % KEPT]; }

static int note(RingObject *ring, const Recorded *what) {
    PyObject *self = (PyObject *)ring, *code = NULL;
    int place;
    if (ring->under_way && ring->thread != PyThread_get_thread_ident())
        if (taken(PyObject_CallMethod(self, "_refuse", "O", what->record))) return -1;
    if (find_any_site(ring, &code, &place)) return -1;
    if (ring->begun - ring->first >= LENGTH && taken(PyObject_CallMethod(self, "_turn", NULL))) {
        Py_DECREF(code);
        return -1;
    }
    Made *at = made_as(ring, ring->begun), old = *at;
    *at = (Made){*what, code, place};
    Py_INCREF(what->record);
    ring->begun++;
    ring->thread = PyThread_get_thread_ident();
    *board = what->number;
    ring->under_way = 1;
    Py_XDECREF(old.what.record);
    Py_XDECREF(old.code);
    return ring->taped ? taken(PyObject_CallMethod(self, "_tape_begin", NULL)) : 0;
}

/* Returns 0, or -1 with an exception. */
static int recorded(PyObject *record, Recorded *what) {
    PyObject *number = PyObject_GetAttr(record, name_number), *digest = PyObject_GetAttr(record, name_digest);
    *what = (Recorded){.record = record, .number = number ? PyLong_AsUnsignedLongLong(number) : 0};
    if (digest && PyBytes_Check(digest) && PyBytes_Size(digest) == sizeof what->digest)
        memcpy(what->digest, PyBytes_AsString(digest), sizeof what->digest);
    Py_XDECREF(number);
    Py_XDECREF(digest);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *ring_begin(PyObject *self, PyObject *record) {
    Recorded what;
    if (recorded(record, &what) || note((RingObject *)self, &what)) return NULL;
    Py_RETURN_NONE;
}

/* move(code, place): the last call comes from there */
static PyObject *ring_move(RingObject *self, PyObject *args) {
    PyObject *code;
    int place;
    if (!PyArg_ParseTuple(args, "Oi", &code, &place)) return NULL;
    Made *last = made_as(self, self->begun - 1 + KEPT);
    PyObject *old = last->code;
    last->code = Py_NewRef(code), last->place = place;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyObject *ring_take_back(RingObject *self, PyObject *unused) {
    (void)unused;
    self->begun--;
    Py_RETURN_NONE;
}

static PyObject *ring_kept(RingObject *self, PyObject *unused) {
    (void)unused;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = self->first > LENGTH ? self->first - LENGTH : 0; list && i < self->begun; i++) {
        Made made = *made_as(self, i); /* Python may run where objects are made */
        PyObject *each = Py_BuildValue("NNi", Py_NewRef(made.what.record), Py_NewRef(made.code), made.place);
        if (!each || PyList_Append(list, each)) Py_CLEAR(list);
        Py_XDECREF(each);
    }
    return list;
}

static PyObject *ring_digests(RingObject *self, PyObject *arg) {
    Py_ssize_t many = PyLong_AsSsize_t(arg);
    char digests[LENGTH][sizeof ((Recorded *)0)->digest];
    if (many < 0 || many > LENGTH) return PyErr_Format(PyExc_ValueError, "digests: expected 0 to %d", LENGTH);
    for (Py_ssize_t i = 0; i < many; i++)
        memcpy(digests[i], made_as(self, self->first + i)->what.digest, sizeof *digests);
    return PyBytes_FromStringAndSize(*digests, many * (Py_ssize_t)sizeof *digests);
}

static Noted note_message(RingObject *ring, PyObject *pending) {
    uint64_t at = ring->messages++ % MESSAGES;
    PyObject *old = ring->pendings[at];
    Noted noted = {(PyObject *)ring, pending, seconds()};
    ring->whens[at] = noted.when;
    ring->pendings[at] = Py_NewRef(pending);
    Py_XDECREF(old);
    return noted;
}

int is_taped(PyObject *ring) { return ((RingObject *)ring)->taped; }

static PyObject *ring_begin_message(PyObject *self, PyObject *pending) {
    note_message((RingObject *)self, pending);
    if (((RingObject *)self)->taped) return PyObject_CallMethod(self, "_tape_message", "(O)", pending);
    Py_RETURN_NONE;
}

static PyObject *ring_under_way(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((RingObject *)self)->under_way);
}

static int ring_set_under_way(PyObject *self, PyObject *value, void *unused) {
    RingObject *ring = (RingObject *)self;
    (void)unused;
    int now = value == Py_True, before = ring->under_way;
    ring->under_way = (char)now;
    if (!ring->taped || now == before) return 0;
    return taken(PyObject_CallMethod(self, now ? "_tape_wait" : "_tape_end", NULL));
}

/* The last messages that were begun: what each one is, and when it was begun. */
static PyObject *ring_messages(PyObject *self, void *unused) {
    (void)unused;
    const RingObject *ring = (const RingObject *)self;
    PyObject *list = PyList_New(0);
    uint64_t end = ring->messages, i = end < MESSAGES ? 0 : end - MESSAGES;
    for (; list && i < end; i++) {
        PyObject *pending = Py_NewRef(ring->pendings[i % MESSAGES]); /* first: Python may run where objects are made */
        PyObject *each = Py_BuildValue("Nd", pending, ring->whens[i % MESSAGES]);
        if (!each || PyList_Append(list, each)) Py_CLEAR(list);
        Py_XDECREF(each);
    }
    return list;
}

static int ring_traverse(RingObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    (void)arg; /* neither records nor codes lead to it */
    return 0;
}

static int ring_clear(RingObject *self) {
    for (int i = 0; i < KEPT; i++) {
        Py_CLEAR(self->made[i].what.record);
        Py_CLEAR(self->made[i].code);
    }
    for (int i = 0; i < MESSAGES; i++) Py_CLEAR(self->pendings[i]);
    return 0;
}

static void ring_dealloc(RingObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    ring_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Calls: the plans of a communicator, by their arguments. A set of WAYS entries has those whose hash begins alike;
 * there are more sets as they fill up, and at last the one that was not used for longest makes room. */

typedef struct {
    int64_t root; /* or whither a message goes */
    int64_t sendtag, source, recvtag;
} Numbers;
enum { NUMBERS = 4 };
#define NO_NUMBER INT64_MIN /* None */

/* Numbers beside those: sendcounts and recvcounts, where ranks give and get different lengths, each with its length
 * before it; and what lists of tensors have. */
typedef struct { const int64_t *numbers; size_t many; } Counts;
#define MOST_COUNTS 256

typedef struct {
    PyObject *operation, *op, *algorithm; /* strings are interned, so that they are compared by their addresses */
    Numbers numbers;
    Counts counts;
    Array x, out;
} Key;

/* A call, as the program or the engine makes it. */
typedef struct {
    PyObject *operation, *x, *out, *op, *algorithm, *sendcounts, *recvcounts, *object;
    PyObject *returned; /* what the method returns */
    PyObject *kind;     /* of the request of a message that is begun; NULL for the usual one */
    Numbers numbers;
} Asked;

/* What makes the call, or the message. */
typedef struct {
    int holders_of_it; /* the table, and calls under way. Python may run in these, and the entry may go */
    PyObject *bound, *run;
    Recorded what;
    PyObject *plan, *message; /* the kernel's, if it is one */
    int is_nobodys;           /* whether it is a message to or from nobody */
    PyObject *pending;        /* what is, of a message, or of a collective that does not block */
    PyObject *requests[2];    /* the last ones of a message: a program begins the next one while it has one of them */
    int older;                /* of the two */
    const char *addresses[2]; /* where x and out lay when the plan was bound, if it serves others too */
    char *packed[2];          /* where the tensors of lists travel in the place of x and out, if they are lists */
    PyObject *holders[2];     /* what holds it */
    size_t nbytes[2];
} Act;

typedef struct {
    Key key;
    PyObject *dtypes[2]; /* of x and out */
    Act *act;            /* NULL where there is no entry */
    uint64_t used;
} Entry;

#define WAYS 4
#define FEWEST 16
#define MOST 1024 /* sets */

typedef struct {
    PyObject_HEAD
    PyObject *engine; /* a weak reference */
    int serves_new;      /* whether some entry serves arrays wherever they lie, such as new ones */
    PyObject *under_way; /* what keeps the messages that were begun */
    PyObject *waits;     /* its list of what threads wait for */
    RingObject *ring; /* NULL if Python must note each call */
    Entry *entries;
    size_t sets;
    uint64_t clock;
    long rank;
} CallsObject;

/* 0 where Python must look. `known` are converted already. */
static int read_numbers(PyObject *const *by, PyObject *const *known, Numbers *numbers) {
    int64_t *to[] = {&numbers->root, &numbers->sendtag, &numbers->source, &numbers->recvtag};
    for (int i = 0; i < NUMBERS; i++) {
        if (known && by[i] == known[i]) continue;
        if (by[i] == Py_None) {
            *to[i] = NO_NUMBER;
            continue;
        }
        if (!PyLong_CheckExact(by[i])) return 0;
        *to[i] = PyLong_AsLongLong(by[i]);
        if (*to[i] == -1 && PyErr_Occurred()) return PyErr_Clear(), 0;
        if (*to[i] == NO_NUMBER) return 0;
    }
    return 1;
}

/* 0 where Python must look. */
static int read_counts(const Asked *call, int64_t *numbers, Counts *counts) {
    PyObject *const given[] = {call->sendcounts, call->recvcounts};
    size_t many = 0;
    for (int i = 0; i < 2; i++) {
        if (!given[i] || given[i] == Py_None) continue;
        int is_list = PyList_CheckExact(given[i]);
        if (!is_list && !PyTuple_CheckExact(given[i])) return 0;
        Py_ssize_t n = is_list ? PyList_Size(given[i]) : PyTuple_Size(given[i]);
        if (many + (size_t)n + 1 > MOST_COUNTS) return 0;
        numbers[many++] = n << 1 | i;
        for (Py_ssize_t j = 0; j < n; j++) {
            PyObject *number = is_list ? PyList_GetItem(given[i], j) : PyTuple_GetItem(given[i], j);
            if (!PyLong_CheckExact(number)) return 0;
            numbers[many] = PyLong_AsLongLong(number);
            if (numbers[many++] == -1 && PyErr_Occurred()) return PyErr_Clear(), 0;
        }
    }
    *counts = (Counts){many ? numbers : NULL, many};
    return 1;
}

static int same_array(const Array *a, const Array *b) {
    return a->address == b->address && a->elements == b->elements && a->dtype == b->dtype && a->layout == b->layout &&
           a->kind == b->kind;
}

static int same(const Key *a, const Key *b) {
    const Numbers *m = &a->numbers, *n = &b->numbers;
    return a->operation == b->operation && a->op == b->op && a->algorithm == b->algorithm && m->root == n->root &&
           m->sendtag == n->sendtag && m->source == n->source && m->recvtag == n->recvtag &&
           same_array(&a->x, &b->x) && same_array(&a->out, &b->out) && a->counts.many == b->counts.many &&
           (!a->counts.many || !memcmp(a->counts.numbers, b->counts.numbers, a->counts.many * sizeof(int64_t)));
}

/* A sum of products with odd factors, which a processor makes at once, and then one mix. */
static uint64_t hash_of_array(const Array *a) {
    return (uintptr_t)a->address * 0x9E3779B97F4A7C15u + (uint64_t)a->elements * 0xC2B2AE3D27D4EB4Fu +
           a->dtype * 0x165667B19E3779F9u + (a->layout ^ (uint64_t)a->kind << 32) * 0xD6E8FEB86659FD93u;
}

static uint64_t hash_of(const Key *key) {
    const Numbers *n = &key->numbers;
    uint64_t hash = (uintptr_t)key->operation * 0xFF51AFD7ED558CCDu + (uintptr_t)key->op * 0xC4CEB9FE1A85EC53u +
                    (uint64_t)n->root * 0x9FB21C651E98DF25u + (uint64_t)n->source * 0xA0761D6478BD642Fu +
                    (uint64_t)n->sendtag * 0xE7037ED1A0B428DBu + (uint64_t)n->recvtag * 0x8EBC6AF09C88C6E3u;
    hash += hash_of_array(&key->x) + 3 * hash_of_array(&key->out);
    for (size_t i = 0; i < key->counts.many; i++) hash = mixed(hash, (uint64_t)key->counts.numbers[i]);
    return mixed(hash ^ hash >> 32, 0);
}

static Entry *find(const CallsObject *self, const Key *key) {
    Entry *set = self->entries + (hash_of(key) & (self->sets - 1)) * WAYS;
    for (int i = 0; i < WAYS; i++)
        if (set[i].act && same(&set[i].key, key)) return &set[i];
    return NULL;
}

/* The kernel's plans that go through slots serve arrays wherever these lie, if x and out lie apart. Their keys have
 * this in the place of addresses. */
static const char anywhere;

static int lie_apart(const Key *key, const size_t *nbytes) {
    const char *x = key->x.address, *out = key->out.address;
    return key->x.kind == NONE || key->out.kind == NONE || x + nbytes[0] <= out || out + nbytes[1] <= x;
}

static Entry *find_call(const CallsObject *self, Key *key, Shift *shift) {
    int is_message = key->numbers.sendtag != NO_NUMBER || key->numbers.recvtag != NO_NUMBER;
    const void *x_lies = key->x.address, *out_lies = key->out.address;
    key->x.address = key->out.address = &anywhere;
    Entry *entry = is_message ? NULL : find(self, key);
    key->x.address = x_lies, key->out.address = out_lies;
    if (!entry || !lie_apart(key, entry->act->nbytes)) return *shift = (Shift){0, 0}, find(self, key);
    const Act *act = entry->act;
    ptrdiff_t x = act->packed[0] ? 0 : (const char *)key->x.address - act->addresses[0];
    ptrdiff_t out = act->packed[1] ? 0 : (const char *)key->out.address - act->addresses[1];
    *shift = (Shift){key->x.kind == NONE ? out : x, key->out.kind == NONE ? x : out};
    return entry;
}

static void let_go_of_act(Act *act) {
    if (--act->holders_of_it) return;
    Py_XDECREF(act->bound);
    Py_XDECREF(act->run);
    Py_XDECREF(act->what.record);
    Py_XDECREF(act->pending);
    for (int i = 0; i < 2; i++) forget_request(&act->requests[i]);
    Py_XDECREF(act->holders[0]);
    Py_XDECREF(act->holders[1]);
    PyMem_Free(act);
}

/* NULL without memory. */
static Act *kept_act(const Act *made) {
    Act *act = PyMem_Malloc(sizeof *act);
    if (!act) return NULL;
    *act = *made, act->holders_of_it = 1;
    Py_XINCREF(act->bound), Py_XINCREF(act->run), Py_XINCREF(act->what.record), Py_XINCREF(act->pending);
    Py_XINCREF(act->holders[0]), Py_XINCREF(act->holders[1]);
    return act;
}

static void drop(Entry *entry) {
    Entry old = *entry;
    memset(entry, 0, sizeof *entry); /* before objects go, which may call anything */
    Py_XDECREF(old.key.operation);
    Py_XDECREF(old.key.op);
    Py_XDECREF(old.key.algorithm);
    Py_XDECREF(old.dtypes[0]);
    Py_XDECREF(old.dtypes[1]);
    PyMem_Free((void *)old.key.counts.numbers);
    if (old.act) let_go_of_act(old.act);
}

static void drop_all(CallsObject *self) {
    for (size_t i = 0; i < self->sets * WAYS; i++)
        if (self->entries[i].act) drop(&self->entries[i]);
}

/* Room for an entry: an empty one, or the one of its set that was not used for longest. */
static Entry *room_for(CallsObject *self, const Key *key) {
    for (;;) {
        Entry *set = self->entries + (hash_of(key) & (self->sets - 1)) * WAYS, *oldest = set;
        for (int i = 0; i < WAYS; i++) {
            if (!set[i].act || same(&set[i].key, key)) return &set[i];
            if (set[i].used < oldest->used) oldest = &set[i];
        }
        if (self->sets >= MOST) return oldest;
        size_t sets = 2 * self->sets; /* each set becomes two, which have room for what it has */
        Entry *old = self->entries, *grown = PyMem_Calloc(sets * WAYS, sizeof *grown);
        if (!grown) return oldest;
        for (size_t i = 0; i < self->sets * WAYS; i++) {
            if (!old[i].act) continue;
            Entry *to = grown + (hash_of(&old[i].key) & (sets - 1)) * WAYS;
            while (to->act) to++;
            *to = old[i];
        }
        self->entries = grown, self->sets = sets;
        PyMem_Free(old);
    }
}

/* A text is interned, so that equal ones are one object. Anything else is known by its identity. */
static PyObject *as_key(PyObject *given) {
    Py_INCREF(given);
    if (PyUnicode_CheckExact(given)) PyUnicode_InternInPlace(&given);
    return given;
}

static PyObject *engine_of(const CallsObject *self) { return PyObject_CallFunctionObjArgs(self->engine, NULL); }

/* An exception has ended what was bound. The engine's method says what comes of that: it may raise another one. Its
 * frame holds the arrays: MPI may still write to them. */
static void broken_off(const CallsObject *self, const char *method, PyObject *bound, PyObject *operation, PyObject *x,
                       PyObject *out) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    PyObject *engine = engine_of(self);
    int failed = !engine || taken(PyObject_CallMethod(engine, method, "OOOOO", bound, operation, error, x, out));
    Py_XDECREF(engine);
    if (failed) {
        Py_XDECREF(type), Py_XDECREF(error), Py_XDECREF(trace);
    } else {
        PyErr_Restore(type, error, trace);
    }
}

static int run_call(CallsObject *self, const Act *act, Shift shift, PyObject *operation, PyObject *x,
                    PyObject *out) {
    int code = note(self->ring, &act->what);
    if (!code) {
        code = act->plan ? run_plan(act->plan, shift) : taken(PyObject_CallFunctionObjArgs(act->run, NULL));
        if (code) broken_off(self, "broke_off", act->bound, operation, x, out ? out : Py_None);
        else self->ring->under_way = 0;
    }
    return code ? -1 : 1;
}

static int run_message(CallsObject *self, const Act *act, PyObject *operation, PyObject *x, PyObject *out) {
    PyObject *bound = act->bound;
    note_message(self->ring, act->pending);
    wait_as(self->waits, act->pending, NULL);
    int code = carry_message(act->message);
    wait_as(NULL, NULL, NULL);
    if (code) {
        broken_off(self, "message_broke_off", bound, operation, x, out ? out : Py_None);
    } else if (!came_whole(act->message)) {
        PyObject *engine = engine_of(self);
        code = engine ? taken(PyObject_CallMethod(engine, "check_length", "O", bound)) : -1;
        Py_XDECREF(engine);
    }
    return code ? -1 : 1;
}

/* 0 where Python must make the object's bytes: that fails, and it says why. */
static int run_object(CallsObject *self, const Act *act, PyObject *operation, PyObject *object, PyObject **result) {
    PyObject *message = act->message, *pending = act->pending;
    PyObject *bytes = sends_object(message) ? bytes_of(message, object) : NULL;
    int made = PyErr_Occurred() ? -1 : 0;
    if (!made && (bytes || !sends_object(message))) {
        note_message(self->ring, pending);
        wait_as(self->waits, pending, NULL);
        *result = carry_object(message, bytes);
        wait_as(NULL, NULL, NULL);
        made = *result ? 1 : -1;
        if (made < 0) broken_off(self, "object_broke_off", pending, operation, Py_None, Py_None);
    }
    Py_XDECREF(bytes);
    return made;
}

static int start_request(CallsObject *self, Act *act, const Asked *call, PyObject *holder, PyObject **result) {
    PyObject *request = NULL;
    for (int i = 0; i < 2 && !request && !call->kind; i++) request = used_again(act->requests[i], act->message);
    if (!request) {
        request = new_request(call->kind, act->bound, self->under_way, NULL);
        if (request && !call->kind) keep_request(request, &act->requests[act->older]), act->older ^= 1;
    }
    Noted noted = note_message(self->ring, act->pending);
    PyObject *begun = request ? start_message(act->message) : NULL;
    if (!begun || begin_request(request, begun, holder, &noted)) {
        Py_CLEAR(request);
        broken_off(self, "message_broke_off", act->bound, call->operation, call->x, Py_None);
    }
    if (begun) end_message(act->message, begun);
    *result = request;
    return request ? 1 : -1;
}

static int start_call(CallsObject *self, const Act *act, Shift shift, const Asked *call, PyObject *arrays,
                      PyObject **request) {
    PyObject *begun = NULL;
    *request = NULL;
    if (act->packed[0] && !copy_tensors(call->x, act->packed[0], act->nbytes[0], 0)) return 0;
    if (note(self->ring, &act->what)) return -1;
    begun = begin_plan(act->plan, shift, arrays, act->packed[1], act->nbytes[1]);
    if (act->pending) { /* else the caller says when it ends */
        self->ring->under_way = 0;
        Noted noted = note_message(self->ring, act->pending);
        *request = begun ? new_request(NULL, act->bound, self->under_way, call->returned) : NULL;
        if (*request && begin_request(*request, begun, arrays, &noted)) Py_CLEAR(*request);
    } else {
        *request = Py_XNewRef(begun);
    }
    if (!*request)
        broken_off(self, "broke_off", act->bound, call->operation, call->x, call->out ? call->out : Py_None);
    Py_XDECREF(begun);
    return *request ? 1 : -1;
}

/* Lists are tuples by now, so that nobody changes them. */
static int run_lists(CallsObject *self, const Act *act, Shift shift, const Asked *call) {
    if (act->packed[0] && !copy_tensors(call->x, act->packed[0], act->nbytes[0], 0)) return 0;
    int made = run_call(self, act, shift, call->operation, call->x, call->out);
    if (made <= 0 || !act->packed[1] || copy_tensors(call->out, act->packed[1], act->nbytes[1], 1)) return made;
    return lists_changed(), -1;
}

static int begin_act(CallsObject *self, Act *act, Shift shift, const Asked *call, const Py_buffer *held,
                       PyObject **result) {
    if (!act->message && (!act->plan || act->is_nobodys || !begins(act->plan))) return 0;
    PyObject *in = act->holders[0] ? act->holders[0] : Py_None, *to = act->holders[1] ? act->holders[1] : Py_None;
    PyObject *x = holder_of(call->x, &held[0]), *out = NULL, *arrays = NULL;
    int made = -1;
    if (x && act->message) {
        made = start_request(self, act, call, x, result);
    } else if (x && (out = holder_of(call->out, &held[1])) && (arrays = PyTuple_Pack(4, x, out, in, to))) {
        made = start_call(self, act, shift, call, arrays, result);
    }
    Py_XDECREF(x);
    Py_XDECREF(out);
    Py_XDECREF(arrays);
    return made;
}

static int run_act(CallsObject *self, Act *act, Shift shift, const Asked *call, const Py_buffer *held,
                     PyObject **result) {
    if (act->message && is_object_message(act->message))
        return run_object(self, act, call->operation, call->object, result);
    if (act->is_nobodys && !result) return note_message(self->ring, act->pending), 1;
    if (result) return begin_act(self, act, shift, call, held, result);
    if (act->message) return run_message(self, act, call->operation, call->x, call->out);
    return run_lists(self, act, shift, call);
}

/* While the arrays' memory is `held`. */
static int repeat_held(CallsObject *self, Key *key, const Asked *call, const Py_buffer *held, PyObject **result) {
    Shift shift;
    Entry *found = find_call(self, key, &shift);
    if (!found) return 0;
    found->used = ++self->clock;
    Act *act = found->act;
    act->holders_of_it++;
    int made = run_act(self, act, shift, call, held, result);
    let_go_of_act(act);
    return made;
}

static int describe_any(PyObject *x, Array *array, int with_shape, Py_buffer *held, int64_t *numbers, Counts *counts) {
    if (!x || !PyTuple_CheckExact(x)) return describe(x, array, with_shape, held);
    *array = (Array){.kind = LIST};
    counts->numbers = numbers;
    return describe_list(x, numbers, &counts->many, MOST_COUNTS);
}

/* What the call is found by. Its lists are tuples. 0 where Python must look. */
static int key_of(const CallsObject *self, const Asked *call, Key *key, int64_t *counts, Py_buffer *held) {
    key->operation = call->operation, key->op = call->op, key->algorithm = call->algorithm;
    key->numbers = call->numbers;
    held[0].obj = held[1].obj = NULL;
    if (!self->ring || !read_counts(call, counts, &key->counts)) return 0;
    int by_rows = key->counts.many > 0 || (call->x && PyTuple_CheckExact(call->x)) ||
                  (call->out && PyTuple_CheckExact(call->out));
    if (describe_any(call->x, &key->x, by_rows, &held[0], counts, &key->counts) &&
        describe_any(call->out, &key->out, by_rows, &held[1], counts, &key->counts))
        return 1;
    release(&held[0]), release(&held[1]);
    PyErr_Clear();
    return 0;
}

/* A list as a tuple, which nobody changes; anything else as it is. A new reference. */
static PyObject *fixed(PyObject *x) { return PyList_CheckExact(x) ? PyList_AsTuple(x) : Py_NewRef(x); }

static int repeat_fixed(CallsObject *self, const Asked *call, PyObject **result) {
    Key key;
    int64_t counts[MOST_COUNTS];
    Py_buffer held[2];
    if (!key_of(self, call, &key, counts, held)) return 0;
    int made = repeat_held(self, &key, call, held, result);
    release(&held[0]), release(&held[1]);
    return made;
}

/* 1 if the call was made, 0 if no plan is known, -1 with an exception. Where a `result` is asked for, it is begun
 * alone. */
static int repeat(CallsObject *self, const Asked *call, PyObject **result) {
    if (!self->ring || self->ring->taped) return 0;
    int has_lists = (call->x && PyList_CheckExact(call->x)) || (call->out && PyList_CheckExact(call->out));
    if (!has_lists) return repeat_fixed(self, call, result);
    Asked fixed_call = *call;
    PyObject *x = fixed(call->x ? call->x : Py_None), *out = fixed(call->out ? call->out : Py_None);
    fixed_call.x = x, fixed_call.out = out;
    int made = x && out ? repeat_fixed(self, &fixed_call, result) : -1;
    Py_XDECREF(x);
    Py_XDECREF(out);
    return made;
}

static size_t nbytes_of(PyObject *x) {
    PyObject *nbytes = x == Py_None ? NULL : PyObject_GetAttrString(x, "nbytes");
    size_t value = nbytes ? PyLong_AsSize_t(nbytes) : 0;
    Py_XDECREF(nbytes);
    return value;
}

/* Let the entry serve arrays wherever they lie, if its plan can. Returns whether it does. */
static int move_if_it_can(Key *key, PyObject *x, PyObject *out, Act *made) {
    if (!made->packed[0]) made->nbytes[0] = nbytes_of(x), made->addresses[0] = key->x.address;
    if (!made->packed[1]) made->nbytes[1] = nbytes_of(out), made->addresses[1] = key->out.address;
    int in = key->x.kind == NONE, to = key->out.kind != NONE;
    int can = !PyErr_Occurred() && lie_apart(key, made->nbytes) &&
              may_shift(made->plan, made->addresses[in], made->nbytes[in], made->addresses[to], made->nbytes[to]);
    PyErr_Clear();
    if (can) key->x.address = key->out.address = &anywhere;
    return can;
}

static void put_fixed(CallsObject *self, const Asked *call, Act made) {
    Key key;
    int64_t counts[MOST_COUNTS];
    Py_buffer held[2];
    if (!key_of(self, call, &key, counts, held)) return;
    Entry kept = {.dtypes = {dtype_of(call->x), dtype_of(call->out)}}; /* those of the key: no Python has run */
    release(&held[0]), release(&held[1]);
    if (made.plan && move_if_it_can(&key, call->x, call->out, &made)) self->serves_new = 1;
    size_t nbytes = key.counts.many * sizeof *counts;
    int64_t *copy = nbytes ? PyMem_Malloc(nbytes) : NULL;
    key.counts.numbers = copy ? memcpy(copy, counts, nbytes) : NULL;
    key.operation = as_key(key.operation), key.op = as_key(key.op), key.algorithm = as_key(key.algorithm);
    kept.key = key, kept.act = nbytes && !copy ? NULL : kept_act(&made), kept.used = ++self->clock;
    Entry *entry = kept.act ? room_for(self, &key) : NULL, old = entry ? *entry : kept;
    if (entry) *entry = kept;
    drop(&old);
}

/* Keep an entry for a call. Where Python must look at its arguments, there is none. */
static void put(CallsObject *self, const Asked *call, Act made) {
    Asked fixed_call = *call;
    PyObject *x = fixed(call->x ? call->x : Py_None), *out = fixed(call->out ? call->out : Py_None);
    fixed_call.x = x, fixed_call.out = out;
    if (x && out) put_fixed(self, &fixed_call, made);
    Py_XDECREF(x);
    Py_XDECREF(out);
}

static const Numbers no_numbers = {NO_NUMBER, NO_NUMBER, NO_NUMBER, NO_NUMBER};

/* Nothing for None. */
static void read_packed(PyObject *given, Act *entry, int which) {
    PyObject *address;
    Py_ssize_t nbytes;
    if (given == Py_None || !PyArg_ParseTuple(given, "OnO", &address, &nbytes, &entry->holders[which])) return;
    entry->packed[which] = PyLong_AsVoidPtr(address), entry->nbytes[which] = (size_t)nbytes;
    entry->addresses[which] = entry->packed[which];
}

/* keep(operation, x, out, op, root, algorithm, sendcounts, recvcounts, bound, where x is packed, where out is): from
 * now on, this call is a repeated one. Only lists are packed: there is an address then, the number of bytes, and what
 * holds the memory. */
static PyObject *calls_keep(CallsObject *self, PyObject *args) {
    Asked call = {.numbers = no_numbers};
    PyObject *bound, *packed[2];
    long root;
    if (!PyArg_ParseTuple(args, "OOOOlOOOOOO", &call.operation, &call.x, &call.out, &call.op, &root, &call.algorithm,
                          &call.sendcounts, &call.recvcounts, &bound, &packed[0], &packed[1]))
        return NULL;
    PyObject *run = PyObject_GetAttr(bound, name_run), *record = PyObject_GetAttr(bound, name_record);
    Act entry = {.bound = bound, .run = run};
    int code = !run || !record || recorded(record, &entry.what) ? -1 : 0;
    for (int i = 0; i < 2; i++) read_packed(packed[i], &entry, i);
    if (PyErr_Occurred()) code = -1;
    call.numbers.root = root;
    if (!code) {
        entry.plan = plan_of(run);
        put(self, &call, entry);
    }
    Py_XDECREF(run);
    Py_XDECREF(record);
    return code ? NULL : Py_NewRef(Py_None);
}

/* keep_begun(operation, x, out, op, root, algorithm, sendcounts, recvcounts, message, record, plan, what is pending):
 * the same of a collective that does not block. */
static PyObject *calls_keep_begun(CallsObject *self, PyObject *args) {
    Asked call = {.numbers = no_numbers};
    PyObject *bound, *record, *plan, *pending;
    long root;
    if (!PyArg_ParseTuple(args, "OOOOlOOOOOOO", &call.operation, &call.x, &call.out, &call.op, &root, &call.algorithm,
                          &call.sendcounts, &call.recvcounts, &bound, &record, &plan, &pending))
        return NULL;
    Act entry = {.bound = bound, .run = plan, .plan = plan, .pending = pending};
    call.numbers.root = root;
    if (recorded(record, &entry.what)) return NULL;
    put(self, &call, entry);
    Py_RETURN_NONE;
}

/* keep_message(operation, x, out, (dest, sendtag, source, recvtag), message, what carries it out or None where that is
 * nobody, what is pending) */
static PyObject *calls_keep_message(CallsObject *self, PyObject *args) {
    Asked call = {.op = Py_None, .algorithm = Py_None};
    PyObject *bound, *run, *pending, *of[NUMBERS];
    if (!PyArg_ParseTuple(args, "OOO(OOOO)OOO", &call.operation, &call.x, &call.out, of, of + 1, of + 2, of + 3,
                          &bound, &run, &pending))
        return NULL;
    PyObject *message = message_of(run);
    int is_nobodys = run == Py_None;
    if ((message || is_nobodys) && read_numbers(of, NULL, &call.numbers))
        put(self, &call, (Act){.bound = bound, .run = run, .pending = pending, .message = message,
                                 .is_nobodys = is_nobodys});
    Py_RETURN_NONE;
}

/* keep_object(operation, (dest, sendtag, source, recvtag), message, what is pending) */
static PyObject *calls_keep_object(CallsObject *self, PyObject *args) {
    Asked call = {.x = Py_None, .out = Py_None, .op = Py_None, .algorithm = Py_None};
    PyObject *message, *pending, *of[NUMBERS];
    if (!PyArg_ParseTuple(args, "O(OOOO)OO", &call.operation, of, of + 1, of + 2, of + 3, &message, &pending))
        return NULL;
    if (!is_object_message(message) || !read_numbers(of, NULL, &call.numbers))
        return PyErr_Format(PyExc_TypeError, "keep_object: expected an ObjectMessage, and ints or None");
    put(self, &call, (Act){.bound = message, .run = message, .pending = pending, .message = message});
    Py_RETURN_NONE;
}

/* The call of (operation, x, out, op, root, algorithm, sendcounts, recvcounts). 0 where Python must make it. */
static int read_call(PyObject *const *args, Asked *call) {
    *call = (Asked){.operation = args[0], .x = args[1], .out = args[2], .op = args[3], .algorithm = args[5],
                    .sendcounts = args[6], .recvcounts = args[7], .numbers = no_numbers};
    call->numbers.root = PyLong_CheckExact(args[4]) ? PyLong_AsLong(args[4]) : -1;
    PyErr_Clear();
    return call->numbers.root >= 0;
}

/* run(operation, x, out, op, root, algorithm, sendcounts, recvcounts): make the call, if it is a repeated one. Returns
 * whether it is. */
static PyObject *calls_run(CallsObject *self, PyObject *const *args, Py_ssize_t n) {
    Asked call;
    if (n != 8) return PyErr_Format(PyExc_TypeError, "run: expected 8 arguments; given %zd", n);
    int made = read_call(args, &call) ? repeat(self, &call, NULL) : 0;
    return made < 0 ? NULL : PyBool_FromLong(made);
}

/* begin(operation, x, out, op, root, algorithm, sendcounts, recvcounts, what it returns): begin the call, if it is a
 * repeated one. Returns its request, or what stands for it if it blocks elsewhere; None if it is not repeated, or
 * cannot be begun. */
static PyObject *calls_begin(CallsObject *self, PyObject *const *args, Py_ssize_t n) {
    PyObject *result = NULL;
    Asked call;
    if (n != 9) return PyErr_Format(PyExc_TypeError, "begin: expected 9 arguments; given %zd", n);
    int is_read = read_call(args, &call);
    call.returned = args[8];
    int made = is_read ? repeat(self, &call, &result) : 0;
    return made < 0 ? NULL : made ? result : Py_NewRef(Py_None);
}

/* message(operation, x, dest, sendtag, source, recvtag, the type of its request if it is begun alone, or None): make
 * it, if it is a repeated one. Returns True, or the request; None if it is not repeated. */
static PyObject *calls_message(CallsObject *self, PyObject *const *args, Py_ssize_t n) {
    PyObject *result = NULL;
    if (n != 7) return PyErr_Format(PyExc_TypeError, "message: expected 7 arguments; given %zd", n);
    Asked call = {.operation = args[0], .x = args[1], .op = Py_None, .algorithm = Py_None};
    if (!read_numbers(args + 2, NULL, &call.numbers)) Py_RETURN_NONE;
    int only_begins = args[6] != Py_None;
    if (only_begins && !is_request_type(args[6])) return PyErr_Format(PyExc_TypeError, "message: expected a Request");
    call.kind = args[6];
    int made = repeat(self, &call, only_begins ? &result : NULL);
    if (made < 0) return NULL;
    return made && only_begins ? result : Py_NewRef(made ? Py_True : Py_None);
}

/* forget(whether plans stay in memory for ever): no call is a repeated one any more. A forked child may not free
 * plans. */
static PyObject *calls_forget(CallsObject *self, PyObject *stay) {
    if (stay == Py_True) memset(self->entries, 0, self->sets * WAYS * sizeof *self->entries);
    else drop_all(self);
    Py_RETURN_NONE;
}

/* Calls(weak reference to the engine, ring or None, rank, what keeps the messages that were begun) */
static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *engine, *ring, *under_way;
    long rank;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Calls takes no keywords");
    if (!PyArg_ParseTuple(args, "OOlO", &engine, &ring, &rank, &under_way)) return NULL;
    CallsObject *self = (CallsObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->engine = Py_NewRef(engine), self->rank = rank, self->under_way = Py_NewRef(under_way);
    self->waits = PyObject_GetAttrString(under_way, "waits");
    self->ring = ring == Py_None ? NULL : (RingObject *)Py_NewRef(ring);
    self->entries = PyMem_Calloc(FEWEST * WAYS, sizeof *self->entries);
    self->sets = FEWEST;
    if (self->entries) return (PyObject *)self;
    self->sets = 0;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static int calls_traverse(CallsObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->engine);
    Py_VISIT(self->ring);
    for (size_t i = 0; i < self->sets * WAYS; i++) {
        const Act *act = self->entries[i].act;
        if (!act || act->holders_of_it > 1) continue; /* a call under way holds what it has */
        Py_VISIT(act->bound);
        Py_VISIT(act->run);
        Py_VISIT(act->what.record);
        Py_VISIT(act->pending);
        Py_VISIT(act->requests[0]);
        Py_VISIT(act->requests[1]);
        Py_VISIT(act->holders[0]);
        Py_VISIT(act->holders[1]);
    }
    return 0;
}

static int calls_tp_clear(CallsObject *self) {
    drop_all(self);
    Py_CLEAR(self->engine);
    return 0;
}

static void calls_dealloc(CallsObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    drop_all(self);
    Py_CLEAR(self->engine);
    Py_CLEAR(self->ring);
    Py_CLEAR(self->under_way);
    Py_CLEAR(self->waits);
    PyMem_Free(self->entries);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Base: of a communicator. It keeps its Calls where these are found without a look into a dictionary. */

typedef struct {
    PyObject_HEAD
    PyObject *calls;
} BaseObject;

static int base_traverse(BaseObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->calls);
    return 0;
}

static int base_clear(BaseObject *self) {
    Py_CLEAR(self->calls);
    return 0;
}

static void base_dealloc(BaseObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->calls);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* A new reference; NULL where Python must look. */
static CallsObject *calls_of(PyObject *comm) {
    static PyObject *known; /* a type with this base: mostly there is one */
    PyObject *type = (PyObject *)Py_TYPE(comm);
    if (type != known) {
        if (!PyType_IsSubtype((PyTypeObject *)type, base_type)) return NULL;
        PyObject *old = known;
        known = Py_NewRef(type);
        Py_XDECREF(old);
    }
    PyObject *calls = ((BaseObject *)comm)->calls;
    return calls && Py_TYPE(calls) == calls_type ? (CallsObject *)Py_NewRef(calls) : NULL;
}

/* Method: a collective of a Communicator, or a message; or a function of torch's names, which has its group among its
 * arguments. */

/* What an argument may mean. The first ones are Numbers. */
enum {
    ROOT, SENDTAG, SOURCE, RECVTAG, X, OP, OUT, ALGORITHM, OBJECT, SENDCOUNTS, RECVCOUNTS, GROUP, ASYNC, IN_GROUP, MEANINGS
};
enum { IT_RETURNS_OUT, IT_RETURNS_X, IT_RETURNS_NONE, ROOT_RETURNS_OUT, IT_RETURNS_NEW };

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *function, *operation, *names, *defaults;
    PyObject *like; /* makes a new array for the result from the input, or None; None if it does so for no input */
    PyObject *kind; /* of the request of a function that begins a message; else None */
    PyObject *by_default[MEANINGS]; /* the items of `defaults` */
    Numbers numbers;                /* the first of them */
    PyObject *names_at[MEANINGS];   /* the items of `names` */
    int meanings[MEANINGS];         /* of the arguments, by position */
    int returns, elementwise, begins, is_function;
    Py_ssize_t most, positional; /* arguments */
} MethodObject;

static int meaning_of(const MethodObject *self, PyObject *keyword) {
    for (Py_ssize_t i = 0; i < self->most; i++)
        if (self->names_at[i] == keyword) return self->meanings[i];
    return -1;
}

/* The arguments by their meaning, and which ones are given, a bit each. 0 if Python must look at them. */
static int sorted(const MethodObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords,
                  PyObject **by) {
    unsigned is_given = 0;
    if (given > self->positional) return 0;
    memcpy(by, self->by_default, sizeof self->by_default);
    for (Py_ssize_t i = 0; i < given; i++) by[self->meanings[i]] = args[i], is_given |= 1u << self->meanings[i];
    Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
    for (Py_ssize_t i = 0; i < named; i++) {
        int meaning = meaning_of(self, PyTuple_GetItem(keywords, i));
        if (meaning < 0 || is_given & 1u << meaning) return 0; /* a wrong name, one not interned, or one given twice */
        by[meaning] = args[given + i], is_given |= 1u << meaning;
    }
    int first = self->most ? self->meanings[0] : ROOT;
    return is_given & 1u << first || (first != X && first != OBJECT); /* these have no default */
}

/* 1 with the result, 0 if Python must make the call, -1 with an exception. */
static int try_method(MethodObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords,
                      PyObject **result) {
    PyObject *by[MEANINGS], *new_array = NULL;
    Asked call;
    if (given < 1 || !sorted(self, args + 1, given - 1, keywords, by)) return 0;
    call.numbers = self->numbers;
    if (!read_numbers(by, self->by_default, &call.numbers)) return 0;
    CallsObject *known = calls_of(args[0]);
    if (!known) return 0;
    int64_t root = call.numbers.root;
    int gets = self->returns == IT_RETURNS_OUT || (self->returns == ROOT_RETURNS_OUT && root == known->rank);
    int unused = self->returns == ROOT_RETURNS_OUT && !gets, made = 0;
    call.operation = self->operation, call.x = by[X], call.op = by[OP], call.algorithm = by[ALGORITHM];
    call.out = unused || (self->elementwise && by[OUT] == by[X]) ? Py_None : by[OUT];
    call.sendcounts = by[SENDCOUNTS], call.recvcounts = by[RECVCOUNTS], call.object = by[OBJECT], call.kind = NULL;
    call.returned = gets ? by[OUT] : self->returns == IT_RETURNS_X ? by[X] : Py_None;
    if (gets && by[OUT] == Py_None && self->like != Py_None && !self->begins && known->serves_new) {
        new_array = PyObject_CallFunctionObjArgs(self->like, by[X], NULL);
        if (!new_array) return Py_DECREF((PyObject *)known), -1;
        if (new_array != Py_None) call.out = call.returned = new_array;
    }
    if (!gets || call.returned != Py_None) made = repeat(known, &call, self->begins ? result : NULL);
    Py_DECREF((PyObject *)known);
    if (!self->begins) *result = Py_NewRef(call.returned);
    Py_XDECREF(new_array);
    return made;
}

/* Turn: what the functions of torch's names know of a group: its Calls, the thread that is in a synchronous collective
 * of it, and what its asynchronous ones wait for. */

typedef struct {
    PyObject_HEAD
    PyObject *calls, *progress;
    unsigned long inside;
    int is_world; /* whether the group's ranks are those of the job */
} TurnObject;

#define CONSTANTS 16
static PyTypeObject *turn_type;
static PyObject *default_turn;  /* of the default group of this process */
static PyObject *of_profiler;   /* the names of the profiler's module */
static PyObject *constants[CONSTANTS], *names_of_constants[CONSTANTS]; /* torch's operations */

/* Turn(calls, progress, whether the group's ranks are those of the job) */
static PyObject *turn_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *calls, *progress;
    int is_world;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Turn takes no keywords");
    if (!PyArg_ParseTuple(args, "OOp", &calls, &progress, &is_world)) return NULL;
    TurnObject *self = (TurnObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) self->calls = Py_NewRef(calls), self->progress = Py_NewRef(progress), self->is_world = is_world;
    return (PyObject *)self;
}

static int turn_traverse(TurnObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->calls);
    Py_VISIT(self->progress);
    return 0;
}

static int turn_clear(TurnObject *self) {
    Py_CLEAR(self->calls);
    Py_CLEAR(self->progress);
    return 0;
}

static void turn_dealloc(TurnObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    turn_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* The turn of a group, the default one for None. A new reference; NULL where Python must look. */
static TurnObject *turn_of(PyObject *group) {
    PyObject *turn = group == Py_None ? Py_XNewRef(default_turn) : PyObject_GetAttr(group, name_turn);
    PyErr_Clear();
    if (turn && Py_TYPE(turn) == turn_type) return (TurnObject *)turn;
    Py_XDECREF(turn);
    return NULL;
}

static int is_true(PyObject *of, PyObject *name) {
    PyObject *value = of ? PyObject_GetAttr(of, name) : NULL;
    int answer = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return answer;
}

/* Whether the next call of the group may be made at once: nobody is in one, nothing is pending, nobody profiles. */
static int comes_at_once(const TurnObject *turn) {
    if (turn->inside || PyDict_GetItemWithError(of_profiler, name_profiles) != Py_False) return 0;
    int is_idle = is_true(turn->progress, name_who) == 0 && is_true(turn->progress, name_waiting) == 0;
    PyErr_Clear();
    return is_idle;
}

static PyObject *name_of_constant(PyObject *constant) {
    for (int i = 0; i < CONSTANTS && constants[i]; i++)
        if (constants[i] == constant) return names_of_constants[i];
    return NULL;
}

static int is_empty_list(PyObject *x) { return x && PyList_CheckExact(x) && !PyList_Size(x); }

static int call_in_turn(TurnObject *turn, const Asked *call) {
    if (Py_TYPE(turn->calls) != calls_type || !comes_at_once(turn)) return 0;
    turn->inside = PyThread_get_thread_ident();
    int made = repeat((CallsObject *)turn->calls, call, NULL);
    turn->inside = 0;
    return made;
}

/* A message that a function begins, where ranks of the group are ranks of the job. */
static int begin_message(const MethodObject *self, PyObject *const *by, PyObject **result) {
    TurnObject *turn = by[IN_GROUP] == Py_None ? turn_of(by[GROUP]) : NULL;
    if (!turn) return 0;
    Asked call = {.operation = self->operation, .x = by[X], .op = Py_None, .algorithm = Py_None, .kind = self->kind,
                  .numbers = self->numbers};
    int is_known = turn->is_world && Py_TYPE(turn->calls) == calls_type;
    int made = is_known && read_numbers(by, self->by_default, &call.numbers);
    if (made) made = repeat((CallsObject *)turn->calls, &call, result);
    Py_DECREF((PyObject *)turn);
    return made;
}

/* The same as try_method, for a function. */
static int try_function(MethodObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords,
                        PyObject **result) {
    PyObject *by[MEANINGS];
    if (self->kind != Py_None) return sorted(self, args, given, keywords, by) ? begin_message(self, by, result) : 0;
    if (!of_profiler || !sorted(self, args, given, keywords, by) || by[ASYNC] != Py_False) return 0;
    if (is_empty_list(by[X]) || is_empty_list(by[OUT])) return 0;
    PyObject *op = by[OP] == Py_None ? Py_None : name_of_constant(by[OP]);
    TurnObject *turn = op ? turn_of(by[GROUP]) : NULL;
    if (!turn) return 0;
    Asked call = {.operation = self->operation, .x = by[X], .out = by[OUT], .op = op, .algorithm = by[ALGORITHM],
                  .numbers = self->numbers};
    int made = call_in_turn(turn, &call);
    Py_DECREF((PyObject *)turn);
    if (made > 0) *result = Py_NewRef(Py_None);
    return made;
}

/* know_groups(the profiler's names, torch's constants, their names here) */
PyObject *know_groups(PyObject *module, PyObject *args) {
    PyObject *profiler, *of_torch, *names;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyDict_Type, &profiler, &PyTuple_Type, &of_torch, &PyTuple_Type, &names))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(of_torch) && i < PyTuple_Size(names) && i < CONSTANTS; i++) {
        names_of_constants[i] = as_key(PyTuple_GetItem(names, i));
        constants[i] = Py_NewRef(PyTuple_GetItem(of_torch, i));
    }
    of_profiler = Py_NewRef(profiler);
    Py_RETURN_NONE;
}

/* set_default_turn(that of the process's default group, or None; whether threads are ranks, of which each has a default
 * group of its own: from then on Python must look) */
PyObject *set_default_turn(PyObject *module, PyObject *args) {
    static int never;
    PyObject *turn, *old = default_turn;
    int threads;
    (void)module;
    if (!PyArg_ParseTuple(args, "Op", &turn, &threads)) return NULL;
    never |= threads;
    default_turn = never ? NULL : Py_NewRef(turn);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyObject *method_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    MethodObject *self = (MethodObject *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf), named = keywords ? PyTuple_Size(keywords) : 0;
    PyObject *result = NULL;
    int made = (self->is_function ? try_function : try_method)(self, args, given, keywords, &result);
    if (made > 0) return result;
    Py_CLEAR(result);
    if (made < 0) return NULL;
    PyObject *positional = PyTuple_New(given), *by_name = named ? PyDict_New() : NULL;
    if (positional && (!named || by_name)) {
        for (Py_ssize_t i = 0; i < given; i++) PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
        int failed = 0;
        for (Py_ssize_t i = 0; i < named && !failed; i++)
            failed = PyDict_SetItem(by_name, PyTuple_GetItem(keywords, i), args[given + i]);
        result = failed ? NULL : PyObject_Call(self->function, positional, by_name);
    }
    Py_XDECREF(positional);
    Py_XDECREF(by_name);
    return result;
}

/* Method(function, operation, names, meanings, defaults by meaning, what it returns, whether out may be x, whether it
 * begins the call alone, what makes an array for the result from x, or None; of a function, how many arguments may be
 * given by their positions, else 0, and the type of the request of a message that it begins, or None) */
static PyObject *method_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function, *operation, *names, *meanings, *defaults, *like, *kind = Py_None;
    int returns, elementwise, begins, positional = 0;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Method takes no keywords");
    if (!PyArg_ParseTuple(args, "OUO!O!O!ippO|iO", &function, &operation, &PyTuple_Type, &names, &PyTuple_Type,
                          &meanings, &PyTuple_Type, &defaults, &returns, &elementwise, &begins, &like, &positional,
                          &kind))
        return NULL;
    if (kind != Py_None && !is_request_type(kind)) return PyErr_Format(PyExc_TypeError, "Method: expected a Request");
    Py_ssize_t most = PyTuple_Size(names);
    if (most > MEANINGS || PyTuple_Size(meanings) != most || PyTuple_Size(defaults) != MEANINGS)
        return PyErr_Format(PyExc_ValueError, "Method: expected as many meanings as names");
    MethodObject *self = (MethodObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->call = method_call, self->most = most, self->returns = returns, self->elementwise = elementwise;
    self->begins = begins || returns == IT_RETURNS_NEW;
    self->is_function = positional > 0, self->positional = positional ? positional : most;
    self->function = Py_NewRef(function), self->operation = as_key(operation);
    self->names = Py_NewRef(names), self->defaults = Py_NewRef(defaults), self->like = Py_NewRef(like);
    self->kind = Py_NewRef(kind);
    for (int i = 0; i < MEANINGS; i++) self->by_default[i] = PyTuple_GetItem(defaults, i);
    for (Py_ssize_t i = 0; i < most; i++) {
        self->meanings[i] = (int)PyLong_AsLong(PyTuple_GetItem(meanings, i));
        self->names_at[i] = PyTuple_GetItem(names, i);
    }
    if (read_numbers(self->by_default, NULL, &self->numbers)) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_Format(PyExc_TypeError, "Method: expected ints or None as defaults of numbers");
}

static PyObject *method_get(PyObject *self, PyObject *of, PyObject *type) {
    (void)type;
    return of && of != Py_None ? PyObject_CallFunctionObjArgs(bound_method, self, of, NULL) : Py_NewRef(self);
}

/* With a tuple and a dictionary, where nobody is in a hurry. */
static PyObject *method_tp_call(MethodObject *self, PyObject *args, PyObject *kwargs) {
    return PyObject_Call(self->function, args, kwargs);
}

/* Documentation, names and the like are the function's. */
static PyObject *method_of_function(MethodObject *self, void *name) {
    return PyObject_GetAttrString(self->function, name);
}

/* A pickle has its name. */
static PyObject *method_reduce(MethodObject *self, PyObject *unused) {
    (void)unused;
    return PyObject_GetAttrString(self->function, "__qualname__");
}

static int method_traverse(MethodObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->function);
    Py_VISIT(self->like);
    Py_VISIT(self->kind);
    return 0;
}

static void method_dealloc(MethodObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->function);
    Py_CLEAR(self->operation);
    Py_CLEAR(self->names);
    Py_CLEAR(self->defaults);
    Py_CLEAR(self->like);
    Py_CLEAR(self->kind);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* prepare(is_library, where the last call's number is noted or None) */
PyObject *prepare(PyObject *module, PyObject *args) {
    static Py_buffer noted;
    PyObject *given;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &is_library, &given)) return NULL;
    Py_INCREF(is_library);
    if (given != Py_None) {
        if (PyObject_GetBuffer(given, &noted, PyBUF_WRITABLE)) return NULL; /* held as long as the process */
        board = noted.buf;
    }
    Py_RETURN_NONE;
}

static PyMethodDef ring_methods[] = {{"begin", ring_begin, METH_O, NULL},
                                     {"begin_message", ring_begin_message, METH_O, NULL},
                                     {"move", (PyCFunction)ring_move, METH_VARARGS, NULL},
                                     {"take_back", (PyCFunction)ring_take_back, METH_NOARGS, NULL},
                                     {"kept", (PyCFunction)ring_kept, METH_NOARGS, NULL},
                                     {"digests", (PyCFunction)ring_digests, METH_O, NULL}, {0}};
static PyGetSetDef ring_getset[] = {{"messages", ring_messages, NULL, NULL, NULL},
                                    {"under_way", ring_under_way, ring_set_under_way, NULL, NULL}, {0}};
static PyMemberDef ring_members[] = {
    {"_begun", T_PYSSIZET, offsetof(RingObject, begun), 0, NULL},
    {"_first", T_PYSSIZET, offsetof(RingObject, first), 0, NULL},
    {"_thread", T_ULONG, offsetof(RingObject, thread), 0, NULL},
    {"taped", T_BOOL, offsetof(RingObject, taped), 0, NULL}, {0}};
static PyType_Slot ring_slots[] = {{Py_tp_traverse, ring_traverse}, {Py_tp_clear, ring_clear},
                                   {Py_tp_dealloc, ring_dealloc},   {Py_tp_methods, ring_methods},
                                   {Py_tp_members, ring_members},   {Py_tp_getset, ring_getset}, {0}};
static PyType_Spec ring_spec = {"mpicoll.node.kernel.Ring", sizeof(RingObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, ring_slots};

static PyMethodDef calls_methods[] = {{"keep", (PyCFunction)calls_keep, METH_VARARGS, NULL},
                           {"keep_message", (PyCFunction)calls_keep_message, METH_VARARGS, NULL},
                           {"keep_object", (PyCFunction)calls_keep_object, METH_VARARGS, NULL},
                           {"keep_begun", (PyCFunction)calls_keep_begun, METH_VARARGS, NULL},
                           {"run", (PyCFunction)(void (*)(void))calls_run, METH_FASTCALL, NULL},
                           {"begin", (PyCFunction)(void (*)(void))calls_begin, METH_FASTCALL, NULL},
                           {"message", (PyCFunction)(void (*)(void))calls_message, METH_FASTCALL, NULL},
                           {"forget", (PyCFunction)calls_forget, METH_O, NULL}, {0}};
static PyType_Slot calls_slots[] = {{Py_tp_new, calls_new}, {Py_tp_traverse, calls_traverse},
                                    {Py_tp_clear, calls_tp_clear}, {Py_tp_dealloc, calls_dealloc},
                                    {Py_tp_methods, calls_methods}, {0}};
static PyType_Spec calls_spec = {"mpicoll.node.kernel.Calls", sizeof(CallsObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots};

static PyMemberDef base_members[] = {{"_calls", T_OBJECT_EX, offsetof(BaseObject, calls), 0, NULL}, {0}};
static PyType_Slot base_slots[] = {{Py_tp_traverse, base_traverse}, {Py_tp_clear, base_clear},
                                   {Py_tp_dealloc, base_dealloc},   {Py_tp_members, base_members}, {0}};
static PyType_Spec base_spec = {"mpicoll.node.kernel.Base", sizeof(BaseObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, base_slots};

static PyMemberDef turn_members[] = {{"inside", T_ULONG, offsetof(TurnObject, inside), 0, NULL}, {0}};
static PyType_Slot turn_slots[] = {{Py_tp_new, turn_new}, {Py_tp_traverse, turn_traverse}, {Py_tp_clear, turn_clear},
                                   {Py_tp_dealloc, turn_dealloc}, {Py_tp_members, turn_members}, {0}};
static PyType_Spec turn_spec = {"mpicoll.node.kernel.Turn", sizeof(TurnObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, turn_slots};

static PyMemberDef method_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(MethodObject, function), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(MethodObject, call), READONLY, NULL}, {0}};
static PyGetSetDef method_getset[] = {
    {"__doc__", (getter)method_of_function, NULL, NULL, "__doc__"},
    {"__name__", (getter)method_of_function, NULL, NULL, "__name__"},
    {"__qualname__", (getter)method_of_function, NULL, NULL, "__qualname__"},
    {"__module__", (getter)method_of_function, NULL, NULL, "__module__"},
    {"__annotations__", (getter)method_of_function, NULL, NULL, "__annotations__"}, {0}};
static PyMethodDef method_methods[] = {{"__reduce__", (PyCFunction)method_reduce, METH_NOARGS, NULL}, {0}};
static PyType_Slot method_slots[] = {
    {Py_tp_new, method_new}, {Py_tp_methods, method_methods}, {Py_tp_call, method_tp_call},
    {Py_tp_descr_get, method_get},
    {Py_tp_traverse, method_traverse}, {Py_tp_dealloc, method_dealloc}, {Py_tp_members, method_members},
    {Py_tp_getset, method_getset}, {0}};
/* Python's interpreter finds such a method without a look into dictionaries, if its type never changes. */
static PyType_Spec method_spec = {"mpicoll.node.kernel.Method", sizeof(MethodObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                      Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE,
                                  method_slots};

int add_dispatch(PyObject *module) {
    struct { PyObject **name; const char *text; } names[] = {
        {&name_back, "f_back"}, {&name_lasti, "f_lasti"}, {&name_filename, "co_filename"},
        {&name_number, "number"}, {&name_digest, "digest"}, {&name_run, "run"}, {&name_record, "record"},
        {&name_profiles, "_is_profiler_enabled"}, {&name_turn, "turn"}, {&name_who, "_who"},
        {&name_waiting, "_waiting"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return -1;
    get_lasti = (int (*)(PyObject *))(uintptr_t)dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
    PyObject *types = PyImport_ImportModule("types");
    bound_method = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
    Py_XDECREF(types);
    ring_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ring_spec, NULL);
    calls_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &calls_spec, NULL);
    base_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &base_spec, NULL);
    turn_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &turn_spec, NULL);
    method_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &method_spec, NULL);
    if (!bound_method || !ring_type || !calls_type || !base_type || !turn_type || !method_type) return -1;
    return PyModule_AddType(module, ring_type) || PyModule_AddType(module, calls_type) ||
           PyModule_AddType(module, base_type) || PyModule_AddType(module, turn_type) ||
           PyModule_AddType(module, method_type);
}
