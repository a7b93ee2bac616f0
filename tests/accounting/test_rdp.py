from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedDP.accounting import (
    ORDERS,
    FixedSize,
    Gaussian,
    Poisson,
    gdp_epsilon,
    rdp,
    rdp_at,
    rdp_budget,
    rdp_delta,
    rdp_epsilon,
)
from fedDP.errors import InvalidValueError, UnsupportedError

from .oracles import sampled_delta

SAMPLED = Gaussian(1.1, sampling=Poisson(0.02))
ALPHA = np.array(ORDERS)


def test_the_orders_are_the_documented_grid() -> None:
    tenths = [round(0.1 * k, 1) for k in range(11, 110)]
    expected = {*tenths, *range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024}
    assert list(ORDERS) == sorted(expected)


def test_unsampled_rounds_cost_order_over_twice_the_variance() -> None:
    np.testing.assert_allclose(rdp(Gaussian(3.0, count=7)), 7 * ALPHA / 18, rtol=1e-15)
    assert rdp_at(Gaussian(3.0, count=7), 40) == pytest.approx(7 * 40 / 18, rel=1e-15)


def test_a_rate_of_one_is_full_participation() -> None:
    np.testing.assert_array_equal(rdp(Gaussian(1.3, sampling=Poisson(1))), rdp(Gaussian(1.3)))
    np.testing.assert_allclose(rdp(Gaussian(1.3, sampling=Poisson(1 - 1e-9))), rdp(Gaussian(1.3)), rtol=1e-6)


def test_replace_one_costs_four_times_as_much() -> None:
    # The factor that an accountant loses when it takes sigma / C for sigma / sensitivity.
    np.testing.assert_allclose(rdp(Gaussian(2.0), "replace_one"), 4 * rdp(Gaussian(2.0)), rtol=1e-15)
    np.testing.assert_array_equal(rdp(Gaussian(2.0), "replace_one"), rdp(Gaussian(1.0)))
    assert rdp_at(Gaussian(2.0), 8, "replace_one") == 4 * rdp_at(Gaussian(2.0), 8)
    assert rdp_epsilon(rdp(Gaussian(1.0), "replace_one"), 1e-5) >= gdp_epsilon(2.0, 1e-5) > 9.99


def test_zero_out_costs_what_add_remove_costs() -> None:
    np.testing.assert_array_equal(rdp(SAMPLED, "zero_out"), rdp(SAMPLED, "add_remove"))


@pytest.mark.parametrize("order", [2, 5, 40, 64, 100, 1024])
def test_one_order_agrees_with_the_vector(order: int) -> None:
    event = Gaussian(1.1, sampling=Poisson(0.02), count=3)
    if order in ORDERS:
        assert rdp_at(event, order) == pytest.approx(rdp(event)[ORDERS.index(order)], rel=1e-13)
    else:
        assert rdp(event)[ORDERS.index(96)] < rdp_at(event, order) < rdp(event)[ORDERS.index(112)]


def test_the_cache_cannot_be_spoiled() -> None:
    before = rdp(SAMPLED)
    rdp(SAMPLED)[:] = 0.0
    np.testing.assert_array_equal(rdp(SAMPLED), before)


def test_unsound_pairs_are_refused_by_name() -> None:
    for call in (lambda e, r: rdp(e, r), lambda e, r: rdp_at(e, 8, r)):
        with pytest.raises(UnsupportedError, match=r"rdp.*Poisson.*replace_one"):
            call(SAMPLED, "replace_one")
        with pytest.raises(UnsupportedError, match=r"FixedSize.*zero_out.*Use neighboring_relation='replace_one'"):
            call(Gaussian(1.0, sampling=FixedSize(3, 5)), "zero_out")
        with pytest.raises(InvalidValueError, match="neighboring_relation="):
            call(SAMPLED, "swap")


@pytest.mark.parametrize("order", [1, 1.5, 2.5, 1025, 0, -2, True, math.nan, "8"])
def test_a_filter_order_must_be_whole(order: Any) -> None:
    with pytest.raises(InvalidValueError, match="order="):
        rdp_at(SAMPLED, order)
    with pytest.raises(InvalidValueError, match="order="):
        rdp_budget(1.0, 1e-5, order)


@pytest.mark.parametrize(("rate", "noise_multiplier"), [(0.01, 1.0), (0.02, 2.0), (0.3, 0.8), (0.5, 5.0)])
def test_delta_and_epsilon_of_one_round_bound_the_closed_form(rate: float, noise_multiplier: float) -> None:
    costs = rdp(Gaussian(noise_multiplier, sampling=Poisson(rate)))
    for epsilon in (0.0, 0.1, 0.5, 2.0):
        assert rdp_delta(costs, epsilon) >= sampled_delta(rate, noise_multiplier, epsilon)
    for delta in (1e-9, 1e-5, 1e-3):
        assert sampled_delta(rate, noise_multiplier, rdp_epsilon(costs, delta)) <= delta


def test_delta_and_epsilon_invert_each_other() -> None:
    costs = 100 * rdp(SAMPLED)
    for delta in (1e-10, 1e-6, 1e-3):
        assert rdp_delta(costs, rdp_epsilon(costs, delta)) == pytest.approx(delta, rel=1e-9)


def test_conversion_limits() -> None:
    nothing, everything = np.zeros(len(ORDERS)), np.full(len(ORDERS), np.inf)
    assert rdp_epsilon(nothing, 1e-11) == rdp_delta(nothing, 0.0) == 0.0
    assert rdp_epsilon(everything, 0.5) == math.inf
    assert rdp_delta(everything, 1e6) == 1.0
    assert rdp_epsilon(np.full(len(ORDERS), 0.99e-10), 1e-5) == 0.0  # Bretagnolle-Huber
    assert rdp_epsilon(np.full(len(ORDERS), 1e-3), 0.9) == 0.0
    assert rdp_epsilon(np.full(len(ORDERS), 1e-3), 0.01) == 0.0  # the formula alone would be negative


def test_half_infinite_costs_still_use_the_finite_orders() -> None:
    costs = np.where(ALPHA > 8, np.inf, rdp(Gaussian(1.0)))
    assert rdp_epsilon(costs, 1e-5) == rdp_epsilon(rdp(Gaussian(1.0)), 1e-5)


@pytest.mark.parametrize("costs", [[1.0], np.full(len(ORDERS), np.nan), np.full(len(ORDERS), -1e-9)])
def test_costs_that_are_no_costs_are_refused(costs: Any) -> None:
    with pytest.raises(InvalidValueError, match="rho="):
        rdp_epsilon(costs, 1e-5)
    with pytest.raises(InvalidValueError, match="rho="):
        rdp_delta(costs, 1.0)


def test_a_spent_budget_is_the_promise() -> None:
    for epsilon, delta, order in [(0.5, 1e-6, 40), (1.0, 1e-5, 18), (8.0, 1e-5, 4), (1e6, 1e-11, 2)]:
        costs = np.full(len(ORDERS), np.inf)
        costs[ORDERS.index(order)] = rdp_budget(epsilon, delta, order)
        assert rdp_epsilon(costs, delta) <= epsilon
        assert rdp_epsilon(costs, delta) == pytest.approx(epsilon, rel=1e-12)


def test_a_budget_may_be_negative() -> None:
    assert rdp_budget(0.1, 1e-6, 40) < 0.0


def test_integers_and_small_floats_cost_what_their_value_costs() -> None:
    values: list[Any] = [1, np.float64(1.0), np.float32(1.0), np.int32(1)]
    for given in values:
        event = Gaussian(given, sampling=Poisson(0.1), count=100)
        np.testing.assert_array_equal(rdp(event), 100 * rdp(Gaussian(1.0, sampling=Poisson(0.1))))
    single: Any = np.float32(1.1)
    np.testing.assert_array_equal(rdp(Gaussian(single)), rdp(Gaussian(float(single))))
