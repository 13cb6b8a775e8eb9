"""Ctrl-C: the program gets KeyboardInterrupt on every rank, and time to save its work."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpicoll.machine import linux
from tests.jobs.jobs import MPICH, ON_LINUX, Done, ended, python, run, script, started, until
from tests.processes import Job
from tests.sharing import NEEDS_SHARED

PROGRAM = """
    import sys, time
    import numpy as np, mpicoll
    from mpicoll.launch import board
    how, c, x = sys.argv[1], mpicoll.Communicator(), np.ones(4)
    try:
        while how == "waits" and c.rank == 0 and not board.last_call(1):
            time.sleep(0.01)
        sys.stdout.write(f"ready {c.rank}\\n")
        while True:
            if how == "waits" and c.rank == 1:
                c.allreduce(x)  # rank 0 never comes
            time.sleep(0.05)
    except KeyboardInterrupt:
        sys.stdout.write(f"interrupted {c.rank}\\n")
        if c.rank == 0 and how != "raises":
            end = time.monotonic() + (25 if how == "saves for long" else 4)
            while time.monotonic() < end:
                time.sleep(0.1)
            sys.stdout.write("saved\\n")
        if how == "raises" or (how == "one raises" and c.rank == 1):
            raise
"""


@contextmanager
def launched(program: str, *words: str, options: Sequence[str] = ()) -> Iterator[tuple[Job, Path]]:
    """A job of two ranks that are ready."""
    with started(sys.executable, "-m", "mpicoll", "run", *options, "-n", "2", program, *words) as (it, output):
        until(lambda: output.read_text().count("ready") == 2, "both ranks begin", output)
        yield it, output


def interrupted(folder: Path, how: str, times: int = 1, options: Sequence[str] = ()) -> Done:
    with launched(script(folder, PROGRAM), how, options=options) as (it, output):
        for i in range(times):
            os.killpg(it.process.pid, signal.SIGINT)  # as a terminal does
            if i + 1 < times:
                until(lambda: "interrupted 0" in output.read_text(), "rank 0 is interrupted", output)
        return ended(it, output)


OPTIONS = [[], ["--elastic"]] if not MPICH else [[]]
"""Without and with ranks that may be lost."""


@pytest.mark.parametrize("options", OPTIONS)
def test_two_signals_at_once(tmp_path: Path, options: list[str]) -> None:
    """As ``timeout`` sends them. A thread of ``mpicoll run`` that got one of them kept it from the main thread."""
    with launched(script(tmp_path, PROGRAM), "waits", options=options) as (it, output):
        for number in (signal.SIGTERM, signal.SIGCONT):
            it.process.send_signal(number)
        assert ended(it, output).code != 0


@pytest.mark.parametrize(
    ("how", "code", "options"),
    [
        *(("one raises", 130, options) for options in OPTIONS),
        pytest.param("waits", 0, [], marks=NEEDS_SHARED),
        ("both return", 0, []),
    ],
)
def test_a_rank_saves_its_work(tmp_path: Path, how: str, code: int, options: list[str]) -> None:
    """While the others are done or wait. A wait of the kernel's can be interrupted, and MPI's own cannot."""
    result = interrupted(tmp_path, how, options=options)
    assert "saved" in result.output, result.output
    assert "interrupted 1" in result.output, "also a rank that waits in a call is interrupted"
    assert result.code == code, result.output
    assert "different calls" not in result.output


def test_one_traceback_for_all(tmp_path: Path) -> None:
    result = interrupted(tmp_path, "raises").bad("interrupted 0", "interrupted 1", "KeyboardInterrupt", code=130)
    assert "interrupt.py" not in result.output


def test_a_signal_for_one_rank_ends_the_job_soon(tmp_path: Path) -> None:
    """Nobody has interrupted the launch, so nobody waits for ranks that save their work."""
    program = """
        import os, signal, time, mpicoll
        from mpicoll.launch import interrupt

        interrupt.SECONDS = 1e6  # what the ranks of an interrupted launch have
        c = mpicoll.Communicator()
        c.barrier()
        if c.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1e6)
        c.barrier()
    """
    run(2, script(tmp_path, program)).bad("KeyboardInterrupt")


def test_a_second_one_ends_the_job_now(tmp_path: Path) -> None:
    result = interrupted(tmp_path, "saves for long", times=2).bad(code=130)
    assert "saved" not in result.output


ENDS = ["a quit", "a killed launch", *([] if MPICH else ["a killed launcher"])]  # MPICH has two


@ON_LINUX
@pytest.mark.parametrize("end", ENDS)
def test_no_rank_outlives(tmp_path: Path, end: str) -> None:
    """Ctrl-\\ in a terminal. By SIGQUIT, Open MPI's launcher ends alone."""
    program = "import os, sys, time; sys.stdout.write(f'ready {os.getpid()} {os.getppid()}\\n'); time.sleep(600)"
    with launched(script(tmp_path, program)) as (it, output):
        said = output.read_text().split()
        number = signal.SIGQUIT if end == "a quit" else signal.SIGKILL
        os.kill(int(said[2]) if end == "a killed launcher" else it.process.pid, number)
        assert ended(it, output).code != 0
        until(lambda: all(linux.has_ended(int(rank)) for rank in said[1::3]), "both ranks end", output)


HEARS = """
    import signal, sys, time
    heard = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: heard.append(signal.Signals(number).name))
    sys.stdout.write("ready\\n")
    for name in ("SIGUSR1", "SIGUSR2"):
        while name not in heard:
            time.sleep(0.02)
        sys.stdout.write(f"heard {name}\\n")
"""


@pytest.mark.parametrize("options", OPTIONS)
def test_a_users_signals_reach_all_ranks(tmp_path: Path, options: list[str]) -> None:
    """As before a batch system stops the job."""
    with launched(script(tmp_path, HEARS), options=options) as (it, output):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            it.process.send_signal(number)

            def both(heard: str = f"heard {number.name}") -> bool:
                return it.process.poll() is not None or output.read_text().count(heard) == 2

            until(both, "both hear it", output)
        result = ended(it, output)
        assert (result.code, result.output.count("heard SIGUSR2")) == (0, 2), result.output


@pytest.mark.parametrize(("background", "found"), [(False, "read a word\n"), (True, "read nothing\n")])
def test_what_is_typed_reaches_rank_0(tmp_path: Path, background: bool, found: str) -> None:
    """In the background, it is the shell's."""
    terminal, end = pty.openpty()
    code = "import sys; print('read', sys.stdin.readline().strip() or 'nothing')"
    argv = [sys.executable, "-m", "mpicoll", "run", "-n", "1", "-c", code]
    # The shell around it gets the terminal as its own, as one that somebody types into.
    become = f"""
import fcntl, os, termios
os.setsid()
fcntl.ioctl({end}, termios.TIOCSCTTY, 0)
os.dup2({end}, 0)
if {background} and (child := os.fork()):
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if {background}:
    os.setpgid(0, 0)
os.execv({sys.executable!r}, {argv!r})
"""
    program = subprocess.Popen([sys.executable, "-c", become], pass_fds=[end], stdout=subprocess.PIPE, text=True)
    os.close(end)
    os.write(terminal, b"a word\n")
    try:
        until(lambda: program.poll() is not None, "rank 0 reads")
        assert program.communicate()[0].endswith(found)
    finally:
        program.kill()
        os.close(terminal)


def test_ctrl_c_while_the_launcher_starts(tmp_path: Path) -> None:
    """It counts as one a moment later: the ranks are there, and can be told to end."""
    program = """
        import os, signal, subprocess
        from mpicoll.jobs.launcher import Job
        from mpicoll.jobs.run import run

        class Starting(subprocess.Popen):
            def __init__(self, *arguments, **named):
                super().__init__(*arguments, **named)
                if "start_new_session" in named:  # the launcher itself, not what asks which one it is
                    os.kill(os.getpid(), signal.SIGINT)

        subprocess.Popen = Starting
        code = run(Job(["-c", "print('a rank')"], 2))
        print("ended with", code)
    """
    result = python(script(tmp_path, program))
    said = "mpicoll: interrupted: the ranks have 30 s to end. Ctrl-C again ends them now"
    assert sorted(result.output.splitlines()) == ["a rank", "a rank", "ended with 0", said]
