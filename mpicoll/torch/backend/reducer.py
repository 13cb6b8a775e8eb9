"""How the backward pass waits for DistributedDataParallel's all-reduces on a rank that has no core to spare.

DDP's reducer starts an all-reduce as soon as enough gradients are there, and the backward pass goes on. On a rank with
one core, a thread that waits in MPI takes the core from the backward pass. There it is faster if the backward pass
waits for each all-reduce, but only for a moment: later in its backward pass a program may send a message for which
another rank waits before it comes to that all-reduce. To wait for longer would be a deadlock.
"""

from __future__ import annotations

import sys

from mpicoll.calls.rules import overlaps
from mpicoll.launch.launch_env import cores_of_a_rank

MOMENT = 0.1
"""Seconds for which the backward pass waits for an all-reduce. If all ranks are there, it takes far less."""


def waits() -> bool:
    """Whether the backward pass waits, as MPICOLL_DDP_OVERLAP says: if that is 0, with however many cores."""
    wish = overlaps()
    return cores_of_a_rank() < 2 if wish is None else not wish


def called_by_reducer() -> bool:
    """Whether DDP's reducer called the function that calls this one.

    The reducer is C++. Autograd's engine, C++ too, calls it. So the function's caller is the Python that started the
    engine, or nobody if the engine uses a thread of its own. Functions of this package may stand between.
    """
    caller = sys._getframe(1).f_back
    while caller is not None and caller.f_globals.get("__package__") == __package__:
        caller = caller.f_back
    return caller is None or caller.f_globals.get("__name__") == "torch.autograd.graph"
