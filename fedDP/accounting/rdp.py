"""Rényi differential privacy: the account of sampled rounds, and of sampled and unsampled rounds together.

Costs at each order add up over rounds. Converting the sum to (epsilon, delta) may take the best order when the
rounds were fixed in advance; a filter that admits rounds one by one must stay at one order chosen beforehand
(`rdp_at`, `rdp_budget`).

Reference:
    Mironov (2017), arXiv:1702.07476; Canonne, Kamath, Steinke (2020), arXiv:2004.00010, Prop. 12;
    Feldman, Zrnic (2021), arXiv:2008.11193 (filters of one order).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedDP.accounting.event import Event, grouped, require_sound
from fedDP.accounting.gdp import EPSILON_QUERY
from fedDP.accounting.neighbors import NeighboringRelation, sensitivity
from fedDP.accounting.sampled_gaussian import FRACTIONAL_ORDERS, INTEGER_ORDERS
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import DELTA, EPSILON
from fedDP.ranges import Range

ORDERS: tuple[float, ...] = tuple(sorted((*FRACTIONAL_ORDERS, *map(float, INTEGER_ORDERS))))
"""The orders, ascending: steps of 0.1 below 11, whole numbers to 64, then sparser ones to 1024."""

ORDER = Range(low=2, high=1024, integer=True, remedy="A filter stays at one whole order.")

_ORDERS = np.array(ORDERS)


def rdp(event: Event, neighboring_relation: NeighboringRelation = "zero_out") -> NDArray[np.float64]:
    """Rényi costs of an event, all its releases together.

    Guarantees:
        1. Each cost is at least the exact divergence (but for rounding of unsampled rounds). With Poisson sampling it
           is at most 1e-10 above it, relative, for noise multipliers from 0.1 on.
        2. Sampling that always draws everybody costs exactly what full participation costs.
        3. Replace-one doubles the sensitivity.

    Args:
        event: the releases.
        neighboring_relation: Poisson sampling under replace-one, and fixed cohorts under any other, are refused.

    Returns:
        Shape (len(ORDERS),), a new array; infinity at orders that overflow.

    Raises:
        UnsupportedError: for an event without a Rényi bound under the relation.

    >>> from fedDP.accounting import Gaussian
    >>> costs = rdp(Gaussian(2.0, count=10))
    >>> float(costs[ORDERS.index(8.0)])
    10.0
    """
    return total_costs([event], neighboring_relation)


def rdp_at(event: Event, order: int, neighboring_relation: NeighboringRelation = "zero_out") -> float:
    """Rényi cost of an event at one whole order: what a filter charges.

    Args:
        event: the releases.
        order: a whole number in [2, 1024].
        neighboring_relation: as for `rdp`.

    Raises:
        InvalidValueError: for an order that is not whole or outside its range.
        UnsupportedError: as `rdp`.

    >>> from fedDP.accounting import Gaussian, Poisson
    >>> round(rdp_at(Gaussian(4.0, sampling=Poisson(0.02)), 40), 12)
    0.000543043508
    """
    return float(total_costs([event], neighboring_relation, (float(int(ORDER.check("order", order))),))[0])


def total_costs(
    events: Iterable[Event], neighboring_relation: NeighboringRelation, orders: tuple[float, ...] = ORDERS
) -> NDArray[np.float64]:
    """Rényi costs of all events together; equal ones are charged at once, and in an order that is always the same.

    Raises:
        UnsupportedError: for an event without a Rényi bound under the relation.
    """
    sensitivity(neighboring_relation)  # refuses an unknown relation, also without events
    counts = grouped(events)
    require_sound((event for event, _ in counts), "rdp", neighboring_relation)
    total = np.zeros(len(orders))
    for event, count in counts:
        total += count * _single_costs(event, orders, neighboring_relation)
    return total


def rdp_epsilon(rho: ArrayLike, delta: float) -> float:
    """The smallest epsilon at `delta` over all orders; never negative.

    Args:
        rho: total cost at each of `ORDERS`.
        delta: in [1e-11, 1).

    Returns:
        Epsilon; infinity if every order's cost is infinite.

    Reference: Canonne, Kamath, Steinke (2020), Prop. 12; the shortcut to 0 is Bretagnolle, Huber (1979):
    total variation <= sqrt(1 - exp(-KL)), and KL is below the cost at every order.

    >>> from fedDP.accounting import Gaussian
    >>> round(rdp_epsilon(rdp(Gaussian(1.0)), 1e-5), 6)
    4.728507
    """
    costs = _check_costs(rho)
    delta = DELTA.check("delta", delta)
    if delta * delta + math.expm1(-float(costs.min())) > 0.0:
        return 0.0
    return max(0.0, float(np.min(costs - _slack(delta, _ORDERS))))


def rdp_delta(rho: ArrayLike, epsilon: float) -> float:
    """The smallest delta at `epsilon` over all orders; at most 1.

    Args:
        rho: total cost at each of `ORDERS`.
        epsilon: in [0, 1e12].

    Reference: as `rdp_epsilon`.

    >>> from fedDP.accounting import Gaussian
    >>> rdp_delta(rdp(Gaussian(1.0)), 4.8) < 1e-5
    True
    """
    costs = _check_costs(rho)
    epsilon = EPSILON_QUERY.check("epsilon", epsilon)
    by_distance = math.sqrt(-math.expm1(-float(costs.min())))
    exponent = (_ORDERS - 1.0) * (costs - epsilon + np.log1p(-1.0 / _ORDERS)) - np.log(_ORDERS)
    return min(1.0, by_distance, math.exp(min(0.0, float(exponent.min()))))


def rdp_budget(epsilon: float, delta: float, order: int) -> float:
    """What the costs at one order may add up to for (epsilon, delta), rounded down.

    Guarantee: any adaptive sequence of events whose `rdp_at` costs at this order, fixed in advance, add up to at
    most the returned value is (epsilon, delta)-private.

    Args:
        epsilon: in [1e-6, 1e6].
        delta: in [1e-11, 1).
        order: a whole number in [2, 1024].

    Returns:
        The budget; zero or negative where this order cannot certify (epsilon, delta) at all.

    >>> round(rdp_budget(0.5, 1e-6, 40), 9)
    0.2656606
    """
    epsilon = EPSILON.check("epsilon", epsilon)
    delta = DELTA.check("delta", delta)
    slack = float(_slack(delta, np.array([ORDER.check("order", order)]))[0])
    return epsilon + slack - 2.0**-50 * (epsilon + abs(slack))


def _slack(delta: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Budget minus epsilon at each order."""
    return np.log(delta * orders) / (orders - 1.0) - np.log1p(-1.0 / orders)


def _check_costs(rho: ArrayLike) -> NDArray[np.float64]:
    costs = np.asarray(rho, dtype=np.float64)
    if costs.shape != _ORDERS.shape:
        raise InvalidValueError("rho", costs.shape, f"an array of shape {_ORDERS.shape}, one cost an order")
    if not bool(np.all(costs >= 0.0)):
        raise InvalidValueError("rho", float(costs.min()), "costs >= 0, none of them NaN")
    return costs


@lru_cache(maxsize=16384)
def _single_costs(
    event: Event, orders: tuple[float, ...], neighboring_relation: NeighboringRelation
) -> NDArray[np.float64]:
    costs = event.rdp_costs(orders, neighboring_relation)
    if costs.shape != (len(orders),) or not bool(np.all(costs >= 0.0)):
        raise InvalidValueError("event", event, f"Rényi costs >= 0, none of them NaN, at {len(orders)} orders")
    costs.setflags(write=False)
    return costs
