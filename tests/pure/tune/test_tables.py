"""Which table decides, and which is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mpicoll.bench.tune.file import TableFile, text_of
from mpicoll.calls import tables
from mpicoll.calls.tables import Table, held
from mpicoll.errors import ArgumentError
from tests.pure.tune.invented import MI, record, won

SETTING = ("A", "Open MPI 5.0.11", False)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any table."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'site'}:")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "env"))
    monkeypatch.setattr(tables, "SHIPPED", tmp_path / "shipped.json")
    return tmp_path


def put(path: Path, name: str, ranks: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of([record(("allreduce", MI, won(4, name)), ranks=ranks).as_dict()]))


def chosen(table: Table, ranks: int = 2) -> str | None:
    found = table.of(ranks)
    return None if found is None else found.refused or found.rows["native", "allreduce"][0][1]


def test_the_first_place_decides(machine: Path) -> None:
    assert chosen(held(*SETTING, 2, "")) is None
    places = {
        "shipped.json": "binomial_tree", "site/mpicoll/table.json": "linear", "env/share/mpicoll/table.json": "bine",
        "user/mpicoll/table.json": "swing",
    }  # fmt: skip
    for file, name in places.items():
        put(machine / file, name)
        assert chosen(held(*SETTING, 2, "")) == name
    put(machine / "mine.json", "ring")
    assert chosen(held(*SETTING, 2, str(machine / "mine.json"))) == "ring"
    assert chosen(held(*SETTING, 2, "off")) is None
    label = held(*SETTING, 2, "").label(2)
    assert label.startswith("the user's table, section ")


def test_sections_of_other_ranks_come_from_the_next_place(machine: Path) -> None:
    put(machine / "user/mpicoll/table.json", "swing")
    put(machine / "shipped.json", "ring", 3)
    found = held(*SETTING, 3, "")
    assert (chosen(found, 2), chosen(found, 3)) == ("swing", "ring")
    assert chosen(held("B", *SETTING[1:], 3, "")) is None
    assert chosen(held(*SETTING[:2], True, 3, "")) is None
    assert chosen(held(*SETTING, 2, ""), 3) is None


def test_an_own_section_comes_before_one_for_all_cpus(machine: Path) -> None:
    common = {**record(("allreduce", MI, won(4, "bine"))).as_dict(), "cpu": None}
    own = record(("allreduce", MI, won(4, "ring"))).as_dict()
    (machine / "shipped.json").write_text(text_of([common, own]))
    assert chosen(held(*SETTING, 2, "")) == "ring"
    assert chosen(held("B", *SETTING[1:], 2, "")) == "bine"


@pytest.mark.parametrize("text", ["{", '{"schema": "mpicoll-table/9", "sections": []}', "\udcff"])
def test_a_damaged_table_is_refused_by_name(machine: Path, text: str) -> None:
    put(machine / "shipped.json", "ring")
    path = machine / "user/mpicoll/table.json"
    path.parent.mkdir(parents=True)
    path.write_text(text, errors="surrogateescape")
    table = held(*SETTING, 2, "")
    (refused,) = table.refusals()
    assert refused.startswith("the user's table is refused: ")
    assert str(path) in refused
    assert table.label(2) == ""


@pytest.mark.parametrize("given", ["/dev/null", "/tmp"])
def test_what_is_no_file_is_refused(machine: Path, given: str) -> None:
    """To read a pipe might never end."""
    put(machine / "shipped.json", "ring")
    (refused,) = held(*SETTING, 2, given).refusals()
    assert f"{given}: expected a file that can be read; given a folder, a pipe or a device" in refused
    with pytest.raises(ArgumentError, match="given a folder, a pipe or a device"):
        TableFile(Path(given)).records()


def test_a_section_of_an_algorithm_that_has_changed_is_refused(machine: Path) -> None:
    given = record(("allreduce", MI, won())).as_dict()
    given["algorithms"]["allreduce"]["ring"] = "as it was"
    (machine / "shipped.json").write_text(text_of([given]))
    (refused,) = held(*SETTING, 2, "").refusals()
    assert refused.endswith("allreduce ring has changed since it was measured")


def test_without_a_home_and_in_the_home_of_somebody_else(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(machine / "shipped.json", "ring")
    stat = Path.stat

    def refused(self: Path, **how: bool) -> os.stat_result:
        if "somebody" in self.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return stat(self, **how)

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setenv("XDG_DATA_HOME", "")
    for home in ("/home/somebody", "a folder that is not absolute"):
        monkeypatch.setenv("HOME", home)
        assert chosen(held(*SETTING, 2, "")) == "ring"
    (said,) = held(*SETTING, 2, "/home/somebody/table.json").refusals()
    assert said.endswith("expected off, or a file; given '/home/somebody/table.json' (Permission denied)")


def test_a_file_that_is_named_must_be_there(machine: Path) -> None:
    (refused,) = held(*SETTING, 2, str(machine / "none")).refusals()
    assert "MPICOLL_TABLE: expected off, or a file" in refused
