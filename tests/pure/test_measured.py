"""What was measured, and where it holds: the CPU's fingerprint, and select.json."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from mpicoll.calls import measured
from mpicoll.errors import ArgumentError
from mpicoll.machine import cpu

AMD = {"vendor_id": "AuthenticAMD", "cpu family": 26, "model": 2, "model name": "AMD EPYC", "stepping": 1}
ARM = {"CPU implementer": "0x41", "CPU variant": "0x3", "CPU part": "0xd0c", "CPU revision": 1}
CACHES = [("1", "48K", "1"), ("2", "1024K", "1"), ("3", "32768K", "00000000,0000ffff")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with none of the files that tell of its CPU, until ``describe`` writes them."""
    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu, "_CACHES", tmp_path / "cache")
    return tmp_path


def describe(machine: Path, model: dict[str, Any], caches: list[tuple[str, str, str]]) -> None:
    lines = "".join(f"{key}\t: {value}\n" for key, value in model.items())
    (machine / "cpuinfo").write_text(f"processor\t: 0\n{lines}\nprocessor\t: 1\nstepping\t: 7\n")
    for i, cache in enumerate(caches):
        (index := machine / "cache" / f"index{i}").mkdir(parents=True)
        for name, value in zip(("level", "size", "shared_cpu_map"), cache, strict=True):
            (index / name).write_text(f"{value}\n")


def fingerprint() -> str:
    return cpu.fingerprint.__wrapped__()


def test_the_fingerprint_tells_models_apart(machine: Path) -> None:
    describe(machine, AMD, CACHES)
    assert fingerprint() == "AuthenticAMD AMD EPYC, family 26 model 2 stepping 1, L2 1024K of 1, L3 32768K of 16"


def test_the_fingerprint_of_an_arm(machine: Path) -> None:
    describe(machine, ARM, CACHES[:2])
    assert fingerprint() == "implementer 0x41 part 0xd0c variant 0x3 revision 1, L2 1024K of 1"


@pytest.mark.parametrize("missing", ["everything", "model", "stepping", "caches"])
def test_a_system_that_does_not_tell(machine: Path, missing: str) -> None:
    if missing != "everything":
        model = {} if missing == "model" else {k: v for k, v in AMD.items() if k != missing}
        describe(machine, model, [] if missing == "caches" else CACHES)
    assert fingerprint() == cpu.UNKNOWN


def section(**changed: Any) -> dict[str, Any]:
    rows = {"native": {"allreduce": {"1024": "ring", "65536": "bine", "1048576": "native"}}, "exchange": {}}
    return {"cpu": "A", "mpi": "Open MPI 5.0.11", "ranks": 2, "oversubscribed": False} | rows | changed


def written(*those: Any) -> str:
    return json.dumps({"measured": those})


def test_the_packaged_table_is_right() -> None:
    for each in measured._packaged():
        assert each.cpu != cpu.UNKNOWN


def test_rows_are_read_longest_first() -> None:
    (found,) = measured.sections(written(section()))
    assert (found.cpu, found.ranks, found.oversubscribed) == ("A", 2, False)
    assert found.rows == {("native", "allreduce"): ((1048576, "native"), (65536, "bine"), (1024, "ring"))}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "select.json: expected JSON"),
        ("[]", "select.json: expected an object with measured alone"),
        ('{"rows": []}', "select.json: expected an object with measured alone"),
        ('{"measured": {}}', r"select.json measured: expected a list; given \{\}"),
        (written(1), r"measured\[0\]: expected an object with cpu, mpi, ranks, oversubscribed, native, exchange"),
        (written({"cpu": "A"}), r"measured\[0\]: expected an object with cpu, mpi"),
        (written(section(cpu="")), r"measured\[0\].cpu: expected a fingerprint, or null; given ''"),
        (written(section(mpi=None)), r"measured\[0\].mpi: expected an MPI library"),
        (
            written(section(ranks=[2, 4])),
            r"measured\[0\].ranks: expected a number of ranks.*given \[2, 4\]",
        ),
        (written(section(oversubscribed=1)), r"measured\[0\].oversubscribed: expected true or false; given 1"),
        (written(section(native=[])), r"measured\[0\].native: expected an object"),
        (written(section(native={"all": {}})), r"native.all: expected a collective of which native is"),
        (written(section(exchange={"bcast": {}})), r"exchange.bcast: expected a collective of which exchange is"),
        (written(section(native={"bcast": []})), r"native.bcast: expected algorithms by bytes"),
        (
            written(section(native={"bcast": {"1K": "chain"}})),
            r"native.bcast: expected bytes.*; given '1K'",
        ),
        (
            written(section(native={"bcast": {"8": "rong"}})),
            r"bcast.8: expected an algorithm that serves 2 ranks; given",
        ),
        (written(section(native={"bcast": {"8": None}})), r"bcast.8: expected an algorithm that serves 2 ranks; given"),
        (written(section(), section(native={})), r"measured\[1\]: expected each setting once"),
    ],
)
def test_a_table_that_is_wrong(text: str, expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        measured.sections(text)


def test_where_rows_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly where they were measured; those of several CPUs where nothing was."""

    def rows(name: str) -> dict[str, Any]:
        return {"native": {"bcast": {"8": name}}}

    text = written(
        section(**rows("chain")),
        section(ranks=4, **rows("linear")),
        section(cpu="B", native={}),
        section(cpu=None, **rows("binomial_tree")),
        section(oversubscribed=True, **rows("binary_tree")),
        section(mpi="MPICH 5.0.2", **rows("scatter_allgather")),
    )
    monkeypatch.setattr(measured, "_packaged", lambda: measured.sections(text))

    def names(cpu: str, mpi: str = "Open MPI 5.0.11", oversubscribed: bool = False) -> dict[int, list[str]]:
        table = measured.table(cpu, mpi, oversubscribed)
        return {ranks: [name for those in rows.values() for _, name in those] for ranks, rows in table.items()}

    assert names("A") == {2: ["chain"], 4: ["linear"]}
    assert names("A", oversubscribed=True) == {2: ["binary_tree"]}
    assert names("A", "MPICH 5.0.2") == {2: ["scatter_allgather"]}
    assert names("A", "Open MPI 5.0.10") == {}
    assert names("B") == {2: []}  # measured, and nothing won
    assert names("C") == names(cpu.UNKNOWN) == {2: ["binomial_tree"]}
    assert pickle.loads(pickle.dumps(measured.table("A", "MPICH 5.0.2", False)))
