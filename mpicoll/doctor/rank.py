"""What a rank says once MPI runs. MPI may end it, or never let it go on: so it is a child of the doctor."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.calls.call import checked
from mpicoll.calls.choose import choose
from mpicoll.calls.settings import Settings, overlaps, shares_buckets
from mpicoll.communicator.base import engine_of
from mpicoll.communicator.communicator import Communicator
from mpicoll.doctor.facts import SIZES, Facts, World
from mpicoll.errors import ArgumentError, LaunchError, StateError
from mpicoll.launch.mpi_init import checked_world
from mpicoll.supervise.dump import checked_folder, checked_trace
from mpicoll.units import named

if TYPE_CHECKING:
    from mpi4py import MPI

_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def all_facts(facts: Facts) -> Iterator[list[Facts] | LaunchError | None]:
    """None when MPI has started, then the facts of all ranks on rank 0. An error if the process must not use MPI."""
    try:
        world = checked_world()
    except (LaunchError, StateError) as error:
        yield error if isinstance(error, LaunchError) else LaunchError(str(error))
        return
    yield None
    yield world.gather(replace(facts, world=_look(world)))


def _look(world: MPI.Intracomm) -> World:
    """What MPI says to this rank. Collective."""
    from mpi4py import MPI

    from mpicoll.machine.mpi_library import library
    from mpicoll.machine.shared_memory import share

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    assert isinstance(node, MPI.Intracomm)
    shares = share(node, mmap.PAGESIZE) is not None
    node.Free()
    level = next(name for name in _LEVELS if getattr(MPI, f"THREAD_{name}") == MPI.Query_thread())
    found = World(world.rank, world.size, library(), level, shares)
    wrong = world.allgather(_wrong_setting(world.rank))
    if who := [rank for rank, said in enumerate(wrong) if said]:
        # Then no rank may make a Communicator: the others would wait for it.
        return replace(found, refused=wrong[who[0]] + f", on {named(who)}" * (len(who) < world.size))
    try:
        comm = Communicator()
        info = engine_of(comm).info
        arrays = (np.empty(nbytes // 4, np.float32) for nbytes in SIZES)
        calls = (checked("allreduce", comm.rank, comm.size, array, None, "sum", 0) for array in arrays)
        chosen = [choose(call, None, info) for call in calls]
        why = tuple((nbytes, each.name, each.why) for nbytes, each in zip(SIZES, chosen, strict=True))
        return replace(found, chosen=why, shares_memory=engine_of(comm).fabric.info.shares_memory)
    except ArgumentError as error:
        return replace(found, refused=str(error))


def _wrong_setting(rank: int) -> str:
    """What is wrong with the variables that a Communicator reads when it is made."""
    try:
        shares_buckets()
        overlaps()
        settings = Settings.of_environment()
        if settings.dump:
            checked_folder(settings.dump)
        if settings.trace and rank == 0:
            checked_trace(settings.trace, rank)
    except ArgumentError as error:
        return str(error)
    return ""
