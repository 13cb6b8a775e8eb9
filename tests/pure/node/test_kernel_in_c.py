"""The kernel's C, without Python: threads as ranks of programs of tests/node/, under the compiler's sanitizers, too.

``MPICOLL_SOAK=100000`` makes so many plans at two ranks, of one to three calls each, and fewer at more ranks. The seed
is printed; MPICOLL_SEED repeats it, though not how the threads take turns."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
KERNEL, PROGRAMS = REPOSITORY / "mpicoll" / "node", REPOSITORY / "tests" / "node"
PARTS = "lines", "waiting", "sleeper", "meeting", "collectives", "reductions", "layouts", "peers", "messages"
SOURCES = [KERNEL / f"{name}.c" for name in PARTS]
FLAGS = ["-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{KERNEL}"]
PLANS = int(os.environ.get("MPICOLL_SOAK", "400"))
WRAPPED = {"random_calls": ["read_memory"], "random_messages": ["read_memory", "write_memory", "map_home"]}
"""What fails now and then there, or is done by one thread at a time."""
SLOTS = 16384, 65536
"""Bytes of a long slot."""


def done(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd)


@dataclass(frozen=True)
class Built:
    """The programs, built in a folder."""

    folder: Path
    share: float  # of the plans: a sanitizer takes its time
    on_linux: bool  # whether a process's memory can be read, and a thread sleeps in another one's place

    def run(self, program: str, *arguments: int) -> None:
        argv = [str(self.folder / program), *map(str, arguments)]
        if done("setarch", "-R", "true").returncode == 0:  # older ThreadSanitizers do not know all random addresses
            argv = ["setarch", "-R", *argv]
        ended = done(*argv)
        assert (ended.returncode, ended.stdout) == (0, ""), f"{' '.join(argv)}\n{ended.stdout[-4000:]}"


@pytest.fixture(scope="module", params=["plain", "elsewhere", "thread", "address,undefined"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    folder, flags = tmp_path_factory.mktemp("built"), [*FLAGS, "-O3"]
    if request.param == "elsewhere":  # as on macOS, which has no futex
        flags += ["-U__linux__"]
    elif request.param != "plain":
        # What chooses among instruction sets runs before a sanitizer is ready.
        sanitizer = ["-g", f"-fsanitize={request.param}", "-fno-sanitize-recover=all", "-Dtarget_clones(...)="]
        flags = [*FLAGS, "-O1", *sanitizer]
    often = "-DLEAST_HALVED=20000", "-DLATE=20000"  # so that the programs have such messages, and such waits
    compiled = done(compiler, *flags, *often, "-c", *map(str, SOURCES), cwd=folder)
    assert (compiled.returncode, compiled.stdout) == (0, "")
    for program in ("random_calls", "random_messages", "ended", "absent", "sleeps"):
        parts = [str(PROGRAMS / f"{program}.c"), *(f"{source.stem}.o" for source in SOURCES)]
        failing = [f"-Wl,--wrap={name}" for name in WRAPPED.get(program, ())]
        linked = done(compiler, *flags, *parts, *failing, "-o", program, cwd=folder)
        assert (linked.returncode, linked.stdout) == (0, "")
    share = {"plain": 1.0, "thread": 0.05}.get(request.param, 0.15)
    return Built(folder, share, request.param != "elsewhere")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5, 16, 17, 32])
def test_random_calls(built: Built, ranks: int) -> None:
    seed = int(os.environ.get("MPICOLL_SEED", random.randrange(1 << 30)))
    for slot in SLOTS:
        plans = int(PLANS * built.share * 4 / ranks**2) + 8
        print(f"{plans} plans at {ranks} ranks, slots of {slot} bytes, MPICOLL_SEED = {seed}")
        built.run("random_calls", ranks, plans, seed, slot)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 17])
def test_random_messages(built: Built, ranks: int) -> None:
    seed = int(os.environ.get("MPICOLL_SEED", random.randrange(1 << 30)))
    messages = int(10 * PLANS * built.share)
    print(f"{messages} messages at {ranks} ranks, MPICOLL_SEED = {seed}")
    built.run("random_messages", ranks, messages, seed)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 17])
def test_what_ranks_do_while_they_wait_ends_a_call(built: Built, ranks: int) -> None:
    built.run("ended", ranks)


@pytest.mark.slow
def test_a_thread_sleeps_in_anothers_place(built: Built) -> None:
    built.run("sleeps", int(built.on_linux))


@pytest.mark.slow
def test_a_message_comes_while_its_sender_is_elsewhere(built: Built) -> None:
    if not built.on_linux:
        pytest.skip("no process's memory can be read there")
    built.run("absent", 2)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["cc", "clang"])
def test_compilers_warn_of_nothing(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    include = [f"-I{sysconfig.get_path('include')}", "-DPy_LIMITED_API=0x030b0000"]
    sources = [str(path) for path in KERNEL.glob("*.c") if compiler != "cc" or path not in SOURCES]
    compiled = done(compiler, *FLAGS, "-O2", "-fPIC", *include, "-c", *sources, cwd=tmp_path)
    assert (compiled.returncode, compiled.stdout) == (0, "")
