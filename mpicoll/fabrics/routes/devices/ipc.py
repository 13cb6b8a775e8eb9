"""Calls in the memory of the node's ranks: each opens the others' memory, and its device works where the data lies.

A rank takes what its result is made of from the ranks' inputs, in rank order, in one pass. In an allreduce a rank
reduces its slice of the vector and writes it to every rank's result: so each value is read once. All ranks know by what
they tell each other whether this is possible. If it is not, the call takes another route on all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakSet

from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device, Handle, Stream, Tell, failure_before, raise_any
from mpicoll.fabrics.routes.node import input_and_output, starts_of

Addresses = Sequence[int | None]  # of memory of each rank


class Peers:
    """The ranks of a communicator on one node, whose memory a device of this rank opens. As long as a process has
    memory of another one open, its owner cannot give it back. So a rank tells in its next call which of its allocations
    are no more, and the others close them."""

    def __init__(self, rank: int, size: int, device: Device, tell: Tell) -> None:
        self.rank, self.size, self.device, self.tell = rank, size, device, tell
        self._known: set[tuple[int, bytes]] = set()
        """The allocations of which each rank knows that all ranks have them open."""
        self._lent: dict[bytes, int] = {}  # the allocations of this rank that others may have open: an address in each

    def lend(self, address: int) -> Handle | None:
        """A handle of this rank's memory. None if nobody else can open it."""
        handle = self.device.export(address)
        if handle is not None:
            self._lent[handle.allocation] = address
        return handle

    def ended(self) -> list[bytes]:
        """What was lent and is no more."""
        now = {allocation: self.device.export(address) for allocation, address in self._lent.items()}
        ended = [allocation for allocation, handle in now.items() if handle is None or handle.allocation != allocation]
        for allocation in ended:
            del self._lent[allocation]
        return ended

    def opened(self, handles: Sequence[Handle | None], own: int | None) -> Addresses | None:
        """The address of each rank's memory. None, on all ranks, if one cannot open another's."""
        addresses = [own if r == self.rank else h and self._address(h) for r, h in enumerate(handles)]
        used = {(h.process, h.allocation) for h in handles if h is not None}
        if not used <= self._known:
            possible = all(a is not None for a, h in zip(addresses, handles, strict=True) if h is not None)
            if not all(self.tell(possible)):
                return None
            self._known |= used
        return addresses

    def _address(self, handle: Handle) -> int | None:
        allocation = self.device.name, handle.process, handle.allocation
        with _lock:
            if allocation not in open_here:
                _close_unused()
                start = self.device.open(handle)
                if start is None:
                    return None
                open_here[allocation] = _Opened(self.device, start, WeakSet())
            open_here[allocation].users.add(self)
            return open_here[allocation].start + handle.offset

    def close(self, process: int, ended: Iterable[bytes]) -> None:
        """Give up the allocations that another process has told to be no more."""
        for each in ended:
            self._known.discard((process, each))
            with _lock:
                if (opened := open_here.get((self.device.name, process, each))) is not None:
                    opened.users.discard(self)
                    _close_unused()

    def free(self) -> None:
        with _lock:
            for opened in open_here.values():
                opened.users.discard(self)
            _close_unused()


class _Opened(NamedTuple):
    """An allocation of another process that this one has open, and the communicators that use it. It is closed when
    another one is opened and none uses it: the garbage collector closes nothing."""

    device: Device
    start: int
    users: WeakSet[Peers]


open_here: dict[tuple[str, int, bytes], _Opened] = {}
"""By device, process and allocation. A process opens an allocation once at a time. A forked child has nothing open."""
_lock = threading.Lock()


def _close_unused() -> None:
    for allocation, opened in [*open_here.items()]:
        if not opened.users:
            del open_here[allocation]
            opened.device.close(opened.start)


class _Told(NamedTuple):
    """What a rank tells the others: what has failed before the call, its memory, its factor of a premul_sum, whether
    others can open its memory, and which of its process's allocations are no more."""

    failure: str | None
    given: Handle | None
    out: Handle | None
    factor: Any
    possible: bool
    process: int
    ended: list[bytes]


class IpcPlan:
    """The plan of a call, or ``otherwise`` where a rank's memory cannot be opened."""

    def __init__(self, call: Call, peers: Peers, otherwise: Plan) -> None:
        self._call, self._peers, self._otherwise = call, peers, otherwise
        self._sliced = call.collective.elementwise and call.collective.root is None
        self._given, _ = input_and_output(call, peers.rank, peers.size)

    def __call__(self) -> None:
        """Let the device work, and wait until all have: until then the ranks use each other's memory."""
        call, peers, stream = self._call, self._peers, self._peers.device.current()
        told = self._told(stream)
        inputs = outs = None
        if all(t.possible for t in told):
            inputs = peers.opened([t.given for t in told], None if self._given is None else self._given.address)
            if inputs is not None and self._sliced and call.recv is not None:
                outs = peers.opened([t.out for t in told], call.recv.address)
        if inputs is None or (self._sliced and outs is None):
            self._otherwise()
            return
        if outs is not None:
            self._slice(stream, inputs, outs, [t.factor for t in told])
        else:
            self._take(stream, inputs, [t.factor for t in told])
        raise_any(call.operation, peers.tell(failure_before(stream.record())))

    def _told(self, stream: Stream) -> list[_Told]:
        """What all ranks tell when their inputs are ready, and their results may be written."""
        call, peers = self._call, self._peers
        ended = peers.ended()
        given = None if self._given is None else peers.lend(self._given.address)
        out = None if call.recv is None or not self._sliced else peers.lend(call.recv.address)
        possible = (self._given is None or given is not None) and (not self._sliced or out is not None)
        factor = None if call.reduction is None else call.reduction.op.factor
        told: list[_Told] = peers.tell(
            _Told(failure_before(stream.record()), given, out, factor, possible, os.getpid(), ended)
        )
        for each in told:
            peers.close(each.process, each.ended)
        raise_any(call.operation, [each.failure for each in told])
        return told

    def _slice(self, stream: Stream, inputs: Addresses, outs: Addresses, factors: Sequence[Any]) -> None:
        """Reduce this rank's slice of all inputs, and write it to all results."""
        call, (rank, size) = self._call, (self._peers.rank, self._peers.size)
        assert call.recv is not None
        assert call.reduction is not None
        start, stop = call.recv.count * rank // size, call.recv.count * (rank + 1) // size
        if start == stop:
            return
        rows = [self._at(address, start, stop) for address in inputs]
        targets = [self._at(address, start, stop) for address in outs]
        stream.combine(rows, targets[rank], call.reduction, _given(factors))
        for i, target in enumerate(targets):
            if i != rank:
                stream.copy(target, targets[rank])

    def _take(self, stream: Stream, inputs: Addresses, factors: Sequence[Any]) -> None:
        """Take each block of this rank's result from the ranks that have it."""
        call, table, (rank, size) = self._call, self._call.collective, (self._peers.rank, self._peers.size)
        if (recv := call.recv) is None:
            return
        starts = [start // recv.dtype.itemsize for start in starts_of(call, size)]
        blocks = len(starts) - 1
        wants = table.wants(rank, size, call.root, blocks)
        for block in wants:
            start, stop = starts[block] - starts[wants.start], starts[block + 1] - starts[wants.start]
            if start == stop:
                continue
            ranks, which = table.source(rank, size, call.root, block)
            # Where the block begins in the input of each rank that has it.
            firsts = [starts[which] - starts[table.has(r, size, call.root, blocks).start] for r in ranks]
            rows = [self._at(inputs[r], at, at + stop - start) for r, at in zip(ranks, firsts, strict=True)]
            target = self._at(recv.address, start, stop)
            if call.reduction is not None:
                stream.combine(rows, target, call.reduction, _given([factors[r] for r in ranks]))
            elif inputs[ranks[0]] != recv.address + (start - firsts[0]) * recv.dtype.itemsize:
                stream.copy(target, rows[0])

    def _at(self, address: int | None, start: int, stop: int) -> Any:
        memory = self._call.recv or self._call.send
        assert memory is not None
        assert address is not None
        return self._peers.device.view(replace(memory, address=address).part(start, stop))


def _given(factors: Sequence[Any]) -> Sequence[Any] | None:
    return None if factors[0] is None else factors
