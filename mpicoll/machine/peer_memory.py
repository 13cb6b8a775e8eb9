"""Whether a process may read the memory of another one of the same user. Linux can forbid it (Yama), and so can a
container. MPI libraries copy long messages once where they may, and twice elsewhere."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """Where a process holds some random bytes."""

    process: int
    address: int
    content: bytes


_HELD = ctypes.create_string_buffer(os.urandom(16), 16)


def mark() -> Mark:
    """The mark of this process. The bytes stay where they are as long as it lives."""
    return Mark(os.getpid(), ctypes.addressof(_HELD), _HELD.raw)


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def can_read(other: Mark) -> bool:
    """Whether this process can read the bytes of another one. In another namespace of processes the number means
    another process, whose memory has something else there."""
    c = ctypes.CDLL(None)
    if not hasattr(c, "process_vm_readv"):
        return False
    length = len(other.content)
    found = ctypes.create_string_buffer(length)
    into, of = _Piece(ctypes.addressof(found), length), _Piece(other.address, length)
    c.process_vm_readv.restype = ctypes.c_ssize_t
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    read = c.process_vm_readv(other.process, ctypes.byref(into), one, ctypes.byref(of), one, none)
    return read == length and found.raw == other.content
