"""Jobs that cannot go on end by themselves, with one table that names the odd rank."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.jobs import MPICH, OURS, Done, ended, half, plainly, run, script, started, until
from tests.jobs.programs import faults
from tests.jobs.programs.faults import DIFFERENT, FIRST_IS_SILENT, IS_GONE, TIME_IS_UP

pytestmark = pytest.mark.slow


THE_MPI_S = [name for name, fault in faults.FAULTS.items() if not fault.any_mpi]


def said_once(result: Done) -> None:
    titles = [line for line in result.output.splitlines() if line.startswith("mpicoll: ") and "The job ends" in line]
    assert len(titles) <= 1, result.output


@pytest.mark.parametrize("name", half(faults.FAULTS, on_both=THE_MPI_S))
def test_a_fault_ends_the_job(name: str) -> None:
    fault = faults.FAULTS[name]
    result = run(3, faults.__file__, name, env={"MPICOLL_TIMEOUT": str(fault.seconds)})
    for piece in fault.said:
        assert piece in result.output, result.output
    said_once(result)
    assert "went on" not in result.output, result.output
    assert name != "rank 0 stopped" or "out of memory" not in result.output, "mpicoll itself has killed it"
    # MPICH's launcher ends all ranks when one of them exits, and may call that a success.
    assert result.code != 0 or (MPICH and name == "os._exit(0)"), result.output


def test_the_rank_that_compares_is_stopped() -> None:
    """Under the MPI's own launcher, that is the first one."""
    result = plainly(3, faults.__file__, "rank 0 stopped", env={"MPICOLL_TIMEOUT": "3"}).bad(
        FIRST_IS_SILENT, "barrier, at faults.py"
    )
    said_once(result)


def test_ranks_that_meet_when_others_have_left(tmp_path: Path) -> None:
    """They are compared all the same."""
    program = """
        import time
        from mpi4py import MPI
        import mpicoll

        world = MPI.COMM_WORLD
        part = world.Split(world.rank // 2)
        time.sleep(2 * (world.rank // 2))  # the others have left by then, unless the machine is slow
        comm = mpicoll.Communicator(part)
        if world.rank == 3:
            comm.bcast_object(1)
        comm.barrier()
    """
    run(4, script(tmp_path, program)).bad(DIFFERENT.replace("0-2", "2-3"))


FIELDS = {
    "collective": "comm.scan(x) if odd else comm.allreduce(x)",
    "op": "comm.reduce(x, op='min' if odd else 'sum')",
    "dtype": "comm.allreduce(x.astype('i2' if odd else 'f8'))",
    "dtype of the same size": "comm.bcast(x.astype('i8' if odd else 'f8'))",
    "count": "comm.allgather(x[odd:])",
    "root": "comm.gather(x, root=int(odd))",
    "algorithm": "comm.allreduce(x, algorithm='ring' if odd else None)",
    "counts": "comm.allgatherv(np.ones(rank + 1), [1 + odd, 2, 3])",
    "long or short": "comm.allreduce(np.ones(1 << 17) if odd else x)",
}


@pytest.mark.parametrize("field", half(FIELDS))
def test_a_field_that_differs(field: str, tmp_path: Path) -> None:
    """After calls that are equal. The table names the odd rank. If the MPI itself ends the job first, what is told of
    the ranks' last collectives does. Where a much longer message comes, Open MPI overwrites a rank's memory. If the
    rank then hangs in a table of Python's, that is told when time is up."""
    program = f"{OURS}odd = rank == 1\nfor _ in range(300): comm.allreduce(x)\n{FIELDS[field]}\ncomm.barrier()\n"
    result = run(3, script(tmp_path, program), env={"MPICOLL_TIMEOUT": "20"}).bad()
    if DIFFERENT in result.output:
        table = re.findall(r"  ranks? ([-\d, ]+?) +call \d+: (.*?), at ", result.output.split(DIFFERENT)[1])
        words = dict(table)
        assert [words[who] for who in words].count(words["1"]) == 1 < len(words), result.output
    elif field == "long or short" and not MPICH and TIME_IS_UP in result.output:
        assert "does not answer: it is stopped or stuck" in result.output, result.output
    else:
        assert re.search(r"^  rank 1  ", result.output, re.MULTILINE), result.output
        if MPICH:
            assert "Fatal error" in result.output, result.output
        else:  # Open MPI writes beyond the end of its memory where a longer message comes
            assert result.code in (128 + signal.SIGSEGV, 128 + signal.SIGABRT), result.output
    said_once(result)


@pytest.mark.skipif(not MPICH, reason="Open MPI's launcher waits for all who hold a rank's output")
def test_a_rank_ends_and_leaves_a_child(tmp_path: Path) -> None:
    """The child has been forked. It must not hold the connection by whose end the others see that the rank is gone."""
    program = """
        first = comm.bcast_object(os.getpid())
        if comm.rank == 1:
            if os.fork():
                os._exit(0)
            while os.path.exists(f"/proc/{first}"):
                time.sleep(0.1)
            os._exit(0)
        comm.barrier()
    """
    result = run(3, script(tmp_path, program, begin=OURS)).bad(IS_GONE)
    said_once(result)


WAITS = f"""{OURS}
for _ in range(3): comm.allreduce(x)
print(f"rank {{rank}} is {{os.getpid()}}.")
"""
UNDER_WAY = {"in a call": "if rank == 1: time.sleep(600)\ncomm.barrier()", "in Python": "time.sleep(600)"}


@pytest.mark.parametrize("where", UNDER_WAY)
@pytest.mark.parametrize("number", half([signal.SIGINT, signal.SIGTERM]))
def test_a_signal_ends_the_job(where: str, number: signal.Signals, tmp_path: Path) -> None:
    """One that a rank gets; test_interrupt.py has those of ``mpicoll run``. Python runs a rank's handler of SIGINT when
    its call returns. If it does not, the call's timeout ends the job."""
    late = where == "in a call" and number == signal.SIGINT
    program = WAITS + "comm.timeout = 3\n" * late + UNDER_WAY[where]
    with started(sys.executable, "-m", "mpicoll", "run", "-n", "3", script(tmp_path, program)) as (it, output):
        os.kill(ranks_of(output)[0], number)
        ended(it, output).bad()


def ranks_of(output: Path) -> list[int]:
    """The processes of the ranks, when all have told theirs."""

    def told() -> dict[str, str]:
        return dict(re.findall(r"rank (\d) is (\d+)\.", output.read_text()))

    until(lambda: len(told()) == 3, "three ranks begin", output)
    return [int(told()[str(rank)]) for rank in range(3)]


UNTIL_ASKED = """
calls, enough = (Path(__file__).with_name(name) for name in ("calls", "enough"))
comm.timeout = 10
while comm.allreduce(np.array([not enough.exists()]), op="min")[0]:
    if rank == 0:
        calls.write_text(str(comm._engine.recorder.begun))
print("went on")
"""


def test_stopped_and_continued_in_time(tmp_path: Path) -> None:
    """Each rank in turn, for longer than the timeout in all: nothing has happened."""
    program = script(tmp_path, WAITS + UNTIL_ASKED)
    calls = tmp_path / "calls"
    argv = [sys.executable, "-m", "mpicoll", "run", "-n", "3", program]
    with started(*argv) as (it, output):
        for pid in ranks_of(output):
            until(calls.exists, "the ranks make calls", output)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(4)
            before = calls.read_text()
            os.kill(pid, signal.SIGCONT)
            until(lambda: calls.read_text() not in ("", before), "the ranks go on", output)  # noqa: B023
        (tmp_path / "enough").touch()
        result = ended(it, output).good()
    assert result.output.count("went on") == 3, result.output
    assert "mpicoll: " not in result.output, result.output


TESTS = """
import numpy as np
import mpicoll

comm = mpicoll.Communicator()

def test_sum():
    comm.allreduce(np.ones(2))
    assert comm.rank != 1, "rank 1 is odd"
    comm.barrier()

def test_other():
    comm.allreduce(np.ones(3))
"""


@pytest.mark.parametrize("options", half([[], ["-x"]]))
def test_a_test_fails_on_one_rank(options: list[str], tmp_path: Path) -> None:
    """That rank goes on to the next test, and the others wait. Or it ends, and pytest itself says why."""
    path = script(tmp_path, TESTS, "test_it.py")
    result = run(2, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *options, path).bad(code=1)
    if options:
        assert re.search(r"^E +AssertionError: rank 1 is odd$", result.output, re.M), result.output
    else:
        assert re.search(r"^  rank 0  call 1: barrier, at test_it.py:10 in test_sum", result.output, re.M)
        failed = r"after \S*test_it.py::test_sum failed with AssertionError: rank 1 is odd"
        line = rf"^  rank 1  call 1: allreduce sum of 3 float64, at test_it.py:13 in test_other \({failed}\)"
        assert re.search(line, result.output, re.M), result.output
