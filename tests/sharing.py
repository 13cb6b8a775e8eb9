"""A communicator of ranks that know of arrays in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import mpicoll
from mpicoll.fabrics.routes.lying import SHARED
from mpicoll.fabrics.transports import meeting
from mpicoll.machine.blocks import LEAST

NEEDED = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not meeting.in_order(), reason="ranks do not meet in memory on this processor"),
]
"""What tests of such arrays need."""


@contextmanager
def sharing() -> Iterator[mpicoll.Communicator]:
    """One whose ranks say where their arrays lie. They do so from the first call on in which one is shared."""
    with mpicoll.Communicator() as made:
        x = made.zeros(LEAST, np.uint8)
        for route in ("exchange", SHARED):
            made.allreduce(x, out=x)
            assert made.last_route == route
        yield made
