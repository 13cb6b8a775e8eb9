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

int are_messages(PyObject *object);
PyObject *send_bytes(PyObject *messages, PyObject *bytes, int dest, int tag);
PyObject *recv_bytes(PyObject *messages, int source, int tag);

/* objects.c */
int add_objects(PyObject *module);
int is_object_message(PyObject *message);
int sends_object(PyObject *message);
PyObject *bytes_of(PyObject *message, PyObject *object); /* NULL where that fails, with an exception if it is no Exception */
PyObject *carry_object(PyObject *message, PyObject *bytes); /* what came, or None */

/* requests.c. A Request of Python's for a message or a call that was begun. */
int add_requests(PyObject *module);
PyObject *new_request(PyObject *message, PyObject *begun, PyObject *array, PyObject *under_way, PyObject *pending,
                      PyObject *result);

#endif
