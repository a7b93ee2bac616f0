from __future__ import annotations

import math
import time
from typing import Any

import pytest

from fedDP.accounting import (
    FixedSize,
    FullParticipation,
    Gaussian,
    Poisson,
    Sampling,
    calibrate_noise_multiplier,
    epsilon,
    gdp_squared_budget,
    smallest_noise_multiplier,
)
from fedDP.errors import InvalidValueError, UnsupportedError

SAMPLINGS: list[Sampling] = [FullParticipation(), Poisson(1.0), Poisson(0.5), Poisson(0.01), Poisson(1e-4)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("target", [0.1, 1.0, 8.0, 1e3, 1e6])
@pytest.mark.parametrize("count", [1, 365])
def test_the_target_is_met_and_hardly_less_noise_would_miss_it(sampling: Sampling, target: float, count: int) -> None:
    noise = calibrate_noise_multiplier(target, 1e-6, sampling=sampling, count=count)
    assert epsilon([Gaussian(noise, sampling=sampling, count=count)], 1e-6) <= target
    assert epsilon([Gaussian(noise * (1 - 1e-6), sampling=sampling, count=count)], 1e-6) > target


def test_full_participation_is_a_closed_form() -> None:
    for count in (1, 10, 10**6):
        expected = math.sqrt(count / gdp_squared_budget(1.0, 1e-5))
        assert calibrate_noise_multiplier(1.0, 1e-5, count=count) == pytest.approx(expected, rel=1e-9)


def test_replace_one_needs_twice_the_noise() -> None:
    once = calibrate_noise_multiplier(1.0, 1e-5, count=5)
    twice = calibrate_noise_multiplier(1.0, 1e-5, count=5, neighboring_relation="replace_one")
    assert twice == pytest.approx(2.0 * once, rel=1e-9)


def test_the_named_accountant_is_used() -> None:
    exact, bound = (calibrate_noise_multiplier(1.0, 1e-5, accountant=name) for name in ("gdp", "rdp"))
    assert exact < bound
    assert epsilon([Gaussian(bound)], 1e-5, "rdp") <= 1.0 < epsilon([Gaussian(exact)], 1e-5, "rdp")


@pytest.mark.parametrize("sampling", [FullParticipation(), Poisson(0.01)])
@pytest.mark.parametrize("target", [1e6, 1e-6])
def test_extreme_targets_take_under_five_seconds(sampling: Sampling, target: float) -> None:
    start = time.process_time()
    noise = calibrate_noise_multiplier(target, 1e-5, sampling=sampling)
    assert time.process_time() - start < 5.0
    assert 0.0 < noise <= 1e5
    assert epsilon([Gaussian(noise, sampling=sampling)], 1e-5) <= target


@pytest.mark.parametrize("sampling", [FullParticipation(), Poisson(0.9)])
def test_a_target_out_of_reach_is_refused_with_the_remedy(sampling: Sampling) -> None:
    with pytest.raises(InvalidValueError, match=r"target_epsilon=1e-06.*100000.*larger target_epsilon"):
        calibrate_noise_multiplier(1e-6, 1e-9, sampling=sampling, count=1000)


@pytest.mark.parametrize("target", [0.0, -1.0, 1e-7, 1e7, math.nan, math.inf, True, None, "1"])
def test_bad_targets_are_refused_by_name(target: Any) -> None:
    with pytest.raises(InvalidValueError, match="target_epsilon="):
        calibrate_noise_multiplier(target, 1e-5)


def test_other_bad_values_are_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match="delta="):
        calibrate_noise_multiplier(1.0, 1e-12)
    with pytest.raises(InvalidValueError, match="count="):
        calibrate_noise_multiplier(1.0, 1e-5, count=0)
    with pytest.raises(UnsupportedError, match="FixedSize"):
        calibrate_noise_multiplier(1.0, 1e-5, sampling=FixedSize(2, 5))
    with pytest.raises(UnsupportedError, match="gdp"):
        calibrate_noise_multiplier(1.0, 1e-5, sampling=Poisson(0.1), accountant="gdp")
    with pytest.raises(UnsupportedError, match="replace_one"):
        calibrate_noise_multiplier(1.0, 1e-5, sampling=Poisson(0.1), neighboring_relation="replace_one")


@pytest.mark.parametrize("threshold", [1.1e-6, 1e-3, 1.0, math.pi, 99_999.9, 1e5])
def test_bisection_returns_a_value_that_fits(threshold: float) -> None:
    noise = smallest_noise_multiplier(lambda z: z >= threshold)
    assert threshold <= noise <= threshold * (1 + 1e-9)
    assert noise <= 1e5


def test_bisection_limits() -> None:
    assert smallest_noise_multiplier(lambda z: True) == 1e-6
    with pytest.raises(InvalidValueError, match=r"noise_multiplier=100000.*larger budget"):
        smallest_noise_multiplier(lambda z: False)
