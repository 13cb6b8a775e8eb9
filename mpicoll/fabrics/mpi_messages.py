"""Messages of an MPI library, and its collectives that do not block, bound to their memory.

A short message is one call of the MPI library, whose arguments are bound. One with more elements than a count can say
is several. Persistent requests in the place of the bound call cost more on both MPIs
(benchmarks/records/message-cost-2ranks.txt).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls import choose
from mpicoll.calls.plan import Plan
from mpicoll.errors import StateError
from mpicoll.fabrics.fabric import Envelope, Transfer
from mpicoll.fabrics.routes import large
from mpicoll.fabrics.transports.memory import moved, moved_as, moved_bytes
from mpicoll.machine.vendors import vendor_of

_VENDOR = vendor_of(MPI.get_vendor()[0])

Begun = tuple[MPI.Request, Sequence[Plan]]
Received = tuple[MPI.Request, MPI.Status]


def outgoing(comm: MPI.Intracomm, b: Buffer, dest: int, tag: int) -> Transfer:
    """A message to a rank."""
    if b.count > choose.MAX_COUNT:
        specs = [moved(piece) for piece in large.pieces(b)]
        return _Long(lambda: [comm.Isend(spec, dest, tag) for spec in specs], None)
    return _Sent(comm, moved(b), dest, tag)


def incoming(comm: MPI.Intracomm, b: Buffer, source: int | None, tag: int | None) -> Transfer:
    """A message from a rank, or from any."""
    of, which = _of(source), MPI.ANY_TAG if tag is None else tag
    if b.count <= choose.MAX_COUNT:
        return _Received(comm, b, of, which)
    specs = [moved(piece) for piece in large.pieces(b)]
    return _Long(partial(_receives, comm, specs, of, which), moved_as(b.dtype.itemsize))


def both(
    comm: MPI.Intracomm, sent: Buffer, dest: int, sendtag: int, taken: Buffer, source: int | None, recvtag: int | None
) -> Transfer | None:
    """A message that leaves and one that comes, in one call of the MPI library. None if they are too long for it."""
    if max(sent.count, taken.count) > choose.MAX_COUNT:
        return None
    of, which = _of(source), MPI.ANY_TAG if recvtag is None else recvtag
    coming = _Received(comm, taken, of, which)
    if sent.address == taken.address and sent.count == taken.count:
        coming.now = partial(comm.Sendrecv_replace, coming.spec, dest, sendtag, of, which, coming.last)
    else:
        coming.now = partial(comm.Sendrecv, moved(sent), dest, sendtag, coming.spec, of, which, coming.last)
    return coming


def probe(comm: MPI.Intracomm, source: int | None, tag: int | None) -> Envelope | None:
    """The first message that has come."""
    status = MPI.Status()
    if not comm.Iprobe(_of(source), MPI.ANY_TAG if tag is None else tag, status):
        return None
    return Envelope(status.Get_source(), status.Get_tag(), status.Get_elements(MPI.BYTE))


def _of(source: int | None) -> int:
    return MPI.ANY_SOURCE if source is None else source


class _Started(Transfer):
    """A short message that leaves: while it is under way, the library's request stands for it."""

    def __init__(self, start: Callable[[], MPI.Request]) -> None:
        self.start = start  # type: ignore[method-assign]  # a method would cost a call

    def start(self) -> MPI.Request:
        raise AssertionError("each instance has its own")

    def wait(self, begun: MPI.Request) -> None:
        begun.Wait()

    def test(self, begun: MPI.Request) -> bool:
        return begun.Test()


class Collective(Transfer):
    """A collective that does not block. ``start`` returns the library's request and what must be done after it, which
    stand for it while it is under way. Before that is done, it is ``checked`` whether the ranks are there."""

    def __init__(self, start: Callable[[], Begun], check: Callable[[], object] | None) -> None:
        self.start = start  # type: ignore[method-assign]  # a method would cost a call
        self._check = check

    def start(self) -> Begun:
        raise AssertionError("each instance has its own")

    def wait(self, begun: Begun) -> None:
        begun[0].Wait()
        self._finish(begun)

    def test(self, begun: Begun) -> bool:
        if not begun[0].Test():
            return False
        self._finish(begun)
        return True

    def _finish(self, begun: Begun) -> None:
        if self._check is not None:
            self._check()
        for do in begun[1]:
            do()


class _Sent(_Started):
    """A short message that leaves."""

    def __init__(self, comm: MPI.Intracomm, spec: list[Any], dest: int, tag: int) -> None:
        super().__init__(partial(comm.Isend, spec, dest, tag))
        self.now = partial(comm.Send, spec, dest, tag)

    def cancel(self, begun: MPI.Request) -> bool:
        raise StateError(_NO_CANCEL)


class _Received(Transfer):
    """A short message that comes. While it is under way, the library's request and status stand for it.

    If the handler of a signal ends a wait with an exception, MPI has completed the message. Then the request is null,
    and the status has what is known of the message: MPI must not be asked again."""

    overruns = _VENDOR.overruns

    def __init__(self, comm: MPI.Intracomm, b: Buffer, source: int, tag: int) -> None:
        self.last = MPI.Status()
        """The status of the message that came ``now``. One is enough: two threads cannot receive into one memory."""
        # MPICH ends the job where a message ends within an element. Bytes have no such end.
        in_bytes = b.nbytes <= choose.MAX_COUNT
        self.spec = moved_bytes(b) if in_bytes else moved(b)
        self._kind, self._itemsize = self.spec[2], b.dtype.itemsize if in_bytes else 1
        self.now = partial(comm.Recv, self.spec, source, tag, self.last)
        self._start = partial(comm.Irecv, self.spec, source, tag)

    def start(self) -> Received:
        return self._start(), MPI.Status()

    def wait(self, begun: Received) -> None:
        request, status = begun
        if request:
            request.Wait(status)

    def test(self, begun: Received) -> bool:
        request, status = begun
        return not request or request.Test(status)

    def cancel(self, begun: Received) -> bool:
        return _cancelled([begun[0]], [begun[1]])

    def source(self, begun: Received | None = None) -> int:
        return (begun[1] if begun else self.last).Get_source()

    def tag(self, begun: Received) -> int:
        return begun[1].Get_tag()

    def arrived(self, begun: Received | None = None) -> int | None:
        status = begun[1] if begun else self.last
        count = status.Get_count(self._kind)
        if count == MPI.UNDEFINED or count % self._itemsize:  # the message ends within an element
            return None
        return count // self._itemsize


Parts = tuple[list[MPI.Request], list[MPI.Status]]


class _Long(Transfer):
    """A message of several parts. ``kind`` is the datatype of one that comes, and None for one that leaves."""

    overruns = _VENDOR.overruns

    def __init__(self, start: Callable[[], list[MPI.Request]], kind: MPI.Datatype | None) -> None:
        self._start, self._kind = start, kind

    def start(self) -> Parts:
        parts = self._start()
        return parts, [MPI.Status() for _ in parts]

    def wait(self, begun: Parts) -> None:
        parts, statuses = _incomplete(begun)
        if _VENDOR.waits_one_by_one:
            for part, status in zip(parts, statuses, strict=True):
                part.Wait(status)
        else:
            MPI.Request.Waitall(parts, statuses)

    def test(self, begun: Parts) -> bool:
        return MPI.Request.Testall(*_incomplete(begun))

    def cancel(self, begun: Parts) -> bool:
        if self._kind is None:
            raise StateError(_NO_CANCEL)
        return _cancelled(*begun)

    def source(self, begun: Parts | None = None) -> int:
        assert begun is not None
        return begun[1][0].Get_source()

    def tag(self, begun: Parts) -> int:
        return begun[1][0].Get_tag()

    def arrived(self, begun: Parts | None = None) -> int | None:
        assert begun is not None
        assert self._kind is not None
        # Counts are of elements, because the number of bytes may be more than a count can say.
        counts = [status.Get_count(self._kind) for status in begun[1]]
        return None if MPI.UNDEFINED in counts else sum(counts)


def _receives(comm: MPI.Intracomm, specs: list[list[Any]], source: int, tag: int) -> list[MPI.Request]:
    """Receives of all parts of a message. If it may come from any rank, or with any tag, the first part says which."""
    if source == MPI.ANY_SOURCE or tag == MPI.ANY_TAG:
        status = MPI.Status()
        comm.Probe(source, tag, status)
        source, tag = status.Get_source(), status.Get_tag()
    return [comm.Irecv(spec, source, tag) for spec in specs]


def _incomplete(begun: Parts) -> Parts:
    """The parts that are not known to be complete, with their statuses.

    If the handler of a signal ends a wait with an exception, MPI may have completed some of them. Their requests are
    null then, and the statuses have what is known of them."""
    indices = [i for i, part in enumerate(begun[0]) if part]
    return [begun[0][i] for i in indices], [begun[1][i] for i in indices]


_NO_CANCEL = "cancel: only a receive can be given up: MPI may wait for ever to take back what is sent"


def _cancelled(parts: list[MPI.Request], statuses: list[MPI.Status]) -> bool:
    for part in parts:
        part.Cancel()
    MPI.Request.Waitall(parts, statuses)
    return all(status.Is_cancelled() for status in statuses)
