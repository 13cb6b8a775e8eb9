"""Host memory of any origin to which a GPU copies by itself. torch pins only memory that it has allocated.

This uses the CUDA driver. After a refusal, CUDA's runtime would report the error again to the next call of torch's.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref

from mpicoll.devices.device import Block
from mpicoll.machine.cuda import driver, hidden_from_captures

__all__ = ["Pinned"]

_PORTABLE = 1
"""Of cuMemHostRegister's flags: the memory is pinned for all GPUs of the process."""


class Pinned:
    """Memory that is pinned as long as there is a reference to this. It begins at a page."""

    def __init__(self, memory: Block) -> None:
        """Raises MemoryError if the driver does not pin it."""
        address, pages = memory.ctypes.data, -(-memory.nbytes // mmap.PAGESIZE)
        failed = driver().cuMemHostRegister_v2(
            ctypes.c_void_p(address), ctypes.c_size_t(pages * mmap.PAGESIZE), ctypes.c_uint(_PORTABLE)
        )
        if failed:
            raise MemoryError(f"{memory.nbytes} bytes cannot be pinned (CUDA's error {failed})")
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        weakref.finalize(self, _unpin, address).atexit = False


def _unpin(address: int) -> None:
    with hidden_from_captures():
        driver().cuMemHostUnregister(ctypes.c_void_p(address))
