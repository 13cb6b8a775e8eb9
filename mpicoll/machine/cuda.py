"""The CUDA driver of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_DEVICE_ORDINAL = 9  # of CUpointer_attribute
_RELAXED = 2  # of CUstreamCaptureMode


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


@contextmanager
def context_of(number: int) -> Iterator[None]:
    """Let the context of this GPU, which CUDA's runtime uses too, be this thread's one meanwhile."""
    cuda, context, before = driver(), _primary_context(number), ctypes.c_void_p()
    cuda.cuCtxPushCurrent_v2(context)
    try:
        yield
    finally:
        cuda.cuCtxPopCurrent_v2(ctypes.byref(before))


@cache
def _primary_context(number: int) -> ctypes.c_void_p:
    """It stays as long as the process."""
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
