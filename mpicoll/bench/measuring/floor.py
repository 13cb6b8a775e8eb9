"""The floor under a collective's time: how long this machine takes to copy as many bytes, without any message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench.cases.case import Case
from mpicoll.bench.cases.memory import Arena, Buffers
from mpicoll.bench.measuring.timing import Runner, measure
from mpicoll.bench.session import Session


def copy_case(size: int, device: str) -> Case:
    """A copy of ``size`` bytes: what an all-gather among one rank has to do."""
    return Case(COLLECTIVES["allgather"], size, DTYPES["uint8"], "sum", 0, 0, 1, "out", device)


def copy_time(session: Session, arena: Arena, size: int, seconds: float) -> float:
    """The median time in microseconds in which each rank copies ``size`` bytes, all ranks at the same time. Collective.

    It is measured as the backends are, for about ``seconds``. A call's time is that of the slowest rank.
    """
    pairs = arena.buffers(copy_case(size, session.device))
    runner = Runner(pairs, [copy(pair, session.on_gpu) for pair in pairs])
    measure(session.world, [runner], seconds)
    return round(float(np.median(runner.times)), 3)


def copy(pair: Buffers, on_gpu: bool) -> Callable[[], object]:
    """The call that copies one buffer of the pair to the other."""
    x, out = pair.torch() if on_gpu else pair.numpy()
    return partial(out.copy_, x) if on_gpu else partial(np.copyto, out, x)
