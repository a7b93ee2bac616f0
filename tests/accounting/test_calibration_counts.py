"""The most rounds, the highest rate and the largest cohort for a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fedDP.accounting import (
    ACCOUNTANTS,
    FixedSize,
    FullParticipation,
    Gaussian,
    Poisson,
    Sampling,
    calibrate_cohort_size,
    calibrate_noise_multiplier,
    calibrate_rounds,
    calibrate_sampling_rate,
    epsilon,
)
from fedDP.errors import InvalidValueError, UnsupportedError

SAMPLINGS: list[Sampling] = [FullParticipation(), Poisson(1.0), Poisson(0.5), Poisson(0.01), Poisson(1e-4)]
SAMPLED_ACCOUNTANTS = [name for name in ("rdp", "pld") if name in ACCOUNTANTS]
TARGETS = [0.0, -1.0, 1e-300, 1e-7, 1e7, math.nan, math.inf, True, None, "1"]


@pytest.mark.parametrize("noise", [0.01, 0.7, 3.0, 58.2, 1e5])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rounds_are_the_most_that_fit(noise: float, sampling: Sampling) -> None:
    for accountant in ("gdp", "rdp") if Gaussian(1.0, sampling=sampling).is_full else ("rdp",):
        for target in (0.5, 8.0, 1e4):
            try:
                rounds = calibrate_rounds(
                    target, 1e-6, noise_multiplier=noise, sampling=sampling, accountant=accountant
                )
            except InvalidValueError:
                rounds = 0
            assert (
                rounds == 0 or epsilon([Gaussian(noise, sampling=sampling, count=rounds)], 1e-6, accountant) <= target
            )
            more = [Gaussian(noise, sampling=sampling, count=rounds + 1)] if rounds < 10**9 else None
            assert more is None or epsilon(more, 1e-6, accountant) > target


def test_rounds_at_the_very_target_fit() -> None:
    plans: list[tuple[Sampling, str]] = [(FullParticipation(), "gdp"), (Poisson(0.01), "rdp")]
    for count in (1, 2, 52, 12_345):
        for sampling, accountant in plans:
            target = epsilon([Gaussian(20.0, sampling=sampling, count=count)], 1e-6, accountant)
            assert (
                calibrate_rounds(target, 1e-6, noise_multiplier=20.0, sampling=sampling, accountant=accountant) == count
            )


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("noise", [0.6, 1.5, 20.0])
@pytest.mark.parametrize("target", [0.1, 3.0])
def test_the_rate_is_the_highest_that_fits(noise: float, count: int, target: float) -> None:
    rate = calibrate_sampling_rate(target, 1e-6, noise_multiplier=noise, count=count, accountant="rdp")
    assert epsilon([Gaussian(noise, sampling=Poisson(rate), count=count)], 1e-6, "rdp") <= target
    if rate < 1.0:
        higher = Poisson(min(1.0, rate * (1 + 1e-8)))
        assert epsilon([Gaussian(noise, sampling=higher, count=count)], 1e-6, "rdp") > target


def test_everybody_may_take_part_where_the_exact_account_says_so() -> None:
    """The Rényi account of rates just below 1 is above the target, that of full participation is exact."""
    exact = epsilon([Gaussian(5.0, count=10)], 1e-6, "gdp")
    for target in (exact, 1.0001 * exact):
        assert epsilon([Gaussian(5.0, sampling=Poisson(0.9999), count=10)], 1e-6, "rdp") > target
        for accountant in (None, "gdp"):
            options: dict[str, Any] = {"noise_multiplier": 5.0, "count": 10, "accountant": accountant}
            assert calibrate_sampling_rate(target, 1e-6, **options) == 1.0
            assert calibrate_cohort_size(target, 1e-6, population=30, **options) == 30
    with pytest.raises(UnsupportedError, match="gdp"):
        calibrate_sampling_rate(0.9 * exact, 1e-6, noise_multiplier=5.0, count=10, accountant="gdp")


@pytest.mark.parametrize("population", [1, 7, 1000, 10**6])
def test_the_cohort_is_the_largest_that_fits(population: int) -> None:
    for noise, target in [(1.5, 1.0), (0.8, 30.0), (4000.0, 0.01)]:
        try:
            cohort = calibrate_cohort_size(
                target, 1e-6, noise_multiplier=noise, population=population, count=100, accountant="rdp"
            )
        except InvalidValueError:
            cohort = 0
        for size, fits in [(cohort, True), (cohort + 1, False)]:
            if 1 <= size <= population:
                event = Gaussian(noise, sampling=Poisson(size / population), count=100)
                assert (epsilon([event], 1e-6, "rdp") <= target) == fits


@pytest.mark.parametrize("accountant", SAMPLED_ACCOUNTANTS)
def test_fixed_cohorts(accountant: str) -> None:
    def cost(size: int) -> float:
        event = Gaussian(8.0, sampling=FixedSize(size, 50), count=20)
        return epsilon([event], 1e-3, accountant, "replace_one")

    try:
        target = cost(7)
    except UnsupportedError:
        pytest.skip("no accountant of fixed-size cohorts yet")
    options: dict[str, Any] = {"noise_multiplier": 8.0, "population": 50, "count": 20, "accountant": accountant}
    found = calibrate_cohort_size(target, 1e-3, kind="fixed", neighboring_relation="replace_one", **options)
    assert found == 7
    noise = calibrate_noise_multiplier(
        target, 1e-3, sampling=FixedSize(7, 50), count=20, accountant=accountant, neighboring_relation="replace_one"
    )
    assert noise == pytest.approx(8.0, rel=1e-4)
    crowd: dict[str, Any] = {"sampling": FixedSize(5_000_000, 10**8), "neighboring_relation": "replace_one"}
    with pytest.raises(InvalidValueError, match=r"num_clients \+ 10.*integer sums are exact"):
        calibrate_noise_multiplier(1.0, 1e-6, accountant="rdp", **crowd)


def test_fixed_cohorts_are_refused_under_other_relations() -> None:
    with pytest.raises(UnsupportedError):
        calibrate_cohort_size(1.0, 1e-5, noise_multiplier=1.0, population=50, kind="fixed", accountant="rdp")


def test_few_evaluations_find_rounds_rates_and_cohorts(calls: list[tuple[Gaussian, ...]]) -> None:
    questions: list[Callable[[], float]] = [
        lambda: calibrate_rounds(1.0, 1e-5, noise_multiplier=1.5, sampling=Poisson(0.01), accountant="grid"),
        lambda: calibrate_sampling_rate(1.0, 1e-5, noise_multiplier=1.5, count=1000, accountant="grid"),
        lambda: calibrate_cohort_size(1.0, 1e-5, noise_multiplier=1.5, population=10**5, count=1000, accountant="grid"),
    ]
    for ask in questions:
        calls.clear()
        assert ask() > 0.0
        assert len(calls) == len(set(calls)) <= 8
        assert not any(event.is_full for events in calls for event in events)  # far beyond the target, and slow


@pytest.mark.parametrize(
    ("ask", "names"),
    [
        (calibrate_rounds, {"noise_multiplier": 1.0}),
        (calibrate_sampling_rate, {"noise_multiplier": 1.0, "count": 10}),
        (calibrate_cohort_size, {"noise_multiplier": 1.0, "count": 10, "population": 100}),
    ],
)
def test_bad_values_are_refused_in_every_question(ask: Callable[..., float], names: dict[str, Any]) -> None:
    for bad in TARGETS:
        with pytest.raises(InvalidValueError, match="target_epsilon="):
            ask(bad, 1e-5, **names)
    for bad in (0.0, 1e-12, 1.0, math.nan, True):
        with pytest.raises(InvalidValueError, match="delta="):
            ask(1.0, bad, **names)
    for name in names:
        for bad in (0, -1, math.nan, math.inf, True, None, "1", 1e300):
            with pytest.raises(InvalidValueError, match=f"{name}="):
                ask(1.0, 1e-5, **{**names, name: bad})


def test_targets_that_nothing_keeps_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        InvalidValueError, match=r"target_epsilon=0\.5.*one round of noise_multiplier=1\.0.*larger noise"
    ):
        calibrate_rounds(0.5, 1e-6, noise_multiplier=1.0)
    with pytest.raises(InvalidValueError, match=r"target_epsilon=1e-06.*a rate of 1e-09.*larger noise"):
        calibrate_sampling_rate(1e-6, 1e-11, noise_multiplier=1e-3, count=10**6, accountant="rdp")
    with pytest.raises(InvalidValueError, match=r"target_epsilon=0\.5.*one client of 10.*larger noise"):
        calibrate_cohort_size(0.5, 1e-6, noise_multiplier=0.5, population=10, accountant="rdp")
    with pytest.raises(InvalidValueError, match=r"kind='all'"):
        calibrate_cohort_size(0.5, 1e-6, noise_multiplier=0.5, population=10, kind="all")  # type: ignore[arg-type]


def test_a_cohort_whose_sum_overflows_the_grid_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"num_clients \+ 10.*integer sums are exact"):
        calibrate_cohort_size(1.0, 1e-6, noise_multiplier=1.0, population=5_000_000, accountant="rdp")
