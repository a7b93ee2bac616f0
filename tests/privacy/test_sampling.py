from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedDP.errors import InvalidValueError
from fedDP.privacy import derive_key, poisson_sample
from fedDP.privacy import sampling as implementation


def cohorts(num_clients: int, rate: float, draws: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [poisson_sample(num_clients, rate=rate, key=derive_key(b"test", "cohort", index)) for index in range(draws)]


def table(num_clients: int, rate: float, draws: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Who was in which draw, shape (draws, num_clients)."""
    chosen = np.zeros((draws, num_clients))
    for row, cohort in zip(chosen, cohorts(num_clients, rate, draws), strict=True):
        row[cohort] = 1.0
    return chosen


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_the_rate_is_the_claimed_one(rate: float) -> None:
    draws, num_clients = 400, 500
    total = sum(cohort.size for cohort in cohorts(num_clients, rate, draws))
    assert stats.binomtest(total, draws * num_clients, rate).pvalue > 1e-5


@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_the_same_test_rejects_another_rate(wrong: float) -> None:
    total = sum(cohort.size for cohort in cohorts(500, 0.3 * wrong, 400))
    assert stats.binomtest(total, 400 * 500, 0.3).pvalue < 1e-5


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_every_client_has_the_rate_and_pairs_are_independent(rate: float) -> None:
    draws, num_clients = 4000, 12
    chosen = table(num_clients, rate, draws)
    for count in chosen.sum(axis=0):
        assert stats.binomtest(int(count), draws, rate).pvalue > 1e-5
    correlations = np.corrcoef(chosen.T)[np.triu_indices(num_clients, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(draws)
    sizes = chosen.sum(axis=1)
    expected = stats.binom.pmf(np.arange(num_clients + 1), num_clients, rate) * draws
    observed = np.bincount(sizes.astype(int), minlength=num_clients + 1)
    common = expected > 5
    assert (
        stats.chisquare(
            np.append(observed[common], observed[~common].sum()), np.append(expected[common], expected[~common].sum())
        ).pvalue
        > 1e-5
    )


def test_rounds_are_independent() -> None:
    chosen = table(1000, 0.3, 2)
    assert abs(np.corrcoef(chosen)[0, 1]) < 5 / math.sqrt(1000)


@pytest.mark.parametrize("rate", [1e-300, 1e-12, 1e-3, 0.5, 0.999999, 1.0])
@pytest.mark.parametrize("num_clients", [0, 1, 2, 1000])
def test_a_cohort_is_sorted_without_repeats_and_inside_the_population(rate: float, num_clients: int) -> None:
    for cohort in cohorts(num_clients, rate, 20):
        assert cohort.dtype == np.int64
        assert np.array_equal(cohort, np.unique(cohort))
        assert cohort.size == 0 or (cohort[0] >= 0 and cohort[-1] < num_clients)


def test_a_rate_of_one_takes_everybody() -> None:
    assert poisson_sample(7, rate=1.0, key=bytes(32)).tolist() == list(range(7))


def test_no_clients_no_cohort() -> None:
    assert poisson_sample(0, rate=0.5, key=bytes(32)).size == 0
    assert poisson_sample(0, rate=1.0, key=bytes(32)).size == 0


def test_one_client_is_taken_at_the_rate() -> None:
    total = sum(cohort.size for cohort in cohorts(1, 0.25, 4000))
    assert stats.binomtest(total, 4000, 0.25).pvalue > 1e-5


def test_a_tiny_rate_over_a_large_population() -> None:
    total = sum(cohort.size for cohort in cohorts(10**9, 2e-8, 100))
    assert stats.binomtest(total, 10**11, 2e-8).pvalue > 1e-5


def test_a_population_beyond_the_first_chunk_is_covered() -> None:
    # The chunk has five standard deviations to spare; a shorter one must give the same distribution.
    reached = [cohort[-1] for cohort in cohorts(200, 0.5, 200)]
    assert min(reached) > 180


def test_one_key_one_cohort() -> None:
    one, again = (poisson_sample(1000, rate=0.1, key=bytes(32)) for _ in range(2))
    assert np.array_equal(one, again)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan, math.inf, True, "0.5", None])
def test_a_rate_outside_its_range_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidValueError, match="sampling_rate="):
        poisson_sample(10, rate=rate, key=bytes(32))


def skip_tail(log_miss: float, at_least: int) -> Fraction:
    """P(skip >= at_least), exactly: how many of the 2**53 uniforms give such a skip."""

    def skips(word: int) -> bool:
        return bool(implementation._skips(np.array([word * 2.0**-53]), log_miss)[0] >= at_least)

    return Fraction(largest_true(skips, 2**53), 2**53)


def largest_true(holds: Callable[[int], bool], high: int) -> int:
    """The largest number in [0, high] that holds, for a property of an initial segment of the numbers from 1."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


@pytest.mark.parametrize("rate", [1e-15, 1e-12, 1e-9, 3.7e-7, 1e-6, 1e-4, 0.01, 1 / 3, 0.5, 0.9, 1 - 2.0**-53])
def test_no_clients_probability_exceeds_the_rate(rate: float) -> None:
    """Exact inclusion probabilities, by the renewal equation over exactly counted uniforms."""
    log_miss = implementation._log_miss(rate)
    if log_miss == 0.0:
        assert rate <= 2.0**-49
        return
    num_clients = 40
    tails = [skip_tail(log_miss, skip) for skip in range(num_clients + 1)]
    steps = [tails[skip] - tails[skip + 1] for skip in range(num_clients)]
    included: list[Fraction] = []
    for client in range(num_clients):
        before = sum((included[client - 1 - skip] * steps[skip] for skip in range(client)), Fraction(0))
        included.append(steps[client] + before)
    assert max(included) <= Fraction(rate)
    assert min(included) >= Fraction(rate) * (1 - Fraction(1, 2**39)) - Fraction(1, 2**48)
