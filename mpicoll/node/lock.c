/* Python's lock, of which a thread lets go while it waits long. */
#include "module.h"

#include <time.h>

static _Thread_local PyThreadState *left; /* while other threads may go on */
static _Thread_local int by_wait;         /* whether the wait has let go of it, and not the whole call */

static _Thread_local PyObject *waits, *pending, *known; /* `known`: the pair of it, where there is one already */
static _Thread_local PyObject *wait;                    /* the pair that is in the list now */

void wait_as(PyObject *list, PyObject *of, PyObject *pair) { waits = list, pending = of, known = pair; }

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void begin_wait(void) {
    if (!pending) return;
    wait = known ? Py_NewRef(known) : Py_BuildValue("Od", pending, seconds());
    if (!wait || PyList_Append(waits, wait)) PyErr_Clear();
}

static void end_wait(void) {
    PyObject *type, *error, *trace;
    if (!wait) return;
    PyErr_Fetch(&type, &error, &trace);
    if (taken(PyObject_CallMethod(waits, "remove", "(O)", wait))) PyErr_Clear();
    Py_CLEAR(wait);
    PyErr_Restore(type, error, trace);
}

void let_go_of_lock(void) { left = PyEval_SaveThread(); }

void take_lock(void) {
    PyThreadState *of = left;
    left = NULL;
    PyEval_RestoreThread(of);
}

static void leave(void *of) {
    (void)of;
    if (left) return;
    begin_wait();
    let_go_of_lock();
    by_wait = 1;
}

static void enter(void *of) {
    (void)of;
    if (!by_wait) return;
    by_wait = 0;
    take_lock();
    end_wait();
}

static int between(void *of) {
    take_lock();
    /* What is called may wait, too. */
    int waited = by_wait;
    PyObject *before[] = {waits, pending, wait, known};
    by_wait = 0, waits = pending = wait = known = NULL;
    int failed = PyErr_CheckSignals() || taken(PyObject_CallNoArgs(of));
    by_wait = waited, waits = before[0], pending = before[1], wait = before[2], known = before[3];
    let_go_of_lock();
    return failed;
}

Host host_of(PyObject *meanwhile) { return (Host){leave, enter, between, meanwhile}; }
