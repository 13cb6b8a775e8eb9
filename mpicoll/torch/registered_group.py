"""What torch.distributed makes: a whole group of mpicoll's, or a backend for some devices of a group of torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from weakref import proxy

import torch
import torch.distributed as dist

from mpicoll.calls import settings
from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import ArgumentError, LaunchError, RankLost, StateError
from mpicoll.launch import elastic, mpi_init
from mpicoll.launch.launch_env import check_place
from mpicoll.supervise.ending import limited
from mpicoll.torch import ddp
from mpicoll.torch.caller import checked_timeout
from mpicoll.torch.group import world
from mpicoll.torch.memory import new
from mpicoll.torch.private import BACKENDS_IN_PYTHON, Backend, in_the_making, uncompiled
from mpicoll.torch.torch_calls import TorchCalls

_TorchsGroup: Any = dist.ProcessGroup  # torch's stubs lack its overloads, and the methods that only C++ calls
_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM
_FORWARDED = (
    *(name for name, method in vars(TorchCalls).items() if hasattr(method, "is_operation")),
    "send", "recv", "recv_anysource", "start_coalescing", "end_coalescing", "abort", "shutdown", "set_timeout",
    "eager_connect_single_device", "getBackendName", "_get_sequence_number_for_group",
    "_set_sequence_number_for_group",
)  # fmt: skip
"""Methods that torch's C++ calls, and that the group has, too."""


class Supports:
    """What torch asks of a group, and of its backends."""

    supports_coalescing = True
    supports_splitting = True
    supports_time_estimate = _supports_time_estimate = supports_shrinking = False
    supports_window = supports_reconfigure = supports_abort_hooks = supports_completion_hooks = False


class RegisteredGroup(TorchCalls, Supports, _TorchsGroup):  # type: ignore[misc]
    """A group that is mpicoll's and torch's at once. Methods and their arguments are torch's."""

    options = None  # torch asks for this where a group stands in for its backend. There are no options

    def __init__(
        self,
        comm: Communicator,
        ranks: Sequence[int],
        name: str,
        timeout: timedelta,
        store: Any,
        device: torch.device | None,
    ) -> None:
        _TorchsGroup.__init__(self, comm.rank, comm.size)
        self._store, self._splits = store, 0
        TorchCalls.__init__(self, comm, ranks, name, timeout, device)
        if device is not None:
            self.bound_device_id = device  # torch's new_group gives it to other groups
        self.reducer_waits, self.buckets = ddp.waits(), ddp.Buckets()
        if BACKENDS_IN_PYTHON:  # torch's C++ looks for them in every group
            backend = DeviceBackend(proxy(self))
            for kind in ("cpu", "cuda"):
                self._register_backend(torch.device(kind), _CUSTOM, backend)
            self._set_default_backend(_CUSTOM)
        world().registered.append(self)

    # -- names and properties -----------------------------------------------------------------------------------------

    group_name = group_desc = ""
    """The name and the description that torch gave the group. In torch's own class they are properties of C++."""

    def _set_group_name(self, name: str) -> None:
        self.group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self.group_desc = desc

    # C++ calls these names.
    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def getGroupName(self) -> str:
        return self.group_name

    def getGroupDesc(self) -> str:
        return self.group_desc

    getBackendName, getRank, getSize = TorchCalls.name, TorchCalls.rank, TorchCalls.size

    def get_group_store(self) -> Any:
        return self._store

    def _get_backend(self, device: torch.device) -> RegisteredGroup:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _has_hooks(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long ``monitored_barrier`` waits, and how long a collective may take."""
        checked_timeout("set_timeout", timeout)
        self.timeout = timeout

    _set_default_timeout = set_timeout

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether torch can ask the group for memory: for memory of the CPU, if the group's ranks can share it."""
        return torch.device(device).type == "cpu" and self.engine.fabric.info.shares_memory

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A new tensor of so many elements, in memory that the group's ranks share."""
        return new(self, (size,), dtype)

    # -- groups made of this one --------------------------------------------------------------------------------------

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> RegisteredGroup | None:
        """Make a group of these ranks of this group, in this order. They call this; other ranks may, and get None."""
        checked_timeout("split_group", timeout)
        self._splits += 1
        comm = self.comm.subset(ranks)
        if comm is None:
            return None
        name = group_name or f"{self.group_name}:split:{self._splits}"
        members, timeout = [self.ranks[r] for r in ranks], timeout or self.timeout
        part = RegisteredGroup(comm, members, name, timeout, self._store, self.device)
        part.group_desc = group_desc or ""
        return part

    splitGroup = split_group

    def comm_split_count(self) -> int:
        return self._splits

    def _refuse_hooks(self, *_: object) -> None:
        raise StateError("a whole group of mpicoll's calls no hooks that torch's register_pre_hook is given")

    register_pre_hook = register_post_hook = unregister_pre_hook = unregister_post_hook = _refuse_hooks

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Do nothing: ranks are connected from the start."""

    def perform_nocolor_split(self, device: Any = None) -> None:
        """Do nothing: ranks that are not in a group need not take part in making it."""

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self in world().registered:
            world().registered.remove(self)
            self._store = None  # rank 0 gives the port back with it, whoever still has the group
            super().close()

    def shutdown(self) -> None:
        """Complete what is pending and free the communicator. All ranks call this. A second call does nothing."""
        self.close()

    def abort(self) -> None:
        """Give up what is pending: whoever waits for it gets a StateError.

        The communicator is not freed, because all ranks would have to take part. A collective in which the group's
        thread still is when the program ends makes the job end with an error."""
        if self in world().registered:
            world().registered.remove(self)
            world().aborted.append(self)
            self.engine.abandon("it was aborted")
            self.progress.abandon(StateError(f"{self} was aborted"))


class DeviceBackend(Supports, Backend):  # type: ignore[misc]
    """torch's C++ calls the methods, and the group of mpicoll's carries them out."""

    # There is no supports_tensor_alloc: torch 2.15 would call allocate_tensor with options that it cannot convert.

    def __init__(self, group: Any) -> None:
        """``group`` is a RegisteredGroup, or a weak proxy of one."""
        super().__init__(group.rank(), group.size())
        self._group = group

    @property
    def options(self) -> Any:
        """What torch's ``split_group`` copies for the new group."""
        found = Backend.Options("mpicoll", self._group.timeout)
        found.global_ranks_in_group = list(self._group.ranks)
        found.group_name = self._group.group_name
        return found

    def split(self, store: Any, ranks: list[int], options: Any) -> DeviceBackend | None:
        part = self._group.split_group(ranks, options._timeout, group_name=options.group_name)
        return None if part is None else DeviceBackend(part)

    def monitored_barrier(self, options: Any, wait_all_ranks: bool) -> None:
        given = options.timeout if options.timeout >= timedelta(0) else None  # torch passes -1 ms if none is given
        self._group.monitored_barrier(given, wait_all_ranks)


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: DeviceBackend, *arguments: Any) -> Any:
        return getattr(self._group, name)(*arguments)

    return call


for _name in _FORWARDED:
    setattr(DeviceBackend, _name, _forwarded(_name))
uncompiled(DeviceBackend)


def make(options: Any) -> RegisteredGroup | DeviceBackend:
    """A whole group, or a backend for some devices of a group that is torch's own. All ranks of the group call this.

    Raises LaunchError if torch's rank or world size is not MPI's, and ArgumentError if a rank is named twice."""
    only_backend = _wants_device_backend()
    world = mpi_init.checked_world()
    members = list(options.global_ranks_in_group)  # empty for the default group, which has all ranks
    if len(set(members)) < len(members):
        raise ArgumentError("new_group", "ranks", "different ranks", repr(members))
    everybody = [rank for rank in range(world.size) if rank not in elastic.without]
    size = len(everybody) if members else options.group_size
    rank = members[options.group_rank] if members else options.group_rank
    check_place("world_size", size, len(everybody))
    check_place("rank", rank, everybody.index(world.rank))
    from mpicoll.fabrics.mpi import MPIFabric  # it imports mpi4py

    with limited("new_group" if members else "init_process_group", settings.limit()):
        comm = Communicator(MPIFabric.of_world(members) if members else None)
    if comm.size != (len(members) or size):
        raise RankLost("init_process_group", [])  # one more, since torch has asked who is there
    g = RegisteredGroup(comm, members or range(size), options.group_id, options.timeout, options.store, bound_device())
    if not members:
        g.local_rank = comm.node.rank
    return DeviceBackend(g) if only_backend else g


def _wants_device_backend() -> bool:
    """Whether the program names another backend as well, as in ``"cpu:gloo,cuda:mpicoll"``. Then the group that torch
    is making remains torch's own, and needs from mpicoll only a backend for a device.

    Raises LaunchError if this torch takes no backend that is written in Python."""
    config, _ = in_the_making()
    named: dict[str, str] = {} if config is None else config.get_device_backend_map()
    several = len(set(named.values())) > 1
    if several and not BACKENDS_IN_PYTHON:
        backend = ",".join(f"{device}:{name}" for device, name in named.items())
        raise LaunchError(
            f"init_process_group: backend {backend!r} was given, but before torch 2.14 a group with mpicoll has "
            "no other backend: make a group for each, new_group(backend='mpicoll') beside the default group"
        )
    return several


def bound_device() -> torch.device | None:
    """The ``device_id`` of the group that torch is making."""
    _, device = in_the_making()
    return device if isinstance(device, torch.device) and device.type != "cpu" else None
