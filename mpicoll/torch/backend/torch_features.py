"""What this version of torch can do with backends written in Python, and what it asks of mpicoll for a new group."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed

from mpicoll.errors import LaunchError

__all__ = ["BACKENDS_IN_PYTHON", "RECORDS_BACKENDS_IN_PYTHON", "bound_device", "wants_device_backend"]


def _can_be_made() -> bool:
    backend: Any = torch._C._distributed_c10d.Backend
    try:
        backend(0, 1)
    except TypeError:  # "No constructor defined"
        return False
    return True


BACKENDS_IN_PYTHON = _can_be_made()
"""Whether a backend of one device may be written in Python. From torch 2.14 on it may.

Before that Python can only make a whole group, which serves every device.
"""
RECORDS_BACKENDS_IN_PYTHON = hasattr(torch.distributed.distributed_c10d, "_maybe_attach_flight_recorder")
"""Whether torch's flight recorder sees such backends. From torch 2.15 on it does."""


def wants_device_backend() -> bool:
    """Whether the group that torch is making remains torch's own, and needs from mpicoll only a backend for a device.

    So it is if the program names another backend as well, as in ``"cpu:gloo,cuda:mpicoll"``. So it is also if the
    program asks for the flight recorder, which sees only what goes through a group of torch's own.

    Raises LaunchError if the program names several backends and this torch takes none that is written in Python.
    """
    named = _named_backends()
    if len(set(named.values())) < 2:
        return RECORDS_BACKENDS_IN_PYTHON and _recorder_is_asked_for()
    if not BACKENDS_IN_PYTHON:
        backend = ",".join(f"{device}:{name}" for device, name in named.items())
        raise LaunchError(
            f"init_process_group: backend {backend!r} was given, but before torch 2.14 a group with mpicoll has "
            "no other backend: make a group for each, new_group(backend='mpicoll') beside the default group"
        )
    return True


def _named_backends() -> dict[str, str]:
    """The backend of each device in the group that torch is making; empty if torch is making none.

    torch does not pass this to the functions that make backends.
    """
    config = _while_torch_makes_a_group().get("backend_config")
    found: dict[str, str] = {} if config is None else config.get_device_backend_map()
    return found


def bound_device() -> torch.device | None:
    """The ``device_id`` of the group that torch is making. torch does not pass this, either."""
    device = _while_torch_makes_a_group().get("device_id")
    return device if isinstance(device, torch.device) and device.type != "cpu" else None


def _while_torch_makes_a_group() -> Mapping[str, Any]:
    """The variables of torch's function that makes a group, from its frame on the stack; empty if it makes none."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_name == "_new_process_group_helper":
            return frame.f_locals
    return {}


def _recorder_is_asked_for() -> bool:
    """Whether a variable of the flight recorder is set.

    torch itself records by default. A record costs more than a small collective, so mpicoll does not.
    """
    sizes = map(os.environ.get, ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    return int(next(filter(None, sizes), 0)) > 0
