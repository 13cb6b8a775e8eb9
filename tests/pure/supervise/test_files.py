"""Traces: how times of other clocks are brought to one, and calls that fit into no message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mpicoll.supervise import tape
from mpicoll.supervise.messages import Question, RowsFrom
from mpicoll.supervise.record import Record, Recorder, Waits
from mpicoll.supervise.trace import Trace, by_this_clock, difference
from mpicoll.supervise.watched import Watched
from mpicoll.supervise.wire import line_of, message_in


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
