"""CUDA memory that another process of the node opens. torch has no functions for an address, but the driver has."""

from __future__ import annotations

import ctypes
from functools import cache

from mpicoll.machine.cuda import driver

__all__ = ["exported", "opened"]

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * _HANDLE_BYTES),)


def exported(address: int) -> tuple[bytes, int] | None:
    """A handle of the allocation at this address, and where in it the address lies. None if it cannot be exported, as
    memory of torch's expandable segments."""
    start, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _IpcHandle()
    cuda = driver()
    if cuda.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address)):
        return None
    if cuda.cuIpcGetMemHandle(ctypes.byref(handle), start):
        return None
    return bytes(handle), address - start.value


@cache  # a process can open a handle once
def opened(handle: bytes) -> int | None:
    """Where the allocation of a handle begins in this process. None if it cannot be opened."""
    start = ctypes.c_uint64()
    given = _IpcHandle.from_buffer_copy(handle)
    failed = driver().cuIpcOpenMemHandle_v2(ctypes.byref(start), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return None if failed else start.value
