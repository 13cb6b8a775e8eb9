"""mpicoll tune from nothing: what it writes, what jobs make of it, and what happens when it is disturbed."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mpicoll.bench.tune.file import TableFile
from tests.jobs.jobs import Done, ended, python, run, script, started, until

pytestmark = pytest.mark.slow

SHORT = ("tune", "allreduce", "-n", "2", "--min", "16K", "--max", "64K", "--budget", "5s")
CHOICE = """
    import mpicoll
    import numpy as np

    with mpicoll.Communicator() as comm:
        comm.allreduce(np.ones(1 << 16, np.float32))
        if comm.rank == 0:
            print("took", comm.last_route)
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has no table."""
    return {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_DATA_DIRS": "", "MPICOLL_TABLE": ""}


def table_of(home: dict[str, str]) -> Path:
    return Path(home["XDG_DATA_HOME"], "mpicoll", "table.json")


def mpicoll(*argv: str, home: dict[str, str]) -> Done:
    return python("-m", "mpicoll", *argv, env=home)


def choosing(home: dict[str, str], name: str) -> None:
    """Let the user's table choose this algorithm from 16 KiB on, as a section that was measured here."""
    given = json.loads(table_of(home).read_text())
    given["sections"][0]["native"] = {"allreduce": {"16384": name}}
    table_of(home).write_text(json.dumps(given))


def test_from_nothing_to_a_choice(home: dict[str, str], tmp_path: Path) -> None:
    first = mpicoll(*SHORT, "--plot", str(tmp_path / "table.png"), home=home)
    assert first.code == 0, first.output
    assert "of which this run takes 5 s at most" in first.output
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    (record,) = TableFile(table_of(home)).records()
    assert record.ranks == 2
    assert record.model is not None
    launches = len(record.launches)
    assert launches >= 1

    second = mpicoll(*SHORT, home=home)
    assert second.code == 0, second.output
    (again,) = TableFile(table_of(home)).records()
    assert {*record.launches} <= {*again.launches}  # it has gone on, or everything was decided

    measured = {name for time in again.times for name in time.p50_us} - {"native", "exchange"}
    assert measured
    name = "ring" if "ring" in measured else sorted(measured)[0]
    choosing(home, name)
    program = script(tmp_path, CHOICE)
    assert f"took {name}" in run(2, program, env=home).output
    assert "took native" in run(2, program, env={**home, "MPICOLL_TABLE": "off"}).output
    assert "took native" in run(2, program, env={**home, "MPICOLL_ALGORITHM": "allreduce:native"}).output
    ask = ("tune", "--why", "allreduce", "64K", "-n", "2")
    own = mpicoll(*ask, "-o", str(table_of(home)), home={**home, "MPICOLL_TABLE": "off"})
    assert f"allreduce of 64K among 2 ranks: {name}" in own.output
    why = mpicoll(*ask, home=home)
    assert f"allreduce of 64K among 2 ranks: {name}" in why.output
    assert str(table_of(home)) in why.output
    assert "the user's table, section " in why.output
    assert "regret: " in why.output
    bench = mpicoll(
        "bench", "allreduce", "-n", "2", "--backends", "mpicoll", "--max", "8", "--seconds", "0.01", home=home
    )
    assert "# mpicoll chooses by the user's table, section " in bench.output


def test_ctrl_c_keeps_what_was_measured(home: dict[str, str]) -> None:
    argv = [sys.executable, "-m", "mpicoll", "tune", "allreduce", "-n", "2", "--max", "16K", "--budget", "10m"]
    with started(*argv, env=home) as (it, output):
        until(table_of(home).exists, "the first launch is kept", output)
        it.process.send_signal(signal.SIGINT)
        stopped = ended(it, output)
    assert stopped.code == 130, stopped.output
    assert "interrupted: the next run goes on from here" in stopped.output
    (record,) = TableFile(table_of(home)).records()
    assert record.launches


def test_two_tuners_at_once(home: dict[str, str]) -> None:
    argv = [sys.executable, "-m", "mpicoll", "tune", "-n", "2", "--max", "16K", "--budget", "5s"]
    with started(*argv, "allreduce", env=home) as (one, of_one), started(*argv, "bcast", env=home) as (two, of_two):
        for it, output in ((one, of_one), (two, of_two)):
            done = ended(it, output)
            assert done.code == 0, done.output
    (record,) = TableFile(table_of(home)).records()
    assert {"allreduce", "bcast"} <= {cell.case for cell in record.cells}


@pytest.mark.parametrize("text", ["{", '{"schema": "mpicoll-table/9", "sections": []}'])
def test_a_damaged_table_does_not_end_a_job(home: dict[str, str], tmp_path: Path, text: str) -> None:
    table_of(home).parent.mkdir(parents=True)
    table_of(home).write_text(text)
    done = run(2, script(tmp_path, CHOICE), env=home)
    assert done.code == 0
    assert "took native" in done.output
    refused = [line for line in done.output.splitlines() if "the user's table is refused" in line]
    assert len(refused) == 1
    assert str(table_of(home)) in refused[0]
    tuned = mpicoll(*SHORT, home=home)
    assert tuned.code == 2
    assert table_of(home).read_text() == text


def test_a_table_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It is refused before anything is measured."""
    from mpicoll.bench.tune import launches
    from mpicoll.cli import main

    def launch(*_: object) -> None:
        pytest.fail("something was measured")

    monkeypatch.setattr(launches, "launch", launch)
    (tmp_path / "file").touch()
    (tmp_path / "table.json.lock").mkdir()
    for name in ("file/table.json", "table.json"):
        assert main(["tune", "allreduce", "-o", str(tmp_path / name)]) == 2
        assert "tune: -o: expected a file that can be written; given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["rong"], "COLLECTIVE: expected one of "),
        (["barrier"], "COLLECTIVE: expected one of allreduce, "),
        (["--budget", "5"], "expected a time, as 30s, 5m or 1h; given '5'"),
        (["-n", "1,2"], "expected numbers of ranks, each at least 2"),
        (["--min", "1M", "--max", "16K"], "--min: expected no more than --max"),
        (["--why", "allreduce"], "--why: expected a collective and a size"),
        (["--why", "allreduce", "1M", "--budget", "3s"], "--budget: expected nothing beside --why; given 3.0"),
        (["-o", __file__], f"-o: expected a table that mpicoll tune has written; given {__file__!r} (mpicoll: "),
        (["--for", "no.json"], "--for: expected a trace that MPICOLL_TRACE has written"),
    ],
)
def test_bad_input(argv: list[str], expected: str, capsys: Any) -> None:
    from mpicoll.cli import main

    try:
        code = main(["tune", *argv])
    except SystemExit as e:
        code = int(str(e.code))
    assert code == 2
    assert expected in capsys.readouterr().err
