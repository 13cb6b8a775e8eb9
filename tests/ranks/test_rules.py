"""What rank 0 tells the ranks of a communicator, so that all choose the same algorithm."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from mpicoll.calls.tables import Held, Table

import mpicoll
from mpicoll.algorithms.steps import Nodes
from mpicoll.arrays.dtypes import DTYPES, reduction
from mpicoll.calls import select, tables
from mpicoll.calls.rules import Rules
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.mpi import MPIFabric

pytestmark = pytest.mark.mpi(min_size=2)
SUM = reduction("sum", DTYPES["float32"], "allreduce")


def test_all_ranks_choose_what_rank_0_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their environments, installations and cores may differ. A communicator's choice never changes."""
    with mpicoll.Communicator() as plain:
        rank, size, shares = plain.rank, plain.size, plain._engine.binding.traits.shares
    table = Table({size: Held({("native", "bcast"): ((8, "chain" if rank == 0 else "linear"),)})})
    monkeypatch.setattr(tables, "held", lambda *where: table)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring" if rank == 0 else "allreduce:native,reduce:binomial_tree")
    with mpicoll.Communicator() as comm:
        monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:swing")
        monkeypatch.setattr(tables, "held", lambda *where: Table())
        part, node = comm.split(0, key=-comm.rank), comm.node
        for each in (comm, part, node, comm.subset(range(size))):
            assert each is not None
            assert select.select("allreduce", SUM, 8, each._engine.binding.traits) == "ring"
            assert select.select("reduce", SUM, 8, each._engine.binding.traits) == "native"
            assert select.select("bcast", None, 8, each._engine.binding.traits) == ("chain" if shares else "native")
            x = np.full(8, 1.0 + each.rank)
            assert each.allreduce(x, out=x)[0] == size * (size + 1) / 2


def test_a_node_of_several_has_the_table_of_its_own_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was preferred when the whole was made is kept."""
    table = Table({2: Held({("native", "bcast"): ((8, "chain"),)})})
    monkeypatch.setattr(tables, "held", lambda *where: table)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring")
    with monkeypatch.context() as several:
        several.setattr(MPIFabric, "_found_nodes", lambda fabric: Nodes(tuple(range(fabric.size))))
        comm = mpicoll.Communicator()
        part = comm.split(0)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:native")
    assert part is not None
    assert part._engine.binding.traits.rules == comm._engine.binding.traits.rules == Rules("allreduce:ring")
    assert comm.node._engine.binding.traits.rules == Rules("allreduce:ring", table)
    part.free()
    comm.free()


def test_a_wrong_environment_of_rank_0_is_told_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpicoll.Communicator() as plain:
        monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:rang" if plain.rank == 0 else "")
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
    from mpi4py import MPI

    from mpicoll.launch import cores

    world = MPI.COMM_WORLD
    monkeypatch.setattr(cores, "cpus", lambda: set(allowed(world.rank, world.size)))
    monkeypatch.setattr(cores, "ranks_here", lambda: launched or 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cores.oversubscribed(world) == expected


def test_ranks_with_different_cpus_have_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpi4py import MPI

    from mpicoll.fabrics import mpi

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    table = Table({size: Held({("native", "bcast"): ((8, "chain"),)})})
    monkeypatch.setattr(tables, "held", lambda *where: table)
    with mpicoll.Communicator() as comm:
        assert comm._engine.binding.traits.rules.table == table
    monkeypatch.setattr(mpi, "fingerprint", lambda: f"CPU {min(rank, 1)}")
    with mpicoll.Communicator() as comm:
        assert comm._engine.binding.traits.rules.table == Table()
