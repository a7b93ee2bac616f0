"""Gaussian differential privacy: the exact account of unsampled Gaussian rounds.

A composition of Gaussian rounds with noise multipliers z_1, z_2, ... is exactly as private as one Gaussian
release at distance mu = sqrt(sum of (sensitivity / z_i)**2), also when each z_i depends on earlier outputs as
long as the sum of squares stays within a budget fixed in advance.

Reference:
    Dong, Roth, Su (2022), arXiv:1905.02383, Cor. 3.3 and 2.13; Balle, Wang (2018), arXiv:1805.06530, Thm. 8;
    Smith, Thakurta (2022), arXiv:2210.17520 (adaptively chosen parameters).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable

import numpy as np

from fedDP.accounting.event import Event, grouped, require_sound
from fedDP.accounting.neighbors import NeighboringRelation, sensitivity
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import DELTA, EPSILON
from fedDP.ranges import Range

EPSILON_QUERY = Range(low=0.0, high=1e12)
"""Epsilons at which a delta can be asked for; wider than the range of targets."""

# Evaluations of delta are good to about 1e-13; every solve aims this much lower, so that bounds truly hold.
_SAFETY = 1e-12
_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_SQRT_TWO_PI = math.sqrt(2.0 * math.pi)
_SMALL_MU = 0.5
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(12)


def gdp_mu(events: Iterable[Event], neighboring_relation: NeighboringRelation = "zero_out") -> float:
    """The exact GDP parameter of events that have one: unsampled Gaussians.

    Args:
        events: the releases; their order does not matter, to the last bit.
        neighboring_relation: replace-one doubles the sensitivity.

    Returns:
        mu >= 0; 0 for no events; infinity where a tiny noise multiplier overflows.

    Raises:
        UnsupportedError: for a sampled event.

    >>> from fedDP.accounting import Gaussian
    >>> gdp_mu([Gaussian(2.0, count=4)])
    1.0
    >>> gdp_mu([Gaussian(2.0, count=4)], "replace_one")
    2.0
    """
    sensitivity(neighboring_relation)  # refuses an unknown relation, also without events
    counts = grouped(events)
    require_sound((event for event, _ in counts), "gdp", neighboring_relation)
    costs = [count * event.squared_mu(neighboring_relation) for event, count in counts]
    return math.sqrt(math.fsum(costs)) if all(map(math.isfinite, costs)) else math.inf


def gdp_delta(mu: float, epsilon: float) -> float:
    """The exact delta of a mu-GDP mechanism at `epsilon`.

    With t = epsilon / mu - mu / 2 and the Mills ratio M it is phi(t) * (M(t) - M(t + mu)); small mu integrates
    the derivative of M instead of subtracting.

    Args:
        mu: the GDP parameter, >= 0 (infinity gives 1).
        epsilon: in [0, 1e12].

    >>> round(gdp_delta(1.0, 1.0), 12)
    0.126936737507
    """
    mu = _check_mu(mu)
    epsilon = EPSILON_QUERY.check("epsilon", epsilon)
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    return _delta(epsilon / mu - mu / 2.0, mu)


def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a mu-GDP mechanism at `delta`, rounded up.

    Guarantee: the mechanism is (returned value, delta)-private; the value exceeds the exact epsilon by at
    most 1e-9 relative.

    Args:
        mu: the GDP parameter, >= 0 (infinity gives infinity).
        delta: in [1e-11, 1).

    >>> round(gdp_epsilon(1.0, 1e-5), 9)
    4.377178096
    """
    mu = _check_mu(mu)
    target = DELTA.check("delta", delta) * (1.0 - _SAFETY)
    if mu == 0.0 or _delta(-mu / 2.0, mu) <= target:
        return 0.0
    # delta <= Phi(-t) <= exp(-t * t / 2) / 2 for t >= 0, so the root lies below this t.
    highest = math.sqrt(2.0 * math.log(1.0 / target)) + 1e-6
    root = _root(lambda t: _delta(t, mu) - target, -mu / 2.0, highest) if math.isfinite(mu) else math.inf
    value = max(mu * (root + mu / 2.0), mu * 2.0**-52)  # a root at epsilon = 0 still has room to move up
    return _settle(value, lambda epsilon: _delta(epsilon / mu - mu / 2.0, mu) <= target, 1.0)


def gdp_squared_budget(epsilon: float, delta: float) -> float:
    """The largest mu**2 whose mechanism is (epsilon, delta)-private, rounded down.

    Guarantee: any adaptive sequence of unsampled Gaussian rounds whose squared ratios sensitivity / noise add up
    to at most the returned value is (epsilon, delta)-private.

    Args:
        epsilon: in [1e-6, 1e6].
        delta: in [1e-11, 1).

    >>> round(gdp_squared_budget(0.5, 1e-6), 9)
    0.015402336
    """
    epsilon = EPSILON.check("epsilon", epsilon)
    target = DELTA.check("delta", delta) * (1.0 - _SAFETY)
    lowest = 2.0 * epsilon / (39.0 + math.sqrt(39.0**2 + 2.0 * epsilon))  # t = 39: delta underflows
    highest = 9.0 + math.sqrt(81.0 + 2.0 * epsilon)  # t = -9: delta rounds to 1
    root = _root(lambda mu: _delta(epsilon / mu - mu / 2.0, mu) - target, lowest, highest)

    def fits(budget: float) -> bool:
        mu = math.sqrt(budget)
        return _delta(epsilon / mu - mu / 2.0, mu) <= target

    return _settle(root * root, fits, -1.0)


def _check_mu(mu: float) -> float:
    valid = isinstance(mu, numbers.Real) and not isinstance(mu, bool)
    if not valid or not float(mu) >= 0.0:
        raise InvalidValueError("mu", mu, "a number >= 0")
    return float(mu)


def _delta(t: float, mu: float) -> float:
    """Delta at epsilon = mu * (t + mu / 2) >= 0."""
    from scipy.special import erfcx, ndtr

    if math.isinf(mu):
        return 1.0
    density = math.exp(-t * t / 2.0) / _SQRT_TWO_PI
    if density == 0.0:
        return 0.0 if t > 0.0 else 1.0
    if mu < _SMALL_MU:
        points = t + mu * (_NODES + 1.0) / 2.0
        slope = 1.0 - points * _SQRT_HALF_PI * erfcx(points / math.sqrt(2.0))  # -M'(s)
        value = density * (mu / 2.0) * float(_NODE_WEIGHTS @ slope)
    elif t >= 0.0:
        value = density * _SQRT_HALF_PI * float(erfcx(t / math.sqrt(2.0)) - erfcx((t + mu) / math.sqrt(2.0)))
    else:
        value = float(ndtr(-t)) - density * _SQRT_HALF_PI * float(erfcx((t + mu) / math.sqrt(2.0)))
    return min(max(value, 0.0), 1.0)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """A zero of a monotone function that changes its sign between `low` and `high`."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def _settle(value: float, fits: Callable[[float], bool], sign: float) -> float:
    """Moves `value` outwards (`sign` +1 up, -1 down) by doubling relative steps until it fits."""
    step = 2.0**-52
    while math.isfinite(value) and not fits(value):
        value *= 1.0 + sign * step
        step *= 2.0
    return value
