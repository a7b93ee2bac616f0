"""Rényi divergences of the Poisson-sampled Gaussian, exact to rounding, in about a millisecond.

With sampling rate q and noise multiplier z, order alpha costs ln(A) / (alpha - 1) where
A = E[(1 + u)**alpha], u = q * (exp((2 x - 1) / (2 z**2)) - 1), x normal with mean 0 and deviation z
(the other direction is never larger: Mironov, Talwar, Zhang (2019), arXiv:1908.10530, Thm. 5, Sec. 3.3).
E[u] = 0, so A - 1 is computed as the expectation of (1 + u)**alpha - 1 - alpha * u >= 0: nothing cancels, and
costs of 1e-12 a round keep their digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LARGE_ORDERS = (72, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
INTEGER_ORDERS = (*range(2, 65), *LARGE_ORDERS)
FRACTIONAL_ORDERS = tuple(tenths / 10.0 for tenths in range(11, 110) if tenths % 10)

# What rounding, quadrature and the truncated series can lose, relative; added to every cost.
_ROUND_UP = 1.0 + 1e-11
# Below this noise multiplier the two bumps of the integrand are apart and a closed form bounds it tightly.
_APART = 0.1
# |u| up to which a power series replaces (1 + u)**alpha - 1 - alpha * u.
_SERIES_RADIUS = 1.0 / 32.0
_SERIES_POWERS: Array = np.arange(2.0, 13.0)
# Smaller noise multipliers overflow 1 / z**2; their cost is infinite.
TINY_NOISE = 1e-150


class _BinomialTable(NamedTuple):
    """Rows k = 2..order of the logarithms of the binomial coefficients, for several orders, end to end.

    Attributes:
        log_binomial: shape (sum of lengths,).
        position: k - 2 of each entry.
        starts: where each order begins.
        lengths: entries an order.
    """

    log_binomial: Array
    position: NDArray[np.intp]
    starts: NDArray[np.intp]
    lengths: NDArray[np.intp]


@lru_cache(maxsize=64)
def _binomial_table(orders: tuple[int, ...]) -> _BinomialTable:
    rows = []
    for order in orders:
        coefficient, row = order, []
        for k in range(2, order + 1):
            coefficient = coefficient * (order - k + 1) // k  # exact whole numbers
            row.append(math.log(coefficient))
        rows.append(row)
    lengths = np.array([len(row) for row in rows], dtype=np.intp)
    return _BinomialTable(
        log_binomial=np.concatenate([np.asarray(row, dtype=np.float64) for row in rows]),
        position=np.concatenate([np.arange(length, dtype=np.intp) for length in lengths]),
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.intp),
        lengths=lengths,
    )


def integer_orders(rate: float, noise_multiplier: float, orders: tuple[int, ...] = INTEGER_ORDERS) -> Array:
    """Costs of one round at whole orders, by the binomial sum.

    A - 1 = sum over k >= 2 of C(alpha, k) (1 - q)**(alpha - k) q**k (exp((k**2 - k) / (2 z**2)) - 1).

    Args:
        rate: in (0, 1).
        noise_multiplier: > 0.
        orders: whole numbers >= 2.

    Returns:
        Shape (len(orders),), rounded up; infinity where the sum overflows.

    >>> integer_orders(0.5, 1.0, (2,)).round(9).tolist()  # ln(1 + q**2 (e - 1))
    [0.35737402]
    """
    if noise_multiplier < TINY_NOISE:
        return np.full(len(orders), np.inf)
    k = np.arange(2.0, max(orders) + 1.0)
    log_stay = math.log1p(-rate)
    exponent = k * (k - 1.0) / (2.0 * noise_multiplier * noise_multiplier)
    per_k = k * (math.log(rate) - log_stay) + exponent + np.log(-np.expm1(-exponent))
    order = np.array(orders, dtype=np.float64)
    log_excess = log_binomial_sums(per_k, orders) + order * log_stay
    return rounded_up(np.logaddexp(0.0, log_excess) / (order - 1.0))


def log_binomial_sums(per_k: Array, orders: tuple[int, ...]) -> Array:
    """ln of the sum over k = 2..order of C(order, k) exp(per_k[k - 2]), for each of several whole orders."""
    table = _binomial_table(orders)
    terms = table.log_binomial + per_k[table.position]
    peak = np.maximum.reduceat(terms, table.starts)
    scaled = np.add.reduceat(np.exp(terms - np.repeat(peak, table.lengths)), table.starts)
    return np.asarray(peak + np.log(scaled))


def sampled_costs(rate: float, noise_multiplier: float, orders: tuple[float, ...]) -> Array:
    """Costs of one round at any orders.

    Args:
        rate: in (0, 1).
        noise_multiplier: > 0.
        orders: whole ones >= 2, and others in (1, 11).

    Returns:
        Shape (len(orders),), rounded up.
    """
    whole, fractional, is_whole = _by_kind(orders)
    costs = np.empty(len(orders))
    if whole:
        costs[is_whole] = integer_orders(rate, noise_multiplier, whole)
    if fractional:
        costs[~is_whole] = fractional_orders(rate, noise_multiplier, fractional)
    return costs


@lru_cache(maxsize=64)
def _by_kind(orders: tuple[float, ...]) -> tuple[tuple[int, ...], tuple[float, ...], NDArray[np.bool_]]:
    is_whole = np.array([order == int(order) for order in orders])
    whole = tuple(int(order) for order in orders if order == int(order))
    return whole, tuple(order for order in orders if order != int(order)), is_whole


@lru_cache(maxsize=64)
def _series_coefficients(alphas: tuple[float, ...]) -> tuple[Array, Array]:
    """The fractional orders, and their generalised binomials C(alpha, k), shape (orders, powers)."""
    orders: Array = np.array(alphas)
    factors = [(orders - j) / (j + 1.0) for j in range(int(_SERIES_POWERS[-1]))]
    coefficients: Array = np.multiply.accumulate(np.array(factors), axis=0)[int(_SERIES_POWERS[0]) - 1 :].T
    return orders, coefficients


def fractional_orders(rate: float, noise_multiplier: float, alphas: tuple[float, ...] = FRACTIONAL_ORDERS) -> Array:
    """Costs of one round at fractional orders, by quadrature.

    The trapezoid rule with step h on an integrand that is analytic in a strip of half-width d = pi z**2 errs by at
    most exp(d**2 / (2 z**2) - 2 pi d / h) relative: below 1e-15 with the steps used here.

    Args:
        rate: in (0, 1).
        noise_multiplier: > 0.
        alphas: the orders, in (1, 11).

    Returns:
        Shape (len(alphas),), rounded up.

    Reference: Trefethen, Weideman (2014), SIAM Review 56(3), Thm. 5.1.
    """
    if noise_multiplier < TINY_NOISE:
        return np.full(len(alphas), np.inf)
    if noise_multiplier < _APART:
        return _separated(rate, noise_multiplier, alphas)
    orders, coefficients = _series_coefficients(alphas)
    z, variance = noise_multiplier, noise_multiplier * noise_multiplier
    step = min(z / 3.0, variance / 2.0)
    x = np.arange(-12.0 * z, max(alphas) + 12.0 * z, step)
    log_ratio = (2.0 * x - 1.0) / (2.0 * variance)
    log_weight = -(x * x) / (2.0 * variance)
    log_unit = math.log(step / (z * math.sqrt(2.0 * math.pi)))
    u = rate * np.expm1(np.minimum(log_ratio, 700.0))
    near = np.abs(u) < _SERIES_RADIUS

    u_near, far = u[near], ~near
    powers = u_near[:, None] ** _SERIES_POWERS
    excess = coefficients @ (np.exp(log_weight[near] + log_unit) @ powers)
    if not far.any():
        return rounded_up(np.log1p(excess) / (orders - 1.0))

    x_far, log_weight_far = x[far], log_weight[far] + log_unit
    log_base = np.where(
        log_ratio[far] < 1.0,
        np.log1p(np.maximum(u[far], -rate)),
        np.logaddexp(math.log1p(-rate), math.log(rate) + log_ratio[far]),
    )
    # The part 1 + alpha * u of the far points, with exp(log_ratio) folded into a shifted normal weight.
    weight = float(np.exp(log_weight_far).sum())
    shifted = float(np.exp(-((x_far - 1.0) ** 2) / (2.0 * variance) + log_unit).sum())
    linear = weight + orders * (rate * (shifted - weight))
    terms = orders[:, None] * log_base + log_weight_far
    peak = terms.max(axis=1)
    log_far = peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1))
    small = log_far < 600.0
    with np.errstate(over="ignore", invalid="ignore"):
        log_moment = np.where(small, np.log1p(np.exp(np.where(small, log_far, 0.0)) - linear + excess), log_far)
    return rounded_up(log_moment / (orders - 1.0))


def _separated(rate: float, noise_multiplier: float, alphas: tuple[float, ...]) -> Array:
    """An upper bound for small noise multipliers, loose by a factor of about 1 + exp(-1 / (8 z**2)).

    Where b <= a, (a + b)**alpha <= a**alpha + (2**alpha - 1) a**(alpha - 1) b, since (1 + r)**alpha is convex
    on [0, 1]. Splitting at the x where a = 1 - q equals b = q exp((2 x - 1) / (2 z**2)) leaves four normal tails.
    """
    from scipy.special import log_ndtr

    orders: Array = np.array(alphas)
    z, variance = noise_multiplier, noise_multiplier * noise_multiplier
    log_rate, log_stay = math.log(rate), math.log1p(-rate)
    split = variance * (log_stay - log_rate) + 0.5
    log_mixed = np.log(2.0**orders - 1.0)
    bumps = [
        orders * log_stay + log_ndtr(split / z),
        log_mixed + (orders - 1.0) * log_stay + log_rate + log_ndtr((split - 1.0) / z),
        orders * log_rate + orders * (orders - 1.0) / (2.0 * variance) + log_ndtr((orders - split) / z),
        log_mixed
        + (orders - 1.0) * log_rate
        + log_stay
        + (orders - 1.0) * (orders - 2.0) / (2.0 * variance)
        + log_ndtr((orders - 1.0 - split) / z),
    ]
    log_moment = np.maximum(np.logaddexp.reduce(np.array(bumps), axis=0), 0.0)
    return rounded_up(np.minimum(log_moment / (orders - 1.0), orders / (2.0 * variance)))


def rounded_up(costs: Array) -> Array:
    """Rounded up; whatever is not a number costs infinity."""
    return np.where(np.isnan(costs), np.inf, costs * _ROUND_UP)
