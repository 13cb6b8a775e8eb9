"""One validated call of a collective: what select chooses a route for, and what a route carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import Any

from mpicoll.buffers import Buffer, as_buffer, memory_overlaps
from mpicoll.collectives import COLLECTIVES
from mpicoll.dtypes import Reduction, reduction
from mpicoll.errors import ArgumentError, DeviceError, DtypeError

__all__ = ["MOST_INT", "Call", "checked", "checked_counts", "checked_int", "checked_rank", "sequence_of"]


@dataclass(frozen=True, slots=True)
class Call:
    """A collective on this rank's buffers.

    ``send`` is what the rank gives and ``recv`` where its result goes; None where the rank has no such part. With
    ``in_place`` the input lies in the output already (its own slot of it, or the whole), or the output in the input.
    ``sendcounts`` and ``recvcounts`` are the elements for and from each rank where these are uneven (the v-variants).
    """

    collective: str
    send: Buffer | None
    recv: Buffer | None
    in_place: bool = False
    reduction: Reduction | None = None
    root: int = 0
    sendcounts: tuple[int, ...] | None = None
    recvcounts: tuple[int, ...] | None = None

    def extent(self, size: int) -> int:
        """Elements of the longest buffer that any of ``size`` ranks has in this call: every rank finds the same.

        Only an alltoallv's ranks cannot know it; each finds its own longest.
        """
        counts = [sum(c) for c in (self.sendcounts, self.recvcounts) if c is not None]
        if counts:
            return max(counts)
        longest = max((b.count for b in (self.send, self.recv) if b is not None), default=0)
        have_all = self.collective not in ("gather", "scatter") or self.in_place
        both = self.send is not None and self.recv is not None
        return longest if have_all or both else longest * size

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
        return {"scan": rank + 1, "exscan": rank}.get(self.collective, size)


MOST_INT = 2**31 - 1
"""The largest int of C's, in which MPI counts colours and keys."""


def checked_int(given: Any, least: int, most: int, operation: str, argument: str, instead: str = "") -> int:
    """``given`` as an int, if it is one from ``least`` to ``most``; the message says what may stand ``instead``."""
    try:
        found = index(given)
    except TypeError:
        found = least - 1
    if not least <= found <= most:
        raise ArgumentError(operation, argument, f"{instead}an int from {least} to {most}", repr(given))
    return found


def sequence_of(given: Any, operation: str, argument: str, what: str) -> Sequence[Any]:
    """``given`` as a sequence, if it can be gone through."""
    try:
        return list(given)
    except TypeError:
        raise ArgumentError(operation, argument, f"a sequence of {what}", repr(given)) from None


def checked_rank(rank: Any, size: int, operation: str, argument: str) -> int:
    """``rank`` as an int, if it is one of ``size`` ranks."""
    try:
        found = index(rank)
    except TypeError:
        found = -1
    if isinstance(rank, bool) or not 0 <= found < size:
        raise ArgumentError(operation, argument, f"a rank, 0 to {size - 1}", repr(rank))
    return found


def checked_counts(counts: Any, size: int, operation: str, argument: str) -> tuple[int, ...]:
    """``counts`` as one non-negative int a rank."""
    try:
        found = tuple(index(n) for n in counts)
    except TypeError:
        found = ()
    if len(found) != size or any(n < 0 for n in found):
        raise ArgumentError(operation, argument, f"{size} counts of rows, one a rank, none negative", repr(counts))
    return found


def checked(
    collective: str,
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
    name = collective.removesuffix("v")
    if name == "barrier":
        return Call(name, None, None)
    table = COLLECTIVES[name]
    root = checked_rank(root, size, collective, "root")
    gives = name != "scatter" or rank == root
    gets = name not in ("gather", "reduce") or rank == root
    send = as_buffer(x, collective, "x") if gives else None
    recv = None
    in_place = False
    if gets:
        alone = out is None and table.gives == table.gets == "1"
        recv = send if alone else _given(out, collective, rank, name == "scatter")
        in_place = alone
    if table.reduces:
        of = send or recv
        assert of is not None
        how = reduction(op, of.dtype, collective)
    else:
        how = None
    call = Call(collective, send, recv, in_place, how, root)
    if sendcounts is not None or recvcounts is not None:
        call = _with_counts(call, rank, size, sendcounts, recvcounts)
    else:
        _check_sizes(call, size, table.gives, table.gets)
    only_read = name == "bcast" and rank == root
    if recv is not None and not recv.writable and not only_read:
        given = "one that is read-only, or whose elements share memory"
        raise ArgumentError(collective, "x" if in_place else "out", "an array that can be written to", given)
    if in_place:
        return replace(call, send=None)
    return call if send is None or recv is None else _apart(call, send, recv, rank, size)


def _given(out: Any, collective: str, rank: int, root_may_omit: bool) -> Buffer:
    """The output, which is needed here."""
    if out is not None:
        return as_buffer(out, collective, "out")
    why = ": only the root may leave it out" if root_may_omit else ""
    raise ArgumentError(collective, "out", f"an array to receive rank {rank}'s block{why}", "None")


def _check_sizes(call: Call, size: int, gives: str, gets: str) -> None:
    """Equal blocks: ``gives`` and ``gets`` say of how many the buffers are made."""
    send, recv = call.send, call.recv
    if gives == "p" and send is not None and send.count % size:
        raise ArgumentError(call.collective, "x", f"a multiple of {size} elements, a block a rank", _size(send))
    if send is None or recv is None:
        return
    expected = send.count
    if gets != gives:
        expected = expected * size if gets == "p" else expected // size
    if recv.count != expected:
        raise ArgumentError(call.collective, "out", f"{expected} elements for x of {send.count}", _size(recv))


def _with_counts(call: Call, rank: int, size: int, sendcounts: Any, recvcounts: Any) -> Call:
    """Uneven blocks: counts of rows become counts of elements, and each buffer must have the rows that they say."""
    name = call.collective
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
        raise ArgumentError(call.collective, "x", "an array of rows (at least one dimension)", "a scalar array")
    return prod(whole.shape[1:])


def _apart(call: Call, send: Buffer, recv: Buffer, rank: int, size: int) -> Call:
    """Input and output agree in kind, and share no memory unless the one is the other's own slot."""
    if recv.dtype != send.dtype:
        raise DtypeError(call.collective, "out", f"dtype {send.dtype}, as x has", str(recv.dtype))
    if recv.device != send.device:
        raise DeviceError(call.collective, "out", f"memory on {send.device}, where x is", recv.device)
    if not memory_overlaps(send, recv):
        return call
    name = call.collective.removesuffix("v")
    if name in ("gather", "allgather") and _is_slot(send, recv, rank, size, call.recvcounts):
        return replace(call, send=None, in_place=True)
    if name == "scatter" and _is_slot(recv, send, rank, size, call.sendcounts):
        return replace(call, recv=None, in_place=True)
    if name == "reduce_scatter" and _is_slot(recv, send, rank, size, call.sendcounts):
        return replace(call, in_place=True)
    same = send.address == recv.address and (
        (send.plain and recv.plain) or (send.shape, send.strides) == (recv.shape, recv.strides)
    )
    if name in ("allreduce", "reduce", "scan", "exscan") and same:
        return replace(call, send=None, in_place=True)
    expected = "memory apart from x's (or, where that means in place, exactly the rank's own slot)"
    raise ArgumentError(call.collective, "out", expected, "memory that overlaps x's")


def _is_slot(part: Buffer, whole: Buffer, rank: int, size: int, counts: Sequence[int] | None) -> bool:
    counts = counts or (whole.count // size,) * size
    start = whole.address + sum(counts[:rank]) * whole.dtype.itemsize
    return part.plain and whole.plain and part.address == start and part.count == counts[rank]


def _size(b: Buffer) -> str:
    return f"{b.count} (shape {b.shape})"
