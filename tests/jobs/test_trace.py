"""MPICOLL_TRACE: one file of all calls of all ranks, on one clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobs import run, script

pytestmark = pytest.mark.first_mpi

BEGIN = """
    import numpy as np
    import mpicoll

    comm, x = mpicoll.Communicator(), np.ones(100_000, np.float32)
    rank = comm.rank
    comm.allreduce(x)
"""
TORCH = """
    import time
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpicoll")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    x = torch.ones(100_000)
    for i in range(5):
        time.sleep(0.02 * (rank == i % 3))
        dist.all_reduce(x)
    dist.all_reduce(x[:7], async_op=True).get_future().wait()  # by the thread
    if rank < 2:
        dist.broadcast(x, 1, group=pair)
"""


def calls(file: Path) -> list[dict[str, Any]]:
    rows = json.loads(file.read_text())["traceEvents"]
    return [row for row in rows if row["ph"] == "X"]


def of(found: list[dict[str, Any]], rank: int, words: str) -> list[dict[str, Any]]:
    return [row for row in found if row["pid"] == rank and row["name"] == words]


def test_all_calls_of_all_ranks(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    run(3, script(tmp_path, TORCH), env={"MPICOLL_TRACE": str(file)}).good(
        f"mpicoll: the trace of 3 ranks is in {file}"
    )
    found = calls(file)
    assert {row["pid"] for row in found} == {0, 1, 2}
    assert all(row["ts"] >= 0 and row["dur"] >= 0 and row["args"]["state"] == "done" for row in found)
    for rank in range(3):
        long = of(found, rank, "allreduce sum of 100000 float32")
        assert [row["args"]["bytes"] for row in long] == [400_000] * 5
        numbers = [row["args"]["number"] for row in long]
        assert numbers == sorted(numbers)
        assert [row["ts"] for row in long] == sorted(row["ts"] for row in long)
        assert all(row["args"]["algorithm"] for row in long)
        (aside,) = of(found, rank, "allreduce sum of 7 float32")
        assert aside["tid"] != long[0]["tid"]
        broadcasts = of(found, rank, "bcast of 100000 float32 root 1")
        assert len(broadcasts) == (rank < 2)
        assert all(row["args"]["communicator"] != long[0]["args"]["communicator"] for row in broadcasts)
    clocks_are_the_same([of(found, rank, "allreduce sum of 100000 float32") for rank in range(3)])


def clocks_are_the_same(by_rank: list[list[dict[str, Any]]]) -> None:
    """An all-reduce ends on no rank before it has begun on all; and a rank that comes late is seen to."""
    for i, rows in enumerate(zip(*by_rank, strict=True)):
        assert max(row["ts"] for row in rows) < min(row["ts"] + row["dur"] for row in rows)
        late = rows[i % 3]
        previous = by_rank[i % 3][i - 1]
        assert i == 0 or late["ts"] - (previous["ts"] + previous["dur"]) >= 20_000


def test_a_job_that_fails_leaves_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    wrong = "    comm.barrier() if rank == 2 else comm.allreduce(x)\n    comm.barrier()\n"
    run(3, script(tmp_path, BEGIN + wrong), env={"MPICOLL_TRACE": str(file)}).bad()
    last = [max((row for row in calls(file) if row["pid"] == rank), key=lambda row: row["ts"]) for rank in range(3)]
    assert [row["name"].split()[0] for row in last[:2]] == ["allreduce"] * 2
    assert {row["args"]["state"] for row in last[:2]} == {"under way"}
    assert of(calls(file), 2, "barrier")
