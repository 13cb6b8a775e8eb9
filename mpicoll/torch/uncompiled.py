"""What torch.compile leaves as it is.

Within a compiled function torch.compile also compiles the Python functions that it calls, and those that they call. The
collectives must stay what they are: they work with addresses, threads and MPI, and not with tensors alone.

``torch.compiler.disable`` would put another function around each, at a cost for each call, and import torch's compiler,
which takes a second. So this does without it what it does to a function.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["uncompiled"]

T = TypeVar("T")


def _leave_code() -> Callable[[CodeType], object]:
    """What tells torch's compiler to leave code, and all that it calls, as it is."""
    try:
        frames: Any = torch._C._dynamo.eval_frame
        as_it_is = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        leave = frames.set_code_exec_strategy
    except AttributeError:  # a torch that is newer than those tested: all but compiled programs can do without
        return lambda _: None
    return lambda code: leave(code, as_it_is)


_leave = _leave_code()


def uncompiled(given: T) -> T:
    """Let torch.compile leave a function, or all functions of a class, as they are. Returns ``given``."""
    for function in vars(given).values() if isinstance(given, type) else [given]:
        if isinstance(function, FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where a compiled function calls it
            _leave(function.__code__)  # where torch's code or C++ does
    return given
