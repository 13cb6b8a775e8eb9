"""What a recorded program makes the tuner measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpicoll.bench.tune.traced import groups_of
from mpicoll.bench.tune.tuner import Group
from mpicoll.errors import ArgumentError


def event(words: str, nbytes: int, dur: float, rank: int, comm: str = "c.1") -> dict[str, object]:
    return {"ph": "X", "name": words, "pid": rank, "dur": dur, "args": {"communicator": comm, "bytes": nbytes}}


def test_the_calls_that_took_most_time_come_first(tmp_path: Path) -> None:
    events = [
        *(event("allreduce sum of 8 float32", 8, 9e6, rank) for rank in range(2)),
        *(event("bcast of 100000 float32 root 0", 400_000, 10.0, rank) for rank in range(2)),
        *(event("all_reduce max of 262144 float32", 1 << 20, 300.0, rank) for rank in range(2)),
        *(event("iallreduce sum of 65536 float32", 1 << 18, 200.0, rank, "c.2") for rank in range(3)),
        *(event("allreduce sum of 65536 float32 algorithm ring", 1 << 18, 9e6, rank) for rank in range(2)),
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    exchange, among_3, bcast = groups_of(file, [], None, None, None)
    # both took 600 us
    assert {exchange, among_3} == {Group("allreduce:max", 2, (1 << 20,)), Group("allreduce", 3, (1 << 18,))}
    assert bcast == Group("bcast", 2, (1 << 18,))
    assert groups_of(file, ["bcast"], [2], None, None) == [bcast]


@pytest.mark.parametrize("text", ["{}", "[]", '"text"'])
def test_a_file_that_is_no_trace(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(
        ArgumentError, match=r"MPICOLL_TRACE has written; given '.*other.json', which has no 'traceEvents'"
    ):
        groups_of(file, [], None, None, None)


def test_methods_for_uneven_blocks_are_cases_of_their_own(tmp_path: Path) -> None:
    """torch's exchanges are carried out by alltoallv."""
    names = ("allgatherv", "all_to_all_single", "all_gather_into_tensor")
    events = [
        event(f"{name} of 65536 float32", 1 << 18, 1e6 / (i + 1), r) for i, name in enumerate(names) for r in (0, 1)
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    found = {group.case: group.sizes for group in groups_of(file, [], None, None, None)}
    assert [*found] == ["allgatherv", "alltoallv", "allgather"]
    assert found["allgatherv"] == (1 << 18,)
    assert found["alltoallv"] == (256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18)  # its algorithm is for all sizes
