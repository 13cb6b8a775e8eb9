"""Every algorithm that is there, proved: all small sizes, and large ones where that is cheap."""

from __future__ import annotations

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.steps import Copy
from mpicoll.analysis.proof.cases import cases, prove

ALL = [*algorithms()]
LARGE = (100, 255, 1024, 4095)
CHEAP = 250_000
"""Messages, and every few tens of blocks that travel, of all ranks together: some seconds."""

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
