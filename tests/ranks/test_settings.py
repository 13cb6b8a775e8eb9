"""What rank 0 tells the ranks of a communicator: their environments may differ, and their choices must not."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms.steps import Nodes
from mpicoll.calls.choose import NODE
from mpicoll.calls.settings import Settings
from mpicoll.errors import ArgumentError, MismatchError
from mpicoll.fabrics.mpi import MPIFabric
from mpicoll.launch import cores
from tests.sharing import SHARED

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.processes]


def test_the_environment_of_rank_0_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument comes before it. Communicators that are made of another one have its settings."""
    x = np.ones(100)
    asked = {"CHECK": "full", "TIMEOUT": "7.5", "REPRODUCIBLE": "1", "ALGORITHM": "allreduce:ring"}
    if MPI.COMM_WORLD.rank == 0:
        for name, value in asked.items():
            monkeypatch.setenv(f"MPICOLL_{name}", value)
    with mpicoll.Communicator(check="watch", reproducible=False) as other:
        other.allreduce(x)
        assert other.last_route == "ring"
    comm = mpicoll.Communicator()
    part = comm.split(0)
    for each in (part, comm):
        assert each.timeout == 7.5
        each.allreduce(x)
        assert each.last_route == (NODE if SHARED else "exchange")
    with mpicoll.Communicator() as comm:
        with pytest.raises(MismatchError):
            comm.bcast(np.ones(6), root=min(comm.rank, 1))
        assert "bcast was not the same on all ranks" in comm.closed
    monkeypatch.delenv("MPICOLL_CHECK", raising=False)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    with mpicoll.Communicator() as comm:
        assert comm._engine.info.settings.check == "full"


def routes(comm: mpicoll.Communicator) -> tuple[str, str]:
    """What carries out a short sum on all ranks, and one on rank 0 alone."""
    assert comm.allreduce(np.ones(2))[0] == comm.size
    of_all = comm.last_route
    comm.reduce(np.ones(2))
    return of_all, comm.last_route


def test_all_ranks_choose_what_rank_0_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their environments and cores may differ. A communicator's choice never changes."""
    with mpicoll.Communicator() as plain:
        rank, (_, otherwise) = plain.rank, routes(plain)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring" if rank == 0 else "allreduce:native,reduce:binomial_tree")
    with mpicoll.Communicator() as comm:
        monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:swing")
        for each in (comm, comm.split(0, key=-comm.rank), comm.node, comm.subset(range(comm.size))):
            assert routes(each) == ("ring", otherwise)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:rang" if rank == 0 else "")
    with mpicoll.Communicator() as comm, pytest.raises(ArgumentError, match=r"MPICOLL_ALGORITHM: .*given 'rang'"):
        comm.allreduce(np.ones(2))


@pytest.mark.parametrize(
    ("allowed", "launched", "expected"),
    [
        (lambda rank, size: range(size), None, False),
        (lambda rank, size: range(size - 1), None, True),
        (lambda rank, size: [0], None, True),
        (lambda rank, size: [rank], 64, False),  # bound, each to its own
        (lambda rank, size: range(size), 64, True),  # beside others
        (lambda rank, size: [rank], 65, True),
    ],
)
def test_ranks_that_take_turns_on_cores(
    monkeypatch: pytest.MonkeyPatch, allowed: Any, launched: int | None, expected: bool
) -> None:
    world = MPI.COMM_WORLD
    monkeypatch.setattr(cores, "cpus", lambda: set(allowed(world.rank, world.size)))
    # That of one rank alone, as where ranks of two launches are together. All say the same.
    monkeypatch.setattr(cores, "ranks_here", lambda: launched if launched and world.rank == 0 else 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cores.oversubscribed(world) == expected


def test_a_node_of_several_has_the_rules_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was preferred when the whole was made is kept. The ranks of the node have the kernel."""
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring")
    with monkeypatch.context() as several:
        several.setattr(MPIFabric, "_found_nodes", lambda fabric: Nodes(tuple(range(fabric.size))))
        comm = mpicoll.Communicator()
        part = comm.split(0)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:native")
    for each in (comm, part, comm.node):
        assert each._engine.info.settings == Settings("allreduce:ring")
    assert not comm._engine.info.shares_memory
    assert comm.node._engine.info.shares_memory == SHARED
    part.free()
    comm.free()
