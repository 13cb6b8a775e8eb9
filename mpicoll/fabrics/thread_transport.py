"""Collectives between ranks that are threads of one process. The receiver reads the blocks in the sender's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.plan import Plan
from mpicoll.errors import MessageError
from mpicoll.fabrics.thread_job import Group, Job, Posted
from mpicoll.fabrics.transports.transport import BoundTransport, Region

Take = Callable[[Region], None]
"""Takes what another rank has posted."""


class Threads(BoundTransport):
    """In each step, a rank lets its peers read what it sends, takes what they have posted, and waits until all of its
    own was read. ``call`` is the same on all ranks that make the same call."""

    def __init__(self, job: Job, group: Group, rank: int, call: str, reduction: Reduction | None) -> None:
        self._job, self._posted, self._rank, self._reduction = job, group.posted, rank, reduction
        self._call, self._what = call, f"rank {rank} in {call}"
        self.steps = []
        self._sends: list[tuple[int, Region]] = []
        self._receives: list[tuple[int, Take]] = []
        self._copies: list[Plan] = []

    def send(self, peer: int, region: Region) -> None:
        self._sends.append((peer, region))

    def recv(self, peer: int, region: Region) -> None:
        self._receives.append((peer, partial(self._take, peer, region)))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        self._receives.append((peer, partial(self._combine, mine, into, mine_first)))

    def copy(self, source: Region, target: Region) -> None:
        self._copies.append(partial(self._take, self._rank, target, source))

    def end_step(self) -> None:
        self.steps.append(partial(self._run, self._sends, self._receives, self._copies))
        self._sends, self._receives, self._copies = [], [], []

    def _run(self, sends: list[tuple[int, Region]], receives: list[tuple[int, Take]], copies: list[Plan]) -> None:
        job, sent = self._job, []
        with job.changed:
            for peer, region in sends:
                sent.append(Posted(self._call, region))
                self._posted[self._rank, peer].append(sent[-1])
            job.happened()
        for peer, take in receives:
            queue = self._posted[peer, self._rank]
            with job.changed:
                job.wait_until(partial(bool, queue), self._what)
                posted = queue.popleft()
            if posted.call != self._call:
                raise MessageError(f"{self._what}: rank {peer} is in {posted.call}")
            take(posted.region)
            with job.changed:
                posted.taken = True
                job.happened()
        for copy in copies:
            copy()
        with job.changed:
            job.wait_until(lambda: all(posted.taken for posted in sent), self._what)

    def _take(self, peer: int, mine: Region, theirs: Region) -> None:
        given, expected = (sum(run.size for run in region) for region in (theirs, mine))
        if given != expected:  # NumPy would repeat a single element
            operation = self._call.partition(" ")[0]
            raise MessageError(f"{operation}: expected {expected} elements from rank {peer}; it sends {given}")
        for from_, into in zip(theirs, mine, strict=True):
            np.copyto(into, from_)

    def _combine(self, mine: Region, into: Region, mine_first: bool, theirs: Region) -> None:
        assert self._reduction is not None
        for run, received, target in zip(mine, theirs, into, strict=True):
            first, second = (run, received) if mine_first else (received, run)
            kernels.combination(self._reduction, first, second, target)()
