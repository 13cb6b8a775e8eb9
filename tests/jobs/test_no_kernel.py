"""Where mpicoll was installed without a C compiler, there is no kernel. All calls are right nevertheless."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.jobs.jobs import REPOSITORY, run, script

pytestmark = pytest.mark.first_mpi

WITHOUT = """
    import sys

    sys.modules["mpicoll.node.kernel"] = None
"""
PROGRAM = """
    import numpy as np
    import mpicoll
    from mpicoll.errors import ArgumentError

    comm = mpicoll.Communicator()
    total = comm.size * (comm.size + 1) / 2
    for count in (1, 100_000):
        for made in (np.empty, comm.empty):
            x = made(count)
            x.fill(comm.rank + 1)
            assert (comm.allreduce(x) == total).all()
            assert comm.last_route == "native"
            assert (comm.allreduce(x, "max") == comm.size).all()
            assert comm.last_route == "exchange"
            comm.bcast(x, root=1)
            assert (x == 2).all()
            assert comm.last_route == "native"
    half = np.full(1000, comm.rank + 1, np.float16)
    assert (comm.scan(half) == (comm.rank + 1) * (comm.rank + 2) / 2).all()
    counts = [[3 * r + s for s in range(comm.size)] for r in range(comm.size)]
    mine, theirs = counts[comm.rank], [row[comm.rank] for row in counts]
    found = comm.alltoallv(np.full(sum(mine), comm.rank), mine, theirs)
    assert (found == np.repeat(np.arange(comm.size), theirs)).all()
    try:
        comm.barrier(algorithm="node")
    except ArgumentError as e:
        print("refused:", e)
"""


def test_calls_go_the_mpis_way(tmp_path: Path) -> None:
    script(tmp_path, WITHOUT, "sitecustomize.py")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    result = run(2, script(tmp_path, PROGRAM), env=env).good()
    assert result.output.count("or mpicoll has no kernel here: `mpicoll doctor`); given 'node'") == 2
    assert "comm.empty makes ordinary arrays" in result.output


def test_the_doctor_says_so(tmp_path: Path) -> None:
    script(tmp_path, WITHOUT, "sitecustomize.py")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)]), "OMP_NUM_THREADS": "1"}
    run(2, "-m", "mpicoll", "doctor", env=env).good(
        "warning  kernel         mpicoll's kernel is not there: import of",
        "-> Install a C compiler and Python's headers",
    )
