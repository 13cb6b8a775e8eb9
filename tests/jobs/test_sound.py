"""Jobs that are right, whatever it looks like: they are left alone, also where a watcher fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobs import half, run, script

pytestmark = pytest.mark.slow


RIGHT = {
    "a long computation": "if rank == 1: time.sleep(15)\ncomm.allreduce(x)",
    "ends apart": "if rank == 1: time.sleep(10)",
    "many calls": "for _ in range(100_000): comm.allreduce(x)",
    "exactly two rings": "for _ in range(512 - 3): comm.allreduce(x)",
    "groups": """
for i in range(300):
    part = comm.split(rank % 2) if i % 2 else comm.subset([2, 0]) if rank != 1 else None
    if part is not None:
        part.allreduce(x)
        part.free()
""",
    "communicators that two threads make": """
import threading
parents = [comm.split(0), comm.split(0)]
def work(parent, mine):
    for turn in range(100):  # sooner or later another thread is the first one on some rank
        part = parent.split(0)
        for _ in range(2 + mine):
            part.allreduce(np.ones(3 + mine)) if mine else part.barrier()
        part.free()
works = [threading.Thread(target=work, args=[parent, mine]) for mine, parent in enumerate(parents)]
for each in works: each.start()
for each in works: each.join()
request = comm.iallreduce(np.ones(9), algorithm="ring")  # by a thread, with a communicator of its own
comm.split(0).barrier()
request.wait()
""",
    "ranks in another order": "part = comm.subset([2, 1, 0])\nfor i in range(9): part.bcast(x, root=i % 3)",
    "arguments that may differ": """
comm.alltoallv(np.ones(sum(range(rank, rank + 3))), [*range(rank, rank + 3)], [*range(rank, rank + 3)])
comm.allreduce(x, op=mpicoll.Op.premul_sum(0.5 + rank))
comm.scatter(np.ones((3, 4)) if rank == 0 else None, out=np.ones(4))
comm.allgather_object({"rank": rank} if rank else None)
comm.gather(x, out=np.ones((3, 6)) if rank == 0 else None)
""",
    "messages one after another": """
end = time.monotonic() + 7
while x[0]:
    if rank == 0:
        time.sleep(0.001)
    if rank != 1:
        x[0] = time.monotonic() < end
    if rank == 0:
        comm.send(x, 1)
    elif rank == 1:
        comm.recv(x, 0)  # rank 0 says which is the last one
if rank == 1:
    request = comm.irecv(x, 0)
    time.sleep(1.5)
    request.cancel()
""",
    "one rank alone": "from mpi4py import MPI\nalone = mpicoll.Communicator(MPI.COMM_SELF)\nalone.allreduce(x)",
    "unfreed": "parts = [comm.split(0) for _ in range(5)]\nparts[0].allreduce(x)\ndel parts",
    "MPI.Finalize by the program": "from mpi4py import MPI\nMPI.Finalize()\ntime.sleep(1 + 2 * rank)",
    "a message that nobody waits for": """
if rank == 0:
    comm.isend(np.ones(1 << 20), 1)
elif rank == 1:
    time.sleep(3)
    comm.recv(np.ones(1 << 20), 0)
""",
    "a root that comes late": """
if rank == 0:
    time.sleep(12)
elif rank == 2:
    comm.recv(x, 1)  # which rank 1 sends when it has got the root's
comm.bcast(x)
if rank == 1:
    comm.send(x, 2)
""",
    "a message that is waited for later": """
left, right = np.ones(1 << 20), np.ones(1 << 20)
sent = comm.isend(left, (rank + 1) % 3)
if rank == 0:
    time.sleep(8)
comm.recv(right, (rank - 1) % 3)
sent.wait()
""",
    "a thread of a rank that has ended": """
def late():
    time.sleep(6)
    comm.send(x, 0)

if rank == 1:
    threading.Thread(target=late, daemon=True).start()
elif rank == 0:
    comm.recv(x, 1)
""",
    "a caught mismatch": """
checked = mpicoll.Communicator(check="full", timeout=60)
try:
    checked.bcast(x, root=rank // 2)
except mpicoll.errors.MismatchError:
    pass
else:
    sys.exit("no MismatchError")
comm.allreduce(x)
""",
    "a forked child": """
child = os.fork()
if child == 0:
    try:
        comm.allreduce(x)
    except mpicoll.errors.StateError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
comm.allreduce(x)
""",
}
ALWAYS = (
    "exactly two rings",
    "communicators that two threads make",
    "a message that nobody waits for",
    "MPI.Finalize by the program",
    "a forked child",
)


@pytest.mark.parametrize("name", half(RIGHT, on_both=ALWAYS))
def test_no_false_alarm(name: str, tmp_path: Path) -> None:
    begin = "import os, sys, threading, time\nimport numpy as np\nimport mpicoll\n\ncomm = mpicoll.Communicator()\n"
    begin += "rank, x = comm.rank, np.ones(6)\nfor _ in range(3): comm.allreduce(x)\n"
    timeout = {"MPICOLL_TIMEOUT": "5"} if name == "messages one after another" else {}
    result = run(3, script(tmp_path, begin + RIGHT[name].strip("\n") + "\nprint('went on')\n"), env=timeout)
    assert result.code == 0, result.output
    assert result.output.split() == ["went", "on"] * 3, result.output


BREAKS = {
    "the judge": "from mpicoll.guard.watch.judge import Judge\nJudge._judge = None",
    "a member": "from mpicoll.guard.watch.member import Member\nif launched_rank() == 1: Member._check_judge = None",
    "the network": """
from dataclasses import replace
from mpicoll.guard.watch import meeting, watcher

def nowhere(*given):
    sock, place = meeting.listen(*given)
    return sock, replace(place, port=1)

watcher.listen = nowhere
""",
}
USES = """
comm = mpicoll.Communicator()
for _ in range(5):
    comm.allreduce(np.ones(3))
    time.sleep(0.4 * comm.rank)
print("went on")
"""


@pytest.mark.parametrize("what", half(BREAKS))
def test_a_watcher_that_fails_ends_nothing(what: str, tmp_path: Path) -> None:
    """The program goes on, and is told that nobody watches any more."""
    begin = "import time\nimport numpy as np\nfrom mpicoll.launch.alone import launched_rank\nimport mpicoll\n"
    result = run(3, script(tmp_path, begin + BREAKS[what] + USES))
    assert result.code == 0, result.output
    assert result.output.count("went on") == 3, result.output
    assert result.output.count("mpicoll: ") == 1, result.output
    assert "may wait for ever" in result.output, result.output


def test_first_ranks_that_differ(tmp_path: Path) -> None:
    """Each communicator is compared by a first rank of some communicator. Ranks leave all of them at once."""
    program = """
        import mpicoll
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        halves = mpicoll.Communicator(world.Split(world.rank // 2))
        for comm in (halves, mpicoll.Communicator(world.Split(0, -world.rank)), mpicoll.Communicator()):
            comm.barrier()
        print("went on")
    """
    result = run(3, script(tmp_path, program))
    assert result.code == 0, result.output
    assert result.output.count("went on") == 3
