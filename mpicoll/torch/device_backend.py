"""A group of mpicoll's as torch's backend for some devices, in a group that is torch's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from weakref import proxy

import torch

from mpicoll.torch.private import BACKENDS_IN_PYTHON, Backend, uncompiled
from mpicoll.torch.torch_calls import TorchCalls

_CUSTOM = torch.distributed.ProcessGroup.BackendType.CUSTOM

FORWARDED = (
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


for _name in FORWARDED:
    setattr(DeviceBackend, _name, _forwarded(_name))
uncompiled(DeviceBackend)


def serve_devices(group: Any) -> None:
    """Give a whole group of mpicoll's, a RegisteredGroup, a backend for each device and a default backend.

    torch's C++ looks for them in every group. Before torch 2.14 the group goes without.
    """
    if BACKENDS_IN_PYTHON:
        backend = DeviceBackend(proxy(group))
        for device in ("cpu", "cuda"):
            group._register_backend(torch.device(device), _CUSTOM, backend)
        group._set_default_backend(_CUSTOM)
