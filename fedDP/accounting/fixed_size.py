"""Rényi divergences of a Gaussian release to a cohort drawn without replacement, one client swapped.

An upper bound, sound at every order. The privacy loss of `fedDP.accounting.privacy_loss.FixedSizePair` is far tighter,
but only the Rényi cost can be charged by a filter that admits rounds one by one.

Reference:
    Wang, Balle, Kasiviswanathan (2019), arXiv:1808.00087, Thm. 27 (whole orders) and Cor. 10 (between them); van Erven,
    Harremoës (2014), arXiv:1206.2459, Thm. 13 (never above full participation).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting.sampled_gaussian import TINY_NOISE, log_binomial_sums, rounded_up

Array = NDArray[np.float64]

# Moments up to this order, with this much noise, are used; elsewhere the theorem's simpler term, which is hardly larger
# or does not matter.
_MOMENTS = 64
_MOMENTS_FROM = 0.5


def fixed_size_costs(rate: float, noise: float, orders: tuple[float, ...]) -> Array:
    """Costs of one round.

    Args:
        rate: cohort size / population, in (0, 1).
        noise: standard deviation of the noise, in units of how far a swapped client moves the sum: half the noise
            multiplier.
        orders: > 1.

    Returns:
        Shape (len(orders),), rounded up.

    >>> fixed_size_costs(0.02, 1.0, (2.0,)).round(9).tolist()  # ln(1 + q**2 min(4 (e - 1), 2 e))
    [0.002172264]
    """
    exact = np.array(orders)
    if noise < TINY_NOISE:
        return np.full(exact.size, np.inf)
    below, above = np.floor(exact), np.ceil(exact)
    whole = tuple(int(order) for order in np.union1d(below, above) if order >= 2.0)
    moments = np.concatenate([[0.0], _log_moments(rate, noise, whole)])  # (order - 1) * cost is convex, 0 at order 1
    at = np.array([1, *whole])
    left, right = moments[np.searchsorted(at, below)], moments[np.searchsorted(at, above)]
    share = exact - below
    with np.errstate(invalid="ignore"):
        between = np.where(share > 0.0, (1.0 - share) * left + share * right, left)
    return np.minimum(rounded_up(between / (exact - 1.0)), exact / (2.0 * noise * noise))


def _log_moments(rate: float, noise: float, orders: tuple[int, ...]) -> Array:
    """(order - 1) * cost at whole orders: ln of 1 + sum over j >= 2 of C(order, j) rate**j times a moment's bound."""
    variance = noise * noise
    j = np.arange(2.0, max(orders) + 1.0)
    bound = math.log(2.0) + j * (j - 1.0) / (2.0 * variance)
    if noise >= _MOMENTS_FROM:
        even = _log_even_moments(noise)
        few = j[j < _MOMENTS].astype(int)
        by_moment = math.log(4.0) + (even[few // 2 - 1] + even[(few + 1) // 2 - 1]) / 2.0
        bound[: few.size] = np.minimum(bound[: few.size], by_moment)
    return np.asarray(np.logaddexp(0.0, log_binomial_sums(j * math.log(rate) + bound, orders)))


@lru_cache(maxsize=256)
def _log_even_moments(noise: float) -> Array:
    """ln E[(ratio - 1)**l] for l = 2, 4, ..., the ratio of N(1, z**2) to N(0, z**2) drawn from the latter.

    By the trapezoid rule, whose terms are all positive; see `sampled_gaussian.fractional_orders`.
    """
    powers = np.arange(2.0, _MOMENTS + 1.0, 2.0)
    step = 1.0 / 16.0
    x = np.arange(-16.0, 16.0 + _MOMENTS / noise, step)
    log_ratio = x / noise - 1.0 / (2.0 * noise * noise)
    with np.errstate(divide="ignore"):
        log_base = np.maximum(log_ratio, 0.0) + np.log(-np.expm1(-np.abs(log_ratio)))
    terms = powers[:, None] * log_base - x * x / 2.0
    peak = terms.max(axis=1)
    sums = np.exp(terms - peak[:, None]).sum(axis=1) * (step / math.sqrt(2.0 * math.pi))
    return np.asarray(peak + np.log(sums) + 1e-9)
