"""The CUDA driver of this machine."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

__all__ = ["driver", "supported"]


@cache
def driver() -> Any:
    """The driver's functions. Raises OSError if there is no driver."""
    return ctypes.CDLL("libcuda.so.1")


def supported() -> str:
    """The newest CUDA that the driver supports, as ``13.0``. Raises OSError if there is no driver."""
    number = ctypes.c_int()
    driver().cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
