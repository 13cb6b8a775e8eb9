"""Collectives that copy in, meet, and take: every one against the oracle, in pieces, with ranks that come late."""

from __future__ import annotations

import random
import time
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.routes.cico import PLACE, Places
from mpicoll.fabrics.transports import meeting
from mpicoll.machine import caches, shared_memory
from tests.ranks.test_where_arrays_lie import drawn, expected_of, inputs_of, make

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not meeting.in_order(), reason="ranks do not meet in memory on this processor"),
]


@pytest.mark.parametrize("overwrites", [False, True])
def test_random_calls(overwrites: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds of arrays, of which most are cut into pieces; on shared ones, too, which have a route of their own."""
    monkeypatch.setattr(caches, "both_help", lambda cpu: overwrites)
    monkeypatch.setattr(caches, "_LONG", 64)
    comm, common = mpicoll.Communicator(), random.Random(11)
    own = random.Random(comm.rank)
    for i in range(80):
        d = drawn(common, comm.size) | {"algorithm": "cico"}
        inputs = inputs_of(d, np.random.default_rng(i), comm.size)
        expected = expected_of(d, inputs)[comm.rank]
        if own.random() < 0.2:
            time.sleep(own.random() * 0.003)
        result, x, unchanged = make(comm, d, inputs, own)
        assert comm.last_route == "cico"
        if expected is not None:
            np.testing.assert_array_equal(np.ravel(result), expected, err_msg=f"call {i}: {d}")
        if x is not None and unchanged:
            np.testing.assert_array_equal(x, inputs[comm.rank], err_msg=f"call {i}: {d}")
    comm.free()


@pytest.mark.parametrize("overwrites", [False, True])
def test_what_one_rank_alone_reads_is_overwritten(overwrites: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks do so on this CPU. What several ranks read is not."""
    monkeypatch.setattr(caches, "both_help", lambda cpu: overwrites)
    made: list[Places] = []
    keep = Places.__init__

    def kept(self: Places, *given: Any) -> None:
        keep(self, *given)
        made.append(self)

    monkeypatch.setattr(Places, "__init__", kept)
    with mpicoll.Communicator() as comm:
        x = np.full((comm.size, 10_000), 7, np.uint8)
        for call, alone in ((partial(comm.alltoall, x), True), (partial(comm.allgather, x), comm.size == 2)):
            call(algorithm="cico")
            comm.barrier(algorithm="native")
            [places] = made
            used = places.halves[1 - places.turn]
            others = [used[r] for r in range(comm.size) if r != comm.rank]
            assert {bool(place.any()) for place in others} == {not (alone and overwrites)}
            comm.barrier(algorithm="native")


@pytest.mark.parametrize("count", [0, 1, PLACE // 4, PLACE // 4 + 1, PLACE])
def test_prefixes(count: int) -> None:
    with mpicoll.Communicator() as comm:
        x = np.arange(count, dtype=np.float32) + comm.rank
        through = [np.arange(count, dtype=np.float32) * (r + 1) + r * (r + 1) // 2 for r in range(comm.size)]
        np.testing.assert_array_equal(comm.scan(x, algorithm="cico"), through[comm.rank])
        before = np.full(count, 7, np.float32)
        after = comm.exscan(x, out=before, algorithm="cico")
        np.testing.assert_array_equal(after, through[comm.rank - 1] if comm.rank else np.full(count, 7))
        comm.scan(x, out=x, algorithm="cico")
        np.testing.assert_array_equal(x, through[comm.rank])


@pytest.mark.parametrize("count", [5_000, PLACE])
def test_values_are_combined_in_the_order_of_the_ranks(count: int) -> None:
    """Bit for bit, in pieces and in slices, too."""
    with mpicoll.Communicator() as comm:
        given = [np.random.default_rng(r).standard_normal(count * comm.size) for r in range(comm.size)]
        sums = list(accumulate(given))
        mine = given[comm.rank]
        block = slice(count * comm.rank, count * (comm.rank + 1))
        np.testing.assert_array_equal(comm.allreduce(mine, algorithm="cico"), sums[-1])
        np.testing.assert_array_equal(
            comm.reduce_scatter(mine.reshape(comm.size, -1), algorithm="cico"), sums[-1][block]
        )
        np.testing.assert_array_equal(comm.scan(mine, algorithm="cico"), sums[comm.rank])
        at_root = comm.reduce(mine, root=comm.size - 1, algorithm="cico")
        assert at_root is None or (at_root == sums[-1]).all()


def test_sums_of_short_floats_are_rounded_once() -> None:
    with mpicoll.Communicator() as comm:
        x = np.full(PLACE, 1.0 if comm.rank else 2048.0, np.float16)  # 2048 + 1 is 2048
        expected = np.float16(np.float32(2048 + comm.size - 1))
        assert (comm.allreduce(x, algorithm="cico") == expected).all()


def test_elements_longer_than_a_place() -> None:
    """They are only moved, byte by byte."""
    with mpicoll.Communicator() as comm:
        x = np.full(3, comm.rank, np.dtype([("a", "u1", (PLACE + 5,))]))
        gathered = comm.allgather(x, algorithm="cico")
        for rank in range(comm.size):
            assert (gathered[rank] == np.full(3, rank, x.dtype)).all()


def test_many_calls_of_many_kinds() -> None:
    """A place is written to again only when nobody reads it any more, whatever comes between."""
    with mpicoll.Communicator() as comm:
        own, mine = random.Random(comm.rank), comm.rank + 1.0
        total = comm.size * (comm.size + 1) / 2
        shared = comm.empty(PLACE)
        for i in range(300):
            x = np.full([5_000, 70_000, 200_000][i % 3], mine)
            if own.random() < 0.1:
                time.sleep(0.001)
            assert (comm.allreduce(x, algorithm="cico") == total).all()
            if i % 4 == 0:
                shared.fill(mine)
                comm.allreduce(shared, out=shared)
                assert (shared == total).all()
            if i % 7 == 0:
                comm.allreduce(x, out=x, algorithm="ring")
                assert (x == total).all()
                root = i % comm.size
                comm.bcast(x, root=root, algorithm="cico")


def test_what_it_does_not_serve() -> None:
    with mpicoll.Communicator() as comm:
        x = np.ones(comm.size, np.float32)
        with pytest.raises(
            ArgumentError, match=r"allreduce: algorithm: expected .*exchange: ranks may have different fac"
        ):
            comm.allreduce(x, op=mpicoll.Op.premul_sum(2.0), algorithm="cico")
        with pytest.raises(ArgumentError, match=r"alltoallv: algorithm: expected None or .*given 'cico'"):
            comm.alltoallv(x, [1] * comm.size, [1] * comm.size, algorithm="cico")
        part = comm.split(comm.rank, 0)  # each rank alone
        assert part is not None
        assert (part.allreduce(x, algorithm="cico") == x).all()


def test_ranks_that_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    with mpicoll.Communicator() as comm, pytest.raises(ArgumentError, match=r"no memory to share.*given 'cico'"):
        comm.allreduce(np.ones(9), algorithm="cico")


def test_when_there_is_no_more_memory_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks learn it together, in their first call. The communicator can be used as before."""
    monkeypatch.setattr(shared_memory, "BUDGET", 1 << 16)
    with mpicoll.Communicator() as comm:
        for _ in range(2):
            with pytest.raises(ArgumentError, match=r"no memory to share, or no more of it.*given 'cico'"):
                comm.allreduce(np.ones(9), algorithm="cico")
            assert (comm.allreduce(np.ones(PLACE)) == comm.size).all()
