"""Ranks that are threads: what starts them, what ends them, and that no MPI is touched."""

from __future__ import annotations

import functools
import operator
import subprocess
import sys
import threading
import time
from traceback import extract_tb
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.errors import ArgumentError, MessageError, MismatchError, StateError

FLOATS, INTS = np.zeros(2), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (r"rank \d names \[\d, \d\], and rank \d \[", lambda comm: comm.subset([0, 1] if comm.rank else [1, 0])),
        ("rank 0 bcast_object root 0, rank 1 ", lambda comm: comm.bcast_object([1, 2], root=comm.rank)),
        ("rank 0 gather_object root 0, rank 1 ", lambda comm: comm.gather_object([1, 2], root=comm.rank)),
        ("rank 0 scatter_object root 0, rank 1 ", lambda comm: comm.scatter_object([1, 2], root=comm.rank)),
        ("object max, rank 1 .* sum", lambda comm: comm.allreduce_object(1, operator.add if comm.rank else "max")),
        ("0 bcast_object.* 1 allgather", lambda comm: comm.allgather_object(1) if comm.rank else comm.bcast_object(1)),
        ("3 elements.*from rank 0", lambda comm: comm.recv(np.ones(2), 0) if comm.rank else comm.send(np.ones(3), 1)),
        # Over MPI, only the bytes of a message count.
        ("float64 came .* expected int64", lambda comm: comm.recv(INTS, 0) if comm.rank else comm.send(FLOATS, 1)),
        (None, lambda comm: comm.alltoallv(np.ones(3 + comm.rank), [2, 1 + comm.rank], [2, 2])),
        (None, lambda comm: comm.allgatherv(np.ones(1 + comm.rank), [1, 2] if comm.rank == 0 else [2, 2])),
        (None, lambda comm: comm.allreduce(np.ones(3 + comm.rank))),
        (None, lambda comm: comm.allreduce(np.ones(3), "max" if comm.rank else "sum")),
        (None, lambda comm: comm.allreduce(np.ones(3, np.int64 if comm.rank else float))),
        (None, lambda comm: comm.allgather(np.ones(3), algorithm="ring" if comm.rank else None)),
        (None, lambda comm: comm.bcast(np.ones(3), comm.rank)),
        (None, lambda comm: comm.bcast(np.ones(3)) if comm.rank else comm.allreduce(np.ones(3))),
    ],
)
def test_what_does_not_fit_is_told(words: str | None, call: Any) -> None:
    with mpicoll.threads(2) as ranks, pytest.raises((MessageError, StateError), match=words):
        ranks.run(call)


@pytest.mark.parametrize("at_once", [False, True])
def test_messages_of_arrays_with_gaps(at_once: bool) -> None:
    def moved(comm: mpicoll.Communicator) -> Any:
        x, out, peer = np.arange(12.0).reshape(3, 4) + 100 * comm.rank, np.zeros((3, 4)), 1 - comm.rank
        if at_once:
            comm.sendrecv(x[:, 1], peer, out[:, 2], peer)
        else:
            comm.send(x[:, 1], peer)
            comm.recv(out[:, 2], peer)
        return out.tolist()

    with mpicoll.threads(2) as ranks:
        expected = [[[0, 0, peer + 4 * row + 1, 0] for row in range(3)] for peer in (100, 0)]
        assert ranks.run(moved) == expected


def test_ranks_that_do_not_run_make_no_calls() -> None:
    with mpicoll.threads(2) as ranks:
        comm, _ = ranks.run(lambda comm: comm)
        with pytest.raises(StateError, match=r"barrier.*: no rank of this job runs now"):
            comm.barrier()
    with pytest.raises(StateError, match="the ranks have ended"):
        comm.allreduce(np.ones(3))


def test_ranks_that_failed_do_not_run_again() -> None:
    with mpicoll.threads(2) as ranks:
        with pytest.raises(ZeroDivisionError):
            ranks.run(lambda comm: 1 / 0)
        with pytest.raises(StateError, match=r"cannot run any more: rank . has failed: ZeroDivisionError"):
            ranks.run(lambda comm: 1)


def test_ranks_may_run_again() -> None:
    def total(comm: mpicoll.Communicator, x: int) -> int:
        return int(comm.allreduce(np.array([x + comm.rank]))[0])

    with mpicoll.threads(3) as ranks:
        assert ranks.run(lambda comm, k: (comm.rank, comm.size, k), 7) == [(r, 3, 7) for r in range(3)]
        assert ranks.run(total, 1) == [6] * 3
        assert ranks.run(total, 2) == [9] * 3


def test_ranks_run_once_at_a_time() -> None:
    with mpicoll.threads(2) as ranks, pytest.raises(StateError, match="running already"):
        ranks.run(lambda comm: ranks.run(lambda comm: comm.rank))


def test_parts() -> None:
    def parts(comm: mpicoll.Communicator) -> tuple[Any, ...]:
        odd = comm.split(comm.rank % 2, -comm.rank)
        assert odd is not None
        assert (comm.split(None if comm.rank else 0) is None) == (comm.rank > 0)
        assert comm.node.size == comm.size
        some = comm.subset([3, 1])
        again = comm.subset([3, 1])
        assert (some is None) == (again is None) == (comm.rank not in (1, 3))
        seen = None if some is None or again is None else some.allgather_object(again.allgather_object(comm.rank))
        return odd.allgather_object(comm.rank), seen

    with mpicoll.threads(4) as ranks:
        found = ranks.run(parts)
    assert [f[0] for f in found] == [[2, 0], [3, 1]] * 2
    assert [f[1] for f in found] == [None, [[3, 1]] * 2] * 2


def test_a_rank_that_fails_ends_all() -> None:
    def fails(comm: mpicoll.Communicator) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("mine")
        comm.allreduce(np.ones(1))

    with mpicoll.threads(3) as ranks, pytest.raises(ZeroDivisionError, match="mine") as caught:
        ranks.run(fails)
    assert caught.value.__notes__ == ["on rank 1 of 3"]


@pytest.mark.parametrize(
    ("wait", "what"),
    [
        (lambda comm: comm.barrier(), "rank 0 in barrier"),
        (lambda comm: comm.recv(np.ones(1), 2), "rank 0 waits for a message from rank 2"),
        (lambda comm: comm.probe(2), "rank 0 waits for a message from rank 2"),
        (lambda comm: comm.allgather_object(1), "rank 0 in allgather_object"),
        (lambda comm: comm.split(0), "rank 0 in split"),
    ],
)
def test_what_can_never_come_is_an_error(wait: Any, what: str) -> None:
    """Rank 2 returns without a word: the others would wait for ever."""

    def early(comm: mpicoll.Communicator) -> None:
        if comm.rank != 2:
            wait(comm)

    with mpicoll.threads(3) as ranks, pytest.raises(StateError, match=f"no rank that has not ended can go on:.*{what}"):
        ranks.run(early)


@pytest.mark.parametrize("kind", ["complete", "some ranks", "against one that blocks", "dropped"])
def test_ranks_wait_for_each_other_with_calls_that_do_not_block(kind: str) -> None:
    def wait(comm: mpicoll.Communicator) -> None:
        if kind == "some ranks" and comm.rank == 1:
            return
        if kind == "against one that blocks" and comm.rank == 1:
            comm.allreduce(np.ones(2))
        request = comm.iallreduce(np.ones(2))
        if kind != "dropped":
            request.wait()
        if comm.rank != 1:
            comm.barrier()

    with mpicoll.threads(3) as ranks, pytest.raises(StateError, match="no rank that has not ended can go on"):
        ranks.run(wait)


def test_many_calls_that_do_not_block() -> None:
    def requested(comm: mpicoll.Communicator) -> list[int]:
        requests = [comm.iallreduce(np.full(2, i)) for i in range(200)]
        comm.barrier()
        for request in requests:
            request.wait()
        return [int(request.result[0]) for request in requests]

    with mpicoll.threads(3) as ranks:
        assert ranks.run(requested) == [[3 * i for i in range(200)]] * 3


def test_what_a_thread_of_a_rank_may_still_send_is_waited_for() -> None:
    def late(comm: mpicoll.Communicator) -> float:
        x = np.zeros(1)
        if comm.rank == 0:
            threading.Timer(0.3, comm.send, (np.ones(1), 1)).start()
            comm.recv(x, 1)
        else:
            comm.recv(x, 0)
            comm.send(x + 1, 0)
        return float(x[0])

    with mpicoll.threads(2) as ranks:
        assert ranks.run(late) == [2.0, 1.0]


def test_what_ranks_share() -> None:
    """The maximum of all, and arrays. Objects are copies. A communicator of a thread's own has the same ranks."""

    def share(comm: mpicoll.Communicator) -> tuple[Any, ...]:
        mine: list[int | str] = [comm.rank]
        comm.allgather_object(mine)[comm.rank].append("changed")
        arrays, own = comm.shared((2, 3)), mpicoll.Communicator()
        arrays[comm.rank] += comm.rank
        comm.barrier()
        found = [float(each.sum()) for each in arrays[:3]]
        comm.barrier()
        x = own.allreduce(np.full(1000, float(comm.rank)), "max", algorithm="recursive_doubling")
        return mine, found, float(x[0]), own is comm, own.allgather_object(own.rank)

    with mpicoll.threads(33) as ranks:  # more than there are cores
        expected = [([r], [0.0, 6.0, 12.0], 32.0, False, [*range(33)]) for r in range(33)]
        assert ranks.run(share) == expected


def test_no_thread_is_left() -> None:
    with mpicoll.threads(1) as ranks:
        ranks.run(lambda comm: comm.barrier())  # with the first communicator, mpicoll begins a thread of its own
    before = {*threading.enumerate()}
    with mpicoll.threads(4) as ranks:
        ranks.run(lambda comm: comm.barrier())
    deadline = time.monotonic() + 60
    while {*threading.enumerate()} - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not {*threading.enumerate()} - before


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "4"])
def test_a_size_that_is_none(size: Any) -> None:
    with pytest.raises(ArgumentError, match="threads: size: expected a number of ranks"), mpicoll.threads(size):
        pass


@pytest.mark.slow
def test_no_mpi_is_needed() -> None:
    """Neither loaded nor there to be loaded."""
    program = """
import sys
sys.modules["mpi4py"] = None
import numpy as np, mpicoll, mpicoll.torch as dist, torch
def main(comm):
    dist.init_process_group("gloo")
    x = torch.full((3,), 1.0 + dist.get_rank(), dtype=torch.bfloat16)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x.tolist()
with mpicoll.threads(3) as ranks:
    print(ranks.run(main))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{[[18.0] * 3] * 3}\n", "")


def test_threads_that_make_different_calls() -> None:
    def call(comm: mpicoll.Communicator) -> str:
        checked = mpicoll.Communicator(check="full")
        with pytest.raises(MismatchError) as caught:
            checked.allreduce(np.ones(2 + (comm.rank == 2)))
        return str(caught.value)

    with mpicoll.threads(3) as ranks:
        said = ranks.run(call)
    assert len(set(said)) == 1
    assert said[0].splitlines()[1:] == [
        "  ranks 0-1: allreduce sum of 2 float64",
        "  rank 2: allreduce sum of 3 float64",
    ]


FIRST = {
    "one has left": "if comm.rank: comm.barrier()",
    "two mutual receives": "comm.recv(np.zeros(1), 1 - comm.rank)",
    "a Work of torch's": "import mpicoll.torch as dist; dist.init_process_group()\n"
    "    comm.rank or dist.barrier(async_op=True).wait()",
}


@pytest.mark.parametrize("body", FIRST.values(), ids=FIRST)
def test_ranks_that_wait_for_each_other_in_the_first_job_of_a_process(body: str) -> None:
    """mpicoll begins threads of its own with the first communicator. They work for no rank."""
    program = f"""
import numpy as np, mpicoll
def main(comm):
    {body}
with mpicoll.threads(2) as ranks:
    ranks.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no rank that has not ended can go on" in done.stderr


def test_every_reduction_in_the_order_of_ranks() -> None:
    values = 1e16, 1.0, -1e16, 1.0, 1.0

    def sum_of(ranks: int) -> float:
        return functools.reduce(operator.add, values[:ranks])

    def right(comm: mpicoll.Communicator) -> dict[str, bool]:
        with mpicoll.Communicator(reproducible=True) as mine:
            p, rank = mine.size, mine.rank
            x, total = np.array([values[rank]]), sum_of(p)
            before = mine.exscan(x)
            return {
                "allreduce": all(mine.allreduce(np.full(n, x)).tolist() == [total] * n for n in (1, 5, 100_001)),
                "reduce": mine.reduce(x, root=p - 1) == total if rank == p - 1 else mine.reduce(x, root=p - 1) is None,
                "reduce_scatter": bool(mine.reduce_scatter(np.full(p, x)) == total),
                "reduce_scatterv": bool((mine.reduce_scatterv(np.full(2 * p, x), [2] * p) == total).all()),
                "scan": bool(mine.scan(x) == sum_of(rank + 1)),
                "exscan": rank == 0 or bool(before == sum_of(rank)),
            }

    for size in range(2, 6):
        with mpicoll.threads(size) as ranks:
            for found in ranks.run(right):
                assert all(found.values()), (size, found)


def test_a_traceback_has_the_frames_of_the_program_alone() -> None:
    """Of an error of mpicoll's own. All frames of any other error are the program's already."""

    def differs(comm: mpicoll.Communicator) -> None:
        comm.allreduce(np.ones(2 + comm.rank))

    def fails(comm: mpicoll.Communicator) -> None:
        [1 / n for n in (0,)]

    def frames(main: Any) -> list[str]:
        with mpicoll.threads(2) as ranks, pytest.raises((MessageError, ZeroDivisionError)) as caught:
            ranks.run(main)
        return [frame.name for frame in extract_tb(caught.value.__traceback__)][1:]

    assert frames(differs) == ["run", "differs"]
    assert frames(fails)[:2] == ["run", "fails"]
