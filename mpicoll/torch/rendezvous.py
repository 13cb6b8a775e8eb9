"""The default group and others: making, naming and destroying them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import index
from typing import Any

import torch
import torch.distributed

from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import ArgumentError, LaunchError, StateError
from mpicoll.torch.arguments import checked_timeout
from mpicoll.torch.group import GroupMember, ProcessGroup, member, world

__all__ = [
    "destroy_process_group",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
    "new_group",
]

_TIMEOUT = timedelta(minutes=30)


def is_available() -> bool:
    """True: mpicoll needs of torch only its tensors."""
    return True


def is_initialized() -> bool:
    """Whether there is a default group."""
    return world().default is not None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: torch.device | int | None = None,
    enable_reconfigure: bool = False,
) -> None:
    """Make the default group, of all ranks of MPI.COMM_WORLD; collective.

    ``backend`` is any name that torch knows, and always runs on MPI. Rank and size come from MPI: ``rank`` and
    ``world_size`` are checked against them, and ``init_method``, ``store``, ``pg_options`` and ``device_id`` are not
    needed. ``timeout`` bounds ``monitored_barrier``. Raises StateError if there is a default group, LaunchError if this
    process is not one of the ranks that were asked for.
    """
    if world().default is not None:
        raise StateError("init_process_group: the default group exists already: call destroy_process_group() first")
    _check_backend("init_process_group", backend)
    if enable_reconfigure:
        raise ArgumentError("init_process_group", "enable_reconfigure", "False: the ranks are MPI's", "True")
    checked_timeout("init_process_group", timeout)
    comm = Communicator()
    for argument, given, actual in (("world_size", world_size, comm.size), ("rank", rank, comm.rank)):
        if given not in (-1, actual):
            comm.free()
            hint = ""
            if comm.size == 1 and comm.traits.library:
                hint = (
                    ". This process is alone in its MPI world: start the ranks with "
                    "`mpicoll run -n N script.py`, mpicoll.spawn(fn, nprocs=N), mpirun or srun, "
                    "not with torchrun or torch.multiprocessing"
                )
            who = "MPI" if comm.traits.library else "this job of threads"
            raise LaunchError(f"init_process_group: {argument}={given} was given, but {who} says {actual}{hint}")
    g = ProcessGroup(comm, range(comm.size), group_name or "default", timeout or _TIMEOUT)
    g.local_rank = comm.node.rank
    world().groups = [g]


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: torch.device | None = None,
    sort_ranks: bool = True,
) -> Any:
    """A group of these global ranks (None: all), in ascending order unless ``sort_ranks`` is False.

    Collective among these ranks; the others may call it or not, and get GroupMember.NON_GROUP_MEMBER. Members that
    are in several groups make them in the same order.
    """
    parent = _default("new_group")
    _check_backend("new_group", backend)
    checked_timeout("new_group", timeout)
    chosen = _ints(range(parent.size()) if ranks is None else ranks)
    if not all(0 <= r < parent.size() for r in chosen) or len(set(chosen)) != len(chosen) or not chosen:
        raise ArgumentError(
            "new_group", "ranks", f"different ranks, 0 to {parent.size() - 1}, at least one", repr(ranks)
        )
    if sort_ranks:
        chosen.sort()
    if not world().groups:  # the default group is torch's
        order = {} if sort_ranks else {"sort_ranks": False}  # which not every torch knows
        found = torch.distributed.new_group(chosen, timeout, "mpicoll", None, True, group_desc, device_id, **order)
        return GroupMember.NON_GROUP_MEMBER if found is None else found
    world().made += 1
    comm = parent.comm.subset(chosen)
    if comm is None:
        return GroupMember.NON_GROUP_MEMBER
    g = ProcessGroup(comm, chosen, group_desc or f"group {world().made}", timeout or parent.timeout)
    world().groups.append(g)
    return g


def destroy_process_group(group: Any = None) -> None:
    """Complete what is pending and destroy the group, or all groups (None, the default group). Collective."""
    if group is None or group is world().default:
        _default("destroy_process_group")
        if world().groups:
            world().close()
        else:
            torch.distributed.destroy_process_group()
        return
    g = member(group, "destroy_process_group")
    if g is not None and g not in world().groups:
        torch.distributed.destroy_process_group(g)  # type: ignore[arg-type]
    elif g is not None:
        world().groups.remove(g)
        g.close()


def get_rank(group: Any = None) -> int:
    """This process's rank in the group, -1 if it is not in it."""
    g = _quietly(group, "get_rank")
    return -1 if g is None else g.rank()


def get_world_size(group: Any = None) -> int:
    """The number of ranks in the group, -1 if this process is not in it."""
    g = _quietly(group, "get_world_size")
    return -1 if g is None else g.size()


def get_backend(group: Any = None) -> str:
    """``"mpicoll"``, whatever name the group was asked for with."""
    if _quietly(group, "get_backend") is None:
        raise ArgumentError("get_backend", "group", "a group that this rank is in", repr(group))
    return "mpicoll"


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in ``group`` of the global rank."""
    ranks = _ranks(group, "get_group_rank")
    if global_rank not in ranks:
        raise ArgumentError("get_group_rank", "global_rank", f"one of the group's ranks, {ranks}", repr(global_rank))
    return ranks.index(global_rank)


def get_global_rank(group: Any, group_rank: int) -> int:
    """The global rank of the group's rank."""
    ranks = _ranks(group, "get_global_rank")
    if type(group_rank) is not int or not 0 <= group_rank < len(ranks):
        raise ArgumentError("get_global_rank", "group_rank", f"a rank, 0 to {len(ranks) - 1}", repr(group_rank))
    return ranks[group_rank]


def get_process_group_ranks(group: Any) -> list[int]:
    """The global ranks of the group (None: the default one), in group order."""
    return _ranks(group, "get_process_group_ranks")


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's rank among those of its node, from MPI; ``fallback_rank`` where there is no default group."""
    if world().default is None and fallback_rank is not None:
        return int(fallback_rank)
    return _default("get_node_local_rank").local_rank


def _ranks(group: Any, operation: str) -> list[int]:
    g = _quietly(group, operation)
    if g is None:
        raise ArgumentError(operation, "group", "a group that this rank is in", repr(group))
    return list(g.ranks)


def _quietly(group: Any, operation: str) -> ProcessGroup | None:
    return None if group == GroupMember.NON_GROUP_MEMBER else member(group, operation)


def _default(operation: str) -> ProcessGroup:
    found = world().default
    if found is None:
        raise StateError(f"{operation}: there is no default group: call init_process_group() first")
    return found


def _check_backend(operation: str, backend: Any) -> None:
    """Any of torch's names, or a map of devices to them such as ``cpu:gloo,cuda:nccl``."""
    if backend is None:
        return
    known = {*torch.distributed.Backend.backend_list, "mpicoll"} - {"undefined"}
    names = [part.rpartition(":")[2] for part in str(backend).lower().split(",")]
    if not all(name in known for name in names):
        raise ArgumentError(operation, "backend", f"None or one of {', '.join(sorted(known))}", repr(backend))


def _ints(ranks: Any) -> list[int]:
    """The ranks as ints; none if one of them is no int."""
    try:
        return [index(r) for r in ranks]
    except TypeError:
        return []
