"""What may be spent, and when: the budget and the windows it is checked in.

Privacy costs add up in the additive domain of an accountant (mu squared of GDP, the Rényi cost at one order), never
as epsilons. A window is an allowance in that domain. Whether a release fits is decided on integers: costs are rounded
up, allowances down, so that no chain of additions can drift over a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting import Gaussian, NeighboringRelation, events_all_full
from fedDP.accounting.gdp import gdp_epsilon, gdp_mu, gdp_squared_budget
from fedDP.accounting.rdp import ORDERS, rdp, rdp_at, rdp_budget
from fedDP.budget.weeks import IsoWeek, weeks_in_iso_year
from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.privacy.limits import DELTA, EPSILON

WindowName = Literal["week", "year", "trailing", "lifetime"]
WINDOW_NAMES: tuple[WindowName, ...] = ("week", "year", "trailing", "lifetime")
CHECK_ORDER: tuple[WindowName, ...] = ("lifetime", "year", "trailing", "week")
"""A refusal names the first window that cannot take the release: the one that stays shut the longest."""
Mode = Literal["gaussian", "renyi"]

TRAILING_WEEKS = 53
_LONG_YEAR = IsoWeek(2026, 1)  # any week of a year with 53

_UNITS = 1 << 80
# Outweighs the rounding of the formulas themselves (about 1e-14), so that "up" is up and "down" is down.
_ROUNDING = 1e-12

INTEGER_ORDERS: tuple[int, ...] = tuple(int(order) for order in ORDERS if order == int(order))
_AT_INTEGERS = np.isin(ORDERS, INTEGER_ORDERS)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The allowances of one population, fixed when its ledger is created.

    Attributes:
        delta: one delta for every statement of the ledger, in [1e-11, 1).
        year: epsilon of an ISO year, or None.
        week: epsilon of an ISO week, or "even": the year's budget split evenly over its 52 or 53 weeks in the additive
            domain, or None.
        trailing: epsilon of any 53 consecutive weeks; None means the year's, whenever a year is set.
        lifetime: epsilon over the ledger's whole life, or None.

    Raises:
        InvalidValueError: for a number outside its range, or ``week="even"`` without a year.
    """

    delta: float
    year: float | None = None
    week: float | Literal["even"] | None = None
    trailing: float | None = None
    lifetime: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", DELTA.check("delta", self.delta))
        for name in WINDOW_NAMES:
            value = getattr(self, name)
            if value is None or (name == "week" and value == "even"):
                continue
            object.__setattr__(self, name, EPSILON.check(name, value))
        if self.week == "even" and self.year is None:
            raise InvalidValueError("week", "even", "an epsilon, since no year is set", "Set a year to split.")
        if self.trailing is None and self.year is not None:
            object.__setattr__(self, "trailing", self.year)

    @property
    def is_limited(self) -> bool:
        """Whether any window has an allowance."""
        return any(getattr(self, name) is not None for name in WINDOW_NAMES)


def cost_units(cost: float) -> int:
    """A cost as an integer number of units of 2**-80, rounded up.

    Raises:
        InvalidValueError: for a cost that overflows.
    """
    if not math.isfinite(cost):
        raise InvalidValueError("cost", cost, "a finite cost; no budget covers this", "Use a larger noise multiplier.")
    return math.ceil(Fraction(cost * (1.0 + _ROUNDING)) * _UNITS)


def _limit_units(limit: float) -> int:
    return math.floor(Fraction(limit * (1.0 - _ROUNDING)) * _UNITS)


def allowance_units(epsilon: float, delta: float, order: int | None) -> int:
    """What (epsilon, delta) allows at a Rényi order, or in gaussian mode (None), in units, rounded down."""
    return _limit_units(gdp_squared_budget(epsilon, delta) if order is None else rdp_budget(epsilon, delta, order))


@dataclass(frozen=True, kw_only=True)
class WindowRule:
    """One window's allowance.

    Attributes:
        name: which window.
        order: the Rényi order its costs are taken at; None in gaussian mode.
        units: the allowance in integer units, of the year when `split_year`.
        split_year: whether a week's allowance is its share of the year's.
    """

    name: WindowName
    order: int | None
    units: int
    split_year: bool = False

    def limit(self, week: IsoWeek) -> int:
        """The allowance that applies in `week`, in units."""
        return self.units // weeks_in_iso_year(week.year) if self.split_year else self.units

    def limit_epsilon(self, week: IsoWeek, delta: float) -> float:
        """The same as the epsilon that it certifies at `delta`."""
        limit = self.limit(week) / _UNITS
        if self.order is None:
            return gdp_epsilon(math.sqrt(limit), delta)
        return limit + math.log1p(-1.0 / self.order) - math.log(delta * self.order) / (self.order - 1)

    def cost(self, event: Gaussian, relation: NeighboringRelation) -> int:
        """What `event` costs in this window, in units, rounded up.

        Raises:
            UnsupportedError: when the mode has no sound cost for the event.
        """
        if self.order is None:
            return cost_units(gdp_mu([event], relation) ** 2)
        return cost_units(rdp_at(event, self.order, relation))


def choose_mode(mode: str, plan: Sequence[Gaussian] | None) -> Mode:
    """The ledger's mode: "auto" is gaussian (exact) when a plan shows that nothing is sampled, else renyi.

    Raises:
        UnsupportedError: gaussian mode for a plan with sampled rounds.
        InvalidValueError: for an unknown mode.
    """
    unsampled = bool(plan) and events_all_full(plan or ())
    if mode == "auto":
        return "gaussian" if unsampled else "renyi"
    if mode == "gaussian":
        if plan and not unsampled:
            raise UnsupportedError('budget.mode="gaussian" cannot account for sampled rounds: use "renyi" or "auto".')
        return "gaussian"
    if mode == "renyi":
        return "renyi"
    if mode == "plan":
        raise UnsupportedError('budget.mode="plan" is not available yet: it arrives in a later version; use "auto".')
    raise InvalidValueError("mode", mode, 'one of "gaussian", "renyi", "auto"')


def window_rules(
    budget: Budget, mode: Mode, plan: Sequence[Gaussian] | None, relation: NeighboringRelation
) -> dict[WindowName, WindowRule]:
    """The rules of every window that has an allowance.

    In renyi mode each window gets one fixed order, chosen from the plan, which is data-independent, so that the filter
    is valid under full adaptivity (Feldman & Zrnic 2021, arXiv:2008.11193). The order is the one at which the plan uses
    the smallest share of the window.

    An even week is an equal share of the year. With a plan it is measured at an order of its own, at which the share
    certifies the smallest epsilon; the plan gives the rate of exchange between the two orders. The year is checked at
    its own order all the same, so no rate could overspend it.
    """
    rules: dict[WindowName, WindowRule] = {}
    for name in CHECK_ORDER:
        epsilon = getattr(budget, name)
        if epsilon is None:
            continue
        if epsilon == "even":
            rules["week"] = _even_week(rules["year"], budget, plan, relation)
        else:
            order = None if mode == "gaussian" else choose_order(epsilon, budget.delta, plan, relation)
            rules[name] = WindowRule(name=name, order=order, units=allowance_units(epsilon, budget.delta, order))
    return rules


def _even_week(
    year: WindowRule, budget: Budget, plan: Sequence[Gaussian] | None, relation: NeighboringRelation
) -> WindowRule:
    if year.order is None or not plan:
        return WindowRule(name="week", order=year.order, units=year.units, split_year=True)
    costs = dict(zip(INTEGER_ORDERS, _plan_costs(plan, relation).tolist(), strict=True))
    # How often the year could pay for the plan. Multiplying before dividing keeps the year's own order exact.
    of_year, paid = year.units / _UNITS, costs[year.order]

    def share(order: int) -> WindowRule:
        units = year.units if order == year.order else _limit_units(of_year * costs[order] / paid)
        return WindowRule(name="week", order=order, units=units, split_year=True)

    orders = [order for order, cost in costs.items() if math.isfinite(cost)]
    return min(map(share, orders), key=lambda rule: rule.limit_epsilon(_LONG_YEAR, budget.delta))


def choose_order(epsilon: float, delta: float, plan: Sequence[Gaussian] | None, relation: NeighboringRelation) -> int:
    """The integer order at which `plan` (default: unsampled Gaussians) uses the least of (epsilon, delta).

    Raises:
        InvalidValueError: when no order has a budget at all.
    """
    costs, budgets = _plan_costs(plan, relation).tolist(), _budgets(epsilon, delta)
    shares: Mapping[float, int] = {
        cost / budget: order for order, cost, budget in zip(INTEGER_ORDERS, costs, budgets, strict=True) if budget > 0.0
    }
    if not shares:
        raise InvalidValueError(
            "epsilon", epsilon, f"large enough for a Rényi filter at delta={delta:g}", "Use gaussian mode, or raise it."
        )
    return shares[min(shares)]


@lru_cache(maxsize=256)  # calibration asks again for every noise multiplier it tries
def _budgets(epsilon: float, delta: float) -> tuple[float, ...]:
    return tuple(rdp_budget(epsilon, delta, order) for order in INTEGER_ORDERS)


def _plan_costs(plan: Sequence[Gaussian] | None, relation: NeighboringRelation) -> NDArray[np.float64]:
    """The plan's cost at each of `INTEGER_ORDERS`."""
    if not plan:
        return np.array(INTEGER_ORDERS) / 2.0
    total = np.zeros(len(INTEGER_ORDERS))
    for event in plan:
        total += rdp(event, relation)[_AT_INTEGERS]
    return total
