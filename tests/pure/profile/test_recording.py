"""A tape is told what happens, and what is in its file is read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll.errors import ArgumentError
from mpicoll.profile.recording import Recording, load
from mpicoll.profile.report import draw
from mpicoll.supervise import tape
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending, Record, Recorder, Waits
from mpicoll.supervise.trace import written
from mpicoll.supervise.watched import Watched

SUM = Record("allreduce", "sum of 4 float32", 16, 4, "float32")
COME = Pending.message("irecv", "came from rank 1 (tag 3)", 4, "float32", Ends((1,), 3), 16)
TAKEN = Pending.message("send", "was taken by rank 1 (tag 3)", 4, "float32", Ends(targets=(1,), target_tag=3), 16)


class Told:
    """A communicator whose calls are noted on a tape. Each look at the clock is a second later than the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(tape, "monotonic", self._tick)
        self.tape, self.recorder, self.waits = tape.Tape(), Recorder(), Waits()
        Watched("c.1", [0, 1], self.recorder, self.waits, 600.0, False).note_on(self.tape)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def call(self, record: Record) -> None:
        self.recorder.begin(record)
        self.recorder.under_way = False

    def wait(self, pending: Pending, since: float) -> None:
        begun = pending, since
        self.waits.append(begun)
        self.waits.remove(begun)

    def read(self, folder: Path) -> Recording:
        file = folder / "step.json"
        assert written(file, {0: self.tape.copied(self.tape.begin)}, {}, 2) == ""
        return load(file)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def seconds(*us: float) -> list[float]:
    return [each / 1e6 for each in us]


def test_messages(told: Told, tmp_path: Path) -> None:
    told.recorder.begin_message(COME)
    told.wait(TAKEN, 2.5)  # it blocks
    told.wait(COME, 2.0)
    came, taken = told.read(tmp_path).calls
    assert (came.kind, came.sources, came.source_tag, came.number) == ("irecv of 4 float32", (1,), 3, None)
    assert seconds(came.issued, *came.waits[0]) == [1, 4, 5]
    assert seconds(taken.issued, *taken.method) == [1.5, 2, 3]


def test_messages_of_one_kind_are_told_apart_by_their_times(told: Told, tmp_path: Path) -> None:
    for _ in range(3):
        told.recorder.begin_message(COME)  # at the seconds 2, 3 and 4
    for since in (4.0, 2.0, 3.0):
        told.wait(COME, since)
    assert [seconds(*call.waits[0]) for call in told.read(tmp_path).calls] == [[6, 7], [8, 9], [4, 5]]


def test_the_first_calls_may_be_lost(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the recording begins with the first one that is kept: before that, the program has not computed."""
    monkeypatch.setattr(tape, "MOST", 3)
    for _ in range(5):
        told.recorder.begin_message(COME)
    recording = told.read(tmp_path)
    assert len(recording.calls) == 3
    assert seconds(*recording.spans[0]) == [0, 3]
    assert sum(map(len, told.tape._under_way.values())) == 3


def test_the_picture(told: Told, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told.call(SUM)
    recording = told.read(tmp_path)
    for shown, last in ((recording, None), (recording, 1500.0), (replace(recording, calls=[]), None)):
        draw(shown, tmp_path / "step.png", last)
        assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    for last in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="--last"):
            draw(recording, tmp_path / "step.png", last)


NO_COMMUNICATORS = '{"traceEvents": [], "mpicoll": {"communicators": []}}'
OTHERS = ["", "[]", "[" * 99999, "{}", '{"traceEvents": [], "mpicoll": {}}', '{"traceEvents": [{}]}', NO_COMMUNICATORS]


@pytest.mark.parametrize("content", OTHERS)
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_text(content)
    with pytest.raises(ArgumentError, match=r"expected a file that mpicoll\.record or MPICOLL_TRACE has written"):
        load(file)
    with pytest.raises(ArgumentError, match=r"a file that can be read.*No such file"):
        load(tmp_path / "nowhere.json")
