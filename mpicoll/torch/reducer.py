"""How DDP's reducer waits for its all-reduces where a rank has no core to spare.

A thread that waits in MPI takes the core from the rest of the backward pass there, so that it is faster to let the
backward pass wait for each all-reduce. It does so for a moment only. A program may send a message later in its backward
pass that another rank receives before it comes to that all-reduce: waiting for longer would be a deadlock.
"""

from __future__ import annotations

import os
import sys

from mpicoll.errors import ArgumentError
from mpicoll.launch.alone import cores_of_a_rank

__all__ = ["MOMENT", "SWITCH", "called_by_reducer", "waits"]

SWITCH = "MPICOLL_DDP_OVERLAP"
"""The environment variable that decides: 1 never waits, 0 does so however many cores there are."""

MOMENT = 0.1
"""Seconds that the backward pass waits for an all-reduce. Where ranks are at the same place it takes far less."""


def waits() -> bool:
    """Whether the backward pass waits for each of DDP's all-reduces. ArgumentError for a switch that says neither."""
    said = os.environ.get(SWITCH, "")
    if said not in ("", "0", "1"):
        raise ArgumentError("init_process_group", SWITCH, "0 or 1, or nothing", repr(said))
    return said == "0" if said else cores_of_a_rank() < 2


def called_by_reducer() -> bool:
    """Whether what called our caller is DDP's reducer: C++, called by autograd's engine and by no Python since."""
    caller = sys._getframe(1).f_back  # None on a thread of the engine's own
    if caller is not None and caller.f_globals.get("__name__") == "mpicoll.torch.device_backend":
        caller = caller.f_back
    return caller is None or caller.f_globals.get("__name__") == "torch.autograd.graph"
