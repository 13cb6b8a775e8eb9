"""The forms of files: what torch's tool makes of right calls, and how times of other clocks are brought to one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.supervise import tape
from mpicoll.supervise.agent import RowsFrom
from mpicoll.supervise.dump import kept_by_all, recording
from mpicoll.supervise.messages import Question
from mpicoll.supervise.record import LENGTH, Record, Recorder, Waits
from mpicoll.supervise.trace import Trace, by_this_clock, difference
from mpicoll.supervise.watched import Watched
from mpicoll.supervise.wire import line_of, message_in

OPERATIONS = [
    *COLLECTIVES, "gatherv", "allgatherv", "scatterv", "reduce_scatterv", "alltoallv", "bcast_object", "gather_object",
    "allgather_object", "scatter_object", "alltoall_object", "node", "split",
]  # fmt: skip


def snapshot(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"communicators": [{"name": "c.1", "ranks": [0, 1, 2], "calls": [*calls]}]}


def call(number: int, operation: str) -> dict[str, Any]:
    elements = 0 if operation.endswith(("object", "node", "split", "alltoallv", "barrier")) else 12
    description = f"{operation} of {elements} float32" if elements else operation
    known = {"elements": elements, "dtype": "float32" if elements else "", "seen": float(number), "state": "done"}
    words = {"number": number, "operation": operation, "description": description}
    return {**words, "file": "a.py", "line": 1, "function": "f", **known}


def analysed(recordings: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> str:
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    caplog.clear()  # its import may say that it would print nicer tables with another package
    arguments = SimpleNamespace(verbose=False, just_print_entries=False, allow_incomplete_ranks=False, mismatch_cap=10)
    details = {str(rank): {"rank": rank, **each} for rank, each in enumerate(recordings)}
    with caplog.at_level(logging.INFO):
        builder.build_db(details, arguments, recordings[0]["version"])
    return caplog.text


@pytest.mark.parametrize("operation", OPERATIONS)
def test_torch_knows_every_operation(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same call on all ranks is none that torch's tool complains of; another one is."""
    right = recording(snapshot(call(0, operation), call(1, "allreduce")), {})
    assert analysed([right, right, right], caplog) == ""
    other = recording(snapshot(call(0, "bcast" if operation != "bcast" else "reduce"), call(1, "allreduce")), {})
    assert "Culprit rank 2" in analysed([right, right, other], caplog)


def test_ranks_that_have_forgotten_different_calls(caplog: pytest.LogCaptureFixture) -> None:
    """One rank is a call ahead, and its ring has turned: it has forgotten more than the others."""
    furthest = 3 * LENGTH + 1
    kept = [range(2 * LENGTH, furthest), *[range(LENGTH, furthest - 1)] * 2]
    since = {"c.1": kept_by_all(furthest)}
    recordings = [recording(snapshot(*(call(number, "allreduce") for number in each)), since) for each in kept]
    found = analysed(recordings, caplog)
    assert f"sequence number: {furthest - 1}" in found
    assert found.count("Not all ranks joining") == 1


def test_times_of_another_clock() -> None:
    """The fastest reading counts. The other clock is a second ahead at the time 100, and three at the time 200."""
    assert difference([(10.0, 117.0, 20.0), (30.0, 131.1, 30.2)]) == pytest.approx((30.1, 101.0))
    assert difference([(10.0, 10.001, 10.5)]) == (10.25, 0.0)  # it is the same node's
    readings = [(100.0, 1.0), (200.0, 3.0)]
    assert by_this_clock(101.0, readings) == pytest.approx(100.0)
    assert by_this_clock(203.0, readings) == pytest.approx(200.0, abs=0.1)
    assert by_this_clock(5.0, []) == 5.0
    close = [(100.0, 1.0), (100.01, 1.0001)]
    assert by_this_clock(51.0, close) == pytest.approx(50.0), "a small error does not become a large one"
    assert by_this_clock(151.0, close) == pytest.approx(150.0, abs=0.001)


@pytest.mark.parametrize("answers", [[0, 1, 2], [0, 2]], ids=["all answer", "one is silent"])
def test_a_trace_that_fits_into_no_message(answers: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank tells it in pieces. A rank that is missing is not counted. A signal asks for it once more at the end of
    the job, when all have left: it is not replaced by less."""
    monkeypatch.setattr(tape, "_PIECE", 1000)
    calls = [Record("allgatherv", f"counts {[number] * 20}") for number in range(100)]
    events = {}
    for rank in answers:
        on, recorder = tape.Tape(), Recorder()
        Watched("c.1", [0, 1, 2], recorder, Waits(), 600.0, False).note_on(on)
        for record in calls:
            recorder.begin(record)
            recorder.under_way = record is calls[-1]
        events[rank] = on.copied(on.begin)
    longest = 0

    async def ask(ranks: Iterable[int], question: Question[Any], seconds: float = 0.0) -> dict[int, Any]:
        nonlocal longest
        if not isinstance(question, RowsFrom):
            return {}
        told = {rank: line_of(tape.piece(events[rank], question.first)) for rank in ranks if rank in events}
        longest = max([longest, *map(len, told.values())])
        return {rank: message_in(each) for rank, each in told.items()}

    file = tmp_path / "trace.json"
    trace = Trace(str(file), ask, whole=True)
    trace.told_by.update((0, 1, 2))
    said = asyncio.run(trace.write(3))
    assert said == f"mpicoll: the trace of {'3' if len(answers) == 3 else '2 of 3'} ranks is in {file}"
    rows = [row for row in json.loads(file.read_text())["traceEvents"] if row["ph"] == "X"]
    for rank in answers:
        assert [row["name"] for row in rows if row["pid"] == rank] == [record.description for record in calls]
        assert [row["args"]["state"] for row in rows if row["pid"] == rank][-2:] == ["done", "under way"]
    assert {row["tid"] for row in rows} == {0}
    assert longest < 2000
    written = file.read_text()
    events.clear()
    assert asyncio.run(trace.write(3)) == said
    assert file.read_text() == written
