"""Collectives among the neighbours of a process topology, such as a Cartesian grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpicoll.arrays.buffers import Buffer, as_buffer, memory_overlaps
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls import results
from mpicoll.calls.plan import Bound
from mpicoll.calls.record import Record
from mpicoll.communicator.engine.copies import written_back
from mpicoll.communicator.face import Face
from mpicoll.errors import ArgumentError, DtypeError, StateError

__all__ = ["Neighbours"]


class Neighbours(Face):
    """The collectives of a Communicator that was made of an MPI communicator with a topology: ``Create_cart``,
    ``Create_graph`` or ``Create_dist_graph``.

    Each rank exchanges data with its neighbours alone, in the order in which MPI has them. In a Cartesian grid these
    are, for each dimension, the one before and the one after. Where there is none, at the border of a grid that is not
    periodic, nothing is sent, and the block of ``out`` stays as it is.
    """

    def neighbor_allgather(self, x: ArrayLike, out: ArrayLike | None = None) -> Any:
        """Send ``x`` to each neighbour, and gather theirs. All ranks give the same number of elements.

        ``out``, or the new array of shape ``(neighbours, *x.shape)``, has one block for each neighbour. Blocks of a new
        array that no neighbour sends are zero.
        """
        sources, _ = self._neighbours("neighbor_allgather")
        b = as_buffer(x, "neighbor_allgather", "x")
        result = self._exchanged("neighbor_allgather", "x", b, b.count, (len(sources), *b.shape), out)
        return result if result is out else results.in_kind(x, result)

    def neighbor_alltoall(self, xs: ArrayLike, out: ArrayLike | None = None) -> Any:
        """Send block i of ``xs`` to neighbour i, and receive one block from each.

        ``xs`` has one block for each neighbour that this rank sends to: its shape is ``(neighbours, ...)``. All blocks
        of all ranks have the same number of elements. ``out``, or the new array, has one block for each neighbour that
        sends to this rank.
        """
        sources, destinations = self._neighbours("neighbor_alltoall")
        b = as_buffer(xs, "neighbor_alltoall", "xs")
        if not b.shape or b.shape[0] != len(destinations):
            expected = f"shape ({len(destinations)}, ...), one block for each neighbour"
            raise ArgumentError("neighbor_alltoall", "xs", expected, f"shape {b.shape}")
        block = math.prod(b.shape[1:])
        result = self._exchanged("neighbor_alltoall", "xs", b, block, (len(sources), *b.shape[1:]), out)
        return result if result is out else results.in_kind(xs, result)

    def _neighbours(self, operation: str) -> tuple[Sequence[int], Sequence[int]]:
        self._engine.check_open(operation)
        found = self._engine.fabric.neighbours()
        if found is None:
            raise StateError(f"{operation}: this communicator has no neighbours: make it of MPI's Create_cart()")
        return found

    def _exchanged(
        self, operation: str, argument: str, send: Buffer, block: int, shape: tuple[int, ...], out: Any
    ) -> Any:
        """Move one block to and from each neighbour. Returns where the blocks are."""
        if out is None:
            out = send.like(shape)
            out[...] = 0
        recv = as_buffer(out, operation, "out")
        if recv.dtype != send.dtype:
            raise DtypeError(operation, "out", f"dtype {send.dtype}, as {argument} has", str(recv.dtype))
        if recv.count != block * shape[0]:
            expected = f"{block * shape[0]} elements, {block} for each of {shape[0]} neighbours"
            raise ArgumentError(operation, "out", expected, f"{recv.count} (shape {recv.shape})")
        recv.check_writable(operation, "out")
        if memory_overlaps(send, recv):
            expected = f"memory that does not overlap {argument}'s"
            raise ArgumentError(operation, "out", expected, "memory that overlaps it")
        there, here = map(self._engine.as_usable, (send, recv))
        run = self._engine.fabric.bind_neighbours(operation, there, here, block)
        record = Record(f"{operation} of {block} {send.dtype}", block * send.dtype.itemsize, block, str(send.dtype))
        self._engine.carry_out(Bound(run, record), operation)
        if here is not recv:
            written_back(recv, here)
        return out
