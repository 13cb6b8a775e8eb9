"""A group of ours as the backend of some devices in a group that is torch's own. All that depends on torch's version.

From torch 2.14 on a backend may be written in Python. Before, what Python can make is a whole group, which serves
every device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import proxy

import torch
import torch.distributed

from mpicoll.errors import LaunchError

if TYPE_CHECKING:
    from mpicoll.torch.backend import RegisteredGroup

__all__ = ["DeviceBackend", "serve_within", "stays_torchs"]

_c10d: Any = torch._C._distributed_c10d
_CUSTOM = _c10d.ProcessGroup.BackendType.CUSTOM


def _can_be_made() -> bool:
    try:
        _c10d.Backend(0, 1)
    except TypeError:  # "No constructor defined"
        return False
    return True


IN_PYTHON = _can_be_made()
"""Whether this torch takes a backend that is written in Python."""
RECORDS = hasattr(torch.distributed.distributed_c10d, "_maybe_attach_flight_recorder")
"""Whether this torch's flight recorder sees such backends: since 2.15."""

FORWARDED = {
    name: name
    for name in (
        "allgather", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced", "allreduce",
        "allreduce_coalesced", "alltoall", "all_to_all_single", "barrier", "broadcast", "gather", "recv",
        "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced",
        "scatter", "send", "abort", "shutdown", "set_timeout", "eager_connect_single_device", "getBackendName",
        "_get_sequence_number_for_group", "_set_sequence_number_for_group",
    )
} | {"start_coalescing": "_start_coalescing", "end_coalescing": "_end_coalescing"}  # fmt: skip
"""What C++ calls, and the group's method that it is."""


class DeviceBackend(_c10d.Backend):  # type: ignore[misc]
    """What C++ calls of a backend is the group's to do."""

    supports_coalescing = True
    supports_splitting = True

    def __init__(self, group: Any) -> None:
        super().__init__(group.rank(), group.size())
        self._group: RegisteredGroup = group

    @property
    def options(self) -> Any:
        found = _c10d.Backend.Options("mpicoll", self._group.timeout)
        found.global_ranks_in_group = list(self._group.ranks)
        found.group_name = self._group.group_name
        return found

    def split(self, store: Any, ranks: list[int], options: Any) -> DeviceBackend | None:
        part = self._group.split_group(ranks, options._timeout, group_name=options.group_name)
        return None if part is None else DeviceBackend(part)

    def monitored_barrier(self, options: Any, wait_all_ranks: bool) -> None:
        given = options.timeout if options.timeout >= timedelta(0) else None  # torch's word for none is -1 ms
        self._group.monitored_barrier(given, wait_all_ranks)


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: DeviceBackend, *arguments: Any) -> Any:
        return getattr(self._group, name)(*arguments)

    return call


for _name, _ours in FORWARDED.items():
    setattr(DeviceBackend, _name, _forwarded(_ours))


def serve_within(group: RegisteredGroup) -> None:
    """Give a whole group of ours what torch's C++ looks for in every group: a default backend, and one a device."""
    if IN_PYTHON:
        backend = DeviceBackend(proxy(group))
        for device in ("cpu", "cuda"):
            group._register_backend(torch.device(device), _CUSTOM, backend)
        group._set_default_backend(_CUSTOM)


def stays_torchs() -> bool:
    """Whether the group that torch is making stays torch's own, with ours as the backend of a device: where another
    backend was asked for as well, and where torch's flight recorder was, which sees what goes by torch's group alone.

    Raises LaunchError for several backends where this torch takes none in Python."""
    named = _asked_for()
    if len(set(named.values())) < 2:
        return RECORDS and _recorder_asked_for()
    if not IN_PYTHON:
        backend = ",".join(f"{device}:{name}" for device, name in named.items())
        raise LaunchError(
            f"init_process_group: backend {backend!r} was given, but before torch 2.14 a group with mpicoll has "
            "no other backend: make a group for each, new_group(backend='mpicoll') beside the default group"
        )
    return True


def _asked_for() -> dict[str, str]:
    """The backend of each device in the group that torch is making. It hands over none of that: it is read where torch
    has it."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_name == "_new_process_group_helper":
            found: dict[str, str] = frame.f_locals["backend_config"].get_device_backend_map()
            return found
    return {}


def _recorder_asked_for() -> bool:
    """As torch reads its variables, but not by default: what it records costs more than a small collective."""
    sizes = map(os.environ.get, ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    return int(next(filter(None, sizes), 0)) > 0
