"""Messages under way while their rank is elsewhere: in a call of MPI's, in Python, or past a call that ended midway."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import MessageError
from mpicoll.node.loaded import kernel
from tests.ranks.children import ended_midway, in_child
from tests.sharing import NEEDED

pytestmark = NEEDED  # MPI's own messages move as MPI moves them

N = 1_000_000


def compute() -> None:
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        sum(range(1000))


@pytest.mark.parametrize("elsewhere", ["mpi", "native", "computes", "sleeps"])
def test_a_rank_that_is_elsewhere(comm: mpicoll.Communicator, elsewhere: str) -> None:
    """Rank 1 has its message, and all others a collective's result, before rank 0 waits for them."""
    goes_on: dict[str, Callable[[], object]] = {
        "mpi": MPI.COMM_WORLD.Barrier,
        "native": lambda: comm.allreduce(np.ones(3), algorithm="native"),
        "computes": compute,
        "sleeps": lambda: time.sleep(0.5),
    }
    together = elsewhere in ("mpi", "native")
    z = np.ones(N)
    requests = [comm.iallreduce(z, out=z)]
    if comm.rank:
        requests[0].wait()
        assert (z == comm.size).all()
    if comm.rank == 0:
        x, y = np.full(N, 7.0), np.zeros(N)
        requests += [comm.isend(x, 1), comm.irecv(y, 1)]
        goes_on[elsewhere]()
    elif comm.rank == 1:
        y = np.zeros(N)
        comm.recv(y, 0)
        comm.send(np.full(N, 7.0), 0)
        assert (y == 7).all()
    if together and comm.rank:
        goes_on[elsewhere]()
    for request in requests:
        request.wait()
    assert (z == comm.size).all()
    if comm.rank == 0:
        assert (y == 7).all()


@pytest.mark.parametrize("shared", [False, True])
def test_ranks_that_begin_and_wait_in_another_order(comm: mpicoll.Communicator, shared: bool) -> None:
    """Each rank waits for its first collective before it waits for the other one."""
    other = comm.split(0)
    xs = [(comm.empty if shared else np.empty)(N) for _ in range(2)]
    for turn in range(10):
        both = [(comm, xs[0]), (other, xs[1])]
        for _, x in both:
            x[:] = comm.rank + turn
        if comm.rank % 2:
            both.reverse()
        requests = [each.iallreduce(x, out=x) for each, x in both]
        for request in requests:
            request.wait()
        assert all((x == sum(range(comm.size)) + turn * comm.size).all() for x in xs)
    other.free()


def test_a_child_is_forked_while_the_thread_waits_for_pythons_lock(comm: mpicoll.Communicator) -> None:
    """The child has no such thread, and comes to its end."""

    def end() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        kernel.end_moving()

    x = np.ones(N)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        request = comm.iallreduce(x, out=x)
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        in_child(end)
    finally:
        sys.setswitchinterval(interval)
    request.wait()
    assert (x == comm.size).all()


@pytest.mark.slow
@pytest.mark.parametrize("count", [15_000, N])
@pytest.mark.parametrize("operation", ["send", "sendrecv"])
def test_an_array_of_a_call_that_has_ended_midway(
    comm: mpicoll.Communicator, operation: str, count: int, tmp_path: Path
) -> None:
    """It may still be sent, so it stays, and it leaves while its rank is in a call of MPI's."""
    has_ended = Path(comm.bcast_object(str(tmp_path / "has_ended")))
    call: dict[str, Callable[[], object]] = {
        "send": lambda: comm.send(np.ones(count), 1),
        "sendrecv": lambda: comm.sendrecv(np.ones(count), 1, np.zeros(count), 1),
    }
    if comm.rank == 0:
        with ended_midway(when=lambda: comm._engine.under_way.waits):  # by a timer, once the rank waits
            signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
            call[operation]()
        has_ended.touch()
        others = [np.full(count, -7.0) for _ in range(3)]  # in memory that was free
        MPI.COMM_WORLD.Barrier()
        assert (others[0] == -7).all()
    else:
        if comm.rank == 1:
            while not has_ended.exists():
                time.sleep(0.01)
            time.sleep(0.1)  # in which rank 0 comes to the barrier
            assert (comm.recv(np.zeros(count), 0) == 1).all()
        MPI.COMM_WORLD.Barrier()


def test_a_communicator_that_is_freed_meanwhile(comm: mpicoll.Communicator) -> None:
    part = comm.split(0)
    y = np.zeros(N)
    requests = []
    with part:
        if part.rank < 2:
            requests = [part.isend(np.full(N, part.rank + 1.0), 1 - part.rank), part.irecv(y, 1 - part.rank)]
    if comm.rank == 1:
        time.sleep(0.3)
    for request in requests:
        request.wait()
    assert comm.rank > 1 or (y == 2 - comm.rank).all()


@pytest.mark.parametrize("sender", ["waits", "waits later", "is elsewhere"])
@pytest.mark.parametrize("elements", [(1 << 19) - 1, 1 << 19, 1_700_001])
def test_a_very_long_message(comm: mpicoll.Communicator, sender: str, elements: int) -> None:
    """Both ranks may copy a half of it. The receiver's array may be longer, or have gaps."""
    sent = np.arange(elements, dtype=np.float64)
    for turn in range(3):
        if comm.rank == 0:
            request = comm.isend(sent + turn, 1)
            if sender == "is elsewhere":
                comm.recv(np.empty(1), 1, tag=1)
            elif sender == "waits later":
                time.sleep(0.01)
            request.wait()
        elif comm.rank == 1:
            room = np.full((elements, 2), -1.0)
            came = room[:, 0] if turn == 1 else np.empty(elements)
            comm.recv(came, 0)
            assert (came == sent + turn).all()
            assert (room[:, 1] == -1).all()
            if sender == "is elsewhere":
                comm.send(np.ones(1), 0, tag=1)
    if comm.rank == 0:
        comm.send(sent, 1)
    elif comm.rank == 1:
        longer = np.full(elements + 3, -1.0)
        with pytest.raises(MessageError, match=f"expected {elements + 3} elements"):
            comm.recv(longer, 0)
        assert (longer[:elements] == sent).all()
        assert (longer[elements:] == -1).all()
