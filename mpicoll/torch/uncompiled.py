"""What torch.compile leaves as it is.

Within a compiled function torch.compile also compiles the Python functions that it calls, and those that they call. The
collectives must stay what they are: they work with addresses, threads and MPI, and not with tensors alone.
This does to a function what ``torch.compiler.disable`` does, at no cost.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from mpicoll.torch.private import leave_code

T = TypeVar("T")


def uncompiled(given: T) -> T:
    """Let torch.compile leave a function, or all functions of a class, as they are. Returns ``given``."""
    for function in vars(given).values() if isinstance(given, type) else [given]:
        if isinstance(function, FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where a compiled function calls it
            leave_code(function.__code__)  # where torch's code or C++ does
    return given
