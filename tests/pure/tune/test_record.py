"""From times to rows, and through a file and back."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpicoll.bench.tune import shipped
from mpicoll.bench.tune.cells import Cell
from mpicoll.bench.tune.file import TableFile, text_of
from mpicoll.bench.tune.record import Record, by_size
from mpicoll.bench.tune.shipped import table
from mpicoll.bench.tune.tuner import MOST, wanted
from mpicoll.bench.tune.why import seen
from mpicoll.calls.measured import cico_digest, sections
from mpicoll.errors import ArgumentError
from tests.pure.tune.invented import MI, record, times, won


@pytest.mark.parametrize("pages", ["small", "huge"])
def test_each_kind_of_pages_counts(pages: str) -> None:
    found, cell = record(("allreduce", MI, won())), Cell("allreduce", MI)
    assert found.verdict(cell) == "ring"
    fast = found.speed(cell, "ring")
    found.times = [t._replace(p50_us=times(10.0, ring=9.6)) if t.pages == pages else t for t in found.times]
    assert sorted(found.speedups(cell)["ring"][0]) == pytest.approx([10 / 9.6, fast])
    assert found.speed(cell, "ring") == pytest.approx(10 / 9.6)
    assert found.verdict(cell) == "ring"
    found.times = [t._replace(p50_us=times(10.0, ring=9.9)) if t.pages == pages else t for t in found.times]
    assert found.verdict(cell) is None


def test_a_launch_that_lacks_a_kind_of_pages_does_not_count() -> None:
    found = record(("allreduce", MI, won()))
    found.times.pop()
    assert len(found.of(Cell("allreduce", MI))) == 3
    assert found.verdict(Cell("allreduce", MI)) is None


def test_small_pages_alone_do_not_count_where_arrays_may_lie_on_huge_ones() -> None:
    """Records of earlier versions measured short vectors so."""
    found = record(("allreduce", MI, won()))
    found.times = [time for time in found.times if time.pages == "small"]
    assert found.verdict(Cell("allreduce", MI)) is None
    found.environment = {**found.environment, "huge_pages": "never"}
    assert found.verdict(Cell("allreduce", MI)) == "ring"


def test_native_runs_again_halfway() -> None:
    assert by_size({16: None, 64: "ring", 256: "ring", 1024: None}, "native") == {64: "ring", 512: "native"}
    assert by_size({16: "ring", 64: "bine"}, "native") == {16: "ring", 64: "bine"}


def test_an_algorithm_for_all_sizes_is_slower_at_none() -> None:
    """No rank of an alltoallv knows how long the others' part is."""
    even = times(10.0, linear=10.2, pairwise=10.2)
    fast = times(20.0, linear=10.0, pairwise=9.0)
    rather = times(20.0, linear=10.0, pairwise=19.0)
    alike = record(("alltoallv", 256, [even] * 4), ("alltoallv", MI, [fast] * 4))
    assert alike.as_dict()["native"] == {"alltoallv": {"0": "pairwise"}}
    assert {*alike.as_dict()["algorithms"]["alltoallv"]} == {"linear", "pairwise"}
    both = record(("alltoallv", 256, [even] * 4), ("alltoallv", MI, [fast] * 4), ("alltoallv", 4 * MI, [rather] * 4))
    assert both.as_dict()["native"] == {"alltoallv": {"0": "linear"}}
    slow = times(10.0, linear=10.2, pairwise=12.0)
    one = record(("alltoallv", 256, [slow] * 4), ("alltoallv", MI, [fast] * 4))
    assert one.as_dict()["native"] == {}  # pairwise won, and linear was not measured as the fastest anywhere
    assert record(("alltoallv", 256, [even] * 4)).as_dict()["native"] == {}
    assert record(("alltoallv", MI, [fast] * 4)).as_dict()["native"] == {}  # nothing short was measured
    by_size = record(("allgatherv", 256, [slow] * 4), ("allgatherv", MI, [times(20.0, ring=10.0)] * 4))
    assert by_size.as_dict()["native"] == {"allgatherv": {str(MI): "ring"}}


def test_a_file_and_back(tmp_path: Path) -> None:
    file = TableFile(tmp_path / "new" / "table.json")
    mine = record(("allreduce", MI, won()), ("reduce:max", MI, [{"exchange": 20.0, "chain": 10.0}] * 4))
    file.add(mine)
    (back,) = file.records()
    mine.times.sort()
    assert back == mine
    (section,) = sections(file.path.read_text(), "t")
    assert section.rows == {("native", "allreduce"): ((MI, "ring"),), ("exchange", "reduce"): ((MI, "chain"),)}
    assert section.outdated() == ""


def test_nothing_of_other_runs_is_lost(tmp_path: Path) -> None:
    """Neither another setting's section nor what a shorter or another run has measured in the same one."""
    file = TableFile(tmp_path / "table.json")
    file.add(record(("allreduce", MI, won()), key="first"))
    file.add(record(("allreduce", MI, won()), ranks=3))
    file.add(record(("allreduce", MI, won(1)), ("bcast", MI, won(4, "chain")), key="second"))
    two, three = file.records()
    assert (two.ranks, three.ranks) == (2, 3)
    assert len(two.of(Cell("allreduce", MI))) == 5
    assert len(two.of(Cell("bcast", MI))) == 4


def test_two_names_of_one_table_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "table.json")
    tuning = TableFile(tmp_path / "link")._locked()
    with tuning, (tmp_path / "table.json.lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_said_of_a_size_without_a_whole_launch() -> None:
    """A launch counts if it has measured all kinds of pages that there are now."""
    found = record(("allreduce", MI, won()))
    found.times = [time for time in found.times if time.pages == "small"]
    assert [*seen(found, "allreduce", MI, "native")] == ["  times: the table keeps none for it"]


def test_times_of_an_algorithm_that_has_changed_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    given = record(("allreduce", MI, [times(20.0, ring=10.0, bine=5.0)] * 4)).as_dict()
    given["algorithms"]["allreduce"]["bine"] = "as it was"
    path.write_text(text_of([given]))
    (back,) = TableFile(path).records()
    assert {*back.times[0].p50_us} == {"native", "ring"}
    assert back.as_dict()["native"] == {"allreduce": {str(MI): "ring"}}


@pytest.mark.parametrize(
    "text",
    ["{", '{"schema": "mpicoll-table/9", "sections": []}', json.dumps({"measured": []})],
)
def test_a_file_that_is_no_table_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    file = TableFile(tmp_path / "t")
    with pytest.raises(ArgumentError, match=str(file.path)):
        file.records()
    with pytest.raises(ArgumentError):
        file.add(record(("allreduce", MI, won())))
    assert file.path.read_text() == text


@pytest.mark.parametrize(
    ("where", "damage"),
    [
        ("times", {"p50_us": {"native": 10.0, "ring": given}})
        for given in (0, -1.0, "fast", None, float("nan"), float("inf"))
    ]
    + [("times", {"size": size}) for size in ("big", True, -5, 0, 10**25)]
    + [("times", {"pages": 5}), ("times", {"launch": "?"}), ("launches", {"began": 5})]
    + [("", {"environment": None}), ("", {"model": {"x": 1}}), ("", {"model": "fast"})],
)
def test_damaged_measurements_are_refused(tmp_path: Path, where: str, damage: dict[str, Any]) -> None:
    given = record(("allreduce", MI, won())).as_dict()
    damaged = given[where][0] if where else given
    damaged |= damage
    file = tmp_path / "table.json"
    file.write_text(text_of([given]))
    with pytest.raises(ArgumentError, match=r"sections\[0\]: expected launches and their times; given .*\w"):
        TableFile(file).records()


def test_what_is_measured_next() -> None:
    cell = Cell("allreduce", MI)
    names = ["ring", "bine"]
    assert wanted(record(), cell, names) == names
    slow = [times(10.0, ring=20.0, bine=9.0)]
    assert wanted(record(("allreduce", MI, slow)), cell, names) == ["bine"]
    assert wanted(record(("allreduce", MI, won())), cell, names) == []
    unsure = [times(by, ring=10.0) for by in (10.0, 16.0, 10.0, 16.0)]
    assert wanted(record(("allreduce", MI, unsure)), cell, ["ring"]) == ["ring"]
    assert wanted(record(("allreduce", MI, unsure * (MOST // 4))), cell, ["ring"]) == []


def test_a_section_without_a_cpu_has_what_won_everywhere() -> None:
    here = record(("allreduce", MI, won()), ("bcast", MI, won(4, "chain")))
    there = record(("allreduce", MI, won(1)), ("bcast", MI, won(1, "chain", 1.1)), cpu="B")
    first, second, common = sections(table([here, there]), "t")
    assert (first.cpu, second.cpu, common.cpu) == ("A", "B", None)
    assert {c for _, c in first.rows} == {"allreduce", "bcast"}
    assert {c for _, c in second.rows} == {c for _, c in common.rows} == {"allreduce"}


def test_an_older_record_may_lack_a_newer_algorithm() -> None:
    old = record(("allreduce", MI, won(1, "chain")))
    new = record(("allreduce", MI, won(4, "cico", 3.0)))
    (own,) = sections(table([old, new]), "t")
    assert own.rows["native", "allreduce"] == ((MI, "cico"),)
    assert own.digests["allreduce"] == {"cico": cico_digest("A")}


def test_a_section_without_a_cpu_has_what_won_by_far_on_two_cpus_and_lost_on_none() -> None:
    """What a third CPU has not measured says nothing of it: a case that is new, or an algorithm."""

    def common(*records: Record) -> Mapping[tuple[str, str], Sequence[tuple[int, str]]]:
        *_, last = sections(table(records), "t")
        assert last.cpu is None
        return last.rows

    won_here = record(("allreduce", MI, won(4, "cico")))
    won_there = record(("allreduce", MI, won(4, "cico")), cpu="B")
    elsewhere = record(("allreduce", MI, won(4, "chain")), ("bcast", MI, won()), cpu="C")
    lost = record(("allreduce", MI, won(4, "cico", 0.9)), cpu="D")
    cico = {("native", "allreduce"): ((MI, "cico"),)}
    assert common(won_here, won_there) == common(won_here, won_there, elsewhere) == cico
    assert common(won_here, elsewhere) == {}
    hardly = record(("allreduce", MI, won(4, "cico", 1.1)), cpu="B")
    assert common(won_here, hardly) == cico
    assert common(won_here, hardly, elsewhere) == {}
    assert common(won_here, won_there, lost) == common(won_here, won_here, elsewhere, lost) == {}


def test_a_candidate_of_a_few_launches_does_not_win_where_there_are_many() -> None:
    """It was left out of the later ones, because another one was faster then."""
    launches = [times(30.0, ring=10.0, linear=5.0), *won(4, by=3.0)]
    (section,) = sections(table([record(("allreduce", MI, launches))]), "t")
    assert section.rows["native", "allreduce"] == ((MI, "ring"),)


def test_a_record_that_is_not_there_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made.json"
    monkeypatch.setattr(sys, "argv", ["shipped", str(tmp_path / "misspelt.json"), "-o", str(made)])
    with pytest.raises(SystemExit):
        shipped.main()
    assert "expected a file; given" in capsys.readouterr().err
    assert not made.exists()


@pytest.mark.slow
def test_the_shipped_table_is_what_the_records_say() -> None:
    from mpicoll.calls.tables import SHIPPED

    files = sorted((Path(__file__).parents[3] / "benchmarks/records").glob("tune-*.json"))
    assert files
    assert SHIPPED.read_text() == table([each for file in files for each in TableFile(file).records()])
