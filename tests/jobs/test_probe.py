"""What a test job finds out of an MPI library that takes device memory, or does wrong, and where it is kept."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from mpicoll import doctor
from mpicoll.calls.choose import PATHS
from mpicoll.doctor import gpu
from mpicoll.jobs import spawn
from mpicoll.probe import device_memory
from mpicoll.probe.device_memory import Key, cached, file_of, keep, key_of, known, probed
from mpicoll.probe.tries import BEGUN
from tests.devices.faulty import Faulty
from tests.devices.simulated import Simulated
from tests.jobs.jobs import half, slowness

KEY: Key = {
    "mpi": "Open MPI 5.0.11",
    "ucx": "1.22.0",
    "device": "NVIDIA H200, CUDA 13.0",
    "settings": {"OMPI_MCA_pml": "ucx"},
}
RIGHT = dict.fromkeys(PATHS, "")
ENOUGH = 600.0
"""Seconds for jobs that end by themselves."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(device_memory, "_known", {})
    return tmp_path / "mpicoll" / "device-memory"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices with which test jobs were asked for. They are not started."""
    asked: list[str] = []

    def tried(device: Simulated) -> dict[str, str]:
        asked.append(device.model)
        return {**RIGHT, "reductions": "it ends by SIGSEGV"}

    monkeypatch.setattr(device_memory, "tried", tried)
    return asked


def test_an_mpi_that_takes_it() -> None:
    assert device_memory.tried(Simulated(), ENOUGH, ENOUGH) == RIGHT


@pytest.mark.parametrize("path", PATHS)
def test_an_mpi_that_lies(path: str) -> None:
    assert device_memory.tried(Faulty(path, "lies"), ENOUGH, ENOUGH) == {**RIGHT, path: "wrong data arrives"}


@pytest.mark.parametrize("path", PATHS)
def test_an_mpi_that_crashes(path: str) -> None:
    """The MPI is given an address that nobody may touch. It crashes, or the system refuses to copy from there."""
    found = device_memory.tried(Faulty(path, "crashes"), ENOUGH, ENOUGH)
    assert {p for p, why in found.items() if why} == {path}
    assert "SIG" in found[path] or "MPI" in found[path] or "exit code" in found[path]


@pytest.mark.slow
@pytest.mark.parametrize("path", half(PATHS))
def test_an_mpi_that_hangs(path: str) -> None:
    seconds = 15 * slowness()
    why = f"could not be tried: the test job does not end within {seconds:.0f} s"
    assert device_memory.tried(Faulty(path, "hangs"), seconds) == {**RIGHT, path: why}


def test_all_jobs_together_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path hangs: the jobs for the first three take all the time."""
    given, clock = [], [0.0]

    def hangs(device: object, paths: tuple[str, ...], seconds: float) -> tuple[list[list[str]], str]:
        given.append(seconds)
        clock[0] += seconds + 1
        return [[BEGUN]] * 2, "could not be tried: the test job does not end"

    monkeypatch.setattr(device_memory, "_job", hangs)
    monkeypatch.setattr(device_memory, "monotonic", lambda: clock[0])
    found = device_memory.tried(Simulated(), 60, 150)
    assert given == [60, 60, 28]
    assert [why.rpartition(": ")[2] for why in found.values()] == ["the test job does not end"] * 3 + [
        "no time was left"
    ]
    assert gpu.TRIES < doctor.SECONDS, "the other ranks would not wait for it"


@pytest.mark.parametrize(
    ("done", "why", "is_kept"),
    [
        ((139, ""), "it ends by SIGSEGV", True),
        ((6, ""), "it ends by SIGABRT", True),
        ((14, ""), "the test job ends with exit code 14", True),
        ((1, "rank 0 failed:\n\nmpi4py.MPI.Exception: Bad address, error stack:\nin Send\n"), "mpi4py.MPI.Exc", True),
        ((1, "rank 1 failed:\n\nTraceback\nMemoryError\n"), "could not be tried: MemoryError", False),
        ((137, ""), "could not be tried: the test job ends with exit code 137", False),
        ((None, ""), "could not be tried: the test job does not end within 60 s", False),
    ],
)
def test_what_may_pass_is_not_kept(
    done: tuple[int | None, str], why: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """What the other paths have shown is kept. A process tries once."""
    jobs: list[tuple[int | None, str]] = []

    def started(call: bytes, ranks: int, **more: object) -> tuple[int | None, str]:
        *_, folder = pickle.loads(pickle.loads(call)[2])
        for rank in range(ranks):
            Path(folder, str(rank)).write_text(" ".join([BEGUN, *["right"] * (len(PATHS) - 1)]))
        jobs.append(done)
        return done

    monkeypatch.setattr(spawn, "call_in_ranks", started)
    device = Simulated()
    found = probed(device)
    assert probed(device) == found
    assert len(jobs) == 1
    assert found[PATHS[-1]].startswith(why)
    assert cached(key_of(device)) == (found if is_kept else dict.fromkeys(PATHS[:-1], ""))
    monkeypatch.setattr(device_memory, "_known", {})  # as in another process
    assert known(device)[PATHS[-1]].startswith(why if is_kept else "nobody has tried")
    assert probed(device) == found
    assert len(jobs) == (1 if is_kept else 2)


def test_without_a_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = probed(Simulated())
    assert set(found) == set(PATHS)
    assert all(why.startswith("could not be tried: no mpirun or mpiexec") for why in found.values())
    assert not cache.exists(), "this says nothing of the MPI library"


def test_a_library_that_says_no_is_believed(jobs: list[str], cache: Path) -> None:
    found = probed(Simulated(mpi=False))
    assert set(found.values()) == {"the MPI library says that it takes no such memory"}
    assert not jobs
    assert not cache.exists()


def test_an_answer_is_kept(jobs: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Simulated()
    first = probed(device)
    monkeypatch.setattr(device_memory, "_known", {})  # as in another process
    assert probed(Simulated()) == first
    assert jobs == [device.model]
    (file,) = cache.iterdir()
    assert file == file_of(key_of(device))
    written = json.loads(file.read_text())
    assert written["paths"] == first
    assert written["key"]["device"] == "simulated"
    file.unlink()
    monkeypatch.setattr(device_memory, "_known", {})
    probed(device)
    assert len(jobs) == 2


def test_a_process_asks_once(jobs: list[str], cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert probed(Simulated()) == probed(Simulated())
    assert len(jobs) == 1
    assert cache.is_file()


@pytest.mark.parametrize(
    "other",
    [
        {**KEY, "mpi": "Open MPI 5.0.10"},
        {**KEY, "ucx": "1.20.0"},
        {**KEY, "device": "NVIDIA H200, CUDA 13.1"},
        {**KEY, "settings": {"OMPI_MCA_pml": "ob1"}},
    ],
)
def test_an_answer_holds_for_its_key_alone(other: Key) -> None:
    keep(KEY, RIGHT)
    assert cached(KEY) == RIGHT
    assert cached(other) is None


def file_of_key() -> Path:
    found = file_of(KEY)
    assert found is not None
    return found


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": {}, "paths": {}}', "\xff"])
def test_a_broken_file_is_no_answer(text: str) -> None:
    keep(KEY, RIGHT)
    file_of_key().write_text(text, encoding="latin-1")
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
    assert (key["ucx"] == "") or key["ucx"].split(".")[0].isdigit(), os.environ
