"""CUDA memory that another process of the node opens. torch has no functions for an address, but the driver has."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from mpicoll.machine.cuda import driver

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_BUFFER_ID = 7  # of CUpointer_attribute


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * _HANDLE_BYTES),)


def exported(address: int) -> tuple[bytes, int] | None:
    """A handle of the allocation at this address, and where in it the address lies. None if it cannot be exported, as
    memory of torch's expandable segments. Each allocation has a handle of its own, also where there was one before."""
    start, size, number = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
    cuda, there = driver(), ctypes.c_uint64(address)
    if cuda.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), there):
        return None
    if cuda.cuPointerGetAttribute(ctypes.byref(number), _BUFFER_ID, there):
        return None
    handle = _handle(start.value, number.value)
    return None if handle is None else (handle, address - start.value)


@lru_cache(maxsize=1024)
def _handle(start: int, number: int) -> bytes | None:
    """The handle of an allocation, with its number, which the driver gives to one allocation alone."""
    handle = _IpcHandle()
    if driver().cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(start)):
        return None
    return bytes(handle) + number.to_bytes(8)


def opened(handle: bytes) -> int | None:
    """Where the allocation of a handle begins in this process. None if it cannot be opened."""
    start = ctypes.c_uint64()
    given = _IpcHandle.from_buffer_copy(handle[:_HANDLE_BYTES])
    failed = driver().cuIpcOpenMemHandle_v2(ctypes.byref(start), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return None if failed else start.value


def close(start: int) -> None:
    """Give up the allocation that begins here in this process, and belongs to another one."""
    driver().cuIpcCloseMemHandle(ctypes.c_uint64(start))
