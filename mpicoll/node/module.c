/* What Python sees of the kernel: a Node, the memory in which ranks of a node meet, and Plans, its calls.
 *
 * It uses Python's limited API of 3.11, so that one build serves all later versions.
 */
#include "module.h"

#include <string.h>
#include <time.h>

#include "arrays.h"
#include "collectives.h"
#include "messages.h"
#include "moving.h"

#define INTERFACE 9 /* of mpicoll/node/loaded.py, too: change both */
#define LONG (128 << 10) /* bytes of a call during which other threads of the process may go on */

static uint64_t generation = 1; /* of the memory of this process that others can open */
static PyTypeObject *node_type, *plan_type, *begun_type;

typedef struct Begun Begun;

/* Node */

typedef struct {
    PyObject_HEAD
    Node node;
    Flag **flags;
    PyObject *memory;    /* what holds the blocks */
    PyObject *between;   /* called now and then in long waits: it moves messages, and may raise */
    _Atomic int busy;     /* the moving thread reads it, too */
    unsigned long thread; /* that is in a call, if it is busy */
    Begun *first, *last;  /* calls under way: each one begins when the one before is complete */
    int has_begun;        /* whether the first one has */
    _Atomic int open;     /* how many there are */
    _Atomic uint64_t seen; /* how often ranks had arrived at the last look at these */
    unsigned long ended;  /* how many were complete */
    Moved moved;
} NodeObject;

static void enter(NodeObject *node) {
    atomic_store_explicit(&node->busy, 1, memory_order_relaxed);
    node->thread = PyThread_get_thread_ident();
}

static void leave(NodeObject *node) { atomic_store_explicit(&node->busy, 0, memory_order_relaxed); }

static int is_busy(const NodeObject *node) { return atomic_load_explicit(&node->busy, memory_order_relaxed); }

static int node_is_open(const void *of) { return atomic_load(&((const NodeObject *)of)->open) > 0; }
static int node_has_come(const void *of);
static unsigned long node_move(void *of);

/* Node(addresses of the ranks' blocks, what holds them, rank, bytes of a unit of slots, whether ranks take turns on
 * cores, between) */
static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *addresses, *memory, *between_;
    int rank, crowded;
    Py_ssize_t unit_size;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Node takes no keywords");
    if (!PyArg_ParseTuple(args, "O!OinpO", &PyTuple_Type, &addresses, &memory, &rank, &unit_size, &crowded, &between_))
        return NULL;
    int size = (int)PyTuple_Size(addresses);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    NodeObject *self = (NodeObject *)allocate(type, 0);
    if (!self) return NULL;
    self->memory = Py_NewRef(memory), self->between = Py_NewRef(between_);
    Node *node = &self->node;
    self->flags = PyMem_Calloc(size, sizeof *self->flags);
    node->blocks = PyMem_Calloc(size, sizeof *node->blocks);
    node->rows = PyMem_Calloc(size, sizeof *node->rows);
    node->factors = PyMem_Calloc(size, sizeof *node->factors);
    if (!self->flags || !node->blocks || !node->rows || !node->factors) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (int r = 0; r < size; r++) {
        node->blocks[r] = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, r));
        self->flags[r] = (Flag *)node->blocks[r];
    }
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    node->page_size = page_size(size), node->unit_size = (size_t)unit_size;
    meeting_begin(&node->meeting, rank, size, self->flags, crowded, host_of(self->between));
    node_begin(node);
    self->moved = (Moved){self, node_is_open, node_has_come, node_move, NULL, NULL};
    keep_moving(&self->moved);
    return (PyObject *)self;
}

static int node_traverse(NodeObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->memory);
    Py_VISIT(self->between);
    return 0;
}

static int node_clear(NodeObject *self) {
    Py_CLEAR(self->between);
    return 0;
}

static void node_dealloc(NodeObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    if (self->moved.of) stop_moving(&self->moved);
    Py_CLEAR(self->memory);
    Py_CLEAR(self->between);
    PyMem_Free(self->flags);
    PyMem_Free(self->node.blocks);
    PyMem_Free(self->node.rows);
    PyMem_Free(self->node.factors);
    PyMem_Free(self->node.packed);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* said(rank) -> the version of where a rank has said that its arrays lie, and these places */
static PyObject *node_said(NodeObject *self, PyObject *arg) {
    long rank = PyLong_AsLong(arg);
    if (rank == -1 && PyErr_Occurred()) return NULL;
    Node *node = &self->node;
    return Py_BuildValue("Ky#", (unsigned long long)page_of(node, (int)rank)->version,
                         (const char *)page_of(node, (int)rank)->places, (Py_ssize_t)sizeof(((Page *)0)->places));
}

/* Plan */

enum { SLOTS, IN_PLACE, OTHER }; /* ways that a call can go */

typedef struct {
    PyObject_HEAD
    NodeObject *node;
    PyObject *of; /* with methods find, look, elsewhere, took, differs and unequal: _Call in fabrics/routes/node.py */
    Call call;
    const char *input; /* where they lie if nothing else is said */
    char *output;
    uint64_t generation;
    int is_adopted, way;
    size_t nbytes;
} PlanObject;

int taken(PyObject *answer) {
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

static int looked(PlanObject *self) {
    self->generation = generation;
    self->is_adopted = 0, self->call.version = 0;
    return taken(PyObject_CallMethod(self->of, "find", "O", self));
}

static int took(PlanObject *self, int way) {
    if (way == self->way) return 0;
    self->way = way;
    return taken(PyObject_CallMethod(self->of, "took", "i", way));
}

static void bind(PlanObject *self, Shift shift) {
    self->call.input = self->input ? self->input + shift.input : NULL;
    self->call.output = self->output ? self->output + shift.output : NULL;
    if (self->call.from) self->call.from->address = (char *)self->call.input;
    if (self->call.to) self->call.to->address = self->call.output;
}

/* Go on with the call of the node that is under way, which is of this plan. It has begun if `has_begun`. Returns what
 * go_on returns, or FAILED with an exception. */
enum { FAILED = 8 };
static int carry(PlanObject *self, Shift shift, int *has_begun, int waits) {
    NodeObject *node = self->node;
    Call *call = &self->call;
    int lets_go = self->nbytes >= LONG, code = 0;
    bind(self, shift);
    enter(node);
    if (!*has_begun) {
        if (call->may_share && (self->generation != generation || self->is_adopted) && looked(self)) code = FAILED;
        else start(&node->node, call), *has_begun = 1;
    }
    if (!code && !waits && !is_ready(&node->node, call)) code = LATER;
    while (!code) {
        if (lets_go) let_go_of_lock();
        code = go_on(&node->node, call, waits);
        if (lets_go) take_lock();
        if (code != LOOK) break;
        code = taken(PyObject_CallMethod(self->of, "look", "O", self)) ? FAILED : 0;
    }
    /* The others go on with it. What comes next may be a call of the same digest, which they must not take for this. */
    if (code == FAILED) node->node.meeting.history++;
    leave(node);
    return code;
}

/* What has come of a call that is over, for Python. Returns 0, or -1 with an exception. */
static int tell(PlanObject *self, int code) {
    NodeObject *node = self->node;
    switch (code) {
        case 0: return took(self, self->call.in_place ? IN_PLACE : SLOTS);
        case ELSEWHERE:
            if (took(self, OTHER)) return -1;
            return taken(PyObject_CallMethod(self->of, "elsewhere", NULL));
        case MISMATCH: return taken(PyObject_CallMethod(self->of, "differs", NULL));
        case UNEQUAL:
            return taken(PyObject_CallMethod(self->of, "unequal", "inn", node->node.other,
                                             (Py_ssize_t)node->node.expected, (Py_ssize_t)node->node.found));
        default: return -1; /* FAILED, or `between` has raised */
    }
}

/* Begun: a call under way. Until it is complete, it keeps itself and the arrays: what goes on writes to these. A result
 * that is packed keeps them for unpack(). */

struct Begun {
    PyObject_HEAD
    PlanObject *plan;
    Shift shift;
    PyObject *arrays;
    Begun *next;
    char *packed; /* where a result lies that belongs to several tensors; NULL if it lies where it belongs */
    size_t nbytes;
    int is_complete;
    PyObject *error; /* what its wait raises */
};

static void end_first(NodeObject *node, int code) {
    Begun *it = node->first;
    enter(node); /* Python may let other threads run meanwhile */
    if (tell(it->plan, code)) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        it->error = error;
        Py_XDECREF(type);
        Py_XDECREF(trace);
    }
    node->first = it->next, node->has_begun = 0;
    if (!node->first) node->last = NULL;
    it->is_complete = 1;
    node->ended++;
    leave(node);
    atomic_fetch_sub(&node->open, 1);
    if (!it->packed) Py_CLEAR(it->arrays);
    Py_DECREF((PyObject *)it);
}

static int carry_first(NodeObject *node, int waits) {
    Begun *it = node->first;
    return carry(it->plan, it->shift, &node->has_begun, waits);
}

/* Go on with what is under way, as far as that needs no wait. */
static void move(NodeObject *node) {
    while (node->first && !is_busy(node)) {
        atomic_store(&node->seen, arrivals(&node->node.meeting));
        int code = carry_first(node, 0);
        if (code == LATER) return;
        end_first(node, code);
    }
}

/* Who is in a call goes on itself. */
static int node_has_come(const void *of) {
    const NodeObject *node = of;
    return !is_busy(node) && arrivals(&node->node.meeting) != atomic_load(&node->seen);
}

/* What has ended may be the last that holds the node. */
static unsigned long node_move(void *of) {
    NodeObject *node = (NodeObject *)Py_NewRef((PyObject *)of);
    move(node);
    unsigned long moves = node->ended + (unsigned long)node->node.meeting.turn;
    Py_DECREF((PyObject *)node);
    return moves;
}

/* Wait while another thread is in a call. */
static int wait_for_other(PlanObject *of) {
    const struct timespec nap = {0, 20000};
    NodeObject *node = of->node;
    while (is_busy(node)) {
        if (node->thread == PyThread_get_thread_ident()) /* a signal's handler calls */
            return taken(PyObject_CallMethod(of->of, "within", NULL));
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&nap, NULL);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals()) return -1;
    }
    return 0;
}

/* Wait until it is complete. Another thread may end it meanwhile, and nobody else may keep it. */
static int complete(Begun *it) {
    Py_INCREF((PyObject *)it);
    PlanObject *of = (PlanObject *)Py_NewRef((PyObject *)it->plan);
    NodeObject *node = of->node;
    int failed = 0;
    while (!it->is_complete && !(failed = wait_for_other(of))) {
        if (it->is_complete) break;
        int code = carry_first(node, 1);
        failed = code == ENDED; /* it may be waited for again */
        if (failed) break;
        end_first(node, code);
    }
    Py_DECREF((PyObject *)of);
    Py_DECREF((PyObject *)it);
    return failed ? -1 : 0;
}

int begins(PyObject *plan) { return !((PlanObject *)plan)->call.only_shared; }

PyObject *begin_plan(PyObject *plan, Shift shift, PyObject *arrays, char *packed, size_t nbytes) {
    NodeObject *node = ((PlanObject *)plan)->node;
    Begun *self = (Begun *)((allocfunc)PyType_GetSlot(begun_type, Py_tp_alloc))(begun_type, 0);
    if (!self) return NULL;
    self->plan = (PlanObject *)Py_NewRef(plan), self->shift = shift, self->arrays = Py_NewRef(arrays);
    self->packed = packed, self->nbytes = nbytes;
    Py_INCREF((PyObject *)self);
    if (node->last) node->last->next = self;
    else node->first = self;
    node->last = self;
    atomic_fetch_add(&node->open, 1);
    move(node);
    if (!self->is_complete) move_on();
    return (PyObject *)self;
}

int is_begun_call(PyObject *object) { return Py_TYPE(object) == begun_type; }

int is_call_complete(PyObject *begun) {
    const Begun *self = (const Begun *)begun;
    return self->error ? -1 : self->is_complete;
}

int wait_for_call(PyObject *begun) {
    Begun *self = (Begun *)begun;
    if (complete(self)) return -1;
    if (self->error) PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
    return self->error ? -1 : 0;
}

static PyObject *begun_wait(PyObject *self, PyObject *unused) {
    (void)unused;
    return wait_for_call(self) ? NULL : Py_NewRef(Py_None);
}

/* test(whether to look a moment longer if it is short): whether it is complete. After a longer look, what went wrong is
 * left to wait(). */
static PyObject *begun_test(Begun *self, PyObject *longer) {
    NodeObject *node = self->plan->node;
    move(node);
    int looks = longer == Py_True && self->plan->nbytes < LONG ? node->node.meeting.waiter.fewest_looks : 0;
    for (int i = 0; i < looks && !self->is_complete; i++) {
        relax();
        move(node);
    }
    if (self->error && longer != Py_True) return begun_wait((PyObject *)self, NULL);
    return PyBool_FromLong(self->is_complete && !self->error);
}

/* unpack(): copy its result to the tensors to which it belongs, when it is complete */
static PyObject *begun_unpack(Begun *self, PyObject *unused) {
    (void)unused;
    if (!self->packed || copy_tensors(PyTuple_GetItem(self->arrays, 1), self->packed, self->nbytes, 1)) Py_RETURN_NONE;
    return lists_changed();
}

static int begun_traverse(Begun *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->arrays);
    Py_VISIT(self->error);
    return 0;
}

static void begun_dealloc(Begun *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->arrays);
    Py_CLEAR(self->error);
    Py_CLEAR(self->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int may_shift(PyObject *plan, const char *input, size_t given, const char *output, size_t taken) {
    PlanObject *self = (PlanObject *)plan;
    if (self->call.may_share) return 0; /* ranks have been told where they lie */
    if (self->call.from || self->call.to) return 0; /* with its gaps, an array is longer than its elements */
    return (!self->input || (self->input >= input && self->input <= input + given)) &&
           (!self->output || (self->output >= output && self->output <= output + taken));
}

int run_plan(PyObject *plan, Shift shift) {
    PlanObject *self = (PlanObject *)plan;
    NodeObject *node = self->node;
    int has_begun = 0;
    do { /* meanwhile, other threads may begin more */
        if (wait_for_other(self) || (node->last && complete(node->last))) return -1;
    } while (node->last || is_busy(node));
    return tell(self, carry(self, shift, &has_begun, 1));
}

static PyObject *plan_run(PyObject *self, PyObject *unused) {
    (void)unused;
    if (run_plan(self, (Shift){0, 0})) return NULL;
    Py_RETURN_NONE;
}

/* start(): begin it. The caller keeps the arrays until it is complete. */
static PyObject *plan_start(PyObject *self, PyObject *unused) {
    (void)unused;
    return begin_plan(self, (Shift){0, 0}, Py_None, NULL, 0);
}

static PyObject *plan_wait(PyObject *self, PyObject *begun) {
    (void)self;
    return is_begun_call(begun) ? begun_wait(begun, NULL) : PyErr_Format(PyExc_TypeError, "expected a call under way");
}

static PyObject *plan_test(PyObject *self, PyObject *begun) {
    (void)self;
    if (!is_begun_call(begun)) return PyErr_Format(PyExc_TypeError, "expected a call under way");
    return begun_test((Begun *)begun, Py_False);
}

PyObject *plan_of(PyObject *run) {
    return PyCFunction_Check(run) && PyCFunction_GetFunction(run) == plan_run ? PyCFunction_GetSelf(run) : NULL;
}

static size_t *offsets(PyObject *bytes, int blocks) {
    size_t nbytes = (size_t)(blocks + 1) * sizeof(size_t), *made;
    if (!PyBytes_Check(bytes) || (size_t)PyBytes_Size(bytes) != nbytes) {
        PyErr_SetString(PyExc_ValueError, "starts: expected one number more than there are blocks");
        return NULL;
    }
    if (!(made = PyMem_Malloc(nbytes))) return (size_t *)PyErr_NoMemory();
    memcpy(made, PyBytes_AsString(bytes), nbytes);
    return made;
}

/* The layout of an array with gaps, from (itemsize, shape, strides); NULL for None, or with an exception. */
static Layout *gaps_of(PyObject *given) {
    Py_ssize_t itemsize;
    PyObject *shape, *strides;
    if (given == Py_None) return NULL;
    if (!PyArg_ParseTuple(given, "nO!O!", &itemsize, &PyTuple_Type, &shape, &PyTuple_Type, &strides)) return NULL;
    Layout *made = PyMem_Malloc(sizeof *made);
    if (!made) return (Layout *)PyErr_NoMemory();
    if (!read_layout(made, NULL, (size_t)itemsize, shape, strides)) return made;
    PyMem_Free(made);
    return NULL;
}

static int make_room(Node *node) {
    size_t nbytes = LONG_SLOT * node->unit_size;
    if (!node->packed) node->packed = PyMem_Malloc(2 * nbytes);
    if (!node->packed) return PyErr_NoMemory(), -1;
    node->made = node->packed + nbytes;
    return 0;
}

/* Plan(node, of, (gives, gets, rooted, prefix), root, blocks, given, taken, is_private, input, output, layouts of the
 * two, digest, (needs_all, may_share, only_shared), reduction) where a layout is None or (itemsize, shape, strides),
 * and reduction is None or (dtype, op, averages, factor or None) */
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *node, *of, *given, *taken, *input, *output, *from, *to, *reduction;
    int gives, gets, rooted, prefix, root, blocks, is_private, needs_all, may_share, only_shared;
    unsigned long long digest;
    if (kwargs && PyDict_Size(kwargs)) return PyErr_Format(PyExc_TypeError, "Plan takes no keywords");
    if (!PyArg_ParseTuple(args, "O!O(iiii)iiOOpOO(OO)K(ppp)O", node_type, &node, &of, &gives, &gets, &rooted, &prefix,
                          &root, &blocks, &given, &taken, &is_private, &input, &output, &from, &to, &digest,
                          &needs_all, &may_share, &only_shared, &reduction))
        return NULL;
    PlanObject *self = (PlanObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return NULL;
    self->node = (NodeObject *)Py_NewRef(node), self->of = Py_NewRef(of), self->way = only_shared ? OTHER : SLOTS;
    Call *c = &self->call;
    int size = self->node->node.meeting.size;
    *c = (Call){.gives = gives, .gets = gets, .rooted = rooted, .prefix = prefix, .root = root, .blocks = blocks,
                .is_private = is_private, .digest = digest, .needs_all = needs_all, .may_share = may_share,
                .only_shared = only_shared};
    self->input = input == Py_None ? NULL : PyLong_AsVoidPtr(input);
    self->output = output == Py_None ? NULL : PyLong_AsVoidPtr(output);
    c->from = gaps_of(from), c->to = gaps_of(to);
    if (PyErr_Occurred() || ((c->from || c->to) && make_room(&self->node->node))) goto failed;
    if (reduction != Py_None) {
        int dtype, op, averages;
        PyObject *factor;
        Factor f = {0, 0};
        if (!PyArg_ParseTuple(reduction, "iipO", &dtype, &op, &averages, &factor)) goto failed;
        if (factor != Py_None) f = (Factor){PyComplex_RealAsDouble(factor), PyComplex_ImagAsDouble(factor)};
        c->reduces = 1, c->factor = f;
        if (reduction_of(&c->reduction, dtype, op, averages, factor != Py_None)) {
            PyErr_SetString(PyExc_ValueError, "reduction: the operation is not defined on the dtype");
            goto failed;
        }
    }
    c->given = offsets(given, blocks);
    c->taken = c->given ? offsets(taken, blocks) : NULL;
    if (!c->taken) goto failed;
    self->nbytes = c->given[blocks] > c->taken[blocks] ? c->given[blocks] : c->taken[blocks];
    if (may_share) {
        c->versions = PyMem_Calloc(size, sizeof *c->versions);
        c->inputs = PyMem_Calloc(size, sizeof *c->inputs);
        c->outputs = PyMem_Calloc(size, sizeof *c->outputs);
        if (!c->versions || !c->inputs || !c->outputs) {
            PyErr_NoMemory();
            goto failed;
        }
    }
    if (!PyErr_Occurred()) return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

/* lies(version, places, is_adopted): where this rank's arrays lie */
static PyObject *plan_lies(PlanObject *self, PyObject *args) {
    unsigned long long version;
    const char *places;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "Ky#p", &version, &places, &n, &self->is_adopted)) return NULL;
    if (n != sizeof self->call.places)
        return PyErr_Format(PyExc_ValueError, "places: expected %d numbers", PLACE_WORDS);
    self->call.version = version;
    memcpy(self->call.places, places, sizeof self->call.places);
    Py_RETURN_NONE;
}

/* found(rank, version, input, output): where a rank's arrays lie in this process's memory, None where it has none */
static PyObject *plan_found(PlanObject *self, PyObject *args) {
    int rank;
    unsigned long long version;
    PyObject *input, *output;
    if (!PyArg_ParseTuple(args, "iKOO", &rank, &version, &input, &output)) return NULL;
    self->call.versions[rank] = version;
    self->call.inputs[rank] = input == Py_None ? NULL : PyLong_AsVoidPtr(input);
    self->call.outputs[rank] = output == Py_None ? NULL : PyLong_AsVoidPtr(output);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int plan_traverse(PlanObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->node);
    Py_VISIT(self->of);
    return 0;
}

static int plan_clear(PlanObject *self) {
    Py_CLEAR(self->of);
    return 0;
}

static void plan_dealloc(PlanObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->of);
    Py_CLEAR(self->node);
    PyMem_Free(self->call.given);
    PyMem_Free(self->call.taken);
    PyMem_Free(self->call.versions);
    PyMem_Free((void *)self->call.inputs);
    PyMem_Free(self->call.outputs);
    PyMem_Free(self->call.from);
    PyMem_Free(self->call.to);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Functions */

/* dtype_named(name): the dtype's number in the calls below, -1 if the kernel does not know it */
static PyObject *module_dtype_named(PyObject *module, PyObject *name) {
    (void)module;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    return text ? PyLong_FromLong(dtype_named(text)) : NULL;
}

/* reduce_rows(dtype, op, averages, factors or None, addresses of the rows, address of the result, elements) */
static PyObject *module_reduce_rows(PyObject *module, PyObject *args) {
    (void)module;
    int dtype, op, averages;
    PyObject *factors, *rows, *result, *answer = NULL;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "iipOO!On", &dtype, &op, &averages, &factors, &PyTuple_Type, &rows, &result, &n))
        return NULL;
    Reduction r;
    if (reduction_of(&r, dtype, op, averages, factors != Py_None))
        return PyErr_Format(PyExc_ValueError, "reduction: the operation is not defined on the dtype");
    int count = (int)PyTuple_Size(rows);
    const char **from = PyMem_Calloc(count, sizeof *from);
    Factor *by = PyMem_Calloc(count, sizeof *by);
    if (!from || !by) {
        PyErr_NoMemory();
        goto end;
    }
    for (int i = 0; i < count; i++) {
        from[i] = PyLong_AsVoidPtr(PyTuple_GetItem(rows, i));
        if (factors != Py_None) {
            PyObject *factor = PySequence_GetItem(factors, i);
            if (!factor) goto end;
            by[i] = (Factor){PyComplex_RealAsDouble(factor), PyComplex_ImagAsDouble(factor)};
            Py_DECREF(factor);
        }
    }
    char *to = PyLong_AsVoidPtr(result);
    if (PyErr_Occurred()) goto end;
    if ((size_t)n * r.itemsize >= LONG) {
        Py_BEGIN_ALLOW_THREADS
        reduce_rows(&r, from, count, factors == Py_None ? NULL : by, to, NULL, n);
        Py_END_ALLOW_THREADS
    } else {
        reduce_rows(&r, from, count, factors == Py_None ? NULL : by, to, NULL, n);
    }
    answer = Py_NewRef(Py_None);
end:
    PyMem_Free((void *)from);
    PyMem_Free(by);
    return answer;
}

/* widen and narrow(dtype, address of the values, address of the result, elements) */
static PyObject *convert(PyObject *args, int widens) {
    int dtype;
    PyObject *from, *to;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "iOOn", &dtype, &from, &to, &n)) return NULL;
    void *source = PyLong_AsVoidPtr(from), *target = PyLong_AsVoidPtr(to);
    if (PyErr_Occurred()) return NULL;
    if (widens) widen(dtype, source, target, n);
    else narrow(dtype, source, target, n);
    Py_RETURN_NONE;
}
static PyObject *module_widen(PyObject *module, PyObject *args) { return (void)module, convert(args, 1); }
static PyObject *module_narrow(PyObject *module, PyObject *args) { return (void)module, convert(args, 0); }

/* changed(): there is other memory of this process than before that others can open */
static PyObject *module_changed(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    generation++;
    Py_RETURN_NONE;
}

/* head_size(ranks) -> bytes of a rank's block before its two slots */
static PyObject *module_head_size(PyObject *module, PyObject *arg) {
    (void)module;
    long size = PyLong_AsLong(arg);
    return size == -1 && PyErr_Occurred() ? NULL : PyLong_FromSize_t(head_size((int)size));
}

static PyMethodDef node_methods[] = {{"said", (PyCFunction)node_said, METH_O, NULL}, {0}};
static PyType_Slot node_slots[] = {
    {Py_tp_new, node_new}, {Py_tp_traverse, node_traverse}, {Py_tp_clear, node_clear}, {Py_tp_dealloc, node_dealloc},
    {Py_tp_methods, node_methods}, {0}};
static PyType_Spec node_spec = {"mpicoll.node.kernel.Node", sizeof(NodeObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, node_slots};

static PyMethodDef plan_methods[] = {
    {"run", (PyCFunction)plan_run, METH_NOARGS, NULL},
    {"start", (PyCFunction)plan_start, METH_NOARGS, NULL},
    {"wait", (PyCFunction)plan_wait, METH_O, NULL},
    {"test", (PyCFunction)plan_test, METH_O, NULL},
    {"lies", (PyCFunction)plan_lies, METH_VARARGS, NULL},
    {"found", (PyCFunction)plan_found, METH_VARARGS, NULL}, {0}};
static PyType_Slot plan_slots[] = {
    {Py_tp_new, plan_new}, {Py_tp_traverse, plan_traverse}, {Py_tp_clear, plan_clear}, {Py_tp_dealloc, plan_dealloc},
    {Py_tp_methods, plan_methods}, {0}};
static PyType_Spec plan_spec = {"mpicoll.node.kernel.Plan", sizeof(PlanObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, plan_slots};

static PyMethodDef begun_methods[] = {{"wait", (PyCFunction)begun_wait, METH_NOARGS, NULL},
                                      {"test", (PyCFunction)begun_test, METH_O, NULL},
                                      {"unpack", (PyCFunction)begun_unpack, METH_NOARGS, NULL}, {0}};
static PyType_Slot begun_slots[] = {{Py_tp_traverse, begun_traverse}, {Py_tp_dealloc, begun_dealloc},
                                    {Py_tp_methods, begun_methods}, {0}};
static PyType_Spec begun_spec = {"mpicoll.node.kernel.BegunCall", sizeof(Begun), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 begun_slots};

/* messages_size(ranks, whether they take turns on cores) */
static PyObject *module_messages_size(PyObject *module, PyObject *args) {
    int size, crowded;
    (void)module;
    return PyArg_ParseTuple(args, "ip", &size, &crowded) ? PyLong_FromSize_t(messages_block_size(size, crowded)) : NULL;
}

static PyObject *module_end_moving(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    Py_BEGIN_ALLOW_THREADS
    end_moving();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"prepare", prepare, METH_VARARGS, NULL},
    {"know_groups", know_groups, METH_VARARGS, NULL},
    {"set_default_turn", set_default_turn, METH_VARARGS, NULL},
    {"know_arrays", know_arrays, METH_VARARGS, NULL},
    {"know_subclass", know_subclass, METH_O, NULL},
    {"know_buffers", know_buffers, METH_VARARGS, NULL},
    {"know_tensors", know_tensors, METH_VARARGS, NULL},
    {"lie_together", lie_together, METH_O, NULL},
    {"pack", pack, METH_VARARGS, NULL},
    {"dtype_named", module_dtype_named, METH_O, NULL},
    {"reduce_rows", module_reduce_rows, METH_VARARGS, NULL},
    {"widen", module_widen, METH_VARARGS, NULL},
    {"narrow", module_narrow, METH_VARARGS, NULL},
    {"changed", module_changed, METH_NOARGS, NULL},
    {"head_size", module_head_size, METH_O, NULL},
    {"end_moving", module_end_moving, METH_NOARGS, NULL},
    {"messages_size", module_messages_size, METH_VARARGS, NULL}, {0}};

static int module_exec(PyObject *module) {
    node_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &node_spec, NULL);
    plan_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &plan_spec, NULL);
    begun_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &begun_spec, NULL);
    if (!begun_type || !node_type || !plan_type || PyModule_AddType(module, node_type) ||
        PyModule_AddType(module, plan_type) || add_dispatch(module) || add_transfers(module))
        return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) || PyModule_AddIntConstant(module, "AHEAD", AHEAD);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", NULL, 0, functions, module_slots, NULL, NULL,
                                        NULL};
PyMODINIT_FUNC PyInit_kernel(void) { return PyModuleDef_Init(&definition); }
