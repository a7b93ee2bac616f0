from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedDP.accounting import ORDERS, FixedSize, Gaussian, Poisson, epsilon, rdp, rdp_at
from fedDP.accounting.fixed_size import fixed_size_costs

from .oracles import sampled_divergence_whole

mp: Any = pytest.importorskip("mpmath")
PAIRS = [(0.02, 1.0), (0.1, 2.0), (0.6, 4.0), (0.01, 0.5), (1e-3, 0.7), (0.3, 50.0), (0.999, 1.0)]


def theorem_27(rate: float, noise: float, order: int) -> float:
    """Wang, Balle, Kasiviswanathan (2019), Thm. 27, its alternating sums in 400 digits; never above no sampling."""
    with mp.workdps(400):
        q, variance = mp.mpf(rate), mp.mpf(noise) ** 2

        def difference(power: int) -> Any:
            return mp.fsum(
                (-1) ** (power - i) * mp.binomial(power, i) * mp.exp(i * (i - 1) / (2 * variance))
                for i in range(power + 1)
            )

        total = mp.mpf(1)
        for j in range(2, order + 1):
            moment = 4 * mp.sqrt(difference(2 * (j // 2)) * difference(2 * ((j + 1) // 2)))
            total += q**j * mp.binomial(order, j) * min(moment, 2 * mp.exp(j * (j - 1) / (2 * variance)))
        return float(min(mp.log(total) / (order - 1), order / (2 * variance)))


@pytest.mark.parametrize(("rate", "noise"), PAIRS)
def test_whole_orders_are_the_theorem(rate: float, noise: float) -> None:
    for order in (2, 3, 5, 12):
        expected = theorem_27(rate, noise, order)
        assert expected * (1.0 - 1e-12) <= fixed_size_costs(rate, noise, (float(order),))[0] <= expected * (1.0 + 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise"), PAIRS)
def test_large_orders_are_the_theorem(rate: float, noise: float) -> None:
    for order in (40, 63):
        expected = theorem_27(rate, noise, order)
        assert expected * (1.0 - 1e-12) <= fixed_size_costs(rate, noise, (float(order),))[0] <= expected * (1.0 + 1e-8)


@pytest.mark.parametrize(("rate", "noise"), PAIRS)
def test_a_pair_that_some_data_set_has_is_never_undercut(rate: float, noise: float) -> None:
    # One client far away, the others at rest: swapping it is mixing it in with probability `rate`.
    for order in (2, 8, 64, 256):
        attained = float(sampled_divergence_whole(rate, noise, order))
        assert fixed_size_costs(rate, noise, (float(order),))[0] >= attained * (1.0 - 1e-12)


@pytest.mark.parametrize(("rate", "noise"), [*PAIRS, (0.1, 1e-3), (0.1, 1e5), (0.5, 0.06)])
def test_costs_rise_with_the_order_and_stay_below_full_participation(rate: float, noise: float) -> None:
    costs = fixed_size_costs(rate, noise, ORDERS)
    assert np.all(np.diff(costs) >= -1e-9 * costs[:-1])
    assert np.all(costs <= np.array(ORDERS) / (2.0 * noise * noise))
    assert np.all(costs > 0.0)


def test_between_whole_orders_lies_the_chord() -> None:
    low, high = (order * fixed_size_costs(0.02, 1.0, (order + 1.0,))[0] for order in (4.0, 5.0))
    assert fixed_size_costs(0.02, 1.0, (5.3,))[0] == pytest.approx((0.7 * low + 0.3 * high) / 4.3, rel=1e-9)
    first = fixed_size_costs(0.02, 1.0, (2.0,))[0]
    assert fixed_size_costs(0.02, 1.0, (1.5,))[0] == pytest.approx(first, rel=1e-9)  # the chord from nothing at 1


def test_hardly_any_noise_costs_infinitely_much() -> None:
    assert np.all(np.isinf(fixed_size_costs(0.1, 1e-200, ORDERS)))


def test_a_swap_moves_the_sum_by_two_clip_norms() -> None:
    # The factor that accountants lose which read the noise multiplier as noise over sensitivity.
    event = Gaussian(2.0, sampling=FixedSize(20, 1000), count=3)
    np.testing.assert_array_equal(rdp(event, "replace_one"), 3 * fixed_size_costs(0.02, 1.0, ORDERS))
    assert rdp_at(event, 16, "replace_one") == pytest.approx(rdp(event, "replace_one")[ORDERS.index(16.0)], rel=1e-12)


def test_drawing_everybody_is_full_participation() -> None:
    full = Gaussian(2.0, sampling=FixedSize(7, 7), count=3)
    np.testing.assert_array_equal(rdp(full, "replace_one"), rdp(Gaussian(2.0, count=3), "replace_one"))
    assert epsilon([full], 1e-5) == epsilon([Gaussian(2.0, count=3)], 1e-5)
    assert epsilon([Gaussian(2.0, sampling=FixedSize(6, 7))], 1e-5, None, "replace_one") < epsilon(
        [full], 1e-5, None, "replace_one"
    )


def test_it_is_not_the_poisson_formula() -> None:
    fixed, drawn = FixedSize(20, 1000), Poisson(0.02)
    costs = [epsilon([Gaussian(1.0, sampling=fixed, count=100)], 1e-5, None, "replace_one")]
    costs.append(epsilon([Gaussian(1.0, sampling=drawn, count=100)], 1e-5))
    assert costs[0] > 9.69 > 1.5 > costs[1]
    assert math.isfinite(costs[0])
