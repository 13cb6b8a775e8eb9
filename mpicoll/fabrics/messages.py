"""Messages of an MPI library, and of the kernel among ranks of one node, bound to their memory.

A message of the library is one call, whose arguments are bound. Persistent requests in the place of the bound call cost
more on both MPIs (benchmarks/records/message-cost-2ranks.txt). The library's collectives that do not block are here,
too. The kernel (``mpicoll/node``) moves messages in memory that the ranks share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.errors import MessageError, StateError
from mpicoll.fabrics.fabric import Data, Envelope, Messages, Transfer
from mpicoll.fabrics.transports.memory import bytes_of, moved_bytes, room_for
from mpicoll.machine.blocks import own_at
from mpicoll.machine.vendors import vendor_of
from mpicoll.node.loaded import kernel

if TYPE_CHECKING:
    from mpicoll.node.kernel import Exchange
    from mpicoll.node.kernel import Messages as KernelMessages

_ANY = -1  # what the kernel calls any source, and any tag
_NEIGHBOURS = -2
"""The tag of messages among neighbours, which no receive of any tag takes. On a grid there is one for each direction,
from here downwards."""

if kernel is not None:
    Transfer.register(kernel.Message)
    Transfer.register(kernel.Plan)

Begun = tuple[MPI.Request, Sequence[Plan], Workspace]
Received = tuple[MPI.Request, MPI.Status]


class MPIMessages(Messages):
    """The messages of one communicator. None of its transfers holds an array."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def outgoing(self, b: Buffer, dest: int, tag: int) -> Transfer | None:
        return _Sent(self._comm, moved_bytes(b), dest, tag) if b.plain else None

    def incoming(self, b: Buffer, source: int | None, tag: int | None) -> Transfer | None:
        return _Received(self._comm, b, *_wanted(source, tag)) if b.plain else None

    def both(
        self, sent: Buffer, dest: int, sendtag: int, taken: Buffer, source: int | None, recvtag: int | None
    ) -> Transfer | None:
        """A message that leaves and one that comes, in one call of the MPI library."""
        if not (sent.plain and taken.plain):
            return None
        of, which = _wanted(source, recvtag)
        coming = _Received(self._comm, taken, of, which)
        if sent.address == taken.address and sent.count == taken.count:
            coming.now = partial(self._comm.Sendrecv_replace, coming.spec, dest, sendtag, of, which, coming.last)
        else:
            given = moved_bytes(sent)
            coming.now = partial(self._comm.Sendrecv, given, dest, sendtag, coming.spec, of, which, coming.last)
        return coming

    def probe(self, source: int | None, tag: int | None, waits: bool = False) -> Envelope | None:
        status = MPI.Status()
        if not self._comm.Iprobe(*_wanted(source, tag), status):
            return None
        return Envelope(status.Get_source(), status.Get_tag(), status.Get_elements(MPI.BYTE))

    def send(self, data: bytes, dest: int, tag: int) -> None:
        self._comm.Send(bytes_of(data), dest, tag)

    def start(self, data: bytes, dest: int, tag: int) -> Callable[[], bool]:
        return self._comm.Isend(bytes_of(data), dest, tag).Test

    def take(self, source: int | None, tag: int | None, waits: bool) -> Data | None:
        probe, status = self._comm.Mprobe if waits else self._comm.Improbe, MPI.Status()
        found: list[MPI.Message | None] = []
        # The handler of a signal may raise as soon as MPI has found a message. Then it must be in the list already:
        # if nobody takes it, its sender waits for ever. So list.extend calls MPI, and not this function.
        try:
            found.extend(map(probe, *zip(_wanted(source, tag)), (status,)))
            return None if found[0] is None else _taken(found[0], status)
        except BaseException:
            for message in found:
                if message:
                    _taken(message, status)
            raise


def _taken(message: MPI.Message, status: MPI.Status) -> Data:
    room = room_for(status.Get_elements(MPI.BYTE))
    message.Recv(bytes_of(room))
    return room


def _wanted(
    source: int | None, tag: int | None, any_source: int = MPI.ANY_SOURCE, any_tag: int = MPI.ANY_TAG
) -> tuple[int, int]:
    return any_source if source is None else source, any_tag if tag is None else tag


def _by_pickle() -> bool:
    """Whether mpi4py pickles as Python does, as far as the kernel pickles itself. Programs can change that."""
    pickler, known = MPI.pickle, (b"", "", 1, 1.0, None, True, bytes(1 << 16), "a" * 1024)
    try:
        return all(pickler.dumps(each) == pickle.dumps(each, pickler.PROTOCOL) for each in known)
    except Exception:  # another pickler may not know such objects
        return False


class NodeMessages(Messages):
    """The messages of one communicator. None of its transfers holds an array."""

    by_library = False

    def __init__(self, messages: KernelMessages, nobody: int) -> None:
        self._messages, self._nobody = messages, nobody

    def free(self) -> None:
        """Let go of the memory. No method may be called any more."""
        del self._messages

    def outgoing(self, b: Buffer, dest: int, tag: int) -> Transfer | None:
        """A message to a rank. None if its elements lie in more dimensions than the kernel copies."""
        return self._bound(b, False, dest, tag)

    def incoming(self, b: Buffer, source: int | None, tag: int | None) -> Transfer | None:
        return self._bound(b, True, *_wanted(source, tag, _ANY, _ANY))

    def both(
        self, sent: Buffer, dest: int, sendtag: int, taken: Buffer, source: int | None, recvtag: int | None
    ) -> Transfer | None:
        leaves = None if dest == self._nobody else self.outgoing(sent, dest, sendtag)
        if leaves is None and dest != self._nobody:
            return None
        return self._bound(taken, True, *_wanted(source, recvtag, _ANY, _ANY), leaves)

    def _bound(self, b: Buffer, receives: bool, peer: int, tag: int, beside: Transfer | None = None) -> Transfer | None:
        assert kernel is not None
        try:
            made: Transfer = kernel.Message(
                self._messages, receives, peer, tag, b.address, b.dtype.itemsize, b.shape, b.strides, beside, _home(b)
            )
        except ValueError:
            return None
        return made

    def exchange(
        self, operation: str, send: Buffer, recv: Buffer, block: int, edges: tuple[Sequence[int], Sequence[int]],
        on_grid: bool
    ) -> Plan:  # fmt: skip
        """The plan that sends ``block`` elements along each edge, and receives as many. On a grid, what a rank sends to
        the one before it comes from the one after, also where one rank is both (MPI 4.0, section 8.6)."""
        assert kernel is not None
        sources, destinations = edges
        dtype = send.dtype  # the plan keeps what is called where a block has another length, and must keep no array
        to_all = operation == "neighbor_allgather"

        def bound(b: Buffer, receives: bool, ranks: Sequence[int]) -> Iterator[Any]:
            for i, rank in enumerate(ranks):
                part = b if to_all and not receives else b.part(i * block, (i + 1) * block)
                along = 0 if not on_grid else i if receives else i ^ 1
                if rank != self._nobody:
                    yield self._bound(part, receives, rank, _NEIGHBOURS - along)

        def wrong_length(source: int, nbytes: int) -> None:
            expected = f"expected {block} elements of {dtype} from rank {source}, as this rank sends"
            raise MessageError(f"{operation}: {expected}; {nbytes} bytes arrived")

        messages = *bound(send, False, destinations), *bound(recv, True, sources)
        exchange: Exchange = kernel.Exchange(messages, wrong_length)
        return exchange.run

    def probe(self, source: int | None, tag: int | None, waits: bool = False) -> Envelope | None:
        found = self._messages.probe(*_wanted(source, tag, _ANY, _ANY), waits)
        return None if found is None else Envelope(*found)

    def of_objects(self, receives: bool, peer: int | None, tag: int | None, convert: Callable[[Any], Any]) -> object:
        assert kernel is not None
        return kernel.ObjectMessage(self._messages, receives, *_wanted(peer, tag, _ANY, _ANY), convert, _by_pickle())

    def unreceived(self, looks: bool = True) -> list[Envelope]:
        messages = getattr(self, "_messages", None)  # another thread may ask while the communicator is freed
        return [] if messages is None else [Envelope(*each) for each in messages.lying(looks)]

    def send(self, data: bytes, dest: int, tag: int) -> None:
        self._messages.send(data, dest, tag).wait()

    def start(self, data: bytes, dest: int, tag: int) -> Callable[[], bool]:
        return self._messages.send(data, dest, tag).test

    def take(self, source: int | None, tag: int | None, waits: bool) -> bytes | None:
        wanted = _wanted(source, tag, _ANY, _ANY)
        if not waits and self._messages.probe(*wanted, False) is None:
            return None
        return self._messages.recv(*wanted)


def _home(b: Buffer) -> tuple[int, int, int, int, int]:
    """The file in which the array lies as long as this process lives: its number, device, inode, address and bytes.
    All zeros if there is none."""
    own = own_at(b.address, b.nbytes) if b.plain and b.count else None
    return own.home if own is not None and own.lasts else (0, 0, 0, 0, 0)


class Collective(Transfer):
    """A collective that does not block. ``start`` returns the library's request, what must be done after it, and its
    scratch memory, which stand for it while it is under way. What is done after it comes after a ``check`` whether the
    ranks are there."""

    def __init__(self, start: Callable[[], Begun], check: Callable[[], object] | None) -> None:
        self.start = start
        self._check = check

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


class _Sent(Transfer):
    """A message that leaves. While it is under way, the library's request stands for it."""

    def __init__(self, comm: MPI.Intracomm, spec: list[Any], dest: int, tag: int) -> None:
        self.start = partial(comm.Isend, spec, dest, tag)
        self.now = partial(comm.Send, spec, dest, tag)

    def wait(self, begun: MPI.Request) -> None:
        begun.Wait()

    def test(self, begun: MPI.Request) -> bool:
        return begun.Test()

    def cancel(self, begun: MPI.Request) -> bool:
        raise StateError("cancel: only a receive can be given up: MPI may wait for ever to take back what is sent")


class _Received(Transfer):
    """A message that comes. While it is under way, the library's request and status stand for it. If the handler of a
    signal ends a wait with an exception, MPI has completed the message. Then the request is null, and the status has
    what is known of the message: MPI must not be asked again."""

    overruns = vendor_of(MPI.get_vendor()[0]).overruns

    def __init__(self, comm: MPI.Intracomm, b: Buffer, source: int, tag: int) -> None:
        self.last = MPI.Status()
        """The status of the message that came ``now``. One is enough: two threads cannot receive into one memory."""
        # MPICH ends the job where a message ends within an element. Bytes have no such end.
        self.spec, self._itemsize = moved_bytes(b), b.dtype.itemsize
        self.now = partial(comm.Recv, self.spec, source, tag, self.last)
        receive = partial(comm.Irecv, self.spec, source, tag)
        self.start = lambda: (receive(), MPI.Status())

    def wait(self, begun: Received) -> None:
        request, status = begun
        if request:
            request.Wait(status)

    def test(self, begun: Received) -> bool:
        request, status = begun
        return not request or request.Test(status)

    def cancel(self, begun: Received) -> bool:
        request, status = begun
        request.Cancel()
        request.Wait(status)
        return status.Is_cancelled()

    def source(self, begun: Received | None = None) -> int:
        return (begun[1] if begun else self.last).Get_source()

    def tag(self, begun: Received) -> int:
        return begun[1].Get_tag()

    def arrived(self, begun: Received | None = None) -> int | None:
        status = begun[1] if begun else self.last
        elements, rest = divmod(status.Get_elements(MPI.BYTE), self._itemsize)
        return None if rest else elements
