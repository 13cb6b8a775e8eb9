"""Collectives of arrays that lie in memory which the ranks of a node share: each rank does its share where they lie.

All ranks meet, and say where their arrays are. Each one does its share: it reads the others' inputs and writes to their
outputs. They meet again. Nothing is copied besides.

This is a route, and no transport under schedules. A schedule's rank reads what a peer sends it. It cannot know when
nobody else reads a block any more, so that it might write to it, and would have to meet once more in each step.

Source: MPI libraries do the same through XPMEM, as in Hashmi et al., "Designing efficient shared address space
reduction collectives for multi-/many-cores", IPDPS 2018.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Sequence

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.record import Record
from mpicoll.errors import MessageError
from mpicoll.fabrics.routes.shares import ends_of, input_and_output, share_of
from mpicoll.fabrics.transports.meeting import FROM, MOST_ENDS, Meeting, Posted
from mpicoll.fabrics.transports.transport import Array
from mpicoll.machine import blocks
from mpicoll.machine.blocks import LEAST, Adopted, Own, Place, opened, own_at
from mpicoll.machine.vendors import Vendor

__all__ = ["SHARED", "Lying", "serves"]

SHARED = "shared"
"""The name of this way in records."""


def serves(call: Call, size: int, crowded: bool, vendor: Vendor) -> bool:
    """Whether the call could be carried out so. The answer is the same on all ranks. ``crowded`` says whether they take
    turns on cores: then it takes longer to meet, and a call of this vendor's may be faster."""
    table, reduction = call.collective, call.reduction
    if not call.extent_is_common:
        # No rank knows how long the others' arrays are. So all of them meet, and find out.
        return not crowded and size < MOST_ENDS
    longest = call.nbytes(size)
    shortest = longest // size if table.gathers or table.scatters else longest
    least = LEAST  # a shorter array does not lie in shared memory
    if crowded and table.rooted and reduction is None:
        least = max(least, vendor.crowded_deals)
    return (
        table.moves
        and table.prefix is None
        # A factor may be another on each rank, which alone knows it.
        and (reduction is None or reduction.op.factor is None)
        and shortest >= least
    )


_LIMITS = {
    errno.EMFILE: "this process has too many open files (ulimit -n)",
    errno.ENOMEM: "this process may have no more memory (ulimit -v)",
    errno.ENOENT: "that process has closed its file",
}
"""Why a rank cannot open another one's memory."""


class Lying:
    """A call that is carried out where its arrays lie, if all ranks' arrays lie in shared memory, and ``otherwise``
    else."""

    def __init__(self, meeting: Meeting, call: Call, otherwise: Plan, record: Record, workspace: Workspace) -> None:
        self._meeting, self._call, self._otherwise, self._record = meeting, call, otherwise, record
        self._workspace, self._otherwise_named = workspace, record.route
        table, rank = call.collective, meeting.rank
        self._nbytes = call.nbytes(meeting.size) if call.extent_is_common else 0
        """Of the longest array; 0 where a rank does not know that of the others."""
        self._buffers = input_and_output(call, rank, meeting.size)
        self._known: Sequence[Own] | None = None
        """All that has memory that other ranks can open, as this rank knew it when it looked for its own."""
        self._adopted: list[Adopted] = []
        """What has this rank's memory, and may be gone before the call is made again."""
        self._versions: list[int] = []
        self._work: Plan | None = None
        self._find()
        rootless_or_giving = table.root is None or (table.root == "gives" and rank == call.root)
        self._begins = rootless_or_giving and not call.uneven
        """Whether what every rank gets depends on this one. Of uneven blocks, some may be empty."""

    def __call__(self) -> None:
        meeting = self._meeting
        meeting.calls += 1
        if self._known is not blocks.known or (self._adopted and not all(own.is_there() for own in self._adopted)):
            self._find()  # something else may be at this address now
        posted, record = self._posted, self._record
        # Every call in a program that has no shared arrays:
        if not (posted.version or meeting.wishes or meeting.first[FROM]):
            self._otherwise()
            return
        if meeting.begins(posted.version != 0, self._begins, record.digest):
            meeting.post(posted)
            meeting.come()
            versions = meeting.versions()
            if versions != self._versions:
                self._look(versions)
            if self._work is not None:
                record.route = SHARED
                meeting.go_on(record.digest)
                self._work()
                meeting.come()
                return
            meeting.pause(record.digest, self._nbytes)
        record.route = self._otherwise_named
        self._otherwise()

    def _find(self) -> None:
        """Find out where this rank's memory lies."""
        self.forget()
        self._known = blocks.known
        owns = [None if b is None else _own(b) for b in self._buffers]
        ends = [] if self._call.extent_is_common else ends_of(self._call)
        source, target = map(_place, self._buffers, owns)
        self._posted = Posted(self._record.digest, source, target, ends)
        self._adopted = [own for own in owns if isinstance(own, Adopted)]
        if self._adopted:
            this = weakref.ref(self)
            self._ends = [weakref.ref(own.holder(), lambda _: _forget(this)) for own in self._adopted]

    def forget(self) -> None:
        """Let go of the ranks' arrays, until the call is made again."""
        self._known, self._adopted, self._versions, self._work = None, [], [], None

    def _look(self, versions: list[int]) -> None:
        """Find the ranks' arrays, which lie elsewhere than the last time."""
        self._versions, self._work = versions, None
        if 0 in versions or self._posted.version == 0:
            return
        meeting, call = self._meeting, self._call
        posted = [meeting.posted(rank) for rank in range(meeting.size)]
        for rank, (digest, *_) in enumerate(posted):
            if digest != posted[meeting.rank][0]:
                raise MessageError(
                    f"{self._record.description}: rank {rank} makes another call, or gives other numbers"
                )
        inputs, outputs = zip(
            *((self._opened(rank, x), self._opened(rank, y)) for rank, (_, x, y) in enumerate(posted)), strict=True
        )
        ends = None if call.extent_is_common else [meeting.ends(rank) for rank in range(meeting.size)]
        steps = share_of(call, meeting.rank, inputs, outputs, self._workspace, ends)

        def run() -> None:
            for step in steps:
                step()

        self._work = run if call.reduction is None else kernels.quietly(run)

    def _opened(self, rank: int, place: Place) -> Array | None:
        if not place.nbytes:
            return None
        try:
            return opened(place)
        except OSError as error:
            why = _LIMITS.get(error.errno or 0, str(error))
            raise MessageError(
                f"{self._call.operation}: the {place.nbytes} bytes of memory that rank {rank} gives (process "
                f"{place.process}) cannot be opened: {why}"
            ) from None


def _forget(lying: weakref.ref[Lying]) -> None:
    if (still := lying()) is not None:
        still.forget()


def _own(b: Buffer) -> Own | None:
    """What has this memory, if other ranks can open it."""
    return own_at(b.address, b.nbytes) if b.plain and b.device == "cpu" and b.count else None


def _place(b: Buffer | None, own: Own | None) -> Place | None:
    """Where the memory lies; all zeros where there is none, and None where other ranks cannot open it."""
    if b is None or b.count == 0:
        return Place(*[0] * len(Place._fields))
    return None if own is None else own.place_of(b.address)
