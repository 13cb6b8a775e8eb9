"""What torch calls to make a group with the backend ``mpicoll``."""

from __future__ import annotations

import os
from typing import Any

import torch

from mpicoll.calls import rules
from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import ArgumentError, LaunchError, RankLost
from mpicoll.launch import elastic, mpi_init
from mpicoll.supervise.limit import limited
from mpicoll.torch.backend.device_backend import DeviceBackend
from mpicoll.torch.backend.registered_group import RegisteredGroup
from mpicoll.torch.private import BACKENDS_IN_PYTHON, RECORDS_BACKENDS_IN_PYTHON, in_the_making


def make(options: Any) -> RegisteredGroup | DeviceBackend:
    """A whole group, or a backend for some devices of a group that is torch's own. All ranks of the group call this.

    Raises LaunchError if torch's rank or world size is not MPI's, and ArgumentError if a rank is named twice.
    """
    only_backend = _wants_device_backend()
    world = mpi_init.checked_world()
    members = list(options.global_ranks_in_group)  # empty for the default group, which has all ranks
    if len(set(members)) < len(members):
        raise ArgumentError("new_group", "ranks", "different ranks", repr(members))
    everybody = elastic.left(world.size)
    size = len(everybody) if members else options.group_size
    rank = members[options.group_rank] if members else options.group_rank
    for argument, given, actual in (("world_size", size, len(everybody)), ("rank", rank, everybody.index(world.rank))):
        if given != actual:
            raise LaunchError(
                f"init_process_group: {argument}={given} was given, but MPI says {actual}: start the ranks with "
                "`mpicoll run -n N script.py`, mpirun or srun, and use init_method='mpi://'"
            )
    from mpicoll.fabrics.mpi import MPIFabric

    with limited("new_group" if members else "init_process_group", rules.limit()):
        comm = Communicator(MPIFabric.of_world(members) if members else None)
    if comm.size != (len(members) or size):
        raise RankLost("init_process_group", [])  # one more, since torch has asked who is there
    g = RegisteredGroup(comm, members or range(size), options.group_id, options.timeout, options.store, bound_device())
    if not members:
        g.local_rank = comm.node.rank
    return DeviceBackend(g) if only_backend else g


def _wants_device_backend() -> bool:
    """Whether the group that torch is making remains torch's own, and needs from mpicoll only a backend for a device.

    So it is if the program names another backend as well, as in ``"cpu:gloo,cuda:mpicoll"``. So it is also if the
    program asks for the flight recorder, which sees only what goes through a group of torch's own.

    Raises LaunchError if the program names several backends and this torch takes none that is written in Python.
    """
    config, _ = in_the_making()
    named: dict[str, str] = {} if config is None else config.get_device_backend_map()
    if len(set(named.values())) < 2:
        return RECORDS_BACKENDS_IN_PYTHON and _recorder_is_asked_for()
    if not BACKENDS_IN_PYTHON:
        backend = ",".join(f"{device}:{name}" for device, name in named.items())
        raise LaunchError(
            f"init_process_group: backend {backend!r} was given, but before torch 2.14 a group with mpicoll has "
            "no other backend: make a group for each, new_group(backend='mpicoll') beside the default group"
        )
    return True


def bound_device() -> torch.device | None:
    """The ``device_id`` of the group that torch is making."""
    _, device = in_the_making()
    return device if isinstance(device, torch.device) and device.type != "cpu" else None


def _recorder_is_asked_for() -> bool:
    """Whether a variable of the flight recorder is set.

    torch itself records by default. A record costs more than a small collective, so mpicoll does not.
    """
    sizes = map(os.environ.get, ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    return int(next(filter(None, sizes), 0)) > 0
