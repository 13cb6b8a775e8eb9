"""Collectives among the neighbours of a process topology, such as a Cartesian grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpicoll.arrays.buffers import Buffer, as_buffer, exported, memory_overlaps
from mpicoll.arrays.protocols import ArrayLike, Out
from mpicoll.calls import results
from mpicoll.calls.plan import CachedPlan
from mpicoll.communicator.base import CommunicatorBase
from mpicoll.communicator.engine.packing import End, keeps_no_array, without_gaps
from mpicoll.communicator.repeated import repeated
from mpicoll.errors import ArgumentError, DtypeError, StateError
from mpicoll.supervise.record import Record


class Neighbours(CommunicatorBase):
    """The collectives of a Communicator that was made of an MPI communicator with a topology: ``Create_cart``,
    ``Create_graph`` or ``Create_dist_graph``.

    Each rank exchanges data with its neighbours alone, in the order in which MPI has them. In a Cartesian grid these
    are, for each dimension, the one before and the one after. Where there is none, at the border of a grid that is not
    periodic, nothing is sent, and the block of ``out`` stays as it is. In a periodic dimension of one or two ranks, one
    rank is both neighbours: what is sent to the one before comes from the one after.

    Among the ranks of a node, the blocks go through memory that they share, as messages do."""

    @repeated
    def neighbor_allgather(self, x: ArrayLike, out: Out = None) -> Any:
        """Send ``x`` to each neighbour, and gather theirs. All ranks give the same number of elements.

        ``out``, or the new array of shape ``(neighbours, *x.shape)``, has one block for each neighbour. Blocks of a new
        array that no neighbour sends are zero."""
        return self._exchanged("neighbor_allgather", "x", x, out)

    @repeated
    def neighbor_alltoall(self, xs: ArrayLike, out: Out = None) -> Any:
        """Send block i of ``xs`` to neighbour i, and receive one block from each.

        ``xs`` has one block for each neighbour that this rank sends to: its shape is ``(neighbours, ...)``. All blocks
        of all ranks have the same number of elements. ``out``, or the new array, has one block for each neighbour that
        sends to this rank."""
        return self._exchanged("neighbor_alltoall", "xs", xs, out)

    def _exchanged(self, operation: str, argument: str, x: Any, out: Any) -> Any:
        """Move one block to and from each neighbour. Returns where the blocks are."""
        engine = self._engine
        by_shape: Any = (), ()  # as where there are counts, shapes matter
        engine.check_open(operation)
        found = engine.fabric.neighbours()
        if found is None:
            raise StateError(f"{operation}: this communicator has no neighbours: make it of MPI's Create_cart()")
        here, result = exported(x), out
        if out is None:
            result = _new(operation, argument, here, *found)
        there = exported(result)
        at = engine.at(operation, here, there, None, 0, None, *by_shape)
        plan = engine.plans.get(at)
        if plan is None:
            plan, lasts = self._bound(operation, argument, here, there, *found)
            if at is not None and lasts:
                engine.plans.keep(at, plan)
                engine.keep(plan, (operation, here, there, None, 0, None, *by_shape))
        engine.execute(plan, operation)
        return result if result is out else results.in_kind(x, result)

    def _bound(
        self, operation: str, argument: str, x: Any, out: Any, sources: Sequence[int], destinations: Sequence[int]
    ) -> tuple[CachedPlan, bool]:
        """The plan of a call, and whether it may serve again."""
        send, recv = as_buffer(x, operation, argument), as_buffer(out, operation, "out")
        block = math.prod(_block(operation, argument, send, destinations))
        if recv.dtype != send.dtype:
            raise DtypeError(operation, "out", f"dtype {send.dtype}, as {argument} has", str(recv.dtype))
        if recv.count != block * len(sources):
            expected = f"{block * len(sources)} elements, {block} for each of {len(sources)} neighbours"
            raise ArgumentError(operation, "out", expected, f"{recv.count} (shape {recv.shape})")
        recv.check_writable(operation, "out")
        if memory_overlaps(send, recv):
            expected = f"memory that does not overlap {argument}'s"
            raise ArgumentError(operation, "out", expected, "memory that overlaps it")
        # Blocks of the output that no neighbour sends stay as they are.
        ends = End(send, True, False), End(recv, True, True)
        (sent, received), before, after = without_gaps(ends, self._engine.copies)
        assert sent is not None
        assert received is not None
        run = self._engine.fabric.bind_neighbours(operation, sent, received, block)
        record = Record(operation, f"of {block} {send.dtype}", block * send.dtype.itemsize, block, str(send.dtype))
        plan = CachedPlan([*before, run, *after], record)
        return plan, keeps_no_array(send) and keeps_no_array(recv)


def _block(operation: str, argument: str, b: Buffer, destinations: Sequence[int]) -> tuple[int, ...]:
    """The shape of what goes to one neighbour."""
    if operation == "neighbor_allgather":
        return b.shape
    if not b.shape or b.shape[0] != len(destinations):
        expected = f"shape ({len(destinations)}, ...), one block for each neighbour"
        raise ArgumentError(operation, argument, expected, f"shape {b.shape}")
    return b.shape[1:]


def _new(operation: str, argument: str, x: Any, sources: Sequence[int], destinations: Sequence[int]) -> Any:
    """A new array for the result. It is zero where no neighbour sends."""
    b = as_buffer(x, operation, argument)
    made = b.like((len(sources), *_block(operation, argument, b, destinations)))
    made[...] = 0
    return made
