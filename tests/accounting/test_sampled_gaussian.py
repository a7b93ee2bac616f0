from __future__ import annotations

import math

import numpy as np
import pytest

from fedDP.accounting.sampled_gaussian import (
    FRACTIONAL_ORDERS,
    INTEGER_ORDERS,
    fractional_orders,
    integer_orders,
)

from .oracles import sampled_divergence, sampled_divergence_whole

# Noise from where the two bumps part (below 0.1) to where they are one, rates from rare to almost sure.
PAIRS = [
    (0.01, 1.0),
    (0.5, 3.0),
    (0.001, 0.8),
    (0.9, 0.3),
    (0.3, 0.15),
    (0.03, 5.0),
    (0.031, 50.0),
    (1e-4, 30.0),
    (1e-3, 1e3),
    (0.9999, 1.0),
    (1e-6, 0.5),
    (0.7, 2.0),
    (0.02, 0.1),
]
ORDERS_CHECKED = (1.1, 2.5, 10.9)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise_multiplier"), PAIRS)
def test_fractional_orders_equal_the_slow_oracle_and_are_never_below(rate: float, noise_multiplier: float) -> None:
    costs = fractional_orders(rate, noise_multiplier)
    for order in ORDERS_CHECKED:
        exact = sampled_divergence(rate, noise_multiplier, order)
        cost = float(costs[FRACTIONAL_ORDERS.index(order)])
        assert exact <= cost <= exact * (1.0 + 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise_multiplier"), PAIRS)
def test_integer_orders_equal_the_slow_oracle_and_are_never_below(rate: float, noise_multiplier: float) -> None:
    costs = integer_orders(rate, noise_multiplier)
    for order in (2, 3, 11, 64, 1024):
        exact = sampled_divergence_whole(rate, noise_multiplier, order)
        assert exact <= float(costs[INTEGER_ORDERS.index(order)]) <= exact * (1.0 + 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise_multiplier", "slack"), [(0.02, 0.099, 1e-6), (0.3, 0.06, 1e-9)])
def test_little_noise_is_bounded_from_above(rate: float, noise_multiplier: float, slack: float) -> None:
    costs = fractional_orders(rate, noise_multiplier)
    for order in ORDERS_CHECKED:
        exact = sampled_divergence(rate, noise_multiplier, order)
        assert exact <= float(costs[FRACTIONAL_ORDERS.index(order)]) <= exact * (1.0 + slack)


def test_order_two_is_a_closed_form() -> None:
    for rate, noise_multiplier in PAIRS:
        expected = math.log1p(rate**2 * math.expm1(noise_multiplier**-2))
        assert integer_orders(rate, noise_multiplier, (2,))[0] == pytest.approx(expected, rel=1e-10)


def test_order_three_is_a_closed_form() -> None:
    q, z = 0.2, 1.3
    moment = (1 - q) ** 3 + 3 * (1 - q) ** 2 * q + 3 * (1 - q) * q**2 * math.exp(z**-2) + q**3 * math.exp(3 * z**-2)
    assert integer_orders(q, z, (3,))[0] == pytest.approx(math.log(moment) / 2, rel=1e-10)


def test_one_order_alone_costs_what_it_costs_among_others() -> None:
    together = integer_orders(0.02, 1.1)
    for index, order in enumerate(INTEGER_ORDERS):
        assert integer_orders(0.02, 1.1, (order,))[0] == pytest.approx(float(together[index]), rel=1e-13)


def test_tiny_costs_keep_their_digits() -> None:
    # alpha / 2 * q**2 / z**2 to leading order, far below what 1 + x could hold
    q, z = 1e-7, 1e4
    np.testing.assert_allclose(integer_orders(q, z), np.array(INTEGER_ORDERS) * (q / z) ** 2 / 2, rtol=1e-5)
    np.testing.assert_allclose(fractional_orders(q, z), np.array(FRACTIONAL_ORDERS) * (q / z) ** 2 / 2, rtol=1e-5)


def test_costs_rise_with_the_order() -> None:
    for rate, noise_multiplier in [*PAIRS, (0.1, 0.03), (0.5, 0.07)]:
        orders = np.array([*FRACTIONAL_ORDERS, *INTEGER_ORDERS])
        costs = np.concatenate([fractional_orders(rate, noise_multiplier), integer_orders(rate, noise_multiplier)])
        sorted_costs = costs[np.argsort(orders)]
        assert np.all(np.diff(sorted_costs) >= -1e-10 * sorted_costs[:-1])


def test_sampling_never_costs_more_than_full_participation() -> None:
    for rate, noise_multiplier in [*PAIRS, (0.1, 0.03), (1 - 1e-12, 0.5)]:
        full = np.array(INTEGER_ORDERS) / (2 * noise_multiplier**2)
        assert np.all(integer_orders(rate, noise_multiplier) <= full * (1 + 1e-10))
        full = np.array(FRACTIONAL_ORDERS) / (2 * noise_multiplier**2)
        assert np.all(fractional_orders(rate, noise_multiplier) <= full * (1 + 1e-10))


@pytest.mark.parametrize("noise_multiplier", [1e-160, 1e-100, 1e-5, 1e-3])
def test_hardly_any_noise_costs_much_or_infinitely_much(noise_multiplier: float) -> None:
    for costs in (integer_orders(0.01, noise_multiplier), fractional_orders(0.01, noise_multiplier)):
        assert np.all(costs > 1e5)
        assert not np.any(np.isnan(costs))


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-20, math.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("noise_multiplier", [0.05, 0.1, 1.0, 1e5])
def test_extreme_rates_give_numbers(rate: float, noise_multiplier: float) -> None:
    for costs in (integer_orders(rate, noise_multiplier), fractional_orders(rate, noise_multiplier)):
        assert np.all(costs >= 0.0)


def test_the_oracles_agree_with_each_other() -> None:
    whole, quadrature = (oracle(0.02, 1.1, 3) for oracle in (sampled_divergence_whole, sampled_divergence))
    assert abs(whole / quadrature - 1) < 1e-20
