"""The methods for uneven blocks, as `mpicoll tune` measures them."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from mpicoll.algorithms.collectives import UNEVEN, even_and_uneven
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench.backends import open_backend
from mpicoll.bench.cases.case import PLACEMENTS, Case, elements
from mpicoll.bench.cases.memory import Arena
from mpicoll.bench.measuring.timing import Runner, measure
from mpicoll.bench.session import open_session
from mpicoll.calls import select


@pytest.mark.parametrize("operation", UNEVEN)
def test_every_algorithm_gets_the_right_result(operation: str) -> None:
    session = open_session(MPI.COMM_WORLD, "cpu")
    collective, dtype, ranks = even_and_uneven(operation)[0], DTYPES["float32"], session.world.size
    count, placement = elements(collective, 64 << 10, dtype, ranks), PLACEMENTS[collective.name][0]
    case = Case(collective, count, dtype, "sum", 0, session.world.rank, ranks, placement, uneven=True)
    assert case.operation == operation
    pairs = Arena().buffers(case)
    for name in select.names(operation):
        if name == "wide":
            continue  # it is for 16-bit floats
        backend = open_backend(f"mpicoll:{name}", session)
        runner = Runner(pairs, [backend.bind(pair) for pair in pairs], backend.route)
        measure(session.world, [runner], 0.001)
        assert runner.wrong == 0
        assert runner.routes == [name]
        backend.close()
