"""What one rank does of a collective whose arrays all lie in memory that the ranks of a node share.

Every rank reads inputs and writes outputs where they lie. So a reduction copies no input, and what is moved is copied
once. ``source`` of the collective's table says where each block comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.errors import MessageError
from mpicoll.fabrics.transports.transport import Array
from mpicoll.machine.caches import copied

__all__ = ["LINE", "PIECE", "combined", "cut", "ends_of", "input_and_output", "share_of", "starts_of"]

PIECE = 128 << 10
"""Bytes that are reduced and written at once: they stay in the second-level cache meanwhile."""
CACHED = 512 << 10
"""Bytes of the longest vector that is taken to lie in the second-level cache of the rank that has just written it."""
LINE = 64
"""Bytes between which the work is cut: two ranks that write to one line of the cache slow each other."""

Arrays = Sequence[Array | None]


def input_and_output(call: Call, rank: int, size: int) -> tuple[Buffer | None, Buffer | None]:
    """The memory that the rank gives, and the memory that it gets. In place, one is a part of the other."""
    table, send, recv = call.collective, call.send, call.recv
    if call.in_place and not table.elementwise:
        whole = recv if table.gathers else send
        assert whole is not None
        counts = call.sendcounts or call.recvcounts or (whole.count // size,) * size
        start = sum(counts[:rank])
        own = whole.part(start, start + counts[rank])
        send, recv = (own, recv) if table.gathers else (send, own)
    gives = table.gives_at(rank, call.root)
    gets = table.gets_at(rank, call.root) and not call.only_read_at(rank)
    return (send or recv) if gives else None, (recv or send) if gets else None


def share_of(
    call: Call,
    rank: int,
    inputs: Arrays,
    outputs: Arrays,
    workspace: Workspace,
    ends: Sequence[Sequence[int]] | None = None,
) -> list[Plan]:
    """This rank's share of the call, in steps. Each rank's input and output are given as bytes; None where it has
    none. ``ends`` says where each rank's blocks begin and end, in bytes, in an alltoallv."""
    if ends is not None:
        return [*_fetched(call, rank, inputs, outputs[rank], ends)]
    starts = starts_of(call, len(inputs))
    if call.reduction is None:
        return [copied(to, from_, to.nbytes) for to, from_ in _moved(call, rank, inputs, outputs, starts)]
    stored = kernels.storage(call.reduction.dtype)
    whole, size = starts[-1], len(inputs)
    if call.collective.scatters:
        first, last, skipped = starts[rank], starts[rank + 1], starts[rank]
        targets = [outputs[rank]]
    else:
        first, last, skipped = *(cut(whole, r, size) for r in (rank, rank + 1)), 0
        targets = [out for out in (*outputs[rank:], *outputs[:rank]) if out is not None]
    piece = PIECE // stored.itemsize * stored.itemsize
    steps: list[Plan] = []
    for start in range(first, last, piece):
        stop = min(start + piece, last)
        rows = [_part(given, start, stop).view(stored) for given in inputs]
        result, *others = (_part(out, start - skipped, stop - skipped).view(stored) for out in targets)
        steps += combined(rows, result, call.reduction, workspace)
        steps += [partial(np.copyto, other, result) for other in others]
    return steps


def combined(rows: Sequence[Array], result: Array, reduction: Reduction, workspace: Workspace) -> list[Plan]:
    """``result`` = the rows combined in their order. It may be one of the rows."""
    if reduction.dtype.short_float and (len(rows) > 2 or reduction.averages):  # they are rounded once
        return [partial(kernels.reduce_rows, rows, result, reduction)]
    steps, sum_so_far = [], rows[0]
    for row in rows[1:-1]:
        [room] = workspace.arrays(result.dtype, result.size)
        steps.append(kernels.combination(reduction, sum_so_far, row, room))
        sum_so_far = room
    steps.append(kernels.combination(reduction, sum_so_far, rows[-1], result))
    if reduction.averages:
        steps.append(partial(kernels.divide, result, len(rows), reduction.dtype))
    return steps


def _moved(
    call: Call, rank: int, inputs: Arrays, outputs: Arrays, starts: Sequence[int]
) -> Iterator[tuple[Array, Array]]:
    """What this rank copies, as target and source. A rank fetches what it wants. Where one rank, the root, gives or
    gets everything, it takes a part of that: all ranks copy as much."""
    size = len(inputs)
    if not call.collective.rooted:
        yield from ((target, source) for _, target, source in _wanted(call, rank, rank, inputs, outputs, starts))
        return
    wanted = [[*_wanted(call, r, rank, inputs, outputs, starts)] for r in range(size)]
    lengths = [(giving == r, target.size) for r in range(size) for giving, target, _ in wanted[r]]
    own = sum(nbytes for is_own, nbytes in lengths if is_own)
    others = sum(nbytes for is_own, nbytes in lengths if not is_own)
    if call.collective.root == "gives" and own + others <= CACHED:
        own = 0  # the root copies it in less time than another rank needs to fetch as much
    of_root = max(0, own + others - size * own), size * others
    for turn in range(size):  # ranks begin at different ones
        wanting = (rank + turn) % size
        for giving, target, source in wanted[wanting]:
            if rank in (giving, wanting):
                end = cut(target.size, *of_root) if giving != wanting else target.size
                part = slice(end) if rank == call.root else slice(end, None)
                if target[part].size:
                    yield target[part], source[part]


def _wanted(
    call: Call, wanting: int, rank: int, inputs: Arrays, outputs: Arrays, starts: Sequence[int]
) -> Iterator[tuple[int, Array, Array]]:
    """What a rank wants that is not there already: which rank gives it, and where it goes to and lies. ``rank`` says
    with which block to begin, so that ranks begin with different ones."""
    table, root, size, blocks = call.collective, call.root, len(inputs), len(starts) - 1
    if outputs[wanting] is None:
        return
    wanted = table.wants(wanting, size, root, blocks)
    for block in sorted(wanted, key=lambda b: (b - rank) % size):
        (giving, *_), which = table.source(wanting, size, root, block)
        at = starts[which] - starts[table.has(giving, size, root, blocks).start]
        to = starts[block] - starts[wanted.start]
        nbytes = starts[block + 1] - starts[block]
        if nbytes == 0:
            continue  # the rank may have no input at all
        target, source = _part(outputs[wanting], to, to + nbytes), _part(inputs[giving], at, at + nbytes)
        if source.ctypes.data != target.ctypes.data:  # else it is the rank's own block, in place
            yield giving, target, source


def _fetched(
    call: Call, rank: int, inputs: Arrays, output: Array | None, ends: Sequence[Sequence[int]]
) -> Iterator[Plan]:
    """What this rank copies to its output: a block of each rank, of a length that both of them must give."""
    assert call.recv is not None
    assert call.recvcounts is not None
    size, itemsize = len(inputs), call.recv.dtype.itemsize
    starts = [0, *accumulate(n * itemsize for n in call.recvcounts)]
    for turn in range(size):
        giving = (rank + turn) % size
        start, stop = ends[giving][rank : rank + 2]
        if stop - start != starts[giving + 1] - starts[giving]:
            said = f"{call.recvcounts[giving]} elements from rank {giving}, as recvcounts says"
            raise MessageError(f"{call.operation}: expected {said}; given {(stop - start) // itemsize}")
        if stop > start:
            source = _part(inputs[giving], start, stop)
            yield copied(_part(output, starts[giving], starts[giving + 1]), source, source.nbytes)


def ends_of(call: Call) -> list[int]:
    """Where this rank's block for each rank begins in its input, in bytes, and where the last one ends."""
    assert call.send is not None
    assert call.sendcounts is not None
    return [0, *accumulate(n * call.send.dtype.itemsize for n in call.sendcounts)]


def starts_of(call: Call, size: int) -> list[int]:
    """Where each block begins in the whole vector, in bytes. The last one is its end."""
    buffer = call.send or call.recv
    assert buffer is not None
    counts = call.sendcounts or call.recvcounts
    if counts is None:
        blocks = size if call.collective.by_rank else 1
        counts = (call.extent(size) // blocks,) * blocks
    return [0, *accumulate(n * buffer.dtype.itemsize for n in counts)]


def cut(nbytes: int, part: int, parts: int) -> int:
    """Where such a part of the bytes begins."""
    return min(nbytes, -(-(nbytes * part // parts) // LINE) * LINE)


def _part(array: Any, start: int, stop: int) -> Array:
    part: Array = array[start:stop]
    return part
