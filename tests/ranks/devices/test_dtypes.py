"""Every dtype and operation on the memory of a device, by every route, in every collective."""

from __future__ import annotations

import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES, OPS
from tests.devices.checks import MOVING, by, check
from tests.devices.on import ROUTES, On

pytestmark = pytest.mark.first_mpi


@pytest.mark.slow
@by(*ROUTES)
@pytest.mark.parametrize("name", MOVING)
def test_every_dtype_and_op(comm: mpicoll.Communicator, on: On, name: str, route: str) -> None:
    for op in OPS if COLLECTIVES[name].reduces else ["sum"]:
        for i, (dtype, kind) in enumerate((d.name, d.kind) for d in DTYPES.values()):
            if kind in OPS[op][0] or not COLLECTIVES[name].reduces:
                check(comm, on, name, route, dtype, op, (5,), "plain", root=i % comm.size)
