/* What the files that know Python share. */
#ifndef MPICOLL_MODULE_H
#define MPICOLL_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layouts.h"
#include "waiting.h"

/* How far from where a plan is bound its input and its output lie, in bytes. */
typedef struct { ptrdiff_t input, output; } Shift;
/* Carry out a plan. Returns 0, or -1 with an exception. */
int run_plan(PyObject *plan, Shift shift);
/* Whether the plan serves arrays wherever they lie, and has its input and its output in these bytes. */
int may_shift(PyObject *plan, const char *input, size_t given, const char *output, size_t taken);
/* Begin a plan on these arrays: a new reference to what stands for it, which waits for it and says whether it is
 * complete. NULL with an exception. Only where it `begins`. If `packed` is not NULL, so many bytes there are the result,
 * and the second one of the arrays is a tuple of tensors to which it belongs. */
PyObject *begin_plan(PyObject *plan, Shift shift, PyObject *arrays, char *packed, size_t nbytes);
int begins(PyObject *plan);
int is_begun_call(PyObject *object);
int is_call_complete(PyObject *begun); /* 1 if it is, 0, or -1: its wait raises an exception */
int wait_for_call(PyObject *begun);
/* The plan whose `run` this is (borrowed), NULL if it is something else. */
PyObject *plan_of(PyObject *run);

/* 0 if the answer is an object, of which this lets go, else -1. */
int taken(PyObject *answer);

/* lock.c. While a host waits long, other threads may go on, and `meanwhile` is called now and then. It may raise. */
Host host_of(PyObject *meanwhile);
/* While this thread waits long, a pair is in the list of what threads wait for: what is `pending`, and since when.
 * It is this pair, or a new one for NULL. NULL in all places ends that. All are borrowed. */
void wait_as(PyObject *waits, PyObject *pending, PyObject *pair);
double seconds(void); /* of time.monotonic() */
void let_go_of_lock(void);
void take_lock(void);

/* transfers.c */
/* An array's layout from tuples. Returns 0, or -1 with an exception. */
int read_layout(Layout *l, char *address, size_t itemsize, PyObject *shape, PyObject *strides);
int add_transfers(PyObject *module);
/* Carry out the message whose bound method `now` is this one. Returns 0, or -1 with an exception. */
int carry_message(PyObject *message);
/* Whether as many bytes have come as it has room for, the last time. */
int came_whole(PyObject *message);
/* The message whose `now` this is (borrowed), NULL if it is something else. */
PyObject *message_of(PyObject *now);

/* dispatch.c */
int add_dispatch(PyObject *module);
PyObject *prepare(PyObject *module, PyObject *args);
PyObject *know_groups(PyObject *module, PyObject *args);
PyObject *set_default_turn(PyObject *module, PyObject *args);

#endif
