"""Sums and products of 16-bit floats that travel as float32. Another route reduces them, and they are rounded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer, host_buffer
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace


def bind(call: Call, route: Callable[[Call], list[Plan]], workspace: Workspace, has_result: bool = True) -> list[Plan]:
    """The steps of a call that reduces 16-bit floats. ``route`` gives those of the same call on float32, whose arrays
    are in the ``workspace``. The route's own memory must not be. Rank 0 of an exscan has no result."""
    send, recv, reduction = call.send, call.recv, call.reduction
    assert reduction is not None
    floats = workspace.arrays(np.dtype(np.float32), *(0 if b is None else b.count for b in (send, recv)))
    wide_send, wide_recv = map(_floats, (send, recv), floats)
    given, widened = (send, floats[0]) if send is not None else (recv, floats[1])
    assert given is not None
    wide = replace(
        call,
        send=wide_send,
        recv=wide_recv,
        in_place=call.in_place and send is None,  # else input and output, which share memory, are copied apart
        reduction=replace(reduction, dtype=DTYPES["float32"]),
    )
    # These arrays hold the memory, as long as the plan lives: a longer call may get the workspace other memory.
    widen = partial(kernels.widen, kernels.values(given), widened, reduction.dtype)
    steps: list[Plan] = [widen, *route(wide)]
    if recv is not None and has_result:
        steps.append(partial(kernels.narrow, floats[1], kernels.values(recv), reduction.dtype))
    return steps


def _floats(like: Buffer | None, memory: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Buffer | None:
    """This memory as a buffer of float32 values, as many as ``like`` has. It holds the memory."""
    return None if like is None else host_buffer(memory.view(np.uint8), like.shape, DTYPES["float32"])
