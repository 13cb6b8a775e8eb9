"""Messages: their tags, how they are called, and what a program is told of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError, MessageError
from mpicoll.launch import lifecycle
from tests.ranks.children import ended_midway


@pytest.mark.mpi(min_size=2)
def test_two_threads_with_a_communicator_each(comm: mpicoll.Communicator) -> None:
    """One waits for long messages, while the other holds, and drops, hundreds of its own."""
    if not comm._engine.fabric.any_thread:
        pytest.skip("needs MPI_THREAD_MULTIPLE")
    here, there = comm.split(0), comm.split(0)
    long, turns, many = np.ones(1 << 20, np.uint8), 400, 4000

    def talk() -> None:
        for _ in range(turns):
            if comm.rank == 0:
                here.send(long, 1)
            elif comm.rank == 1:
                here.recv(np.empty_like(long), 0)

    with ThreadPoolExecutor(1) as thread:
        talks = thread.submit(talk)
        if comm.rank == 0:
            pending = [there.isend(np.full(1, i), 1) for i in range(many)]
            for request in pending:
                request.wait()
        elif comm.rank == 1:
            y = np.zeros(1, int)
            assert [int(there.recv(y, 0)[0]) for _ in range(many)] == list(range(many))
        talks.result()


@pytest.mark.mpi(min_size=2)
@pytest.mark.processes
def test_a_receive_that_a_signal_interrupts_as_it_ends(comm: mpicoll.Communicator) -> None:
    """MPI forgets a message that it has found to be complete: what it said of it must not be lost."""
    if comm.rank == 0:
        x = np.zeros(1000)
        request = comm.irecv(x, 1)
        with ended_midway(KeyboardInterrupt):
            comm.send_object(os.getpid(), 1)
            request.wait()  # the handler runs once MPI's wait has returned
        request.wait()
        assert request.source == 1
        assert x.all()
    elif comm.rank == 1:
        process = comm.recv_object(0)
        time.sleep(0.3)  # in which rank 0 comes to its wait
        os.kill(process, signal.SIGALRM)
        comm.send(np.ones(1000), 0)
    comm.barrier()


# -- what programs of MPI do ------------------------------------------------------------------------------------------


def test_a_halo_exchange_that_ends_at_the_border(comm: mpicoll.Communicator) -> None:
    line = MPI.COMM_WORLD.Create_cart([comm.size], periods=[False])
    below, above = line.Shift(0, 1)
    assert (below == MPI.PROC_NULL) == (comm.rank == 0)
    x, y = np.full(3, float(comm.rank)), np.full(3, -1.0)
    for _ in range(3):
        assert comm.sendrecv(x, above, y, below) is y
        assert y.tolist() == [comm.rank - 1.0] * 3  # at the border it stays as it was, -1
    y[:] = -1
    requests = [comm.irecv(y, below), comm.isend(x, above)]
    for request in requests:
        request.wait()
    assert requests[0].source == below
    assert y.tolist() == [comm.rank - 1.0] * 3
    comm.send(x, MPI.PROC_NULL)
    assert comm.recv(y, MPI.PROC_NULL) is y
    assert comm.iprobe(MPI.PROC_NULL) is not None
    line.Free()


@pytest.mark.parametrize("how", ["recv", "irecv", "sendrecv"])
@pytest.mark.mpi(min_size=2)
def test_a_message_that_ends_within_an_element(comm: mpicoll.Communicator, how: str) -> None:
    three, two, other = np.ones(3, np.float32), np.zeros(2), 1 - comm.rank
    calls: dict[str, Callable[[], object]] = {
        "recv": lambda: comm.recv(two, other),
        "irecv": lambda: comm.irecv(two, other).wait(),
        "sendrecv": lambda: comm.sendrecv(three, other, two, other),
    }
    if comm.rank < 2:
        sent = comm.isend(three, other) if how != "sendrecv" else None
        said = f"^{how}: expected 2 elements of float64 from rank {other}; part of an element"
        with pytest.raises(MessageError, match=said):
            calls[how]()
        if sent is not None:
            sent.wait()
    assert comm.allreduce(np.ones(1))[0] == comm.size


@pytest.mark.parametrize("count", [5_000, 40_000, 2_000_000])
def test_messages_of_arrays_in_shared_memory(comm: mpicoll.Communicator, count: int) -> None:
    """Where they begin in their memory, as they change, into any array, and over themselves."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    whole, ordinary, columns = comm.empty(count + 3), np.zeros(count), np.zeros((count, 2))
    for turn in range(3):
        whole[:] = np.arange(count + 3) + comm.rank + turn
        expected = np.arange(3, count + 3) + before + turn
        request = comm.isend(whole[3:], after)
        assert (comm.recv(ordinary, before) == expected).all()
        request.wait()
        assert (comm.sendrecv(whole[3:], after, columns[:, 1], before) == expected).all()
        assert (comm.sendrecv(whole[3:], after, whole[3:], before) == expected).all()


def test_a_message_that_is_bound_is_checked_again(comm: mpicoll.Communicator) -> None:
    """What is found again is memory, not an array: the same array may have become another one."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, y = np.arange(4.0), np.zeros(4)
    for _ in range(2):
        comm.sendrecv(x, after, y, before)
        comm.isend(x, after)
        comm.recv(y, before)
    y.flags.writeable = False
    with pytest.raises(ArgumentError, match="recv: x: expected an array that can be written to"):
        comm.recv(y, before)
    for wrong in (True, float(after), str(after)):
        with pytest.raises(ArgumentError, match="isend: dest: "):
            comm.isend(x, wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="sendrecv: dest: "):
            comm.sendrecv(x, wrong, np.zeros(4), before)  # type: ignore[arg-type]
    comm.isend(x.view(np.int64), after)
    z = np.zeros(4, np.int64)
    comm.recv(z, before)
    assert (z.view(float) == x).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.processes
def test_messages_move_while_a_rank_only_looks(comm: mpicoll.Communicator, tmp_path: Path) -> None:
    """As a rank does that is at its end, and waits for the others."""
    sent = Path(comm.bcast_object(str(tmp_path / "sent")))
    message = np.full(1 << 20, comm.rank)
    if comm.rank == 0:
        request = comm.irecv(message, 1)
        until = time.monotonic() + 60
        while not sent.exists() and time.monotonic() < until:
            lifecycle.progress()
        assert sent.exists()
        request.wait()
        assert (message == 1).all()
    elif comm.rank == 1:
        comm.send(message, 0)
        sent.touch()
