"""What was measured: the CPU's fingerprint, and what a table may have."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpicoll import algorithms
from mpicoll.algorithms.digests import digest
from mpicoll.calls import measured, tables
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
    known = {"algorithms": {"allreduce": {name: made(name, "allreduce") for name in ("ring", "bine")}}}
    return {"cpu": "A", "mpi": "Open MPI 5.0.11", "ranks": 2, "oversubscribed": False} | known | rows | changed


def made(name: str, collective: str, ranks: int = 2) -> str:
    """The digest of an algorithm as it is now."""
    found = algorithms.find(collective, name)
    assert found is not None
    return digest(found, ranks)


def written(*those: Any) -> str:
    return json.dumps({"schema": measured.SCHEMA, "sections": those})


def test_the_packaged_table_is_right() -> None:
    """If this fails because an algorithm has changed: measure it again, then `python -m mpicoll.bench.tune.shipped`."""
    there = measured.sections(tables.SHIPPED.read_text(), "select.json")
    assert there
    for each in there:
        assert each.cpu != cpu.UNKNOWN
        assert each.outdated() == ""


def test_rows_are_read_longest_first() -> None:
    (found,) = measured.sections(written(section()), "t")
    assert (found.cpu, found.ranks, found.oversubscribed) == ("A", 2, False)
    assert found.rows == {("native", "allreduce"): ((1048576, "native"), (65536, "bine"), (1024, "ring"))}
    assert found.outdated() == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "my.json: expected JSON"),
        ("[]", "my.json: schema: expected 'mpicoll-table/1'"),
        ('{"schema": "mpicoll-table/2", "sections": []}', "my.json: schema: .*; given 'mpicoll-table/2'"),
        ('{"schema": "mpicoll-table/1"}', r"my.json: sections: expected a list; given None"),
        (written(1), r"sections\[0\]: expected an object with cpu, mpi, ranks, oversubscribed, algorithms, native"),
        (written({"cpu": "A"}), r"sections\[0\]: expected an object with cpu, mpi"),
        (written(section(cpu="")), r"sections\[0\].cpu: expected a fingerprint, or null; given ''"),
        (written(section(mpi=None)), r"sections\[0\].mpi: expected an MPI library"),
        (
            written(section(ranks=10**30)),
            r"sections\[0\].ranks: expected a number of ranks, from 2 to 4096; given 10",
        ),
        (written(section(ranks=[2, 4])), r"sections\[0\].ranks: expected a number of ranks.*given \[2, 4\]"),
        (written(section(oversubscribed=1)), r"sections\[0\].oversubscribed: expected true or false; given 1"),
        (written(section(algorithms=["ring"])), r"sections\[0\].algorithms: expected digests"),
        (written(section(native=[])), r"sections\[0\].native: expected an object"),
        (written(section(native={"all": {}})), r"native.all: expected a collective of which native is"),
        (written(section(exchange={"bcast": {}})), r"exchange.bcast: expected a collective of which exchange is"),
        (written(section(native={"bcast": []})), r"native.bcast: expected algorithms by bytes"),
        (written(section(native={"bcast": {"1K": "chain"}})), r"native.bcast: expected bytes.*; given '1K'"),
        (written(section(native={"bcast": {"9" * 5000: "chain"}})), r"native.bcast: expected bytes.*; given '999"),
        ("[" * 100_000, "my.json: expected JSON"),
        (written(section(native={"bcast": {"8": None}})), r"bcast.8: expected an algorithm's name; given None"),
        (written(section(native={"reduce": {"8": "exchange"}})), r"reduce.8: expected an algorithm's name"),
        (written(section(), section(native={})), r"sections\[1\]: expected each setting once"),
    ],
)
def test_a_table_that_is_wrong(text: str, expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        measured.sections(text, "my.json")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"native": {"allreduce": {"8": "rong"}}}, "allreduce has no algorithm rong"),
        ({"algorithms": {"allreduce": {"bine": made("bine", "allreduce")}}}, "allreduce ring has changed"),
        ({"algorithms": {}}, "allreduce .* has changed since it was measured"),
        ({"ranks": 3, "native": {"allreduce": {"8": "even"}}}, "allreduce even does not serve 3 ranks"),
    ],
)
def test_sections_that_do_not_hold_any_more(changed: dict[str, Any], why: str) -> None:
    (found,) = measured.sections(written(section(**changed)), "t")
    ring = algorithms.find("allreduce", "ring")
    assert ring is not None
    with algorithms.temporary_registry():
        algorithms.add(replace(ring, name="even", declines=lambda size, root: "odd" if size % 2 else None))
        assert re.match(why, found.outdated())


CHANGED = "cico has changed since it was measured"


@pytest.mark.parametrize(("said", "why"), [(measured.cico_digest("A"), ""), ("0", CHANGED)])
def test_cico_as_it_was_measured(said: str, why: str) -> None:
    given = {"native": {"bcast": {"8": "cico"}}, "algorithms": {"bcast": {"cico": said}}}
    (found,) = measured.sections(written(section(**given)), "t")
    assert found.outdated() == why
    (of_none,) = measured.sections(written(section(**given | {"algorithms": {}})), "t")
    assert of_none.outdated() == CHANGED


def test_cico_goes_another_way_where_ranks_overwrite_what_they_have_read() -> None:
    amd = "AuthenticAMD AMD EPYC, family 25 model 17 stepping 1, L2 1024K of 1, L3 32768K of 2"
    others = (None, "unknown", amd.replace("17", "1"), amd.replace("AuthenticAMD", "HygonGenuine"))
    assert measured.cico_digest(amd) not in {measured.cico_digest(cpu) for cpu in others}


def test_the_hash_is_of_what_jobs_see() -> None:
    """Not of the times, nor of algorithms that no row names."""
    first, same, other, times = measured.sections(
        written(
            section(),
            section(cpu="B"),
            section(ranks=4),
            section(mpi="MPICH 5.0.2", times=[]),
        ),
        "t",
    )
    assert len({first.hash, same.hash, other.hash, times.hash}) == 4
    (with_times,) = measured.sections(written(section(times=[1], launches=[], model=None, environment={})), "t")
    more = {"algorithms": {"allreduce": section()["algorithms"]["allreduce"] | {"swing": "x"}}}
    (unused,) = measured.sections(written(section(**more)), "t")
    (another,) = measured.sections(written(section(native={})), "t")
    assert first.hash == with_times.hash == unused.hash != another.hash


def test_the_digest_is_of_the_steps() -> None:
    assert made("ring", "allreduce") != made("bine", "allreduce") != made("bine", "allreduce", 4)
    ring = algorithms.find("allreduce", "ring")
    assert ring is not None
    assert digest(replace(ring, name="other"), 4) == digest(ring, 4)
    assert digest(replace(ring, segment=1 << 20), 4) != digest(ring, 4)
