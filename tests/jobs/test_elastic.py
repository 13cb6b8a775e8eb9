"""``mpicoll run --elastic``: when ranks are killed, the others get RankLost wherever they are, and can go on."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from mpicoll.jobs import launcher
from tests.jobs.jobs import Done, ended, python, script, started, until

EXAMPLE = str(Path(__file__).parents[2] / "examples/elastic.py")
pytestmark = pytest.mark.skipif(not launcher.find_launcher().vendor.outlives, reason="this MPI has no ULFM")

BEGIN = """
    import os, signal, sys, time
    import numpy as np
    import mpicoll
    from mpicoll.errors import MismatchError, RankLost, TimeoutError

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def raised(kind, call):
        try:
            call()
        except kind as e:
            return e
        raise AssertionError(f"nothing was raised on rank {comm.rank}")

    def goes_on(comm, size):
        assert comm.size == size, comm.size
        for x in np.ones(1), np.ones(1 << 17):
            for algorithm in None, "ring":
                assert (comm.allreduce(x, algorithm=algorithm) == size).all()
        assert comm.allgather_object(comm.rank) == [*range(size)]

    comm = mpicoll.Communicator()
"""

# In each job, one rank after another is lost while the others are in these calls: the last rank, the first one, and so
# on. Nobody sends to the receives, and the rank from which they receive lives.
BLOCKED = """
    CALLS = {
        "8 bytes": lambda: comm.allreduce(np.ones(1)),
        "1 MiB through shared memory": lambda: comm.allreduce(np.ones(1 << 17), algorithm="ring"),
        "1 MiB": lambda: comm.allreduce(np.ones(1 << 17), algorithm="native"),
        "16 MiB": lambda: comm.allreduce(np.ones(1 << 21), algorithm="recursive_doubling"),
        "barrier": lambda: comm.barrier(),
        "recv": lambda: comm.recv(np.ones(1), alive()),
        "irecv": lambda: comm.irecv(np.ones(1 << 17), alive()).wait(),
        "recv_object": lambda: comm.recv_object(alive()),
        "allgatherv": lambda: [comm.allgatherv(np.ones(1), [1] * comm.size) for _ in range(2)],
        "objects": lambda: comm.allgather_object("x"),
        "part": lambda: part.barrier(),
        "split": lambda: comm.split(0),
        "node": lambda: comm.node,
        "shared": lambda: comm.shared(3),
        "subset": lambda: comm.subset(range(comm.size)),
    }

    def alive():
        return next(r for r in range(comm.size) if r not in (comm.rank, victim))

    size = comm.size
    for number, name in enumerate(sys.argv[1:]):
        comm.allreduce(np.ones(1 << 17), algorithm="ring")
        part = comm.split(0)
        victim = (comm.size - 1, 0)[number % 2]
        if comm.rank == victim:
            time.sleep(0.3)
            die()
        lost = raised(RankLost, CALLS[name])
        assert lost.ranks == [victim], lost.ranks
        for call in comm.barrier, lambda: comm.send(np.ones(1), 0), lambda: comm.bcast_object(1):
            assert raised(RankLost, call).ranks == [victim]
        comm = comm.shrink()
        size -= 1
        goes_on(comm, size)
        print(f"rank {comm.rank}: {name} went on")
"""


def elastic(n: int, *program: str, env: dict[str, str] | None = None) -> Done:
    return python("-m", "mpicoll", "run", "--elastic", "-n", str(n), *program, env=env)


@pytest.mark.parametrize(
    "calls",
    [
        ["irecv", "16 MiB", "8 bytes"],  # of two ranks, none could receive from a third one
        ["recv", "1 MiB through shared memory", "subset"],
        ["barrier", "recv_object", "split"],
        ["1 MiB", "allgatherv", "node"],
        ["objects", "part", "shared"],
    ],
    ids=", ".join,
)
def test_blocked_calls_end_and_the_others_go_on(tmp_path: Path, calls: list[str]) -> None:
    it = elastic(4, script(tmp_path, BEGIN + BLOCKED), *calls).good()
    assert all(it.output.count(f": {name} went on") >= 1 for name in calls), it.output
    assert re.search(r"^mpicoll: 3 of 4 ranks were lost \(ranks [\d, -]+\); the others went on", it.output, re.M)


def test_a_group_of_torch_with_a_rank_that_is_lost(tmp_path: Path) -> None:
    program = """
    import torch.distributed as dist

    dist.init_process_group("mpicoll")
    dist.get_rank() and die()
    raised(RankLost, lambda: dist.new_group([0, 1]))
    print("lost")
    dist.destroy_process_group()
    dist.init_process_group("mpicoll")
    dist.barrier()
    """
    it = elastic(2, script(tmp_path, BEGIN + program)).good()
    assert "lost" in it.output.splitlines(), it.output


@pytest.mark.parametrize("victim", [2, 3])
def test_a_rank_that_is_lost_while_mpi_makes_a_communicator(tmp_path: Path, victim: int) -> None:
    """Open MPI waits for it, or for a rank that gave up, or crashes. Then the job ends soon. Where MPI raises an error,
    it goes on."""
    program = f"""
    from mpicoll.fabrics import mpi
    make, victim = mpi.make, {victim}
    makes, dies = ({str(tmp_path)!r} + name for name in ("/makes", "/dies"))

    def make_late(*given):
        open(makes, "w")
        while not os.path.exists(dies):
            time.sleep(0.01)
        time.sleep(2)
        return make(*given)

    if comm.rank == 2:
        mpi.make = make_late if victim == 3 else lambda *given: die()
    if comm.rank == victim == 3:
        while not os.path.exists(makes):
            time.sleep(0.01)
        open(dies, "w")
        die()
    raised(RankLost, lambda: comm.subset([0, 1, 2]) if comm.rank < 3 else comm.barrier())
    print("raised")
    """
    it = elastic(4, script(tmp_path, BEGIN + program), env={"MPICOLL_TIMEOUT": "1000"})
    said = "mpicoll: a rank was lost while MPI made a communicator of some ranks, and MPI does not come back"
    assert (it.code == 0) == (it.output.count("raised") == 3), it.output
    assert it.code == 0 or said in it.output or "signal" in it.output, it.output


def test_who_was_lost_among_those_that_were_left(tmp_path: Path) -> None:
    """Their numbers have changed with the first loss."""
    program = """
    job = comm.rank
    for number, victim in (0, 0), (1, 2):
        if job == victim:  # it dies when all others are about to wait for it
            for other in {*range(comm.size)} - {comm.rank}:
                comm.recv_object(other)
            die()
        comm.send_object(None, number)
        lost = raised(RankLost, comm.barrier)
        comm = comm.shrink()
    assert lost.ranks == [1]
    assert lost.in_job == [1, 2, 3]
    assert str(lost).startswith("barrier: rank 1 (the job's rank 2) was lost: ")
    print("went on")
    """
    it = elastic(4, script(tmp_path, BEGIN + program)).good()
    assert it.output.count("went on\n") == 2


def test_two_at_once(tmp_path: Path) -> None:
    program = """
    if comm.rank in (0, 2):
        time.sleep(0.3)
        die()
    raised(RankLost, comm.barrier)
    goes_on(comm.shrink(), 2)
    """
    it = elastic(4, script(tmp_path, BEGIN + program), env={"MPICOLL_CHECK": "off"})
    it.good("mpicoll: 2 of 4 ranks were lost (ranks 0, 2); the others went on to the end without them\n")


# What ranks do, and what mpicoll run says. Its exit code is not 0, though that of Open MPI's launcher is.
WORK_LOST = {
    "nobody has noticed": ("comm.rank or die()", "1 of 2 ranks was lost (rank 0), and no rank went on without rank 0"),
    "nobody has shrunk": ("comm.rank or die()\n    raised(RankLost, comm.barrier)", "no rank went on without rank 0"),
    "it has ended with a code": ("comm.rank or os._exit(7)\n    comm.barrier()", "RankLost: barrier: rank 0 was lost"),
    "it has ended in the middle": ("comm.rank or os._exit(0)", "1 of 2 ranks was lost (rank 0)"),
}


@pytest.mark.parametrize("how", WORK_LOST)
def test_work_that_is_lost_is_a_failure(tmp_path: Path, how: str) -> None:
    """Rank 0 is lost when rank 1 has left its call."""
    does, says = WORK_LOST[how]
    program = """
    comm.barrier()
    left = sys.argv[0] + ".left"
    comm.rank and open(left, "w").close()
    while not os.path.exists(left):
        time.sleep(0.01)
    """
    elastic(2, script(tmp_path, BEGIN + program + does)).bad(says, code=1)


@pytest.mark.parametrize(
    ("size", "does", "code"),
    [
        (4, "comm.rank == 1 and sys.exit(3)", 3),  # MPI_Abort would end that rank alone
        (2, "comm.rank or 1 / 0", 1),
        (2, "child = os.fork() or os._exit(3); assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3", 0),
    ],
)
def test_without_a_loss_all_is_as_ever(tmp_path: Path, size: int, does: str, code: int) -> None:
    it = elastic(size, script(tmp_path, BEGIN + f"    comm.barrier()\n    {does}\n    comm.barrier()"))
    assert it.code == code, it.output
    assert "lost" not in it.output
    assert "MPI_ABORT" not in it.output


def test_a_time_that_is_up_and_different_calls_are_errors(tmp_path: Path) -> None:
    """All ranks can go on after them. A rank that was stopped is ended, and the others go on without it."""
    program = """
    with mpicoll.Communicator(timeout=2) as slow:
        if slow.rank == 1:
            time.sleep(8)
        error = raised(TimeoutError, slow.barrier)
        assert slow.rank == 1 or ("not complete in time (" in str(error) and "has not arrived" in str(error)), error
        slow = slow.shrink()
        slow.timeout = 600
        goes_on(slow, 3)
        def calls():
            slow.allreduce(np.ones(1), op="max" if slow.rank == 1 else "sum")
            for _ in range(100):
                slow.barrier()
                time.sleep(0.2)
        error = raised(MismatchError, calls)
        assert error.calls == {0: "allreduce sum of 1 float64", 1: "allreduce max of 1 float64", 2: error.calls[0]}
        slow = slow.shrink()
        goes_on(slow, 3)
        slow.timeout = 2
        if slow.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        raised((TimeoutError, RankLost), slow.barrier)
        goes_on(slow.shrink(), 2)
        print("went on")
    """
    it = elastic(3, script(tmp_path, BEGIN + program)).good()
    assert it.output.count("went on\n") == 2
    assert "1 of 3 ranks was lost (rank 2); the others went on to the end without it\n" in it.output


def test_the_example_trains_on() -> None:
    """With mpicoll.torch and with torch.distributed, to the loss of a job that loses no rank."""
    last = r"finished: step 40, loss ([\d.]+), 2 ranks"

    def loss(n: int, victims: tuple[int, ...], *options: str) -> float:
        argv = [sys.executable, "-m", "mpicoll", "run", "--elastic", "-n", str(n), EXAMPLE, "--steps", "40", *options]
        with started(*argv) as (it, output):
            for lost, victim in enumerate(victims):
                line = re.compile(rf"^rank {victim} of {n - lost}, process (\d+)", re.MULTILINE)
                until(lambda line=line: bool(line.search(output.read_text())), "the ranks train", output)  # type: ignore[misc]
                os.kill(int(line.findall(output.read_text())[0]), signal.SIGKILL)
            done = ended(it, output)
        assert done.code == 0, done.output
        assert not victims or f"{len(victims)} of {n} ranks w" in done.output
        (found,) = re.findall(last, done.output)
        return float(found)

    undisturbed = loss(2, (), "--seconds", "0")
    for n, victims, options in (4, (2, 0), ()), (3, (0,), ("--torch",)):
        assert loss(n, victims, "--seconds", "0.3", *options) == pytest.approx(undisturbed, rel=1e-3)


def test_a_rank_that_is_lost_before_mpi_begins(tmp_path: Path) -> None:
    program = """
    import os, signal
    from mpicoll.launch.launch_env import launched_rank

    if launched_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    import mpicoll
    mpicoll.Communicator()
    """
    it = elastic(3, script(tmp_path, program)).bad(code=1)
    said = "mpicoll: rank 1 has ended before MPI began, which needs all ranks. The job ends"
    assert said in it.output.splitlines(), it.output  # Open MPI's launcher may complain before
