"""Calls in the memory of the node's ranks: each opens the others' memory, and its device works where the data lies.

A rank takes what its result is made of from the ranks' inputs, in rank order, in one pass. In an allreduce a rank
reduces its slice of the vector and writes it to every rank's result: so each value is read once. All ranks know by what
they tell each other whether this is possible. If it is not, the call takes another route on all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device, Handle, Queue
from mpicoll.fabrics.routes.devices.failures import failure_before, raise_any
from mpicoll.fabrics.routes.devices.peers import Peers
from mpicoll.fabrics.routes.devices.scratch import Scratch
from mpicoll.fabrics.routes.node import input_and_output, starts_of


class _Told(NamedTuple):
    """What a rank tells the others: its memory, its factor of a premul_sum, whether others can open its memory, and
    which of its process's allocations are no more."""

    given: Handle | None
    out: Handle | None
    factor: Any
    possible: bool
    process: int
    ended: list[bytes]


def serves(call: Call, device: Device) -> bool:
    """Whether this route can carry the call out. It is the same on all ranks."""
    return call.extent_is_common and (call.reduction is None or device.reduces(call.reduction))


def bind(call: Call, peers: Peers, scratch: Scratch, otherwise: Plan) -> Plan:
    """The plan of a call on plain memory of the device. ``otherwise`` is the plan that is taken where a rank's memory
    cannot be opened."""
    return _Plan(call, peers, scratch, otherwise)


class _Plan:
    def __init__(self, call: Call, peers: Peers, scratch: Scratch, otherwise: Plan) -> None:
        self._call, self._peers, self._otherwise = call, peers, otherwise
        table = call.collective
        self._sliced = table.elementwise and table.prefix is None and table.root is None
        # Ranks that come later still read what this rank's result would overwrite.
        self._aside = None
        self._scratch = scratch
        if table.prefix is not None and call.in_place and call.recv is not None:
            (address,) = scratch.addresses(call.operation, call.recv.nbytes)
            self._aside = replace(call.recv, address=address)
        self._given, _ = input_and_output(call, peers.rank, peers.size)

    def __call__(self) -> None:
        call, peers = self._call, self._peers
        queue = peers.device.current()
        told = self._told(queue)
        if not all(t.possible for t in told):
            self._otherwise()
            return
        inputs = peers.opened([t.given for t in told], _address(self._given))
        outs: list[int | None] | None = [None] * peers.size
        if inputs is not None and self._sliced:
            outs = peers.opened([t.out for t in told], _address(call.recv))
        if inputs is None or outs is None:
            self._otherwise()
            return
        self._work(queue, inputs, outs, [t.factor for t in told])

    def _told(self, queue: Queue) -> list[_Told]:
        """What all ranks tell when their inputs are ready, and their results may be written."""
        call, peers = self._call, self._peers
        ended = peers.ended()
        given = None if self._given is None else peers.lend(self._given.address)
        out = None if call.recv is None or not self._sliced else peers.lend(call.recv.address)
        possible = (self._given is None or given is not None) and (not self._sliced or out is not None)
        factor = None if call.reduction is None else call.reduction.op.factor
        mine = _Told(given, out, factor, possible, os.getpid(), ended)
        told = peers.tell((failure_before(queue.record()), mine))
        for _, each in told:
            peers.close(each.process, each.ended)
        raise_any(call.operation, [failure for failure, _ in told])
        return [each for _, each in told]

    def _work(
        self, queue: Queue, inputs: Sequence[int | None], outs: Sequence[int | None], factors: Sequence[Any]
    ) -> None:
        """Let the device work, and wait until it has worked on all ranks: until then the ranks use each other's
        memory."""
        call = self._call
        if self._aside is not None:
            self._scratch.begin(queue)
        if self._sliced:
            self._slice(queue, inputs, outs, factors)
        else:
            self._take(queue, inputs, factors)
        raise_any(call.operation, self._peers.tell(failure_before(queue.record())))
        nothing_before = call.collective.prefix == "exclusive" and self._peers.rank == 0
        if self._aside is not None and call.recv is not None and not nothing_before:
            view = self._peers.device.view
            queue.copy(view(call.recv), view(self._aside))
            self._scratch.end(queue)

    def _slice(
        self, queue: Queue, inputs: Sequence[int | None], outs: Sequence[int | None], factors: Sequence[Any]
    ) -> None:
        """Reduce this rank's slice of all inputs, and write it to all results."""
        call, (rank, size) = self._call, (self._peers.rank, self._peers.size)
        assert call.recv is not None
        assert call.reduction is not None
        start, stop = call.recv.count * rank // size, call.recv.count * (rank + 1) // size
        if start == stop:
            return
        rows = [self._at(address, start, stop) for address in inputs]
        targets = [self._at(address, start, stop) for address in outs]
        queue.combine(rows, targets[rank], call.reduction, _given(factors))
        for i, target in enumerate(targets):
            if i != rank:
                queue.copy(target, targets[rank])

    def _take(self, queue: Queue, inputs: Sequence[int | None], factors: Sequence[Any]) -> None:
        """Take each block of this rank's result from where its values lie."""
        call, table, (rank, size) = self._call, self._call.collective, (self._peers.rank, self._peers.size)
        recv = call.recv if self._aside is None else self._aside
        if recv is None:
            return
        for block, sources, start, stop in self._blocks():
            if start == stop:
                continue
            rows = [self._at(inputs[r], first, first + stop - start) for r, first in sources]
            target = self._at(recv.address, start, stop)
            if call.reduction is not None:
                ranks, _ = table.source(rank, size, call.root, block)
                queue.combine(rows, target, call.reduction, _given([factors[r] for r in ranks]))
            elif inputs[sources[0][0]] != recv.address + (start - sources[0][1]) * recv.dtype.itemsize:
                queue.copy(target, rows[0])

    def _blocks(self) -> Iterator[tuple[int, list[tuple[int, int]], int, int]]:
        """The blocks of this rank's result: for each the ranks that have it, each with where it begins in the rank's
        input, and where it begins and ends in the result."""
        call, table, (rank, size) = self._call, self._call.collective, (self._peers.rank, self._peers.size)
        assert call.recv is not None
        starts = [start // call.recv.dtype.itemsize for start in starts_of(call, size)]
        blocks = len(starts) - 1
        wants = table.wants(rank, size, call.root, blocks)
        for block in wants:
            ranks, which = table.source(rank, size, call.root, block)
            firsts = [starts[which] - starts[table.has(r, size, call.root, blocks).start] for r in ranks]
            origin = starts[wants.start]
            sources = list(zip(ranks, firsts, strict=True))
            yield block, sources, starts[block] - origin, starts[block + 1] - origin

    def _at(self, address: int | None, start: int, stop: int) -> Any:
        memory = self._call.recv or self._call.send
        assert memory is not None
        assert address is not None
        return self._peers.device.view(replace(memory, address=address).part(start, stop))


def _address(b: Buffer | None) -> int | None:
    return None if b is None else b.address


def _given(factors: Sequence[Any]) -> Sequence[Any] | None:
    """The factors of a premul_sum, None for another operation."""
    return None if factors[0] is None else factors
