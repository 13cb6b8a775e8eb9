"""Luck is not accepted, and a real winner is: invented measurements whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from mpicoll.bench.tune.statistics import LEAST, accepted, best, lower_bound, mean


def launches(truth: float, noise: float, n: int, seed: int) -> list[float]:
    """The speed-ups of so many launches of a candidate that is ``truth`` times as fast."""
    return [*(truth * np.exp(np.random.default_rng(seed).normal(0, noise, n)))]


def test_a_real_winner_is_accepted() -> None:
    assert sum(accepted(launches(1.5, 0.03, 4, seed)) for seed in range(200)) >= 195


@pytest.mark.parametrize("n", [4, 8])
def test_a_noisy_candidate_that_is_no_faster_is_not(n: int) -> None:
    """Though in a fifth of the launches or more it wins by far."""
    drawn = [launches(1.0, 0.3, n, seed) for seed in range(1000)]
    assert np.mean([max(each) > 1.2 for each in drawn]) > 0.5
    assert sum(map(accepted, drawn)) <= 30


def test_one_lucky_launch_is_not_enough() -> None:
    assert not accepted([3.0, 3.0, 3.0])
    assert not accepted([])
    assert not accepted([3.0])


def test_the_last_launch_must_confirm_it() -> None:
    assert accepted([1.5, 1.51, 1.49, 1.5])
    assert not accepted([1.5, 1.51, 1.49, 1.04])


def test_a_small_gain_is_not_worth_a_change() -> None:
    assert not accepted([1.04, 1.04, 1.04, 1.04, 1.04])


def test_the_bound_is_that_of_student() -> None:
    """For logarithms of -0.1, 0 and 0.1: their mean less 2.920 times 0.1 over the root of 3."""
    assert lower_bound([*np.exp([-0.1, 0.0, 0.1])]) == pytest.approx(np.exp(-2.920 * 0.1 / 3**0.5))
    assert lower_bound([2.0]) == 0.0


def test_the_bound_holds_as_often_as_it_says() -> None:
    below = np.mean([lower_bound(launches(1.3, 0.1, 5, seed)) <= 1.3 for seed in range(4000)])
    assert 0.94 < below < 0.96


def test_the_fastest_of_those_accepted_is_taken() -> None:
    steady, wild = [1.3, 1.31, 1.3, 1.3], [3.0, 0.5, 3.0, 3.0]
    assert best({"steady": steady, "slower": [1.2, 1.21, 1.2, 1.2], "wild": wild}) == "steady"
    assert best({"wild": wild, "none": []}) is None
    assert mean([2.0, 0.5]) == pytest.approx(1.0)
    assert LEAST > 1
