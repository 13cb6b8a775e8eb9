"""The kernel, as far as this installation has it.

It is compiled when mpicoll is installed. Where there was no compiler, ``kernel`` is None and ``missing`` says why. Then
calls go the MPI library's way."""

from __future__ import annotations

from types import ModuleType

INTERFACE = 9
"""The version of the interface between the kernel and Python. It is the same number in module.c."""


def _loaded() -> tuple[ModuleType | None, str]:
    try:
        from mpicoll.node import kernel
    except ImportError as e:
        return None, f"mpicoll's kernel is not there: {e}"
    if kernel.INTERFACE != INTERFACE:
        return None, f"{kernel.__file__} was compiled for another version of mpicoll: install mpicoll again"
    return kernel, ""


kernel, missing = _loaded()
