"""Every algorithm that is there, proved: all small sizes, and large ones where that is cheap."""

from __future__ import annotations

import pytest

from mpicoll.algorithms import Algorithm, algorithms, find
from mpicoll.analysis.proof.cases import EVERY_ROOT, SEGMENTS, cases, prove
from mpicoll.collectives import COLLECTIVES
from mpicoll.schedule import Copy

ALL = [*algorithms()]
LARGE = (100, 255, 1000, 1024, 4095, 4096)
CHEAP = 250_000
"""Messages, and every few tens of blocks that travel, of all ranks together: some seconds."""

each = pytest.mark.parametrize("algorithm", ALL, ids=lambda a: f"{a.collective}-{a.name}")


def test_cases_are_all_sizes_and_roots() -> None:
    for a in ALL:
        found = list(cases(a, range(1, 20)))
        rooted = COLLECTIVES[a.collective].rooted
        roots = {size: range(size) if size <= EVERY_ROOT else (0, size - 1) for size in range(1, 20)}
        expected = [
            (size, root, segments)
            for size in range(1, 20)
            for root in (roots[size] if rooted else (0,))
            for segments in (SEGMENTS if a.pipelined else (1,))
        ]
        assert found == expected, f"{a.collective} {a.name} declines what it should serve"


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


def test_many_ranks_are_proved_where_messages_are_few() -> None:
    cheap = {(a.collective, a.name) for a in ALL if effort(a, max(LARGE)) <= CHEAP}
    assert {("allreduce", "recursive_doubling"), ("bcast", "binomial_tree"), ("reduce", "binomial_tree")} <= cheap


@each
def test_steps_are_a_function_of_the_place_alone(algorithm: Algorithm) -> None:
    for size in (1, 2, 7, 12):
        for rank in range(size):
            first = algorithm.schedule(rank, size, size // 2, 2)
            for other in range(size):
                algorithm.schedule(other, size)
            assert algorithm.schedule(rank, size, size // 2, 2) == first


@each
def test_it_says_what_it_does_what_it_costs_and_where_it_is_from(algorithm: Algorithm) -> None:
    assert len(algorithm.summary) > 20
    assert algorithm.summary.endswith(".")
    assert len(algorithm.paper) > 10
    words = set(algorithm.cost.replace("(", " ").replace(")", " ").replace(",", " ").replace(";", " ").split())
    assert words & {"a"}, algorithm.cost


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
    assert {a.name: prove(a, size).rounds for a in algorithms("allreduce") if a.name in expected} == expected


def test_fixed_order_is_one_left_fold_whatever_the_size_of_the_vector_and_its_segments() -> None:
    algorithm = find("allreduce", "fixed_order")
    assert algorithm is not None
    for size in (2, 3, 7, 8, 20):
        fold = "0"
        for rank in range(1, size):
            fold = f"({fold}+{rank})"
        for segments in (1, 2, 5):
            proof = prove(algorithm, size, 0, segments)
            for result in proof.results:
                assert {proof.symbols.shown(s) for s in result} == {fold}
