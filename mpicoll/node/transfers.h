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
int look_for_begun(PyObject *begun); /* as long as it is not worth to sleep. Returns 0 whether it is complete or not */
PyObject *start_message(PyObject *message);
/* The caller lets go of what stands for it. If nobody else has that, and it is complete, the next start takes it. */
void end_message(PyObject *message, PyObject *begun);

int are_messages(PyObject *object);
PyObject *send_bytes(PyObject *messages, PyObject *bytes, int dest, int tag);
PyObject *recv_bytes(PyObject *messages, int source, int tag);

/* objects.c */
int add_objects(PyObject *module);
int is_object_message(PyObject *message);
int sends_object(PyObject *message);
/* NULL where that fails, with an exception if it is no Exception */
PyObject *bytes_of(PyObject *message, PyObject *object);
PyObject *carry_object(PyObject *message, PyObject *bytes); /* what came, or None */

/* dispatch.c. What is noted of a message when it is begun: what it is, and when that was. */
typedef struct { PyObject *ring, *pending; double when; } Noted;
int is_taped(PyObject *ring);

/* requests.c. A Request of Python's for a message or a call that was begun. `kind` is its type, NULL for the usual. */
int add_requests(PyObject *module);
int is_request_type(PyObject *object);
PyObject *new_request(PyObject *kind, PyObject *message, PyObject *under_way, PyObject *result);
/* The request of the same message's last time as a new one, if nobody has it any more and nothing was wrong; or NULL */
PyObject *used_again(PyObject *last, PyObject *message);
void keep_request(PyObject *request, PyObject **in); /* until then, or until something is wrong */
void forget_request(PyObject **in);
/* `array` is kept until it is complete. Returns 0, or -1 with an exception. */
int begin_request(PyObject *request, PyObject *begun, PyObject *array, const Noted *noted);

#endif
