"""Every algorithm that is there, proved: all small sizes, and large ones where that is cheap."""

from __future__ import annotations

import tracemalloc
from functools import reduce

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.steps import Copy, Send
from mpicoll.analysis.proof.cases import cases, prove
from tests.known import known

ALL = [*algorithms()]
LARGE = (100, 255, 1024, 4095)
CHEAP = 50_000
"""Messages, and every few tens of blocks that travel, of all ranks together: less than a second."""

each = pytest.mark.parametrize("algorithm", ALL, ids=lambda a: f"{a.collective}-{a.name}")


def test_nothing_declines_a_number_of_ranks() -> None:
    for a in ALL:
        assert {case.size for case in cases(a, range(1, 20))} == {*range(1, 20)}, f"{a.collective} {a.name}"


@pytest.mark.slow
@each
def test_up_to_64_ranks(algorithm: Algorithm) -> None:
    for case in cases(algorithm, range(1, 65)):
        prove(algorithm, *case)


def effort(algorithm: Algorithm, size: int) -> float:
    """What a proof must carry out, by the part of the busier of the first and the last rank."""
    busiest = 0.0
    for rank in (0, size - 1):
        actions = [a for step in algorithm.schedule(rank, size).steps for a in step]
        blocks = sum(len(r) for a in actions for r in a.blocks)
        runs = sum(len(a.blocks) for a in actions if not isinstance(a, Copy))
        busiest = max(busiest, runs + blocks / 30)
    return size * busiest


@pytest.mark.slow
@each
def test_many_ranks(algorithm: Algorithm) -> None:
    for size in LARGE:
        if effort(algorithm, size) <= CHEAP:
            prove(algorithm, size)


@each
def test_steps_are_a_function_of_the_place_alone(algorithm: Algorithm) -> None:
    for size in (1, 2, 7, 12):
        for rank in range(size):
            first = algorithm.schedule(rank, size, size // 2, 2)
            for other in range(size):
                algorithm.schedule(other, size)
            assert algorithm.schedule(rank, size, size // 2, 2) == first


SIZES = (2, 3, 4, 5, 6, 7, 8, 13, 16, 31)


def left_fold(ranks: list[int]) -> str:
    return reduce(lambda tree, rank: f"({tree}+{rank})", ranks[1:], str(ranks[0]))


def tree(algorithm: Algorithm, size: int, rank: int, root: int = 0, segments: int = 1) -> str:
    """The only tree that the blocks of the rank's result are."""
    proof = prove(algorithm, size, root, segments)
    wants = range(rank, rank + 1) if algorithm.collective == "reduce_scatter" else range(len(proof.results[rank]))
    (found,) = {proof.symbols.shown(proof.results[rank][block]) for block in wants}
    return found


@pytest.mark.parametrize("size", SIZES)
def test_orders_that_are_promised(size: int) -> None:
    """The left fold, for any cut, or all ranks in their order from the root on."""
    everyone = [*range(size)]
    for segments in (1, 2, 7):
        assert tree(known("allreduce", "fixed_order"), size, 0, 0, segments) == left_fold(everyone)
    assert tree(known("allreduce", "linear"), size, 0) == left_fold(everyone)
    for rank in everyone:
        assert tree(known("reduce_scatter", "linear"), size, rank) == left_fold(everyone)
        assert tree(known("scan", "chain"), size, rank) == left_fold(everyone[: rank + 1])
        assert rank == 0 or tree(known("exscan", "chain"), size, rank) == left_fold(everyone[:rank])
    for root in {0, size // 2, size - 1}:
        assert tree(known("reduce", "linear"), size, root, root) == left_fold(everyone)
        around = [*everyone[root:], *everyone[:root]]
        orders = {"binomial_tree": around, "binary_tree": around, "chain": [*around[1:], root]}
        for name, order in orders.items():
            found = tree(known("reduce", name), size, root, root)
            assert found.replace("(", "").replace(")", "") == "+".join(map(str, order)), (name, root)


@pytest.mark.parametrize("size", SIZES)
def test_in_two_trees_a_rank_sends_no_more_than_the_vector(size: int) -> None:
    """In a binary tree some send it twice."""
    algorithm = known("bcast", "double_binary_tree")
    for rank in range(size):
        sent = [a for step in algorithm.schedule(rank, size).steps for a in step if isinstance(a, Send)]
        assert len(sent) <= 2, rank  # of the two halves


TREES = [a for a in algorithms() if a.name.endswith("tree") or a.name in ("chain", "fixed_order")]


@pytest.mark.parametrize("algorithm", TREES, ids=lambda a: f"{a.collective}-{a.name}")
def test_a_rank_of_a_tree_builds_its_own_steps_alone(algorithm: Algorithm) -> None:
    size = 100_000
    for rank in (0, 1, 1 << 16, size - 1):
        tracemalloc.start()
        schedule = algorithm.schedule(rank, size)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000
        assert sum(map(len, schedule.steps)) <= 4 * size.bit_length()
