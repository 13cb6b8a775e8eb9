"""Luck is not accepted, and a real winner is: invented measurements whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from mpicoll.bench.tune.statistics import LEAST, Launches, accepted, best, lower_bound, mean, promises, worse


def launches(truth: float, noise: float, n: int, seed: int) -> list[float]:
    """The speed-ups of so many launches of a candidate that is ``truth`` times as fast."""
    return [*(truth * np.exp(np.random.default_rng(seed).normal(0, noise, n)))]


def alike(*speedups: float) -> Launches:
    """On one kind of pages."""
    return [[each] for each in speedups]


def test_a_real_winner_is_accepted() -> None:
    assert sum(accepted(alike(*launches(1.5, 0.03, 4, seed))) for seed in range(200)) >= 195


@pytest.mark.parametrize("n", [4, 8])
def test_a_noisy_candidate_that_is_no_faster_is_not(n: int) -> None:
    """Though in a fifth of the launches or more it wins by far."""
    drawn = [launches(1.0, 0.3, n, seed) for seed in range(1000)]
    assert np.mean([max(each) > 1.2 for each in drawn]) > 0.5
    assert sum(accepted(alike(*each)) for each in drawn) <= 30


def test_one_lucky_launch_is_not_enough() -> None:
    assert not accepted(alike(3.0, 3.0, 3.0))
    assert not accepted(alike())
    assert not accepted(alike(3.0))


def test_the_last_launch_must_confirm_it() -> None:
    assert accepted(alike(1.5, 1.51, 1.49, 1.5))
    assert not accepted(alike(1.5, 1.51, 1.49, 1.04))


def test_a_small_gain_is_not_worth_a_change() -> None:
    assert not accepted(alike(1.04, 1.04, 1.04, 1.04, 1.04))


def test_the_bound_is_that_of_student() -> None:
    """For logarithms of -0.1, 0 and 0.1: their mean less 2.920 times 0.1 over the root of 3."""
    assert lower_bound([*np.exp([-0.1, 0.0, 0.1])]) == pytest.approx(np.exp(-2.920 * 0.1 / 3**0.5))
    assert lower_bound([2.0]) == 0.0


def test_the_bound_holds_as_often_as_it_says() -> None:
    below = np.mean([lower_bound(launches(1.3, 0.1, 5, seed)) <= 1.3 for seed in range(4000)])
    assert 0.94 < below < 0.96


def test_the_fastest_of_those_accepted_is_taken() -> None:
    steady, wild = alike(1.3, 1.31, 1.3, 1.3), alike(3.0, 0.5, 3.0, 3.0)
    assert best({"steady": steady, "slower": alike(1.2, 1.21, 1.2, 1.2), "wild": wild}) == "steady"
    assert best({"wild": wild, "none": []}) is None
    assert mean([2.0, 0.5]) == pytest.approx(1.0)
    assert LEAST > 1


def test_it_is_faster_on_one_kind_of_pages_and_slower_on_none() -> None:
    fast, even, slow = [2.0, 2.1, 1.9, 2.0], [1.04, 1.03, 1.04, 1.04], [1.01, 1.0, 1.01, 1.01]
    assert accepted([*zip(fast, even, strict=True)])
    assert accepted([*zip(even, fast, strict=True)])
    assert not accepted([*zip(fast, slow, strict=True)])
    assert not accepted([*zip(even, even, strict=True)])
    assert worse([*zip(fast, slow, strict=True)]) == slow


def test_the_other_kind_of_pages_is_not_left_to_luck() -> None:
    """As fast there on average, but by so much luck that it may as well be slower."""
    fast, uncertain = [2.0, 2.1, 1.9, 2.0], [1.3, 0.8, 1.2, 0.9]
    assert not accepted([*zip(fast, uncertain, strict=True)])
    assert promises([*zip(fast, uncertain, strict=True)])
    assert not promises([*zip(fast, [1.0, 0.9, 1.0, 1.0], strict=True)])
    assert not promises(alike(1.04, 1.04, 1.04, 1.04))
