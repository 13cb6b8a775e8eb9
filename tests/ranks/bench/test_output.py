"""The table, the files and the picture, from an invented report."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.analysis.palette import styles
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench import plot, records, table
from mpicoll.bench.cases import PLACEMENTS, Case, Placement
from mpicoll.bench.records import Note, Report, Row, grouped, measured, rated
from mpicoll.bench.table import verdict

pytestmark = pytest.mark.first_mpi

ENVIRONMENT = {
    "cpu": "A Processor", "overload": [], "oversubscribed": True, "huge_pages": "madvise",
    "cores": 2,
    "nodes": 1, "shared_memory": True, "ranks": 4, "binding": ["0", "1", "0", "1"],
    "gpus": [], "system": "Linux x86_64", "python": "3.11", "mpicoll": "0.1.0", "mpi": "Open MPI 5.0.11",
    "mpi_standard": "3.1", "mpi_takes_gpu_memory": None, "mpi4py": "4.1.2", "numpy": "2.4.6", "torch": None,
    "gpu_sharing": None, "driver": None, "cuda": None, "nccl": None,
}  # fmt: skip


def row(
    placement: Placement, count: int, backend: str, times: list[float], name: str = "allreduce", sharing: int = 1
) -> Row:
    case = Case(COLLECTIVES[name], count, DTYPES["float32"], "sum", 0, 0, 4, placement, sharing=sharing)
    return measured(case, backend, "native", times, wrong=0)


def report(name: str = "allreduce") -> Report:
    found = Report("mpicoll bench " + name, "2026-01-01T00:00:00+00:00", {"ranks": 4}, ENVIRONMENT)
    for count in (2, 1000, 250_000):
        rows = [
            row(p, count, backend, [slower, slower * (1 + count / 1e3), slower * 90], name)
            for backend, slower in (("mpicoll", 1.0), ("mpi", 2.0), ("gloo", 50.0))
            for p in (PLACEMENTS[name] if backend != "gloo" else PLACEMENTS[name][:1])
        ]
        found.rows += rated(rows, "mpicoll")
    return found


def lines(found: Report) -> list[list[Row]]:
    """The rows of each line of the table."""
    return [*grouped(found.rows, "size", "backend").values()]


def test_bandwidths_are_those_of_nccl_tests() -> None:
    found = row("in-place", 250_000, "mpi", [1000.0, 3000.0])
    assert found.time_us == 2000.0
    assert found.algbw_gbs == pytest.approx(1e6 / 2e-3 / 1e9)
    assert found.busbw_gbs == pytest.approx(found.algbw_gbs * 2 * 3 / 4)
    gathered = row("out-of-place", 62_500, "mpi", [2000.0], "allgather")
    assert gathered.size == 1_000_000
    assert gathered.busbw_gbs == pytest.approx(0.5 * 3 / 4)


@pytest.mark.parametrize("form", ["short", "nccl"])
def test_rows_line_up_with_the_heading(form: str) -> None:
    shown = table.heading(COLLECTIVES["allreduce"], 7, form).splitlines()
    shown += [table.line(rows, 7, form) for rows in lines(report())]
    ends = {re.search(r"ratio| \d+\.\d\d(?=( +0  \w+)?$)", line) for line in shown if re.search("ratio|mpi|gloo", line)}
    assert len({found.end() for found in ends if found}) == 1
    assert None not in ends


def test_a_row_says_what_there_is() -> None:
    rows = lines(report())[5]
    cells = table.line(rows, 7, "nccl").split()
    assert cells[:6] == ["4000", "1000", "float32", "sum", "-1", "gloo"]
    assert cells[6:10] == ["N/A"] * 4
    assert cells[-1] == "50.00"
    assert cells[-3] == "100.00"
    bandwidth = 4000 / 100 / 1e3 * 2 * 3 / 4  # of the median call
    assert table.line(rows, 7).split() == ["4000", "100.00", "4412.0", f"{bandwidth:.2f}", "50.00", "0", "gloo"]


def judged(*times: dict[str, float]) -> str:
    """The verdict's lines on backends that take so long, for vectors of 8 bytes, 16 bytes, and so on."""
    return verdict([row("in-place", 2 << k, name, [us]) for k, each in enumerate(times) for name, us in each.items()])


def test_the_verdict() -> None:
    small, large = {"mpicoll": 2.0, "mpi": 1.0, "gloo": 90.0}, {"mpicoll": 1.0, "mpi": 3.0, "gloo": 90.0}
    assert " ".join(judged(small, small, large).replace("#", "").split()) == (
        "allreduce: the fastest is mpi from 8 to 16, then mpicoll at 32."
    )
    alike = {"mpicoll": 0.98, "mpi": 1.0}
    assert "the fastest is mpi from 8 to 32." in judged(small, alike, small)
    changing = judged(small, large, small, large, small)
    assert "changes from size to size: mpi at 3 sizes, mpicoll at 2 sizes." in " ".join(changing.split("\n#   "))
    assert judged({"mpi": 1.0}) == ""
    assert all(len(line) <= 80 and line.startswith("# ") for line in judged(small, large, small).splitlines())


def test_notes_of_both_placements_become_one() -> None:
    of_both = [Note("gloo", "torch has no scan", "scan", p) for p in ("out-of-place", "in-place")]
    of_one = Note("mpi", "it would not fit", "scan", "in-place")
    assert [str(n) for n in table.merged([of_both[0], of_one, of_both[1]])] == [
        "gloo does not run scan: torch has no scan",
        "mpi does not run scan in place: it would not fit",
    ]


def test_the_header_and_the_footer() -> None:
    found = report()
    found.notes.append(Note("nccl", "there is no GPU"))
    text = table.header(found)
    for part in ("Open MPI 5.0.11", "mpi4py 4.1.2", "A Processor", "0 | 1", "nccl does not run: there is no GPU"):
        assert part in text
    assert "torch" not in text
    assert "the fastest is" in table.footer(found)
    found.environment = {**ENVIRONMENT, "overload": ["9 programs compute on 2 cores"]}
    assert "the fastest is" not in table.footer(found)
    assert "OVERLOADED" in table.footer(found)
    assert "# OVERLOADED, so these times say little: 9 programs compute on 2 cores" in table.header(found).splitlines()


def test_routes_are_named_where_there_are_several() -> None:
    found = report()
    assert table.routes(found.rows) == []
    for i, each in enumerate(found.rows):
        if each.backend == "mpicoll":
            found.rows[i] = replace(each, backend="mpicoll:ring", route="ring")
    assert table.routes(found.rows) == []  # its name says it
    for i, each in enumerate(found.rows):
        if each.backend == "mpicoll:ring":
            found.rows[i] = replace(
                each, backend="mpicoll", route="staged:native" if each.size < 1_000_000 else "staged:ring"
            )
    assert table.routes(found.rows) == ["# mpicoll took staged:native, staged:ring from 1000000"]


def test_the_files_are_what_the_manual_describes(tmp_path: Path) -> None:
    found = report()
    found.notes.append(Note("nccl", "there is no GPU"))
    records.write_json(found, tmp_path / "f.json")
    records.write_csv(found, tmp_path / "f.csv")
    written = json.loads((tmp_path / "f.json").read_text())
    manual = (Path(__file__).parents[3] / "docs/how-to/benchmark.md").read_text()
    for key in [*written, *written["rows"][0], *written["not_run"][0], *written["environment"]]:
        assert f"`{key}`" in manual, key
    with (tmp_path / "f.csv").open(newline="") as file:
        table_rows = list(csv.DictReader(file))
    assert len(table_rows) == 3 * (2 + 2 + 1)
    for full, short in zip(written["rows"], table_rows, strict=True):
        assert full.pop("times_us")
        assert {k: "" if v is None else str(v) for k, v in full.items()} == short


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    device = tmp_path / "f.json"
    device.symlink_to("/dev/null")  # and not the device itself, which a mistake would cost
    records.write_json(report(), device)
    assert device.is_symlink()
    assert [*tmp_path.iterdir()] == [device]


def test_the_picture(tmp_path: Path) -> None:
    """It has a line for each backend, and one for the floor. It is drawn again from its record."""
    pytest.importorskip("matplotlib")
    found = report()
    for with_floor in (False, True):
        found.copies |= {each.size: 0.5 for each in found.rows} if with_floor else {}
        plot.draw(found, tmp_path / "f.svg")
        text = (tmp_path / "f.svg").read_text()
        for part in ("mpicoll", "mpi", "gloo", "bus bandwidth", "allreduce, float32 sum, 4 ranks, in place"):
            assert f">{part}" in text
        assert (">memory copy" in text) == with_floor
    records.write_json(found, tmp_path / "f.json")
    plot.draw(records.load(tmp_path / "f.json"), tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("lines", [1, 6, 10, 11, 40])
def test_no_colour_and_no_pattern_repeats(lines: int) -> None:
    found = styles(map(str, range(lines)))
    assert len({style.color for style in found.values()}) == lines
    assert len({(style.marker, str(style.dashes)) for style in found.values()}) == lines


@pytest.mark.mpi
def test_the_environment_names_no_machine() -> None:
    from mpi4py import MPI

    from mpicoll.bench.session import environment, open_session

    session = open_session(MPI.COMM_WORLD, "cpu")
    found = environment(session)
    assert found["ranks"] == len(found["binding"]) == MPI.COMM_WORLD.size
    assert found["nodes"] == 1
    text = json.dumps(found)
    assert os.sep not in text.replace("\\/", "")
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert set(found) == set(ENVIRONMENT)
