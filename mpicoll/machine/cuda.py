"""The CUDA driver of this machine, and what only it can do: memory that another process opens, and host memory of any
origin to which a GPU copies by itself. torch pins only memory that it has allocated.

After a refusal, CUDA's runtime would report the error again to the next call of torch's. So this asks the driver."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import numpy as np

from mpicoll.machine.shared_memory import Block, Lease

_DEVICE_ORDINAL = 9  # of CUpointer_attribute
_RELAXED = 2  # of CUstreamCaptureMode
_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_BUFFER_ID = 7  # of CUpointer_attribute
_PORTABLE = 1
"""A flag of cuMemHostRegister: the memory is pinned for all GPUs of the process."""
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not worked on a GPU yet

_pinned_for_ever: list[Block] = []
"""What the driver did not let go of. It must never be another array's, whose pages would be others."""


@cache
def driver() -> Any:
    """The driver's functions. Raises OSError if there is no driver."""
    return ctypes.CDLL("libcuda.so.1")


def supported() -> str:
    """The newest CUDA that the driver supports, as ``13.0``. Raises OSError if there is no driver."""
    number = ctypes.c_int()
    driver().cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def number_of(address: int) -> int | None:
    """The number of the GPU whose memory this is, as this process counts the GPUs. None if it is no GPU's."""
    number = ctypes.c_int()
    failed = driver().cuPointerGetAttribute(ctypes.byref(number), _DEVICE_ORDINAL, ctypes.c_uint64(address))
    return None if failed else number.value


@cache
def _primary_context(number: int) -> ctypes.c_void_p:
    """The context of a GPU that CUDA's runtime uses, too. It stays as long as the process."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver().cuDeviceGet(ctypes.byref(device), ctypes.c_int(number))
    driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    return context


@contextmanager
def hidden_from_captures() -> Iterator[None]:
    """What this thread does with a GPU meanwhile breaks no capture of a CUDA graph. By default, CUDA takes an event
    that another thread waits for as a mistake of the thread that captures."""
    mode = ctypes.c_int(_RELAXED)
    exchange = driver().cuThreadExchangeStreamCaptureMode
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * _HANDLE_BYTES),)


def ipc_handle(address: int) -> tuple[bytes, int] | None:
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


def open_ipc(handle: bytes) -> int | None:
    """Where the allocation of a handle begins in this process. None if it cannot be opened."""
    start = ctypes.c_uint64()
    given = _IpcHandle.from_buffer_copy(handle[:_HANDLE_BYTES])
    failed = driver().cuIpcOpenMemHandle_v2(ctypes.byref(start), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return None if failed else start.value


def close_ipc(start: int) -> None:
    """Give up the allocation that begins here in this process, and belongs to another one."""
    driver().cuIpcCloseMemHandle(ctypes.c_uint64(start))


def pinned(memory: Block, gpu: int) -> Block:
    """Memory that begins at a page, pinned as long as there is a reference to the result. ``gpu`` is the number of the
    one that copies. Raises MemoryError if the driver does not pin the memory."""
    pages = -(-memory.nbytes // mmap.PAGESIZE)
    nbytes, flags = ctypes.c_size_t(pages * mmap.PAGESIZE), ctypes.c_uint(_PORTABLE)
    failed = _asked(gpu, "cuMemHostRegister_v2", _pointer(memory), nbytes, flags)
    if failed:
        raise MemoryError(f"{memory.nbytes} bytes cannot be pinned (CUDA's error {failed})")
    return np.asarray(Lease(memory, _unpin, memory, gpu, os.getpid()))


def _unpin(memory: Block, gpu: int, process: int) -> None:
    if os.getpid() == process and _asked(gpu, "cuMemHostUnregister", _pointer(memory)):
        _pinned_for_ever.append(memory)


def _asked(gpu: int, function: str, *arguments: Any) -> int:
    """The driver's answer, 0 if it did what was asked. A thread without a context has the GPU's one meanwhile."""
    cuda, before = driver(), ctypes.c_void_p()
    call = getattr(cuda, function)
    with hidden_from_captures():
        answer: int = call(*arguments)
        if answer == _NO_CONTEXT:
            cuda.cuCtxPushCurrent_v2(_primary_context(gpu))
            try:
                answer = call(*arguments)
            finally:
                cuda.cuCtxPopCurrent_v2(ctypes.byref(before))
    return answer


def _pointer(memory: Block) -> ctypes.c_void_p:
    return ctypes.c_void_p(memory.ctypes.data)
