"""What a run of the tuner measures, in which order. Its launches are invented: each candidate is twice as fast."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mpicoll.bench.tune.cells import Cell
from mpicoll.bench.tune.file import TableFile
from mpicoll.bench.tune.launches import Found, Order, Progress, launch
from mpicoll.bench.tune.statistics import LAUNCHES
from mpicoll.bench.tune.tuner import Group, Tuner, once_more
from mpicoll.cli import tune as cli
from mpicoll.launch import launcher
from tests.pure.tune.invented import ENVIRONMENT, MI, record, times, won

ALLREDUCE, BCAST = (Group(case, 2, (MI,)) for case in ("allreduce", "bcast"))


class Launches:
    """Stands in for jobs, and keeps what each was to measure."""

    def __init__(self) -> None:
        self.orders: list[list[str]] = []

    def __call__(self, ranks: int, order: Order, what: str, progress: Progress) -> Found:
        said: list[dict[str, Any]] = [{"environment": {**ENVIRONMENT, "oversubscribed": False}}]
        if order.cells:
            self.orders.append([cell.case for cell, _ in order.cells])
        for cell, names in order.cells:
            p50_us = {name: 20.0 if name == cell.otherwise else 10.0 for name in names}
            said += [{**cell._asdict(), "pages": kind, "p50_us": p50_us, "seconds": 0.1} for kind in ("huge", "small")]
        return Found(said, 1.0, False)


def tuned(file: Path, *groups: Group) -> list[list[str]]:
    """The cases of each launch of a run that has time for all."""
    launches = Launches()
    tuner = Tuner(groups, TableFile(file), 1000.0, launches)
    with Progress(1.0) as progress:
        tuner.run(progress)
    return launches.orders


def aged(file: Path, age: timedelta) -> None:
    """Let all launches of the table have begun so long ago."""
    kept = TableFile(file)
    (known,) = kept.records()
    began = (datetime.now(UTC) - age).isoformat(timespec="milliseconds")
    known.launches = {key: launch._replace(began=began) for key, launch in known.launches.items()}
    file.unlink()
    kept.add(known)


def test_what_was_just_decided_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "table.json"
    assert tuned(file, ALLREDUCE) == [["allreduce"]] * (LAUNCHES + 1)
    assert tuned(file, ALLREDUCE) == []
    assert "# allreduce among 2 ranks: all is decided" in capsys.readouterr().out


def test_a_second_ctrl_c_keeps_what_the_launch_has_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def attended(program: Sequence[str], nprocs: int, interrupted: Callable[[], None]) -> int:
        Path(program[-1]).write_text('{"size": 16384}\n{"size": 655')
        interrupted()
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "attended", attended)
    with Progress(1.0) as progress:
        found = launch(2, Order(), "bcast", progress)
    assert found.interrupted
    assert found.said == [{"size": 16384}]


def test_what_was_decided_an_hour_ago_comes_once_more_and_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.json"
    tuned(file, ALLREDUCE)
    aged(file, timedelta(minutes=61))
    capsys.readouterr()
    assert tuned(file, ALLREDUCE, BCAST) == [["bcast"]] * (LAUNCHES + 1) + [["allreduce"]]
    assert "# allreduce among 2 ranks: once more 1M of native, " in capsys.readouterr().out
    assert tuned(file, ALLREDUCE) == []


def test_a_short_time_decides_the_first_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches that decide one group take all the time, so the next group has to wait for the next run."""
    now = [0.0]
    launches = Launches()

    def launch(ranks: int, order: Order, what: str, progress: Progress) -> Found:
        found = launches(ranks, order, what, progress)
        now[0] += found.seconds
        return found

    monkeypatch.setattr("mpicoll.bench.tune.tuner.time.monotonic", lambda: now[0])
    looks, starts = 1, LAUNCHES + 1
    with Progress(1.0) as progress:
        Tuner([ALLREDUCE, BCAST], TableFile(tmp_path / "table.json"), 1.0 * (looks + starts), launch).run(progress)
    assert launches.orders == [["allreduce"]] * (LAUNCHES + 1)


def test_an_alltoallv_is_measured_from_short_vectors_on() -> None:
    """Its algorithm serves all sizes. Other methods for uneven blocks have an algorithm for each size."""
    args = Namespace(collectives=["alltoallv", "allgatherv"], trace=None, min=None, max=1 << 20, n=[2])
    least = {group.case: min(group.sizes) for group in cli._groups(args)}
    assert least == {"alltoallv": 256, "allgatherv": 16 << 10}


def test_the_longest_vectors_come_after_all_others() -> None:
    args = Namespace(collectives=["allreduce", "bcast"], trace=None, min=16 << 20, max=64 << 20, n=[2])
    asked = [(group.case, group.sizes) for group in cli._groups(args)]
    assert asked == [
        (case, (size,)) for size in (16 << 20, 64 << 20) for case in ("allreduce", "bcast", "allreduce:max")
    ]


def test_one_line_says_all_sizes_of_a_case(tmp_path: Path) -> None:
    groups = [Group("allreduce", 2, (size,)) for size in (MI, 4 * MI)]
    tuner = Tuner(groups, TableFile(tmp_path / "table.json"), 1000.0, Launches())
    with Progress(1.0) as progress:
        tuner.run(progress)
    (line, _) = Tuner(groups, tuner.file, 0.0, Launches(), tuner.records, tuner.candidates).said().splitlines()
    assert line == "# allreduce among 2 ranks: all is decided"
    tuner.records.clear()
    tuner.records[2] = record()
    assert tuner.said().startswith("# allreduce among 2 ranks: 1M, 4M of native, cico, ")


def test_only_what_came_near_is_measured_once_more() -> None:
    cell, after = Cell("allreduce", MI), "2026-01-01T01:00"
    known = record(("allreduce", MI, [times(20.0, ring=10.0, bine=15.0)] * (LAUNCHES + 1)))
    assert once_more(known, cell, ["ring", "bine"], after) == ["ring"]
    assert once_more(known, cell, ["ring", "bine"], "2026-01-01T00:00") == []


def test_a_winner_that_loses_an_hour_later_is_given_up() -> None:
    cell = Cell("allreduce", MI)
    assert record(("allreduce", MI, won())).verdict(cell) == "ring"
    assert record(("allreduce", MI, [*won(), *won(by=0.9)])).verdict(cell) is None
