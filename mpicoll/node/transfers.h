/* What the files that know both Python and messages share. */
#ifndef MPICOLL_TRANSFERS_H
#define MPICOLL_TRANSFERS_H

#include "module.h"

#include "messages.h"

/* transfers.c. A Begun is a message under way. */
int is_begun(PyObject *object);
int is_complete(const PyObject *begun);
const Transfer *transfer_of(const PyObject *begun);
int wait_for_begun(PyObject *begun);
PyObject *start_message(PyObject *message);

/* requests.c. A Request of Python's for a message that was begun. */
int add_requests(PyObject *module);
PyObject *new_request(PyObject *message, PyObject *begun, PyObject *array, PyObject *under_way, PyObject *pending);

#endif
