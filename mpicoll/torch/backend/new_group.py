"""What torch asks of mpicoll for a new group."""

from __future__ import annotations

import os

import torch

from mpicoll.errors import LaunchError
from mpicoll.torch.private import BACKENDS_IN_PYTHON, RECORDS_BACKENDS_IN_PYTHON, in_the_making

__all__ = ["bound_device", "wants_device_backend"]


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
    """The backend of each device in the group that torch is making; empty if torch is making none."""
    config, _ = in_the_making()
    found: dict[str, str] = {} if config is None else config.get_device_backend_map()
    return found


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
