"""All names of torch's private parts that mpicoll uses, and why no public one does.

A torch that is newer than those tested may lack one of them. Then this is the file to change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch
import torch.distributed
from torch.autograd import profiler as profiler

T = TypeVar("T")

_c10d: Any = torch._C._distributed_c10d

Backend = _c10d.Backend
"""What serves one device of a group, in C++. The public torch.distributed.Backend only knows the names of backends."""


def _can_be_made() -> bool:
    try:
        Backend(0, 1)
    except TypeError:  # "No constructor defined"
        return False
    return True


BACKENDS_IN_PYTHON = _can_be_made()
"""Whether a backend of one device may be written in Python. From torch 2.14 on it may.

Before that Python can only make a whole group, which serves every device."""

CallbackWork = _c10d.PythonCallbackWork
"""A Work that waits by calling a function. C++ may keep it for longer than Python does, which the public
torch.distributed.Work does not survive."""

work_of_future = _c10d._create_work_from_future
"""A Work of C++ alone, which is complete when a future is. There is no public way to make one."""

torchs_world = torch.distributed.distributed_c10d._world
"""Knows torch's default group. The public ``torch.distributed.group.WORLD`` costs more in each call."""


backward_pass: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass in which this thread is; -1 if it is in none. There is no public way to ask."""


def in_shared_file(storage: torch.UntypedStorage) -> int:
    """Move a storage on the CPU, in place, to a file in memory, if it is in none. Returns the number of the open file.
    The public ``share_memory_`` does the same, and tells nobody which file it is. Raises RuntimeError."""
    file: int = storage._share_fd_cpu_()[0]
    return file


def in_the_making() -> tuple[Any, Any]:
    """The configuration of backends and the ``device_id`` of the group that torch is making; None, None if it is
    making none.

    torch passes neither to the functions that make backends. They are read from the frame of torch's own function."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_name == "_new_process_group_helper":
            return frame.f_locals.get("backend_config"), frame.f_locals.get("device_id")
    return None, None


def _leave_code() -> Callable[[CodeType], object]:
    try:
        frames: Any = torch._C._dynamo.eval_frame
        as_it_is = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        leave = frames.set_code_exec_strategy
    except AttributeError:  # a torch that is newer than those tested: all but compiled programs can do without
        return lambda _: None
    return lambda code: leave(code, as_it_is)


_leave = _leave_code()
"""Tells torch's compiler to leave code, and all that it calls, as it is. The public ``torch.compiler.disable`` puts a
function around each, at a cost for each call, and imports the compiler, which takes a second."""


def uncompiled(given: T) -> T:
    """Let torch.compile leave a function, or all functions of a class, as they are. Returns ``given``.

    Within a compiled function torch.compile also compiles the Python functions that it calls, and those that they call.
    The collectives must stay what they are: they work with addresses, threads and MPI, and not with tensors alone."""
    for function in vars(given).values() if isinstance(given, type) else [given]:
        function = getattr(function, "__wrapped__", function)  # the kernel may know it
        if isinstance(function, FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where a compiled function calls it
            _leave(function.__code__)  # where torch's code or C++ does
    return given
