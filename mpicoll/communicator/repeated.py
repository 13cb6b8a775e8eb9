"""Methods of a Communicator whose repeated calls are the kernel's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.node.loaded import kernel

__all__ = ["repeated"]

F = TypeVar("F", bound=Callable[..., Any])

_MEANINGS = {"x": 0, "xs": 0, "op": 1, "root": 2, "out": 3, "algorithm": 4}
_RETURNS_OUT, _RETURNS_X, _RETURNS_NONE, _ROOT_RETURNS_OUT = range(4)

if kernel is not None:
    _x = np.zeros((2, 3), np.float32)
    kernel.know_arrays(_x, _x.ctypes.data, _x.shape, _x.dtype, _x.flags.num)


def repeated(method: F) -> F:
    """The method of a collective. If the kernel knows a plan for the arguments, it makes the call. Otherwise it calls
    this Python function."""
    if kernel is None:
        return method
    code, table = method.__code__, COLLECTIVES[method.__name__]
    names = code.co_varnames[1 : code.co_argcount]
    values = method.__defaults__ or ()
    given = dict(zip(names[len(names) - len(values) :], values, strict=True))
    returns = _RETURNS_OUT
    if not table.moves:
        returns = _RETURNS_NONE
    elif "out" not in names:
        returns = _RETURNS_X
    elif table.root == "gets":
        returns = _ROOT_RETURNS_OUT
    defaults = None, given.get("op"), 0, None, None
    made: F = kernel.Method(
        method, method.__name__, names, tuple(_MEANINGS[name] for name in names), defaults, returns, table.elementwise
    )
    return made
