"""One checked call of a collective. ``select`` chooses its algorithm, and a route carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from mpicoll.algorithms.collectives import METHODS, Collective, input_of
from mpicoll.arrays.buffers import Buffer, as_buffer, memory_overlaps
from mpicoll.arrays.dtypes import Reduction, reduction
from mpicoll.calls.arguments import checked_counts, checked_rank
from mpicoll.errors import ArgumentError, DeviceError, DtypeError
from mpicoll.supervise.record import Record


@dataclass(frozen=True, slots=True)
class Call:
    """A collective on this rank's buffers.

    ``send`` is the memory of the rank's input, and ``recv`` the memory of its result. Each is None where the rank has
    none, or where ``in_place`` says that it is part of the other one: the input is the output or the rank's own block
    of it, or the output is the rank's own block of the input. ``uneven`` calls are the v-variants: ``sendcounts`` and
    ``recvcounts`` are the numbers of elements for each rank and from each rank."""

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
        """The name of the Communicator's method."""
        return f"{self.collective.name}v" if self.uneven else self.collective.name

    @property
    def input(self) -> str:
        """The method's name of the rank's input."""
        return input_of(self.operation)

    @property
    def extent_is_common(self) -> bool:
        """Whether all ranks compute the same ``extent``."""
        return self.collective.extent_is_common(self.uneven)

    def extent(self, size: int) -> int:
        """The number of elements in the longest buffer that any of ``size`` ranks has in this call. Where not
        ``extent_is_common``, the number in this rank's longest buffer."""
        totals = [sum(counts) for counts in (self.sendcounts, self.recvcounts) if counts is not None]
        if totals:
            return max(totals)
        longest = max((b.count for b in (self.send, self.recv) if b is not None), default=0)
        root_has_all = self.collective.rooted and self.collective.by_rank
        if not root_has_all or self.in_place or (self.send is not None and self.recv is not None):
            return longest
        return longest * size

    def nbytes(self, size: int) -> int:
        """The number of bytes in the longest buffer, as ``extent`` defines it."""
        b = self.send or self.recv
        return 0 if b is None else self.extent(size) * b.dtype.itemsize

    def without_arrays(self) -> Call:
        """The same call on the same memory, for a plan, which holds addresses and no arrays."""

        def bare(b: Buffer | None) -> Buffer | None:
            return b and (b.part(0, b.count) if b.plain else replace(b, array=None))

        return replace(self, send=bare(self.send), recv=bare(self.recv))

    def terms(self, rank: int, size: int) -> int:
        """The number of ranks whose values are combined in this rank's result."""
        return len(self.collective.source(rank, size, self.root, 0)[0])

    def only_read_at(self, rank: int) -> bool:
        """Whether this rank's ``recv`` is only read. That is so at the root of a bcast, which has one array."""
        return self.collective.in_x and rank == self.root


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
    """The call with all arguments checked. Raises ArgumentError, DtypeError or DeviceError for the first wrong one.

    ``x`` is the rank's input and ``out`` its output. Without ``out`` an element-wise collective is in place."""
    table, uneven = METHODS[operation]
    if not table.moves:
        return Call(table, None, None)
    root = checked_rank(root, size, operation, "root")
    # A bcast has one array on each rank, which the root reads and the others write to.
    has_x = table.gives_at(rank, root) or table.elementwise
    send = as_buffer(x, operation, input_of(operation)) if has_x else None
    recv = None
    in_place = False
    if table.gets_at(rank, root):
        in_place = out is None and table.elementwise
        recv = send if in_place else _given(out, operation, rank, table.root == "gives")
    named_op = None
    if table.reduces:
        buffer = send or recv
        assert buffer is not None
        named_op = reduction(op, buffer.dtype, operation)
    call = Call(table, send, recv, in_place, named_op, root, uneven)
    if uneven:
        call = _with_counts(call, rank, size, sendcounts, recvcounts)
    else:
        _check_sizes(call, size)
    if recv is not None and not call.only_read_at(rank):
        recv.check_writable(operation, call.input if in_place else "out")
    if in_place:
        return replace(call, send=None)
    return call if send is None or recv is None else _apart(call, send, recv, rank, size)


def _given(out: Any, operation: str, rank: int, root_may_omit: bool) -> Buffer:
    """The output of a rank that must give one."""
    if out is not None:
        return as_buffer(out, operation, "out")
    why = ": only the root may leave it out" if root_may_omit else ""
    raise ArgumentError(operation, "out", f"an array to receive rank {rank}'s block{why}", "None")


def _check_sizes(call: Call, size: int) -> None:
    """Raise ArgumentError unless the buffers hold blocks of equal length."""
    send, recv, table = call.send, call.recv, call.collective
    blocks = table.given_blocks(size)
    if send is not None and send.count % blocks:
        whole = f"a multiple of {size} elements, one block for each rank"
        raise ArgumentError(call.operation, call.input, whole, _size(send))
    if send is None or recv is None:
        return
    expected = send.count // blocks * table.gotten_blocks(size)
    if recv.count != expected:
        raise ArgumentError(call.operation, "out", f"{expected} elements for {call.input} of {send.count}", _size(recv))


def _with_counts(call: Call, rank: int, size: int, sendcounts: Any, recvcounts: Any) -> Call:
    """The call with uneven blocks. The counts given are of rows, and each buffer must have as many rows as they say;
    those of a Call are of elements."""
    name, table = call.operation, call.collective
    sent = received = None  # the rows for each rank, and from each rank
    both_needed = table.gives == table.gets == "p"
    if table.gives == "p":
        sent = checked_counts(sendcounts, size, name, "sendcounts" if both_needed else "counts")
    if table.gets == "p":
        received = checked_counts(recvcounts, size, name, "recvcounts" if both_needed else "counts")
    buffer = call.send or call.recv
    assert buffer is not None
    if not buffer.shape:
        raise ArgumentError(name, call.input, "an array of rows (at least one dimension)", "a scalar array")
    row_size = prod(buffer.shape[1:])
    for argument, b, counts, other_counts in (
        (call.input, call.send, sent, received),
        ("out", call.recv, received, sent),
    ):
        if b is None:
            continue
        rows = sum(counts) if counts is not None else other_counts[rank]  # type: ignore[index]
        if b.count != rows * row_size or (b.shape and b.shape[0] != rows):
            raise ArgumentError(name, argument, f"{rows} rows of {row_size} elements", _size(b))
    return replace(
        call,
        sendcounts=None if sent is None else tuple(n * row_size for n in sent),
        recvcounts=None if received is None else tuple(n * row_size for n in received),
    )


def _apart(call: Call, send: Buffer, recv: Buffer, rank: int, size: int) -> Call:
    """The call, made in place where input and output share memory. Raises an error where they differ in dtype or
    device, or overlap in another way."""
    if recv.dtype != send.dtype:
        raise DtypeError(call.operation, "out", f"dtype {send.dtype}, as {call.input} has", str(recv.dtype))
    if recv.device != send.device:
        raise DeviceError(call.operation, "out", f"memory on {send.device}, where {call.input} is", recv.device)
    if not memory_overlaps(send, recv):
        return call
    table = call.collective
    if table.gathers and _is_own_block(send, recv, rank, size, call.recvcounts):
        return replace(call, send=None, in_place=True)
    if table.scatters and _is_own_block(recv, send, rank, size, call.sendcounts):
        # A reduction must still write its result to the block. After a scatter the block is there already.
        return replace(call, recv=recv if table.reduces else None, in_place=True)
    same_layout = (send.plain and recv.plain) or (
        (send.shape, send.strides, send.read_as) == (recv.shape, recv.strides, recv.read_as)
    )
    if table.elementwise and table.reduces and send.address == recv.address and same_layout:
        return replace(call, send=None, in_place=True)
    expected = f"memory that does not overlap {call.input}'s (or, for a call in place, exactly the rank's own block)"
    raise ArgumentError(call.operation, "out", expected, "memory that overlaps it")


def _is_own_block(part: Buffer, whole: Buffer, rank: int, size: int, counts: Sequence[int] | None) -> bool:
    """Whether ``part`` is exactly the rank's own block of ``whole``."""
    counts = counts or (whole.count // size,) * size
    start = whole.address + sum(counts[:rank]) * whole.dtype.itemsize
    return part.plain and whole.plain and part.address == start and part.count == counts[rank]


def _size(b: Buffer) -> str:
    return f"{b.count} (shape {b.shape})"


def record_of(call: Call, algorithm: str | None, size: int, operation: str | None = None) -> Record:
    """The record of a call among ``size`` ranks. The ``operation`` is the call's own if none is given."""
    memory = call.send or call.recv
    elements = call.extent(size) if memory is not None and call.extent_is_common else 0
    dtype = "" if memory is None else str(memory.dtype)
    root = call.root if call.collective.rooted else None
    details = details_of(call, algorithm, size)
    return Record(operation or call.operation, details, call.nbytes(size), elements, dtype, root)


def details_of(call: Call, algorithm: str | None, size: int) -> str:
    """Reduction, elements, dtype, root, algorithm and counts of a call among ``size`` ranks."""
    parts, table = [], call.collective
    if call.reduction is not None:
        parts.append(call.reduction.op.name)
    memory = call.send or call.recv
    if memory is not None:
        # The elements that a rank gives, as its program says them. In a scatter, those that it gets.
        own_block = not call.uneven and (table.gathers or (table.rooted and table.scatters))
        elements = f"{call.extent(size) // (size if own_block else 1)} " if call.extent_is_common else ""
        parts.append(f"of {elements}{memory.dtype}")
        if memory.device != "cpu":  # a call on a device's memory is cut in other pieces
            parts.append(f"on {memory.device.partition(':')[0]}")
    if call.uneven and call.extent_is_common:
        parts.append(f"counts {list(call.sendcounts or call.recvcounts or ())}")
    if table.rooted:
        parts.append(f"root {call.root}")
    if algorithm is not None:
        parts.append(f"algorithm {algorithm}")
    return " ".join(parts)
