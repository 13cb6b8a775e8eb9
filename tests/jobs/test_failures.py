"""One rank's mistake ends the whole job: promptly, with what was wrong on stderr, and a code that is not zero.

The other ranks are in the call by then and would wait for ever. The end must come under ``mpicoll run`` and under the
MPI's own launcher with plain ``python script.py`` alike; ``jobs`` fails a job that has none. And the reverse: jobs
that must end well though they leave something unfinished.
"""

from __future__ import annotations

import os
import re
import socket
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpicoll.launch import failure
from tests.jobs.jobs import half, plainly, run, script, together

pytestmark = pytest.mark.usefixtures("usual_end")

BEGIN = """
import sys
import numpy as np
import mpicoll
from mpi4py import MPI

comm = mpicoll.Communicator()
rank, x = comm.rank, np.full(2, -1.0)
"""
TORCH = f"""{BEGIN}
import torch
import torch.distributed as dist

dist.init_process_group("mpicoll")
tensor = torch.full((2,), -1.0)
"""

# The beginning, what follows it, and the pieces of what must be on stderr. Rank 0 or rank 1 is at fault; no other may
# be. One of each way in which a rank's mistake comes to light.
MISTAKES: dict[str, tuple[str, str, list[str]]] = {
    "wrong root": (
        BEGIN,
        "comm.bcast(x, root=3 if rank == 1 else 0)",
        ["ArgumentError", "bcast: root", "0 to 2", "given 3"],
    ),
    "ranks disagree, found on the worker's thread": (
        TORCH,
        "dist.all_to_all_single(torch.zeros(6), torch.zeros(6 - (rank == 1)), [2] * 3, [2 - (rank == 1), 2, 2], "
        "async_op=True).wait()",
        ["MessageError", "alltoallv: expected 2 elements from rank 1; it sends 1"],
    ),
    "ranks disagree, and the program ends without waiting": (
        TORCH,
        "dist.all_to_all_single(torch.zeros(6), torch.zeros(6 - (rank == 1)), [2] * 3, [2 - (rank == 1), 2, 2], "
        "async_op=True)\nsys.exit()",
        ["MessageError", "alltoallv: expected 2 elements from rank 1; it sends 1"],
    ),
    "GPU memory where there is no GPU": (
        BEGIN,
        """
class OnDevice:
    __cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3, "stream": 1}

comm.allreduce(OnDevice() if rank == 1 else np.ones(2, np.float32))
""",
        ["DeviceError", "allreduce: x", "GPU memory that this process can reach", "OnDevice"],
    ),
    "a received array that is too short": (
        BEGIN,
        "comm.recv(np.zeros(1), 0) if rank == 1 else comm.send(x, 1) if rank == 0 else comm.barrier()",
        ["MessageError", "recv"],
    ),
    "a received array that is too short, and the message is here already": (
        BEGIN,
        """
if rank == 0:
    comm.send(x, 1)
    comm.send(x, 1, tag=1)
elif rank == 1:
    comm.recv(x, 0, tag=1)
    comm.recv(np.zeros(1), 0)
""",
        ["MessageError", "recv"],
    ),
    "a long message of another length": (
        BEGIN,
        "comm.bcast(np.ones(2**17 - (rank == 1)))",
        ["the ranks made different calls. The job ends", "rank 1 ", "bcast of 131071 float64 root 0"],
    ),
    "an error of the program's own": (
        BEGIN,
        "if rank == 1: raise KeyError('of the program')\ncomm.barrier()",
        ["KeyError", "of the program"],
    ),
    "after MPI.Finalize()": (
        BEGIN,
        "comm.barrier()\nMPI.Finalize()\ncomm.allreduce(x)",
        ["StateError", "allreduce", "MPI was finalised"],
    ),
}


# How a job ends depends on the launcher. So these run on both MPIs, and also start by `mpicoll run`.
WAYS = (
    "wrong root",
    "ranks disagree, found on the worker's thread",
    "ranks disagree, and the program ends without waiting",
    "an error of the program's own",
)


@pytest.mark.parametrize(
    ("mistake", "start"),
    [
        *(pytest.param(mistake, plainly, id=f"{mistake}-mpirun") for mistake in half(MISTAKES, on_both=WAYS)),
        *(pytest.param(mistake, run, id=f"{mistake}-mpicoll run") for mistake in half(WAYS)),
    ],
)
def test_one_ranks_mistake_ends_the_job(tmp_path: Path, mistake: str, start: object) -> None:
    assert callable(start)
    begin, text, said = MISTAKES[mistake]
    result = start(3, script(tmp_path, f"{begin}{text}\ncomm.barrier()\nprint('went on')\n"))
    assert result.code != 0, result.output
    for piece in said:
        assert piece in result.output, result.output
    assert "went on" not in result.output
    assert "Segmentation fault" not in result.output


def test_shapes_that_differ_between_ranks(tmp_path: Path) -> None:
    """Whoever finds it first, the watcher or the MPI library: each rank's call is told. MPICH ends the job as soon as
    rank 0 has the block of rank 1, so both let the last rank make its call."""
    text = "comm.barrier()\ntime.sleep(0 if rank == 2 else 0.5)\ncomm.allgather(np.zeros(2 + rank))"
    result = run(3, script(tmp_path, f"{BEGIN}import time\n{text}\ncomm.barrier()\nprint('went on')\n"))
    assert result.code != 0, result.output
    assert "allgather of 3 float64" in result.output
    assert "allgather of 4 float64" in result.output
    assert "went on" not in result.output


MEET = """\
from mpicoll.launch.launch_env import launched_rank
import mpicoll, numpy as np
comm = mpicoll.Communicator()
"""
FAILURES = {
    "of the program": "raise KeyError('of the program')",
    "of a call": "comm.allreduce(np.ones(2), op='nope')",
    "before MPI is initialised": "import no_such_module",
}


@pytest.mark.parametrize("who", ["one rank", "all ranks"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_said_once_with_the_users_frames(tmp_path: Path, failure: str, who: str) -> None:
    """No frame of what starts the program or of mpicoll's inside, no box of the launcher's, and the ranks' numbers."""
    begin = "from mpicoll.launch.launch_env import launched_rank\n" if failure == "before MPI is initialised" else MEET
    fails = f"def step():\n    {FAILURES[failure]}\n"
    which = "launched_rank() == 1" if who == "one rank" else "True"
    wait = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
    program = script(tmp_path, f"{begin}{fails}if {which}:\n    step()\n{wait}")
    result = run(3, program, env=together(1 if who == "one rank" else 3, tmp_path))
    # On a slow machine, Open MPI adds that it cannot reach a rank that has ended.
    lines = [line for line in result.output.splitlines() if " PMIX ERROR: " not in line]
    assert result.code == 1, result.output
    ranks = "rank 1" if who == "one rank" else "ranks 0-2"
    assert re.fullmatch(rf"mpicoll: {ranks} on \S+ ended by \w+", lines[0]), result.output
    assert [re.findall(r'File "(.*?)"', line) for line in lines if line.startswith("  File")] == [[program]] * 2
    assert lines[1] == "Traceback (most recent call last):", result.output
    assert "Error: " in lines[-1], result.output
    assert len([line for line in lines if not line.startswith(" ")]) == 3, result.output


def test_the_first_rank_that_fails_is_about_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the others, which then do not take it for one that has ended."""
    name = failure._socket_name(f"test {os.getpid()}")
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as other:
        first.bind(name)
        with pytest.raises(ConnectionRefusedError):
            failure._connect(other, name, 0)
        clock = SimpleNamespace(sleep=lambda _: first.listen(), monotonic=time.monotonic)
        monkeypatch.setattr(failure, "time", clock)
        failure._connect(other, name, 600)


def test_the_text_of_an_exit_is_said_once(tmp_path: Path) -> None:
    text = "import sys\nsys.exit('no such file: x.csv')\n"
    result = run(3, script(tmp_path, text), env=together(3, tmp_path))
    assert result.code == 1
    said = r"mpicoll: ranks 0-2 on \S+ ended by sys.exit, at script.py:2 in <module>\nno such file: x.csv\n"
    assert re.fullmatch(said, result.output), result.output


@pytest.mark.parametrize(
    "fails",
    [
        "sys.exit(256)",  # 0, to those who see no more than eight bits of it
        "sys.stderr.close()\n    raise KeyError",
        "sys.stdout = Tee()\n    raise KeyError",
    ],
)
def test_others_that_compute_are_ended(tmp_path: Path, fails: str) -> None:
    begin = "import sys, time\nimport mpicoll\nclass Tee:\n    def write(self, text): sys.__stdout__.write(text)\n"
    begin += "comm = mpicoll.Communicator()\ncomm.barrier()\n"
    program = f"{begin}if comm.rank == 1:\n    {fails}\ntime.sleep(600)\nprint('went on')\n"
    result = run(2, script(tmp_path, program))
    assert result.code != 0, result.output


# How a forked child may end, and with which code.
CHILDREN = {"raise KeyError": 1, "sys.exit(3)": 3, "sys.exit('why')": 1, "pass": 0}


@pytest.mark.parametrize(
    ("end", "start", "when"),
    [
        *((end, run, "initialised") for end in CHILDREN),
        ("sys.exit(3)", run, "before"),
        ("raise KeyError", plainly, "initialised"),
    ],
)
def test_a_forked_child_ends_itself_alone(tmp_path: Path, end: str, start: object, when: str) -> None:
    """Its parent, the rank, goes on: a child that ends must neither end the job nor finalise the parent's MPI."""
    assert callable(start)
    makes = "import mpicoll\ncomm = mpicoll.Communicator()\n"
    forks = f"""
import atexit, os, sys
atexit.register(sys.stdout.write, "a handler\\n")
child = os.fork()
if child == 0:
    {end}
else:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    uses = "    comm.barrier()\n    sys.stdout.write(f'ended with {code}\\n')\n"
    if when == "before":
        makes, uses = "", textwrap.indent(makes, "    ") + uses
    result = start(2, script(tmp_path, makes + forks + uses))
    assert result.code == 0, result.output
    assert result.output.count(f"ended with {CHILDREN[end]}") == 2, result.output
    assert result.output.count("a handler") == 4, result.output
    assert "mpicoll: " not in result.output, result.output


def test_failures_that_differ_are_said_each(tmp_path: Path) -> None:
    fails = f"{BEGIN}comm.barrier()\nif rank < 2: raise KeyError(f'of rank {{rank}}')\ncomm.barrier()\n"
    result = run(3, script(tmp_path, fails), env=together(2, tmp_path))
    assert result.code == 1, result.output
    for rank in (0, 1):
        said = rf"mpicoll: rank {rank} on \S+ ended by KeyError\nTraceback.*\n(  .*\n)+KeyError: 'of rank {rank}'\n"
        assert re.search(said, result.output), result.output


# Jobs that leave something unfinished, and end well.
ENDINGS = {
    "nobody waits": (TORCH, "works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(20)]"),
    "nobody waits, and the default group is destroyed": (
        TORCH,
        "works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(20)]\ndist.destroy_process_group()",
    ),
    "nothing is destroyed": (TORCH, "g = dist.new_group([0, 1])\ndist.all_reduce(tensor)"),
    "one rank comes late": (
        TORCH,
        """
import time
x = torch.ones(3)
if rank == 1:
    time.sleep(0.5)
work = dist.all_reduce(x, async_op=True)
import atexit
atexit.register(lambda: work.wait() and sys.stdout.write(f"late sum {x.tolist()}\\n"))
""",
    ),
    "MPI is finalised before a Communicator is used": (
        BEGIN,
        """
from mpicoll.errors import StateError

comm.allreduce(x)
MPI.Finalize()
for call in (comm.allreduce, comm.bcast, comm.allgather, lambda x: comm.send(x, 0), lambda x: comm.node):
    try:
        call(x)
    except StateError as e:
        assert "MPI was finalised" in str(e)
    else:
        sys.exit("it was used")
""",
    ),
    "MPI is finalised before the group is destroyed": (
        TORCH,
        "dist.all_reduce(tensor)\nMPI.Finalize()\ndist.destroy_process_group()\nassert not dist.is_initialized()",
    ),
}


@pytest.mark.parametrize("ending", half(ENDINGS, on_both=["nobody waits"]))
def test_jobs_that_end_well(tmp_path: Path, ending: str) -> None:
    begin, text = ENDINGS[ending]
    result = plainly(3, script(tmp_path, f"{begin}{text}\nsys.stdout.write('went ' + 'on\\n')\n"))
    assert result.code == 0, result.output
    assert result.output.count("went on") == 3, result.output
    assert "Traceback" not in result.output
    if ending == "one rank comes late":
        assert result.output.count("late sum [3.0, 3.0, 3.0]") == 3, result.output


def test_a_rank_that_just_exits_does_not_hide_why_another_fails(tmp_path: Path) -> None:
    fails = "from mpi4py import MPI\nimport sys\nMPI.COMM_WORLD.Barrier()\n"
    fails += "if MPI.COMM_WORLD.rank == 0:\n    raise RuntimeError('the cause')\nsys.exit(1)\n"
    result = run(2, script(tmp_path, fails), env=together(2, tmp_path))
    assert result.code == 1, result.output
    assert "RuntimeError: the cause" in result.output
