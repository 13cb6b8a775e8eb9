"""Memory as mpi4py takes it: by address, with a datatype of the elements' size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer

_PREDEFINED = {1: MPI.UINT8_T, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T, 16: MPI.C_DOUBLE_COMPLEX}
_OTHERS: dict[int, MPI.Datatype] = {}
"""Datatypes of other sizes, made when they are needed."""


def moved_as(itemsize: int) -> MPI.Datatype:
    """An MPI datatype with which elements of so many bytes can be moved: MPI computes nothing."""
    kind = _PREDEFINED.get(itemsize) or _OTHERS.get(itemsize)
    if kind is None:
        kind = _OTHERS[itemsize] = MPI.BYTE.Create_contiguous(itemsize).Commit()
    return kind


def _memory(buffer: Buffer) -> MPI.buffer:
    """The buffer's bytes as mpi4py takes them. It does not look at the array again."""
    return MPI.buffer.fromaddress(buffer.address, buffer.nbytes)


def moved(buffer: Buffer | None, blocks: int = 1) -> list[Any]:
    """mpi4py's message specification of a buffer of equal blocks."""
    assert buffer is not None
    return [_memory(buffer), buffer.count // blocks, moved_as(buffer.dtype.itemsize)]


def moved_bytes(buffer: Buffer) -> list[Any]:
    """The same of its bytes."""
    return [_memory(buffer), buffer.nbytes, MPI.BYTE]


def moved_v(buffer: Buffer | None, counts: Sequence[int] | None) -> list[Any]:
    """mpi4py's message specification of a buffer of uneven blocks, one after another."""
    assert buffer is not None
    assert counts is not None
    return [_memory(buffer), counts, [0, *accumulate(counts[:-1])], moved_as(buffer.dtype.itemsize)]
