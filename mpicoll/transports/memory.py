"""How mpi4py is told of memory: by address, with a datatype that moves elements whatever they mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Dtype

__all__ = ["datatype", "moved", "moved_as", "moved_v"]

_BY_SIZE = {1: MPI.UINT8_T, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T, 16: MPI.C_DOUBLE_COMPLEX}
_WIDER: dict[int, MPI.Datatype] = {}


def datatype(dtype: Dtype) -> MPI.Datatype:
    """An MPI datatype of the dtype's size, to move its elements whatever they mean."""
    return moved_as(dtype.itemsize)


def moved_as(itemsize: int) -> MPI.Datatype:
    """An MPI datatype of so many bytes."""
    found = _BY_SIZE.get(itemsize) or _WIDER.get(itemsize)
    if found is None:
        found = _WIDER[itemsize] = MPI.BYTE.Create_contiguous(itemsize).Commit()
    return found


def _memory(buffer: Buffer) -> MPI.buffer:
    """The buffer's bytes as mpi4py takes them, by address: no array is asked about them again."""
    return MPI.buffer.fromaddress(buffer.address, buffer.nbytes)


def moved(buffer: Buffer | None, blocks: int = 1) -> list[Any]:
    """mpi4py's message specification of a buffer of equal blocks."""
    assert buffer is not None
    return [_memory(buffer), buffer.count // blocks, datatype(buffer.dtype)]


def moved_v(buffer: Buffer | None, counts: Sequence[int] | None) -> list[Any]:
    """mpi4py's message specification of a buffer of uneven blocks, one after another."""
    assert buffer is not None
    assert counts is not None
    return [_memory(buffer), counts, [0, *accumulate(counts[:-1])], datatype(buffer.dtype)]
