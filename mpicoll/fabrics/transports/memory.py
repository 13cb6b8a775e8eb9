"""Memory as mpi4py takes it: by address, with a datatype of the elements' size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls import choose

_PREDEFINED = {1: MPI.UINT8_T, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T, 16: MPI.C_DOUBLE_COMPLEX}
_BLOCK, _SHORT = 1 << 20, 1 << 14


@cache
def moved_as(itemsize: int) -> MPI.Datatype:
    """An MPI datatype with which elements of so many bytes can be moved: MPI computes nothing."""
    return _PREDEFINED.get(itemsize) or MPI.BYTE.Create_contiguous(itemsize).Commit()


def _memory(buffer: Buffer) -> MPI.buffer:
    """The buffer's bytes as mpi4py takes them. It does not look at the array again."""
    return MPI.buffer.fromaddress(buffer.address, buffer.nbytes)


def moved(buffer: Buffer, blocks: int = 1) -> list[Any]:
    """mpi4py's message specification of a buffer of equal blocks."""
    return [_memory(buffer), buffer.count // blocks, moved_as(buffer.dtype.itemsize)]


def moved_bytes(buffer: Buffer) -> list[Any]:
    """The same of its bytes."""
    return bytes_of(_memory(buffer))


def bytes_of(data: Any) -> list[Any]:
    """mpi4py's message specification of bytes. There may be more than a count can say: then they are one element."""
    n = len(data)
    return [data, n, MPI.BYTE] if n <= choose.MAX_COUNT else [data, 1, _long(n)]


@cache
def _long(n: int) -> MPI.Datatype:
    """One element of so many bytes. It is never freed: it is small beside what needs it."""
    block = MPI.BYTE.Create_contiguous(_BLOCK)
    whole, rest = divmod(n, _BLOCK)
    datatype = MPI.Datatype.Create_struct([whole, rest], [0, whole * _BLOCK], [block, MPI.BYTE]).Commit()
    block.Free()
    return datatype


def room_for(n: int) -> bytearray | memoryview:
    return bytearray(n) if n <= _SHORT else np.empty(n, np.uint8).data  # which is not filled with zeros


def moved_v(buffer: Buffer, counts: Sequence[int]) -> list[Any]:
    """mpi4py's message specification of a buffer of uneven blocks, one after another."""
    return [_memory(buffer), counts, [0, *accumulate(counts[:-1])], moved_as(buffer.dtype.itemsize)]
