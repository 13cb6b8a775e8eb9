"""Schedules over MPI: how messages are cut and gathered, uneven blocks, and what plans hold."""

from __future__ import annotations

import time
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll import algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Nodes, Place, Recv, RecvReduce, Send, Steps, one, run
from mpicoll.calls.choose import names
from mpicoll.calls.plan import Plans
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.mpi import MPIFabric
from tests.arrays import KINDS, back
from tests.devices.checks import check, check_uneven
from tests.ranks.random_calls import UNEVEN
from tests.sharing import SHARED

pytestmark = pytest.mark.sizes(1, 2, 4)


def served(operation: str) -> list[str]:
    """The algorithms that ranks of this node have."""
    return [a for a in names(operation) if SHARED or a != "node"]


class OnHost:
    """Arrays of one kind on the host, as ``check`` uses those of a device."""

    def __init__(self, kind: str) -> None:
        self._make = KINDS[kind]

    def array(self, values: Any, dtype: str) -> Any:
        return self._make(values, dtype)

    def values(self, x: Any) -> Any:
        return back(x)


ON_HOST: Any = OnHost("numpy")


@pytest.mark.parametrize("gathered", [0, 1 << 16], ids=["each run a message", "runs gathered"])
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "barrier"])
def test_every_algorithm_in_small_pieces(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch, collective: str, gathered: int
) -> None:
    """Pieces of 64 bytes: windows of two, last ones that are shorter, pipelines of several segments."""
    monkeypatch.setattr("mpicoll.fabrics.transports.mpi_requests.PIECE", 64)
    monkeypatch.setattr("mpicoll.fabrics.transports.mpi_requests.GATHERED", gathered)
    for a in list(algorithms.algorithms(collective)):
        if a.segment is not None:
            algorithms.add(replace(a, segment=256))
        for n in (0, 1, comm.size - 1, 30, 61, 500):
            for root in {0, comm.size - 1} if COLLECTIVES[collective].rooted else {0}:
                dtype = "uint8" if n == 500 else "float64"
                check(comm, ON_HOST, collective, a.name, dtype, "sum", (n,), "plain", root)


def crossing(at: Place) -> Steps:
    """Rank 0's two messages of its first step come from ranks of which one waits for the other."""
    a, b = one(0), one(1)
    if at.rank == 0:
        yield RecvReduce(1, a, INPUT, SCRATCH, True), RecvReduce(2, b, INPUT, SCRATCH, True)
        yield RecvReduce(1, b, SCRATCH, OUTPUT, True), Copy(a, SCRATCH, OUTPUT)
        yield Send(1, run(0, 2), OUTPUT), Send(2, run(0, 2), OUTPUT)
        return
    if at.rank == 1:
        yield (RecvReduce(2, a, INPUT, SCRATCH, True),)
        yield (Send(0, a, SCRATCH),)
        yield (Send(0, b, INPUT),)
    else:
        yield (Send(0, b, INPUT),)
        yield (Send(1, a, INPUT),)
    yield (Recv(0, run(0, 2), OUTPUT),)


@pytest.mark.mpi(min_size=3)
@pytest.mark.usefixtures("registry")
def test_the_actions_of_a_step_do_not_wait_for_each_other(comm: mpicoll.Communicator) -> None:
    only = mpicoll.Algorithm(
        "allreduce", "crossing", crossing, lambda at: 2, lambda size, root: None if size == 3 else "it is for 3 ranks"
    )
    mpicoll.register(only)
    three = comm.subset([0, 1, 2])
    if three is not None:
        x = np.full(1 << 20, 1.0 + comm.rank)
        three.allreduce(x, out=x, algorithm="crossing")
        assert (x == 6).all()
        three.free()
    two = comm.split(0 if comm.rank < 2 else 1)
    with pytest.raises(ArgumentError, match="crossing does not: it is for 3 ranks"):
        two.allreduce(np.ones(1), algorithm="crossing")


@pytest.mark.parametrize("collective", UNEVEN)
def test_uneven_blocks_by_every_algorithm_that_takes_them(comm: mpicoll.Communicator, collective: str) -> None:
    known = [a for a in served(collective + "v") if a != "wide"]  # it serves 16-bit floats alone
    assert {"native", "linear"} & set(known)
    for algorithm in known:
        for root in range(comm.size):
            check_uneven(comm, ON_HOST, collective, algorithm, root)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("node", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 2), (0, 1, 2, 1)], ids=str)
def test_two_level_algorithms_where_ranks_are_on_several_nodes(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch, node: tuple[int, ...]
) -> None:
    """The nodes are made up: ranks of one node talk in messages, too."""
    size = comm.size
    nodes = Nodes.named(node[r % len(node)] for r in range(size))
    monkeypatch.setattr(MPIFabric, "_found_nodes", lambda fabric: nodes)
    with mpicoll.Communicator() as several:
        assert several._engine.fabric.info.nodes == nodes
        for a in [a for a in algorithms.algorithms() if a.name == "two_level" and COLLECTIVES[a.collective].moves]:
            for n in (0, 1, 30, 5000):  # 40 kB in a block: a message of several is longer than what is gathered
                for root in range(size) if COLLECTIVES[a.collective].rooted else (0,):
                    check(several, ON_HOST, a.collective, a.name, "float64", "sum", (n,), "plain", root)
        for root in range(size):
            for collective in ("gather", "scatter"):
                check_uneven(several, ON_HOST, collective, "two_level", root)


def test_barriers(comm: mpicoll.Communicator) -> None:
    """Nobody leaves before the last has come: the ranks of a node have one clock."""
    for a in served("barrier"):
        for late in range(comm.size):
            time.sleep(0.05 if comm.rank == late else 0)
            came = time.monotonic_ns()
            comm.barrier(algorithm=a)
            moments = comm.allgather_object((came, time.monotonic_ns()))
            assert max(came for came, _ in moments) <= min(left for _, left in moments), (a, late)


def test_factors_and_averages(comm: mpicoll.Communicator) -> None:
    import torch

    size, rank = comm.size, comm.rank
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        for a in served("allreduce"):
            if a == ("native" if dtype == torch.bfloat16 else "wide"):
                continue
            x = torch.full((50,), 2.0 * rank, dtype=dtype)
            comm.allreduce(x, "avg", out=x, algorithm=a)
            assert (x == size - 1).all(), (a, dtype)
            x = torch.full((50,), 2.0, dtype=dtype)
            y = comm.allreduce(x, mpicoll.Op.premul_sum(rank + 0.5), out=torch.zeros_like(x), algorithm=a)
            assert (y == size * size).all(), (a, dtype)
            assert (x == 2.0).all()


def test_plans_give_their_requests_back(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """More plans than are kept, on a communicator that is freed afterwards."""
    monkeypatch.setattr(Plans, "LIMIT", 50)
    part = mpicoll.Communicator()
    for _ in range(2):
        for i in range(1, 150):
            x = np.ones(i)
            part.allreduce(x, out=x, algorithm="ring")
            assert (x == comm.size).all()
    assert len(part._engine.plans) == 50
    part.free()


@pytest.mark.mpi(min_size=4)
def test_a_plan_keeps_the_scratch_memory_that_its_messages_pass_through(comm: mpicoll.Communicator) -> None:
    """Rank 2 hands on what rank 3 gives and adds nothing: no array of the plan lies in the memory, only messages."""
    part = comm.subset([0, 1, 2, 3])
    if part is None:
        return
    counts = [0, 0, 0, 1000]
    mine, out = np.full(counts[part.rank], 3.0), np.zeros(1000)
    part.gatherv(mine, counts, out=out, algorithm="binomial_tree")
    fabric = part._engine.fabric
    assert isinstance(fabric, MPIFabric)
    scratch = weakref.ref(fabric._workspace._block)
    fabric._workspace.arrays(np.dtype(np.uint8), 1 << 20)
    assert part.rank != 2 or scratch() is not None
    out[:] = 0
    part.gatherv(mine, counts, out=out, algorithm="binomial_tree")
    assert part.rank != 0 or (out == 3).all()
    part.free()
