"""What algorithms promise beyond their collective: orders of reduction, and how much a rank sends, keeps and builds."""

from __future__ import annotations

import tracemalloc
from functools import reduce

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.steps import Send
from mpicoll.analysis.proof.cases import prove
from tests.known import known

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
