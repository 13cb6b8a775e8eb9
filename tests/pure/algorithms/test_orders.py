"""What algorithms promise beyond their collective: orders of reduction, and how much a rank sends, keeps and builds."""

from __future__ import annotations

import tracemalloc

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.steps import Send
from mpicoll.analysis.proof.cases import prove
from tests.known import known

SIZES = (2, 3, 4, 5, 6, 7, 8, 13, 16, 31)


def left_fold(ranks: list[int]) -> str:
    text = str(ranks[0])
    for rank in ranks[1:]:
        text = f"({text}+{rank})"
    return text


def trees(algorithm: Algorithm, size: int, root: int = 0, segments: int = 1) -> set[str]:
    """The trees that the blocks of the root's result are."""
    proof = prove(algorithm, size, root, segments)
    return {proof.symbols.shown(block) for block in proof.results[root]}


@pytest.mark.parametrize("size", SIZES)
def test_fixed_order_is_the_left_fold_for_any_cut(size: int) -> None:
    for segments in (1, 2, 7):
        assert trees(known("allreduce", "fixed_order"), size, 0, segments) == {left_fold([*range(size)])}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("collective", ["reduce", "allreduce"])
def test_linear_is_the_left_fold(collective: str, size: int) -> None:
    for root in {0, size // 2, size - 1} if collective == "reduce" else {0}:
        assert trees(known(collective, "linear"), size, root) == {left_fold([*range(size)])}


@pytest.mark.parametrize("size", SIZES)
def test_each_rank_has_the_left_fold(size: int) -> None:
    expected = {
        ("reduce_scatter", "linear"): [left_fold([*range(size)])] * size,
        ("scan", "chain"): [left_fold([*range(rank + 1)]) for rank in range(size)],
        ("exscan", "chain"): ["", *(left_fold([*range(rank)]) for rank in range(1, size))],
    }
    for named, folds in expected.items():
        proof = prove(known(*named), size)
        for rank, fold in enumerate(folds):
            block = rank if named[0] == "reduce_scatter" else 0
            assert not fold or proof.symbols.shown(proof.results[rank][block]) == fold, (named, rank)


@pytest.mark.parametrize("size", SIZES)
def test_reductions_keep_the_order_of_the_ranks(size: int) -> None:
    for root in {0, size // 2, size - 1}:
        around = [(root + i) % size for i in range(size)]
        orders = {"binomial_tree": around, "binary_tree": around, "chain": [*around[1:], root]}
        for name, order in orders.items():
            (tree,) = trees(known("reduce", name), size, root)
            assert tree.replace("(", "").replace(")", "") == "+".join(map(str, order)), (name, root)


@pytest.mark.parametrize(("size", "log2"), [(16, 4), (64, 6)])
def test_how_often_a_contribution_is_combined(size: int, log2: int) -> None:
    expected = {
        "ring": size - 1,
        "segmented_ring": size - 1,
        "fixed_order": size - 1,
        "linear": size - 1,
        "binomial_tree": log2,
        "recursive_doubling": log2,
        "rabenseifner": log2,
        "swing": log2,
        "bine": log2,
    }
    assert {a.name: prove(a, size).depth for a in algorithms("allreduce") if a.name in expected} == expected


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
