"""Jobs on the emulated cluster: submitted as a user does, from a folder that has ``slurm/`` and ``examples/`` in it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
STARTUP = Path(__file__).parents[1] / "startup"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
MINUTES = 10
"""What a job may take before Slurm ends it as TIMEOUT. Each takes seconds on a quiet machine."""
STANDSTILL = 60.0 * (MINUTES + 2)
"""Seconds in which some job of the queue begins or ends, if Slurm itself works."""
FIRST = 2**32 - 16
"""A priority above all that Slurm gives. Below it, a job would wait for all that are in the queue."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment whose mpi4py finds an MPI: a wheel's, or the system's."""

    path: Path

    @cached_property
    def library(self) -> str:
        """What the MPI library calls itself."""
        asked = [str(self.path / "bin/python"), "-m", "mpi4py", "--mpi-lib-version"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout

    @property
    def pmi(self) -> str:
        """What srun's --mpi must be for this MPI."""
        return "pmix" if self.library.startswith("Open MPI") else "pmi2"

    @property
    def wrong_pmi(self) -> str:
        """One that srun has and this MPI does not speak."""
        return "pmi2" if self.pmi == "pmix" else "pmix"


@dataclass(frozen=True)
class Job:
    cluster: Cluster
    number: str
    folder: Path
    """From where it was submitted."""

    def properties(self) -> list[dict[str, str]]:
        """What Slurm knows of the job, or of each task of an array."""
        asked = self.cluster.run("scontrol", "show", "job", "-o", self.number, check=True, stdout=subprocess.PIPE)
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in asked.stdout.splitlines()]

    def until(self, what: Callable[[], bool], why: str) -> None:
        """Wait for ``what`` to be true: as long as jobs begin and end, for this one may be behind them in the queue."""
        states, changed, looked = "", time.monotonic(), 0.0
        while not what():
            if time.monotonic() > looked + 5:
                looked = time.monotonic()
                asked = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T"]
                now = self.cluster.run(*asked, check=True, stdout=subprocess.PIPE).stdout
                if now != states:
                    states, changed = now, looked
                elif looked - changed > STANDSTILL:
                    pytest.fail(f"the queue stands still: {why}: {self.properties()}\n{self.log}\n{states}")
            time.sleep(0.1)

    def wait(self) -> None:
        """Until it has ended."""
        self.until(lambda: all(task["JobState"] in ENDED for task in self.properties()), "the job ends")

    def says(self, pattern: str) -> None:
        """Until ``pattern``, a regular expression, is in its log."""
        self.until(lambda: bool(re.search(pattern, self.log)) or self.state in ENDED, f"{pattern!r} in its log")
        assert re.search(pattern, self.log), f"{self.state} without {pattern!r} in its log:\n{self.log}"

    def __getitem__(self, name: str) -> str:
        """A property, as ``scontrol show job`` names it."""
        return self.properties()[0][name]

    @property
    def state(self) -> str:
        return self["JobState"]

    @property
    def log(self) -> str:
        """What it printed so far; that of an array's tasks one after the other."""
        files = [Path(task["StdOut"]) for task in self.properties()]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def results(self, pattern: str) -> Path:
        """The one file of its folder of results that matches ``pattern``."""
        files = list(self.folder.glob(f"*-{self.number}/{pattern}"))
        assert len(files) == 1, f"expected one {pattern}; found {files}\n{self.log}"
        return files[0]


def submit(cluster: Cluster, folder: Path, *argv: str, **variables: str) -> Job:
    """``sbatch *argv`` from ``folder``, with ``variables`` in its environment."""
    for name in ("slurm", "examples"):
        (folder / name).symlink_to(REPOSITORY / name)
    words = [f"{name}={value}" for name, value in {"PYTHONPATH": str(STARTUP), **variables}.items()]
    done = cluster.run("env", *words, "sbatch", "--parsable", *argv, cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr
    return Job(cluster, done.stdout.strip(), folder)
