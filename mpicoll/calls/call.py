"""One validated call of a collective: what select chooses a route for, and what a route carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from mpicoll.arrays.buffers import Buffer, as_buffer, memory_overlaps
from mpicoll.arrays.dtypes import Reduction, reduction
from mpicoll.calls.arguments import checked_counts, checked_rank
from mpicoll.collectives import Collective, even_and_uneven
from mpicoll.errors import ArgumentError, DeviceError, DtypeError

__all__ = ["Call", "checked"]


@dataclass(frozen=True, slots=True)
class Call:
    """A collective on this rank's buffers.

    ``send`` is what the rank gives and ``recv`` where its result goes; None where the rank has no such part. With
    ``in_place`` the input lies in the output already (its own slot of it, or the whole), or the output in the input.
    ``sendcounts`` and ``recvcounts`` are the elements for and from each rank where these are uneven (the v-variants).
    """

    collective: Collective
    send: Buffer | None
    recv: Buffer | None
    in_place: bool = False
    reduction: Reduction | None = None
    root: int = 0
    uneven: bool = False
    sendcounts: tuple[int, ...] | None = None
    recvcounts: tuple[int, ...] | None = None

    @property
    def operation(self) -> str:
        """The Communicator's method."""
        return self.collective.name + "v" * self.uneven

    @property
    def extent_is_common(self) -> bool:
        """Whether all ranks find the same ``extent``. In an alltoallv, each rank knows only its own blocks."""
        return not (self.uneven and self.collective.gives == self.collective.gets)

    def extent(self, size: int) -> int:
        """Elements of the longest buffer that any of ``size`` ranks has in this call, where ``extent_is_common``.
        Otherwise, elements of this rank's longest buffer."""
        counts = [sum(c) for c in (self.sendcounts, self.recvcounts) if c is not None]
        if counts:
            return max(counts)
        longest = max((b.count for b in (self.send, self.recv) if b is not None), default=0)
        root_has_all = self.collective.rooted and self.collective.by_rank
        if not root_has_all or self.in_place or (self.send is not None and self.recv is not None):
            return longest
        return longest * size

    def nbytes(self, size: int) -> int:
        """Bytes of that buffer."""
        b = self.send or self.recv
        return 0 if b is None else self.extent(size) * b.dtype.itemsize

    def without_arrays(self) -> Call:
        """The same call on the same plain memory, for a plan: that holds addresses, and no arrays."""
        send, recv = (None if b is None else b.part(0, b.count) for b in (self.send, self.recv))
        return replace(self, send=send, recv=recv)

    def terms(self, rank: int, size: int) -> int:
        """How many ranks' values make up this rank's result of a reduction."""
        return len(self.collective.source(rank, size, self.root, 0)[0])

    def only_read_at(self, rank: int) -> bool:
        """Whether this rank's ``recv`` is only read: a bcast's root gives what the others get."""
        return self.collective.elementwise and self.collective.root == "gives" and rank == self.root


def checked(
    operation: str,
    rank: int,
    size: int,
    x: Any,
    out: Any,
    op: Any,
    root: Any,
    sendcounts: Any = None,
    recvcounts: Any = None,
) -> Call:
    """The call, if every argument is right: raises ArgumentError, DtypeError or DeviceError for the first that isn't.

    ``x`` is the rank's input and ``out`` its output. Without ``out`` an element-wise collective is in place.
    """
    table, uneven = even_and_uneven(operation)
    if not table.moves:
        return Call(table, None, None)
    root = checked_rank(root, size, operation, "root")
    # A bcast has one array: the root only reads it, and the others only write to it.
    has_x = table.gives_at(rank, root) or table.elementwise
    send = as_buffer(x, operation, "x") if has_x else None
    recv = None
    in_place = False
    if table.gets_at(rank, root):
        in_place = out is None and table.elementwise
        recv = send if in_place else _given(out, operation, rank, table.root == "gives")
    how = None
    if table.reduces:
        of = send or recv
        assert of is not None
        how = reduction(op, of.dtype, operation)
    call = Call(table, send, recv, in_place, how, root, uneven)
    if uneven:
        call = _with_counts(call, rank, size, sendcounts, recvcounts)
    else:
        _check_sizes(call, size)
    if recv is not None and not recv.writable and not call.only_read_at(rank):
        given = "one that is read-only, or whose elements share memory"
        raise ArgumentError(operation, "x" if in_place else "out", "an array that can be written to", given)
    if in_place:
        return replace(call, send=None)
    return call if send is None or recv is None else _apart(call, send, recv, rank, size)


def _given(out: Any, operation: str, rank: int, root_may_omit: bool) -> Buffer:
    """The output, which is needed here."""
    if out is not None:
        return as_buffer(out, operation, "out")
    why = ": only the root may leave it out" if root_may_omit else ""
    raise ArgumentError(operation, "out", f"an array to receive rank {rank}'s block{why}", "None")


def _check_sizes(call: Call, size: int) -> None:
    """Blocks of equal length."""
    send, recv, table = call.send, call.recv, call.collective
    blocks = table.given_blocks(size)
    if send is not None and send.count % blocks:
        raise ArgumentError(call.operation, "x", f"a multiple of {size} elements, a block a rank", _size(send))
    if send is None or recv is None:
        return
    expected = send.count // blocks * table.gotten_blocks(size)
    if recv.count != expected:
        raise ArgumentError(call.operation, "out", f"{expected} elements for x of {send.count}", _size(recv))


def _with_counts(call: Call, rank: int, size: int, sendcounts: Any, recvcounts: Any) -> Call:
    """Uneven blocks: counts of rows become counts of elements, and each buffer must have the rows that they say."""
    name = call.operation
    rows: list[tuple[int, ...] | None] = []
    for argument, counts in (("sendcounts", sendcounts), ("recvcounts", recvcounts)):
        one_sided = argument if name == "alltoallv" else "counts"
        rows.append(None if counts is None else checked_counts(counts, size, name, one_sided))
    to, of = rows
    row = _row_size(call, to, of, rank)
    for argument, b, counts in (("x", call.send, to), ("out", call.recv, of)):
        if b is None:
            continue
        mine = (of or to)[rank] if counts is None else sum(counts)  # type: ignore[index]
        if b.count != mine * row or (b.shape and b.shape[0] != mine):
            raise ArgumentError(name, argument, f"{mine} rows of {row} elements", _size(b))
    return replace(
        call,
        sendcounts=None if to is None else tuple(n * row for n in to),
        recvcounts=None if of is None else tuple(n * row for n in of),
    )


def _row_size(call: Call, to: Sequence[int] | None, of: Sequence[int] | None, rank: int) -> int:
    whole = call.send or call.recv
    assert whole is not None
    if not whole.shape:
        raise ArgumentError(call.operation, "x", "an array of rows (at least one dimension)", "a scalar array")
    return prod(whole.shape[1:])


def _apart(call: Call, send: Buffer, recv: Buffer, rank: int, size: int) -> Call:
    """Input and output agree in kind, and share no memory unless the one is the other's own slot."""
    if recv.dtype != send.dtype:
        raise DtypeError(call.operation, "out", f"dtype {send.dtype}, as x has", str(recv.dtype))
    if recv.device != send.device:
        raise DeviceError(call.operation, "out", f"memory on {send.device}, where x is", recv.device)
    if not memory_overlaps(send, recv):
        return call
    table = call.collective
    if table.gathers and _is_slot(send, recv, rank, size, call.recvcounts):
        return replace(call, send=None, in_place=True)
    if table.scatters and _is_slot(recv, send, rank, size, call.sendcounts):
        # A reduction still writes its result to the slot; a scatter finds it there.
        return replace(call, recv=recv if table.reduces else None, in_place=True)
    same = send.address == recv.address and (
        (send.plain and recv.plain) or (send.shape, send.strides) == (recv.shape, recv.strides)
    )
    if table.elementwise and table.reduces and same:
        return replace(call, send=None, in_place=True)
    expected = "memory apart from x's (or, where that means in place, exactly the rank's own slot)"
    raise ArgumentError(call.operation, "out", expected, "memory that overlaps x's")


def _is_slot(part: Buffer, whole: Buffer, rank: int, size: int, counts: Sequence[int] | None) -> bool:
    counts = counts or (whole.count // size,) * size
    start = whole.address + sum(counts[:rank]) * whole.dtype.itemsize
    return part.plain and whole.plain and part.address == start and part.count == counts[rank]


def _size(b: Buffer) -> str:
    return f"{b.count} (shape {b.shape})"
