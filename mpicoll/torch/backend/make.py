"""What torch calls to make a group with the backend ``mpicoll``."""

from __future__ import annotations

from typing import Any

from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import LaunchError, RankLost
from mpicoll.guard.limit import limited
from mpicoll.launch import elastic, lifetime
from mpicoll.torch.backend.device_backend import DeviceBackend
from mpicoll.torch.backend.new_group import bound_device, wants_device_backend
from mpicoll.torch.backend.registered_group import RegisteredGroup

__all__ = ["make"]


def make(options: Any, backend_options: Any = None) -> RegisteredGroup | DeviceBackend:
    """A whole group, or a backend for some devices of a group that is torch's own. All ranks of the group call this.

    Raises LaunchError if torch's rank or world size is not MPI's.
    """
    only_backend = wants_device_backend()
    world = lifetime.checked_world()
    members = list(options.global_ranks_in_group)  # empty for the default group, which has all ranks
    everybody = elastic.left(world.size)
    size = len(everybody) if members else options.group_size
    rank = members[options.group_rank] if members else options.group_rank
    for argument, given, actual in (
        ("world_size", size, len(everybody)),
        ("rank", rank, everybody.index(world.rank)),
    ):
        if given != actual:
            raise LaunchError(
                f"init_process_group: {argument}={given} was given, but MPI says {actual}: start the ranks with "
                "`mpicoll run -n N script.py`, mpirun or srun, and use init_method='mpi://'"
            )
    from mpicoll.fabrics.mpi import MPIFabric

    with limited("new_group" if members else "init_process_group"):
        comm = Communicator(MPIFabric.of_world(members) if members else None)
    if comm.size != (len(members) or size):
        raise RankLost("init_process_group", [])  # one more, since torch has asked who is there
    g = RegisteredGroup(comm, members or range(size), options.group_id, options.timeout, options.store, bound_device())
    if not members:
        g.local_rank = comm.node.rank
    return DeviceBackend(g) if only_backend else g
