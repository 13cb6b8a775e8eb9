"""A whole group of mpicoll's that torch.distributed has made: its names, the groups made of it, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mpicoll.communicator.communicator import Communicator
from mpicoll.errors import StateError
from mpicoll.torch.backend import reducer
from mpicoll.torch.backend.buckets import Buckets
from mpicoll.torch.backend.call_hooks import CallHooks
from mpicoll.torch.backend.device_backend import Supports, serve_devices
from mpicoll.torch.backend.torch_calls import TorchCalls
from mpicoll.torch.functions.caller import checked_timeout
from mpicoll.torch.functions.memory import new
from mpicoll.torch.groups.world import world

_TorchsGroup: Any = dist.ProcessGroup  # torch's stubs lack its overloads, and the methods that only C++ calls


class RegisteredGroup(CallHooks, TorchCalls, Supports, _TorchsGroup):  # type: ignore[misc]
    """A group that is mpicoll's and torch's at once. Methods and their arguments are torch's."""

    options = None
    """torch asks for this where a group stands in for its backend. There are no options."""

    def __init__(
        self,
        comm: Communicator,
        ranks: Sequence[int],
        name: str,
        timeout: timedelta,
        store: Any,
        device: torch.device | None = None,
    ) -> None:
        _TorchsGroup.__init__(self, comm.rank, comm.size)
        self._store, self._splits = store, 0
        TorchCalls.__init__(self, comm, ranks, name, timeout, device)
        if device is not None:
            self.bound_device_id = device  # torch's new_group gives it to other groups
        self.reducer_waits, self.buckets = reducer.waits(), Buckets()
        serve_devices(self)
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

    def getBackendName(self) -> str:
        return "mpicoll"

    def getRank(self) -> int:
        return self.comm.rank

    def getSize(self) -> int:
        return self.comm.size

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
        return torch.device(device).type == "cpu" and self.engine.fabric.shares_arrays

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
        """The number of groups made of this one."""
        return self._splits

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Do nothing: ranks are connected from the start."""

    def perform_nocolor_split(self, device: Any = None) -> None:
        """Do nothing: ranks that are not in a group need not take part in making it."""

    # -- what cannot be: torch's own methods would do nothing, before torch 2.15 --------------------------------------

    def merge_remote_group(self, *given: Any, **named: Any) -> None:
        raise StateError("merge_remote_group: a group of mpicoll cannot be merged with another one")

    def _enable_collectives_timing(self) -> None:
        raise StateError("_enable_collectives_timing: a group of mpicoll does not time collectives: use torch.profiler")

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
        thread still is when the program ends makes the job end with an error.
        """
        if self in world().registered:
            world().registered.remove(self)
            world().aborted.append(self)
            self.engine.abandon("it was aborted")
            self.progress.abandon(StateError(f"{self} was aborted"))
