"""An algorithm of a user's own: proved before any call can name it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll import algorithms
from mpicoll.algorithms import Algorithm, find
from mpicoll.algorithms.steps import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Copy,
    Nodes,
    Place,
    Recv,
    RecvReduce,
    Send,
    Steps,
    one,
    segments,
)
from mpicoll.calls import choose
from mpicoll.calls.call import checked
from mpicoll.errors import ArgumentError, ScheduleError
from tests.known import star

BUILT_IN = (choose.NATIVE, choose.EXCHANGE, choose.NODE, choose.WIDE, choose.STAGED, choose.DEVICE, choose.IPC)
"""What ``algorithm=`` takes besides schedules."""
STAR = Algorithm("allreduce", "star", star)


pytestmark = pytest.mark.usefixtures("registry")


def rejected(algorithm: Algorithm) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        mpicoll.register(algorithm)
    assert find(algorithm.collective, algorithm.name) is None
    return caught.value


def refused(algorithm: Algorithm) -> ArgumentError:
    before = find(algorithm.collective, algorithm.name)
    with pytest.raises(ArgumentError) as caught:
        mpicoll.register(algorithm)
    assert find(algorithm.collective, algorithm.name) is before
    assert (caught.value.operation, caught.value.argument) == ("register", "algorithm")
    return caught.value


def test_a_registered_algorithm_carries_out_calls() -> None:
    algorithm = replace(STAR, collective="all_reduce")  # torch's name of it
    mpicoll.register(algorithm)
    assert find("allreduce", "star") is algorithm
    assert "star" in choose.names("allreduce")
    assert algorithm.cost == "2(p-1) (a + n b)"
    with pytest.raises(ArgumentError, match="register: replace: expected True or False; given 1"):
        mpicoll.register(STAR, replace=1)  # type: ignore[arg-type]

    def total(comm: mpicoll.Communicator) -> list[float]:
        found: list[float] = comm.allreduce(np.arange(3.0) + comm.rank, algorithm="star").tolist()
        return found

    with mpicoll.threads(3) as ranks:
        assert ranks.run(total) == [[3.0, 6.0, 9.0]] * 3


def test_every_root_and_several_segmentations_are_proved() -> None:
    def to_all(at: Place, right: bool) -> Steps:
        blocks = range(at.segments)
        if at.rank == at.root:
            for b in blocks:
                yield tuple(Send(peer, one(b), OUTPUT) for peer in range(at.size) if peer != at.root)
        else:
            for b in blocks if right else reversed(blocks):
                yield (Recv(at.root, one(b), OUTPUT),)

    def right(at: Place) -> Steps:
        return to_all(at, True)

    def wrong_segments(at: Place) -> Steps:
        return to_all(at, False)

    def wrong_root(at: Place) -> Steps:
        return to_all(at._replace(root=0), True) if at.root == 6 else to_all(at, True)

    assert rejected(Algorithm("bcast", "fan", wrong_segments, segments, segment=1024)).rank == 1
    error = rejected(Algorithm("bcast", "fan", wrong_root, segments, segment=1024))
    assert "of 7 ranks, root 6" in str(error)
    mpicoll.register(Algorithm("bcast", "fan", right, segments, segment=1024))


def test_serving_blocks_of_different_sizes_is_proved_too() -> None:
    def relay(at: Place) -> Steps:
        """All blocks go through SCRATCH, which has room for what comes and not for what goes."""
        everyone = range(at.size)
        yield tuple(Copy(one(b), INPUT, SCRATCH) for b in everyone)
        others = [peer for peer in everyone if peer != at.rank]
        sends = [Send(peer, one(peer), SCRATCH) for peer in others]
        receives = [Recv(peer, one(peer), OUTPUT) for peer in others]
        yield (*sends, *receives, Copy(one(at.rank), SCRATCH, OUTPUT))

    even = Algorithm("alltoall", "relay", relay)
    assert "sizes may differ" in rejected(replace(even, uneven=True)).problem
    mpicoll.register(even)
    assert "relay" not in choose.names("alltoallv")


@pytest.mark.parametrize("name", ["ring", *BUILT_IN])
def test_a_name_is_given_once(name: str) -> None:
    assert refused(replace(STAR, name=name)).given == repr(name)
    before = find("allreduce", name)
    with pytest.raises(ArgumentError, match="a name that allreduce does not have yet; given"):
        mpicoll.register(replace(STAR, name=name), replace=True)
    assert find("allreduce", name) is before


def test_what_is_declined_is_said_by_name_and_not_proved() -> None:
    def odd(size: int, root: int) -> str | None:
        return "it needs an even number" if size % 2 else None

    few = replace(STAR, declines=lambda size, root: "it needs 9 ranks" if size < 9 else None)
    assert "it needs 9 ranks" in refused(few).expected  # no proof can reach it
    algorithm = replace(STAR, declines=odd)
    mpicoll.register(algorithm)
    with pytest.raises(ArgumentError, match=r"one that serves 3 ranks \(star does not: it needs an even number\)"):
        algorithm.schedule(0, 3)
    call = checked("allreduce", 0, 3, np.ones(128), None, "sum", 0)
    with pytest.raises(ArgumentError, match="star does not: it needs an even number"):
        choose.choose(call, "star", choose.CommInfo(Nodes.one(3), ""))
    assert choose.choose(call, "star", choose.CommInfo(Nodes.one(4), "")).name == "star"


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("collective", "reduce_all"), ("collective", ["x"]), ("name", "a star"), ("steps", None), ("cut", None),
        ("declines", 3), ("segment", 0), ("segment", 1.5),
    ],
)  # fmt: skip
def test_wrong_arguments(argument: str, wrong: object) -> None:
    with pytest.raises(ArgumentError, match=f"Algorithm: {argument}: expected"):
        replace(STAR, **{argument: wrong})  # type: ignore[arg-type]


def broken(at: Place) -> Steps:
    raise ZeroDivisionError("mine")
    yield


def endless(at: Place) -> Steps:
    while True:
        yield (Send(1 - at.rank, one(0), INPUT), Recv(1 - at.rank, one(0), OUTPUT))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (broken, "raises ZeroDivisionError: mine\n  at test_register.py:"),
        (endless, "of 2 ranks: rank 0: yields more than 2,000 steps: does its function never end?"),
        (lambda at: None, "TypeError"),
    ],
)
def test_functions_that_yield_no_schedule(steps: Any, words: str) -> None:
    assert words in str(rejected(replace(STAR, steps=steps)))


def right_to_8(at: Place) -> Steps:
    """A star that forgets ranks beyond 8."""
    for step in star(at):
        if at.rank > 7 and isinstance(step[0], Recv):
            return
        yield step


def call(comm: mpicoll.Communicator, count: int = 3) -> str:
    try:
        return str(comm.allreduce(np.ones(count), algorithm="star").sum())
    except ScheduleError as error:
        return str(error)


def test_a_new_number_of_ranks_is_proved_before_a_call() -> None:
    """All ranks get the fault, before data moves: they can go on."""
    mpicoll.register(replace(STAR, steps=right_to_8))
    with mpicoll.threads(9) as ranks:
        said = ranks.run(call)
        assert len(set(said)) == 1
        assert said[0].startswith("allreduce star of 9 ranks: rank 0, step 8, block 0: waits forever for rank 8")
        assert "rank 8: has no message left that it sends to" not in said[0]
        assert "rank 8: has no message left that it receives from rank 0" in said[0]
        assert ranks.run(lambda comm: comm.allreduce_object(1)) == [9] * 9
    with mpicoll.threads(8) as ranks:
        assert set(ranks.run(call)) == {"24.0"}


def test_a_new_number_of_segments_is_proved_before_a_call() -> None:
    """A vector decides into how many segments it is cut, so any number of them may come."""

    def forgets(at: Place) -> Steps:
        """A star that leaves out the last of three segments."""
        blocks = (range(2 if at.segments == 3 else at.segments),)
        if at.rank:
            yield (Send(0, blocks, INPUT),)
            yield (Recv(0, blocks, OUTPUT),)
        else:
            yield (RecvReduce(1, blocks, INPUT, OUTPUT, mine_first=True),)
            yield (Send(1, blocks, OUTPUT),)

    two = replace(STAR, declines=lambda size, root: None if size == 2 else "serves 2 ranks")
    mpicoll.register(replace(two, steps=forgets, cut=segments, segment=80))
    with mpicoll.threads(2) as ranks:
        assert ranks.run(call, 20) == ["40.0"] * 2
        assert ranks.run(call, 40) == ["80.0"] * 2
        said = ranks.run(call, 30)
        assert said[0] == said[1]
        assert said[0].startswith("allreduce star of 2 ranks: rank 0, block 2: ends without")


def test_many_ranks_are_not_proved_but_said() -> None:
    mpicoll.register(STAR)
    with pytest.warns(UserWarning, match="allreduce star was proved for 1 to 8 ranks only, not for 65"):
        algorithms.schedule("allreduce", "star", 0, 65, 0, 8)
    algorithms.schedule("allreduce", "star", 0, 65, 0, 8)  # it says so once
    algorithms.schedule("allreduce", "star", 1, 66, 0, 8)  # and on rank 0 alone


def test_an_algorithm_is_replaced_where_the_program_says_so() -> None:
    """As a cell of a notebook that is run again."""

    def changed(at: Place) -> Steps:
        return star(at)

    mpicoll.register(STAR)
    assert "a name that allreduce does not have yet, or replace=True" in refused(STAR).expected
    again = replace(STAR, steps=changed)
    mpicoll.register(again, replace=True)
    assert find("allreduce", "star") is again
    with pytest.raises(ScheduleError):
        mpicoll.register(replace(STAR, steps=lambda at: ()), replace=True)
    assert find("allreduce", "star") is again


def test_a_communicator_that_has_called_the_old_one_calls_the_new_one() -> None:
    """A repeated call would find the plan of the old one again."""
    asked: list[str] = []

    def one_of(name: str) -> Algorithm:
        def steps(at: Place) -> Steps:
            asked.append(name)
            return star(at)

        return replace(STAR, steps=steps)

    def twice(comm: mpicoll.Communicator) -> list[float]:
        x, total = np.ones(2), np.zeros(2)
        for _ in range(3):
            comm.allreduce(x, out=total, algorithm="star")
        comm.barrier()
        if comm.rank == 0:
            mpicoll.register(one_of("new"), replace=True)
            asked.clear()
        comm.barrier()
        comm.allreduce(x, out=total, algorithm="star")
        found: list[float] = total.tolist()
        return found

    mpicoll.register(one_of("old"))
    with mpicoll.threads(2) as ranks:
        assert ranks.run(twice) == [[2.0, 2.0]] * 2
    assert "new" in asked
    assert "old" not in asked
