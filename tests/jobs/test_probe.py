"""What a test job finds out of an MPI library that takes device memory, or does wrong, and where it is kept."""

from __future__ import annotations

import json
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mpicoll import doctor
from mpicoll.calls.choose import PATHS
from mpicoll.doctor import gpu
from mpicoll.jobs import spawn
from mpicoll.probe import device_memory
from mpicoll.probe.device_memory import Key, cached, file_of, keep, key_of, probed
from mpicoll.probe.tries import BEGUN
from tests.devices.faulty import Faulty
from tests.devices.simulated import Simulated
from tests.jobs.jobs import half, slowness

KEY: Key = {
    "mpi": "Open MPI 5.0.11", "ucx": "1.22.0", "device": "NVIDIA H200, CUDA 13.0", "settings": {"OMPI_MCA_pml": "ucx"},
}  # fmt: skip
RIGHT = dict.fromkeys(PATHS, "")
ENOUGH = 600.0
"""Seconds for jobs that end by themselves."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    in_another_process(monkeypatch)
    return tmp_path / "mpicoll" / "device-memory"


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this one knows by heart is forgotten."""
    monkeypatch.setattr(device_memory, "_known", {})


def test_an_mpi_that_takes_it() -> None:
    assert device_memory.tried(Simulated(), ENOUGH, ENOUGH) == RIGHT


@pytest.mark.parametrize(("path", "how"), half([*product(PATHS, ["lies"]), *product(PATHS[::-1], ["crashes"])]))
def test_an_mpi_that_does_wrong(path: str, how: str) -> None:
    """One that crashes is given an address that nobody may touch, or the system refuses to copy from there."""
    found = device_memory.tried(Faulty(path, how), ENOUGH, ENOUGH)
    assert {p for p, why in found.items() if why} == {path}
    words = ("wrong data arrives",) if how == "lies" else ("SIG", "MPI", "exit code")
    assert any(word in found[path] for word in words), found


@pytest.mark.slow
@pytest.mark.parametrize("path", half(PATHS))
def test_an_mpi_that_hangs(path: str) -> None:
    seconds = 15 * slowness()
    why = f"could not be tried: the test job does not end within {seconds:.0f} s"
    assert device_memory.tried(Faulty(path, "hangs"), seconds) == {**RIGHT, path: why}


def test_all_jobs_together_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path hangs: the jobs for the first two take all the time."""
    given, clock = [], [0.0]

    def hangs(device: object, paths: tuple[str, ...], seconds: float) -> tuple[list[list[str]], str]:
        given.append(seconds)
        clock[0] += seconds + 1
        return [[BEGUN]] * 2, "the test job does not end"

    monkeypatch.setattr(device_memory, "_job", hangs)
    monkeypatch.setattr(device_memory, "monotonic", lambda: clock[0])
    *found, last = device_memory.tried(Simulated(), 60, 90).values()
    assert given == [60, 29]
    assert found == ["the test job does not end"] * 2
    assert last.endswith("no time was left")
    assert gpu.TRIES < doctor.SECONDS, "the other ranks would not wait for it"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How each test job ends, and how many were asked for. They are not started. All paths but the last are right."""
    asked: dict[str, Any] = {"ends": (139, ""), "count": 0}

    def started(call: bytes, ranks: int, **more: object) -> tuple[int | None, str]:
        *_, folder = pickle.loads(pickle.loads(call)[2])
        for rank in range(ranks):
            Path(folder, str(rank)).write_text(" ".join([BEGUN, *["right"] * (len(PATHS) - 1)]))
        asked["count"] += 1
        ends: tuple[int | None, str] = asked["ends"]
        return ends

    monkeypatch.setattr(spawn, "call_in_ranks", started)
    return asked


@pytest.mark.parametrize(
    ("ends", "why", "is_kept"),
    [
        ((139, ""), "it ends by SIGSEGV", True),
        ((14, ""), "the test job ends with exit code 14", True),
        ((1, "rank 0 failed:\n\nmpi4py.MPI.Exception: Bad address, error stack:\nin Send\n"), "mpi4py.MPI.Exc", True),
        ((1, "rank 1 failed:\n\nTraceback\nMemoryError\n"), "could not be tried: MemoryError", False),
        ((137, ""), "could not be tried: the test job ends with exit code 137", False),
        ((None, ""), "could not be tried: the test job does not end within 60 s", False),
    ],
)
def test_what_may_pass_is_not_kept(
    ends: object, why: str, is_kept: bool, jobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """What the other paths have shown is kept. A process tries once."""
    device, jobs["ends"] = Simulated(), ends
    found = probed(device)
    assert (probed(device), jobs["count"]) == (found, 1)
    assert found[PATHS[-1]].startswith(why)
    assert cached(key_of(device)) == (found if is_kept else dict.fromkeys(PATHS[:-1], ""))
    (file,) = cache.iterdir()
    assert json.loads(file.read_text())["key"]["device"] == "simulated"
    in_another_process(monkeypatch)
    assert probed(device, tries=False)[PATHS[-1]].startswith(why if is_kept else "nobody has tried")
    assert (probed(device), jobs["count"]) == (found, 1 if is_kept else 2)


def test_a_cache_that_cannot_be_written(jobs: dict[str, Any], cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert probed(Simulated()) == probed(Simulated())
    assert (jobs["count"], cache.is_file()) == (1, True)


def test_what_says_nothing_of_the_library_is_not_kept(
    jobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    """A library that says no is believed."""
    found = probed(Simulated(mpi=False))
    assert found == dict.fromkeys(PATHS, "the MPI library says that it takes no such memory")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    in_another_process(monkeypatch)
    found = probed(Simulated())
    assert set(found) == set(PATHS)
    assert all(why.startswith("could not be tried: no mpirun or mpiexec") for why in found.values())
    assert (jobs["count"], cache.exists()) == (0, False)


def test_an_answer_holds_for_its_key_alone() -> None:
    keep(KEY, RIGHT)
    assert cached(KEY) == RIGHT
    for name, value in {"mpi": "5.0.10", "ucx": "1.20.0", "device": "H100", "settings": {}}.items():
        assert cached({**KEY, name: value}) is None


@pytest.mark.parametrize("text", ["", "[]", "null", '{"key": {}, "paths": {}}', "\xff"])
def test_a_broken_file_is_no_answer(text: str) -> None:
    keep(KEY, RIGHT)
    file = file_of(KEY)
    assert file is not None
    file.write_text(text, encoding="latin-1")
    assert cached(KEY) is None
    keep(KEY, RIGHT)
    assert cached(KEY) == RIGHT


def test_settings_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UCX_TLS": "tcp", "OMPI_MCA_pml": "ucx", "OMPI_MCA_initial_wdir": "/", "HOME_": "x"}.items():
        monkeypatch.setenv(name, value)
    key = key_of(Simulated())
    assert {"UCX_TLS", "OMPI_MCA_pml"} <= set(key["settings"])
    assert not {"OMPI_MCA_initial_wdir", "HOME_"} & set(key["settings"])
    assert key["mpi"].split()[0] in ("Open", "MPICH")
    assert key["ucx"] == "" or key["ucx"].split(".")[0].isdigit()
