"""Methods of a Communicator whose repeated calls and messages are the kernel's."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from mpicoll.algorithms.collectives import METHODS
from mpicoll.calls import results
from mpicoll.communicator.engine.requests import Request
from mpicoll.node.loaded import kernel

F = TypeVar("F", bound=Callable[..., Any])

_RETURNS_OUT, _RETURNS_X, _RETURNS_NONE, _ROOT_RETURNS_OUT, _RETURNS_NEW = range(5)
(
    _ROOT, _SENDTAG, _SOURCE, _RECVTAG, _X, _OP, _OUT, _ALGORITHM, _OBJECT, _SENDCOUNTS, _RECVCOUNTS, _GROUP, _ASYNC,
    _IN_GROUP, _MANY,
) = range(15)  # fmt: skip
_MEANINGS = {
    "x": _X, "xs": _X, "op": _OP, "root": _ROOT, "out": _OUT, "algorithm": _ALGORITHM,
    "dest": _ROOT, "source": _SOURCE, "sendtag": _SENDTAG, "recvtag": _RECVTAG,
    "obj": _OBJECT, "sendcounts": _SENDCOUNTS, "recvcounts": _RECVCOUNTS, "group": _GROUP, "async_op": _ASYNC,
    "in_group": _IN_GROUP,
}  # fmt: skip
_MESSAGES = {
    "send": (_RETURNS_NONE, _SENDTAG), "isend": (_RETURNS_NEW, _SENDTAG), "send_object": (_RETURNS_NEW, _SENDTAG),
    "recv": (_RETURNS_X, _RECVTAG), "irecv": (_RETURNS_NEW, _RECVTAG), "recv_object": (_RETURNS_NEW, _RECVTAG),
    "sendrecv": (_RETURNS_OUT, _RECVTAG),
}  # fmt: skip
"""What a method of a message returns, and which tag its ``tag`` is."""

if kernel is not None:
    _x = np.zeros((2, 3), np.float32)
    kernel.know_arrays(_x, _x.ctypes.data, _x.shape, _x.dtype, _x.flags.num)
    # What lends its memory is described as the array that NumPy makes over that.
    _lent = [np.zeros(1, each).data for each in "?bBhHiIlLqQfdFD"]
    kernel.know_buffers((memoryview, bytearray, array), {each.format: np.asarray(each).dtype for each in _lent})


def repeated(method: F) -> F:
    """The method of a collective, or of a message. If the kernel knows a plan for the arguments, it makes the call.
    Otherwise it calls this Python function."""
    if kernel is None:
        return method
    name, like = method.__name__, None
    (_, *names), given = _arguments(method)
    if name in _MESSAGES:
        returns, tag = _MESSAGES[name]
        meanings, elementwise = {**_MEANINGS, "tag": tag}, True
    elif name.startswith("neighbor_"):
        returns, elementwise, meanings = _RETURNS_OUT, False, _MEANINGS
        given = {**given, "root": 0, "sendcounts": (), "recvcounts": ()}  # where there are counts, shapes matter
    else:
        table, _ = METHODS[name.removeprefix("i")]
        if name in METHODS and table.elementwise and not table.rooted and table.prefix != "exclusive":
            like = results.like  # every rank's result has the shape of its input
        returns, elementwise = _RETURNS_OUT, table.elementwise
        meanings = {**_MEANINGS, "counts": _RECVCOUNTS if table.gathers else _SENDCOUNTS}
        if not table.moves:
            returns = _RETURNS_NONE
        elif "out" not in names:
            returns = _RETURNS_X
        elif table.root == "gets":
            returns = _ROOT_RETURNS_OUT
        given = {"root": 0, **given}
    positions = tuple(meanings[argument] for argument in names)
    what = name, tuple(names), positions, _defaults(given, meanings), returns, elementwise, name.startswith("i"), like
    made: F = kernel.Method(method, *what)
    return made


def _arguments(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of a function's arguments, and the values of those that may be left out."""
    function = getattr(function, "__wrapped__", function)
    code, values = function.__code__, function.__defaults__ or ()  # inspect.signature would take ten times as long
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = dict(zip(names[code.co_argcount - len(values) :], values, strict=False))
    return names, {**given, **(function.__kwdefaults__ or {})}


def _defaults(given: dict[str, Any], meanings: dict[str, int]) -> tuple[object, ...]:
    by_meaning = {meanings[argument]: value for argument, value in given.items()}
    return tuple(by_meaning.get(meaning) for meaning in range(_MANY))


def repeated_function(operation: str, kind: type[Request] | None = None, /, **arguments: str) -> Callable[[F], F]:
    """A function that has a group of torch's names among its arguments. The kernel makes its repeated calls, if they
    block and come at once. ``arguments`` are the collective's names of some of the function's. A function that begins a
    message returns a request of this ``kind``."""
    default: dict[str, Any] = {"root": 0} if kind is None else {}

    def decorate(function: F) -> F:
        if kernel is None:
            return function
        names, given = _arguments(function)
        meanings = {**_MEANINGS, **{name: _MEANINGS[meant] for name, meant in arguments.items()}}
        positions = tuple(meanings[name] for name in names)
        what = operation, names, positions, _defaults({**default, **given}, meanings), _RETURNS_NONE, False, False, None
        made: F = kernel.Method(function, *what, function.__code__.co_argcount, kind)
        return made

    return decorate
