/* Python's lock, of which a thread lets go while it waits long. */
#include "module.h"

static _Thread_local PyThreadState *left; /* while other threads may go on */
static _Thread_local int by_wait;         /* whether the wait has let go of it, and not the whole call */

void let_go_of_lock(void) { left = PyEval_SaveThread(); }

void take_lock(void) {
    PyThreadState *of = left;
    left = NULL;
    PyEval_RestoreThread(of);
}

static void leave(void *of) {
    (void)of;
    if (left) return;
    let_go_of_lock();
    by_wait = 1;
}

static void enter(void *of) {
    (void)of;
    if (!by_wait) return;
    by_wait = 0;
    take_lock();
}

static int between(void *of) {
    take_lock();
    int waits = by_wait; /* what is called may wait, too */
    by_wait = 0;
    int failed = PyErr_CheckSignals() || taken(PyObject_CallNoArgs(of));
    by_wait = waits;
    let_go_of_lock();
    return failed;
}

Host host_of(PyObject *meanwhile) { return (Host){leave, enter, between, meanwhile}; }
