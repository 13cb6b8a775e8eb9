"""Host memory of any origin to which a GPU copies by itself. torch pins only memory that it has allocated.

This uses the CUDA driver. After a refusal, CUDA's runtime would report the error again to the next call of torch's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

from mpicoll.machine.cuda import context_of, driver, hidden_from_captures
from mpicoll.machine.shared_memory import Block

_PORTABLE = 1
"""A flag of cuMemHostRegister: the memory is pinned for all GPUs of the process."""
_NO_CONTEXT = 201
"""CUDA_ERROR_INVALID_CONTEXT: this thread has not worked on a GPU yet."""

_pinned_for_ever: list[Block] = []
"""What the driver did not let go of. It must never be another array's, whose pages would be others."""


class Pinned:
    """Memory that is pinned as long as there is a reference to this. It begins at a page."""

    def __init__(self, memory: Block, gpu: int) -> None:
        """``gpu`` is the number of the one that copies. Raises MemoryError if the driver does not pin the memory."""
        pages = -(-memory.nbytes // mmap.PAGESIZE)
        nbytes, flags = ctypes.c_size_t(pages * mmap.PAGESIZE), ctypes.c_uint(_PORTABLE)
        failed = _asked(gpu, "cuMemHostRegister_v2", _pointer(memory), nbytes, flags)
        if failed:
            raise MemoryError(f"{memory.nbytes} bytes cannot be pinned (CUDA's error {failed})")
        self.__array_interface__ = memory.__array_interface__
        weakref.finalize(self, _unpin, memory, gpu, os.getpid()).atexit = False  # it holds the memory until then


def _unpin(memory: Block, gpu: int, process: int) -> None:
    if os.getpid() == process and _asked(gpu, "cuMemHostUnregister", _pointer(memory)):
        _pinned_for_ever.append(memory)


def _asked(gpu: int, function: str, *arguments: Any) -> int:
    """The driver's answer, 0 if it did what was asked."""
    call = getattr(driver(), function)
    with hidden_from_captures():
        answer: int = call(*arguments)
        if answer == _NO_CONTEXT:
            with context_of(gpu):
                answer = call(*arguments)
    return answer


def _pointer(memory: Block) -> ctypes.c_void_p:
    return ctypes.c_void_p(memory.ctypes.data)
