"""Communicators that can no longer be used: after a call that ended midway, and in a forked child. And what
happens when there are too many."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed.rpc as rpc
from mpi4py import MPI

import mpicoll
from mpicoll.calls.plan import CachedPlan
from mpicoll.errors import MessageError, StateError
from mpicoll.fabrics.mpi import MPIFabric
from mpicoll.launch import board
from mpicoll.supervise import sites
from mpicoll.supervise.record import Record
from tests.ranks.children import ended_midway, in_child
from tests.sharing import NEEDS_SHARED

Use = Callable[[mpicoll.Communicator, Any], object]

USES: list[Use] = [
    lambda c, x: c.allreduce(x, out=x),
    lambda c, x: c.barrier(),
    lambda c, x: c.allgather_object(1),
    lambda c, x: c.send(x, 0),
    lambda c, x: c.split(0),
    lambda c, x: c.node,
]


# -- a call that ended midway -----------------------------------------------------------------------------------------


def check_unusable(comm: mpicoll.Communicator, x: Any, why: str) -> None:
    for use in USES:
        with pytest.raises(StateError, match=why):
            use(comm, x)
    comm.free()  # not collective any more
    with pytest.raises(StateError, match=why):
        comm.barrier()


@pytest.mark.mpi(min_size=2)
@NEEDS_SHARED
def test_a_collective_that_ended_midway() -> None:
    """The ranks' arrays differ in their length. A watcher would find calls that differ, and end the job."""
    comm = mpicoll.Communicator(check="off")
    x = np.zeros(1000 + 8 * comm.rank, np.uint8)
    comm.allreduce(x[:8], "max", out=x[:8])  # a plan that must not be found any more
    script: dict[str, Any] = {"__package__": None}  # as a program's own module has it
    exec("def call(comm, x):\n    comm.allgather(x, algorithm='node')", script)
    with pytest.raises(MessageError, match=r"allgather of .*: another rank makes another call"):
        script["call"](comm, x)
    check_unusable(comm, x[:8], "its allgather ended midway.*make a new one")
    with mpicoll.Communicator() as new:
        assert new.allreduce(np.ones(1))[0] == new.size


@pytest.mark.mpi(min_size=2)
def test_a_collective_that_mpi_reports() -> None:
    comm = mpicoll.Communicator()

    def failing() -> None:
        raise MPI.Exception(MPI.ERR_TRUNCATE)

    with pytest.raises(MessageError, match=r"scan: the MPI library reports: .*[Tt]runcate"):
        comm._engine.execute(CachedPlan([failing], Record("scan")), "scan")
    check_unusable(comm, np.ones(1), "its scan ended midway.*[Tt]runcate")


# -- a forked child ---------------------------------------------------------------------------------------------------


def test_a_forked_child() -> None:
    with mpicoll.Communicator() as comm:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        x, y = np.ones(1000), np.zeros(1000)
        comm.allreduce(x, out=x)
        comm.allreduce(x, out=x, algorithm="ring")  # whose requests may not be given back there
        comm.barrier()
        pending = comm.irecv(y, before)
        part = mpicoll.Communicator()
        of_dropped = part.irecv(np.zeros(1), before)
        del part
        gc.collect()

        def check() -> None:
            for use in USES:
                with pytest.raises(StateError, match="forked"):
                    use(comm, x)
            for ask in (pending.wait, pending.test, pending.cancel, of_dropped.test, mpicoll.Communicator):
                with pytest.raises(StateError, match="forked"):
                    ask()

        in_child(check)
        assert of_dropped.cancel()  # the parent is as it was
        comm.send(x, after)
        pending.wait()
        assert (y == float(comm.size) ** 2).all()
        assert comm.allreduce(np.ones(1))[0] == comm.size


def test_a_child_of_a_thread_that_is_a_rank() -> None:
    def fork(comm: mpicoll.Communicator) -> float:
        def check() -> None:
            with pytest.raises(StateError, match="forked"):
                comm.allreduce(np.ones(1))

        in_child(check)
        return float(comm.allreduce(np.ones(1))[0])

    with mpicoll.threads(2) as ranks:
        assert ranks.run(fork) == [2.0, 2.0]


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
@pytest.mark.processes
def test_a_collective_cut_short_keeps_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI may write to them later: nothing else may lie there."""
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    rank, n = MPI.COMM_WORLD.rank, 1 << 18
    pair = mpicoll.Communicator().split(0 if rank < 2 else None)
    x, room = np.ones(n, np.float32), np.zeros(n, np.float32)
    if pair is not None and rank == 0:
        with ended_midway():
            MPI.COMM_WORLD.send(os.getpid(), 1)
            pair.reduce(x, out=room, algorithm="binomial_tree")
        kept = [weakref.ref(x), weakref.ref(room)]
        check_unusable(pair, np.ones(1), "its reduce ended midway")
        del x, room
        gc.collect()
        assert all(array() is not None for array in kept)
    elif pair is not None:
        process = MPI.COMM_WORLD.recv(source=0)
        while not board.last_call(0).startswith(f"reduce sum of {n} float32"):
            time.sleep(0.01)
        time.sleep(0.2)  # in which rank 0 comes to wait in its call
        os.kill(process, signal.SIGALRM)
        pair.reduce(x, algorithm="binomial_tree")
    MPI.COMM_WORLD.Barrier()


# -- too many ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(MPI.get_vendor()[0] != "MPICH", reason="others have room for tens of thousands")
def test_when_mpi_can_make_no_more_free_some() -> None:
    comm, held = mpicoll.Communicator(), []
    with suppress(MPI.Exception):
        while True:
            held.append(MPI.COMM_SELF.Dup())
    ways: list[Callable[[], object]] = [
        mpicoll.Communicator,
        lambda: mpicoll.Communicator(MPI.COMM_WORLD, check="full"),
        lambda: comm.split(0),
        lambda: comm.subset(range(comm.size)),
        lambda: comm.node,
    ]
    for way in ways:
        with pytest.raises(StateError, match=r"makes no communicator \(Too many .*Free those"):
            way()
    for each in held:
        each.Free()
    assert comm.node.allreduce(np.ones(1))[0] == comm.size


def test_a_communicator_that_some_ranks_cannot_make_counts_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would seem to make different calls from then on."""
    comm = mpicoll.Communicator()
    outside = comm.rank == comm.size - 1

    def full(*_: object) -> None:
        raise StateError("there is no room for more")

    with monkeypatch.context() as patch:
        patch.setattr(MPIFabric, "_connect", full)
        with nullcontext() if outside else pytest.raises(StateError, match="no room"):
            comm.split(None if outside else 0)
    made = comm._engine.recorder.begun
    assert comm.allgather_object(made) == [made] * comm.size


def test_threads_of_torchs_rpc_may_make_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These threads are C++'s, so that nobody sees them before a function of the program is called."""
    monkeypatch.setattr(sites, "frames_now", dict)
    assert sites.is_alone()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/store")
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    try:
        assert not sites.is_alone()
    finally:
        rpc.shutdown()
    assert sites.is_alone()
