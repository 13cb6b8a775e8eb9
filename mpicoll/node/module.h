/* What the files that know Python share. */
#ifndef MPICOLL_MODULE_H
#define MPICOLL_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Carry out the plan whose bound method `run` is this one. Returns 0, or -1 with an exception. */
int run_plan(PyObject *plan);
/* The plan whose `run` this is (borrowed), NULL if it is something else. */
PyObject *plan_of(PyObject *run);

/* 0 if the answer is an object, of which this lets go, else -1. */
int taken(PyObject *answer);

/* dispatch.c */
int add_dispatch(PyObject *module);
PyObject *prepare(PyObject *module, PyObject *args);
PyObject *know_arrays(PyObject *module, PyObject *args);
PyObject *know_tensors(PyObject *module, PyObject *types);

#endif
