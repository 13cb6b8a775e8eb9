"""Groups: making and destroying them, and asking for their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import index
from typing import Any

import torch
import torch.distributed

from mpicoll.calls.arguments import as_rank, checked_rank
from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import ArgumentError, LaunchError, StateError
from mpicoll.fabrics.thread_job import here
from mpicoll.launch.launch_env import check_place
from mpicoll.launch.lifecycle import is_forked
from mpicoll.torch.caller import checked_timeout
from mpicoll.torch.group import GivenGroup, GroupMember, ProcessGroup, is_no_group, joined, member, world

_TIMEOUT = timedelta(minutes=30)


def is_available() -> bool:
    """Always True."""
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
    """Make the default group, of all ranks of MPI.COMM_WORLD. All ranks call this.

    Every ``backend`` that torch knows means MPI. Rank and size come from MPI: ``rank`` and ``world_size`` need not be
    given, and are compared with MPI's. ``init_method``, ``store`` and ``pg_options`` change nothing. With ``device_id``
    the group takes tensors of the CPU and of this device alone; others raise DeviceError.
    ``timeout`` is how long ``monitored_barrier`` waits, and how long a collective may take. After that, the job ends.
    With MPICOLL_CHECK=full, TimeoutError is raised instead.

    Raises StateError if there is a default group already, and LaunchError if ``rank`` or ``world_size`` is not MPI's.
    """
    if world().default is not None:
        raise StateError("init_process_group: the default group exists already: call destroy_process_group() first")
    _check_backend("init_process_group", backend)
    if enable_reconfigure:
        raise ArgumentError("init_process_group", "enable_reconfigure", "False: the ranks are MPI's", "True")
    checked_timeout("init_process_group", timeout)
    device = _checked_device("init_process_group", device_id)
    comm = Communicator()
    try:
        for argument, given, actual in (("world_size", world_size, comm.size), ("rank", rank, comm.rank)):
            if given != -1:
                check_place(argument, given, actual, "MPI" if here.seat is None else "this job of threads")
    except LaunchError:
        comm.free()
        raise
    g = ProcessGroup(comm, range(comm.size), group_name or "default", timeout or _TIMEOUT, device)
    g.local_rank = comm.node.rank
    world().begin(g)


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
    """Make a group of the global ranks ``ranks``, None for all. Returns GroupMember.NON_GROUP_MEMBER to other ranks.

    The group's ranks are in ascending order, or in that of ``ranks`` if ``sort_ranks`` is False. All its members call
    this; other ranks may, too. (torch demands that of them, unless ``use_local_synchronization``.) Ranks that are
    together in several groups make them in the same order. ``backend`` is any that torch knows; ``pg_options`` changes
    nothing. ``timeout`` and ``device_id`` None are the default group's.

    Raises ArgumentError if ``ranks`` are not different global ranks, at least one, or if ``device_id`` is not the
    default group's, which has one."""
    parent = joined(None, "new_group")
    _check_backend("new_group", backend)
    checked_timeout("new_group", timeout)
    device = _checked_device("new_group", device_id) or parent.device
    if parent.device not in (None, device):
        raise ArgumentError("new_group", "device_id", f"{parent.device}, the default group's", str(device))
    size = parent.size()
    try:
        chosen = [*map(index, range(size) if ranks is None else ranks)]
    except TypeError:
        chosen = []
    if not all(0 <= r < size for r in chosen) or len(set(chosen)) != len(chosen) or not chosen:
        raise ArgumentError("new_group", "ranks", f"different ranks, 0 to {size - 1}, at least one", repr(ranks))
    if sort_ranks:
        chosen.sort()
    if not world().groups:  # the default group is torch's
        order = {} if sort_ranks else {"sort_ranks": False}  # an argument that older versions of torch do not have
        found = torch.distributed.new_group(chosen, timeout, "mpicoll", None, True, group_desc, device_id, **order)
        return GroupMember.NON_GROUP_MEMBER if found is None else found
    world().made += 1
    comm = parent.comm.subset(chosen)
    if comm is None:
        return GroupMember.NON_GROUP_MEMBER
    g = ProcessGroup(comm, chosen, group_desc or f"group {world().made}", timeout or parent.timeout, device)
    world().groups.append(g)
    return g


def destroy_process_group(group: GivenGroup = None) -> None:
    """Complete what is pending and destroy ``group``, or all groups if it is the default group.

    All ranks of the group call this. Raises the failure of an asynchronous collective that the program has not seen."""
    default = world().default
    if world().groups and (group is None or group is default):
        world().close()
    elif group is None and default is not None:
        torch.distributed.destroy_process_group()
    elif (g := member(group, "destroy_process_group")) in world().groups:
        world().groups.remove(g)
        g.close()
    elif g is not None:
        torch.distributed.destroy_process_group(g)  # type: ignore[arg-type]


def _asked(group: GivenGroup, operation: str) -> ProcessGroup:
    """The group about which something is asked. A forked process, such as a worker of a DataLoader, may ask, too."""
    found = world().default if group is None else group
    return found if isinstance(found, ProcessGroup) and is_forked() else joined(group, operation)


def get_rank(group: GivenGroup = None) -> int:
    """This process's rank in the group; -1 if it is not in the group."""
    return -1 if is_no_group(group) else _asked(group, "get_rank").rank()


def get_world_size(group: GivenGroup = None) -> int:
    """The number of ranks in the group; -1 if this process is not in the group."""
    return -1 if is_no_group(group) else _asked(group, "get_world_size").size()


def get_backend(group: GivenGroup = None) -> str:
    """``"mpicoll"``, whatever ``backend`` the group was made with."""
    return _asked(group, "get_backend").name()


def get_group_rank(group: GivenGroup, global_rank: int) -> int:
    """The rank in ``group`` of the global rank ``global_rank``."""
    ranks, rank = list(_asked(group, "get_group_rank").ranks), as_rank(global_rank)
    if rank not in ranks:
        raise ArgumentError("get_group_rank", "global_rank", f"one of the group's ranks, {ranks}", repr(global_rank))
    return ranks.index(rank)


def get_global_rank(group: GivenGroup, group_rank: int) -> int:
    """The global rank of the rank ``group_rank`` of ``group``."""
    g = _asked(group, "get_global_rank")
    return g.global_rank(checked_rank(group_rank, g.size(), "get_global_rank", "group_rank"))


def get_process_group_ranks(group: GivenGroup) -> list[int]:
    """The global ranks of the group (None: the default group), in the order of the group."""
    return list(_asked(group, "get_process_group_ranks").ranks)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's rank among the ranks of its node. ``fallback_rank`` is returned if there is no default group.

    MPI knows it. (torch reads LOCAL_RANK.)"""
    if world().default is None and fallback_rank is not None:
        return int(fallback_rank)
    return _asked(None, "get_node_local_rank").local_rank


def _check_backend(operation: str, backend: Any) -> None:
    """Raise ArgumentError unless ``backend`` is a name that torch knows, or one for each device."""
    if backend is None:
        return
    known = {*torch.distributed.Backend.backend_list, "mpicoll"} - {"undefined"}
    names = [part.rpartition(":")[2] for part in str(backend).lower().split(",")]
    if not all(name in known for name in names):
        raise ArgumentError(operation, "backend", f"None or one of {', '.join(sorted(known))}", repr(backend))


def _checked_device(operation: str, device_id: Any) -> torch.device | None:
    """The device that ``device_id`` means. A CPU holds a group to nothing, as if there were none."""
    if device_id is None or (isinstance(device_id, torch.device) and device_id.type == "cpu"):
        return None
    device = torch.device("cuda", device_id) if type(device_id) is int and 0 <= device_id < 128 else device_id
    if not isinstance(device, torch.device) or device.type != "cuda" or device.index is None:
        raise ArgumentError(operation, "device_id", "a CUDA device with an index, or the index", repr(device_id))
    return device
