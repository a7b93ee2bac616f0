from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from fedDP.accounting import FixedSize, Gaussian, Poisson, gdp_delta, gdp_epsilon, gdp_mu, gdp_squared_budget
from fedDP.errors import InvalidValueError, UnsupportedError

from .oracles import gaussian_delta

MUS = [1e-8, 1e-6, 1e-3, 0.124, 0.499999, 0.5, 0.500001, 1.0, 3.7, 22.4, 100.0, 1e3]
DELTAS = [1e-11, 1e-9, 1e-6, 1e-5, 1e-3, 0.1, 0.9]


@pytest.mark.parametrize("mu", MUS)
def test_delta_equals_the_slow_oracle(mu: float) -> None:
    for epsilon in (0.0, mu * mu / 2.0, mu * (mu / 2.0 + 1.0), mu * (mu / 2.0 + 6.0)):
        assert gdp_delta(mu, epsilon) == pytest.approx(float(gaussian_delta(mu, epsilon)), rel=3e-13, abs=0.0)


def test_delta_at_zero_is_the_total_variation_distance() -> None:
    for mu in (0.01, 1.0, 5.0):
        assert gdp_delta(mu, 0.0) == pytest.approx(math.erf(mu / 2.0 / math.sqrt(2.0)), rel=1e-13)


@pytest.mark.parametrize("mu", MUS)
def test_epsilon_truly_holds_and_is_tight(mu: float) -> None:
    for delta in DELTAS:
        epsilon = gdp_epsilon(mu, delta)
        assert gaussian_delta(mu, epsilon) <= delta
        if epsilon > 0.0:
            assert gaussian_delta(mu, epsilon) >= delta * (1.0 - 1e-11)
            assert gaussian_delta(mu, epsilon * (1.0 - 1e-9)) > delta


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 0.5, 1.0, 8.0, 300.0, 1e6])
def test_squared_budget_truly_holds_and_is_tight(epsilon: float) -> None:
    for delta in DELTAS:
        budget = gdp_squared_budget(epsilon, delta)
        mu = math.sqrt(budget)
        assert gaussian_delta(mu, epsilon) <= delta
        assert gaussian_delta(mu * (1.0 + 1e-9), epsilon) > delta
        assert gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)


def test_epsilon_just_above_zero_settles() -> None:
    for mu in (1e-3, 1.0, 7.3, 10.0):
        total_variation = gdp_delta(mu, 0.0)
        for factor in (1.0 - 1e-15, 1.0 - 1e-13, 1.0, 1.0 + 1e-15, 1.0 + 1e-11):
            assert 0.0 <= gdp_epsilon(mu, total_variation * factor) < 1e-5


def test_limits() -> None:
    assert gdp_mu([]) == 0.0
    assert gdp_epsilon(0.0, 1e-5) == gdp_delta(0.0, 0.0) == 0.0
    assert gdp_epsilon(math.inf, 1e-5) == math.inf
    assert gdp_delta(math.inf, 1.0) == 1.0
    assert gdp_mu([Gaussian(5e-324)]) == math.inf
    assert gdp_mu([Gaussian(1e-200)]) == math.inf
    assert gdp_delta(1.0, 1e12) == 0.0
    for mu in (1e4, 1e8, 1e12):
        assert mu * mu / 2.0 < gdp_epsilon(mu, 1e-5) < mu * mu / 2.0 * (1.0 + 10.0 / mu) + 1e-9 * mu * mu


def test_mu_adds_up_in_squares() -> None:
    assert gdp_mu([Gaussian(3.0), Gaussian(4.0, count=9)]) == pytest.approx(math.sqrt(1 / 9 + 9 / 16), rel=1e-15)
    assert gdp_mu([Gaussian(2.0, sampling=Poisson(1.0), count=4)]) == 1.0
    assert gdp_mu([Gaussian(2.0, sampling=FixedSize(5, 5), count=4)]) == 1.0


def test_replace_one_is_exactly_twice_as_far() -> None:
    events = [Gaussian(1.7, count=3), Gaussian(0.9)]
    assert gdp_mu(events, "replace_one") == pytest.approx(2.0 * gdp_mu(events), rel=1e-15)
    assert gdp_mu(events, "add_remove") == gdp_mu(events, "zero_out")


def test_mu_does_not_depend_on_the_order() -> None:
    events = [Gaussian(z) for z in (0.3, 1.0, 1e4, 7.0)]
    assert len({gdp_mu(order) for order in itertools.permutations(events)}) == 1


def test_sampled_events_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"gdp.*Poisson\(rate=0.5\)"):
        gdp_mu([Gaussian(1.0), Gaussian(1.0, sampling=Poisson(0.5))])
    with pytest.raises(UnsupportedError, match="FixedSize"):
        gdp_mu([Gaussian(1.0, sampling=FixedSize(4, 5))], "replace_one")


BAD: list[Any] = [math.nan, -1.0, True, "1", None]


@pytest.mark.parametrize("value", BAD)
def test_bad_numbers_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="mu="):
        gdp_epsilon(value, 1e-5)
    with pytest.raises(InvalidValueError, match="mu="):
        gdp_delta(value, 1.0)
    with pytest.raises(InvalidValueError, match="epsilon="):
        gdp_delta(1.0, value)
    with pytest.raises(InvalidValueError, match="epsilon="):
        gdp_squared_budget(value, 1e-5)
    for call in (gdp_epsilon, gdp_squared_budget):
        with pytest.raises(InvalidValueError, match="delta="):
            call(1.0, value)


@pytest.mark.parametrize("delta", [0.0, 9.99e-12, 1e-14, 1.0, 2.0, math.inf])
def test_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(InvalidValueError, match="delta="):
        gdp_epsilon(1.0, delta)
    with pytest.raises(InvalidValueError, match="delta="):
        gdp_squared_budget(1.0, delta)


@pytest.mark.parametrize("mu", [0.03263693899040558, 0.04665054737419907, 0.053679378440220755])
def test_a_root_that_rounds_to_zero_still_gives_a_number(mu: float) -> None:
    total_variation = gdp_delta(mu, 0.0) / (1.0 - 1e-12)
    values = [gdp_epsilon(mu, total_variation * (1.0 - k * 2.0**-53)) for k in range(40)]
    assert all(0.0 <= value < 1e-10 for value in values)
