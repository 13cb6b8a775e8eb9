"""What torch.compile leaves as it is.

Within a compiled function torch.compile also compiles the Python functions that it calls, and those that they call. The
collectives must stay what they are: they work with addresses, threads and MPI, and not with tensors alone.

``torch.compiler.disable`` would put another function around each, at a cost for each call, and import torch's compiler,
which takes a second. So this does without it what it does to a function.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["uncompiled"]

T = TypeVar("T")

_frames: Any = torch._C._dynamo.eval_frame
_AS_IT_IS = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)
"""For a function, and for all that it calls."""


def uncompiled(given: T) -> T:
    """Let torch.compile leave a function, or all functions of a class, as they are. Returns ``given``."""
    for function in vars(given).values() if isinstance(given, type) else [given]:
        if isinstance(function, FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where a compiled function calls it
            _frames.set_code_exec_strategy(function.__code__, _AS_IT_IS)  # where torch's code or C++ does
    return given
