"""What may be spent, and when: the budget and the windows it is checked in.

Privacy costs add up in the additive domain of an accountant (mu squared of GDP, the Rényi cost at one order), never
as epsilons. A window is an allowance in that domain. Whether a release fits is decided on integers: costs are rounded
up, allowances down, so that no chain of additions can drift over a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting import Gaussian, NeighboringRelation
from fedDP.accounting.gdp import gdp_epsilon, gdp_mu, gdp_squared_budget
from fedDP.accounting.rdp import ORDERS, rdp, rdp_at, rdp_budget
from fedDP.budget.weeks import IsoWeek, weeks_in_iso_year
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import DELTA, EPSILON
from fedDP.ranges import Range

WindowName = Literal["week", "year", "trailing", "lifetime"]
WINDOW_NAMES: tuple[WindowName, ...] = ("week", "year", "trailing", "lifetime")
CHECK_ORDER: tuple[WindowName, ...] = ("lifetime", "year", "trailing", "week")
"""A refusal names the first window that cannot take the release: the one that stays shut the longest."""
Coverage = WindowName | Literal["year to date"]
"""The weeks that a sum runs over; an allowance that accumulates is compared with the year so far."""
Mode = Literal["gaussian", "renyi", "plan"]
CarryOver = Literal["none", "cumulative"]
CARRY_OVER: tuple[CarryOver, ...] = get_args(CarryOver)

EVALUATION_PURPOSES = frozenset({"eval", "metric"})
"""The purposes that a reserve is kept for. Every other one counts as training: no new word opens the reserve."""

TRAILING_WEEKS = 53
_LONG_YEAR = IsoWeek(2026, 1)  # any week of a year with 53

_RESERVE = Range(low=0.0, high=1.0, high_open=True, remedy="It is the share that training leaves for evaluation.")

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
        carry_over: what becomes of a week's unused allowance. "none": it lapses. "cumulative": the year's charges up to
            a week may add up to the allowances of its weeks so far, in the additive domain; they count from the later
            of the year's first week and the ledger's first, and lapse with the year. The weekly statement is then the
            accumulated allowance.
        reserve_evaluation: the share of every window, in [0, 1) and in the additive domain, that only the purposes
            "eval" and "metric" may use.

    Raises:
        InvalidValueError: for a number outside its range, ``week="even"`` without a year, or carry-over without a week.
    """

    delta: float
    year: float | None = None
    week: float | Literal["even"] | None = None
    trailing: float | None = None
    lifetime: float | None = None
    carry_over: CarryOver = "none"
    reserve_evaluation: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", DELTA.check("delta", self.delta))
        for name in WINDOW_NAMES:
            value = getattr(self, name)
            if value is None or (name == "week" and value == "even"):
                continue
            object.__setattr__(self, name, EPSILON.check(name, value))
        if self.week == "even" and self.year is None:
            raise InvalidValueError("week", "even", "an epsilon, since no year is set", "Set a year to split.")
        if self.carry_over not in CARRY_OVER:
            raise InvalidValueError("carry_over", self.carry_over, f"one of {', '.join(CARRY_OVER)}")
        if self.carry_over != "none" and self.week is None:
            raise InvalidValueError(
                "carry_over", self.carry_over, "'none', since no week is set", "Set a week whose rest can be carried."
            )
        object.__setattr__(self, "reserve_evaluation", _RESERVE.check("reserve_evaluation", self.reserve_evaluation))
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
    """One window's allowance in the additive domain.

    Attributes:
        name: which window.
        order: the Rényi order its costs are taken at; None in gaussian mode.
        units: the allowance in integer units, of the year when `split_year`.
        split_year: whether a week's allowance is its share of the year's.
        since: the first week whose allowance counts, where a year's weeks accumulate theirs; None where they do not.
        reserve: the share that is kept for evaluation.
    """

    name: WindowName
    order: int | None
    units: int
    split_year: bool = False
    since: IsoWeek | None = None
    reserve: float = 0.0

    @property
    def covers(self) -> Coverage:
        """The weeks whose charges count against `limit`."""
        return self.name if self.since is None else "year to date"

    def limit(self, week: IsoWeek, purpose: str | None = None) -> int:
        """The allowance that applies in `week`, in units, rounded down.

        Args:
            week: the week of a release.
            purpose: what releases of this kind may use; None: what all may use together.
        """
        units, parts = self.units, weeks_in_iso_year(week.year) if self.split_year else 1
        if self.since is not None:
            first = max(self.since, IsoWeek(week.year, 1))
            units *= max(0, week.index - first.index + 1)
        units //= parts
        if purpose is None or purpose in EVALUATION_PURPOSES:
            return units
        # The share as it is written: 0.2 is a fifth.
        return math.floor(units * (1 - Fraction(repr(self.reserve))))

    def limit_epsilon(self, week: IsoWeek, delta: float, purpose: str | None = None) -> float:
        """The same as the epsilon that it certifies at `delta`."""
        return self.certified_epsilon(self.limit(week, purpose), delta)

    def certified_epsilon(self, units: int, delta: float) -> float:
        """The epsilon at `delta` of whatever costs so many units, however it was chosen."""
        cost = units / _UNITS
        if self.order is None:
            return gdp_epsilon(math.sqrt(cost), delta)
        return cost + math.log1p(-1.0 / self.order) - math.log(delta * self.order) / (self.order - 1)

    def cost(self, event: Gaussian, relation: NeighboringRelation) -> int:
        """What `event` costs in this window, in units, rounded up.

        Raises:
            UnsupportedError: when the mode has no sound cost for the event.
        """
        if self.order is None:
            return cost_units(gdp_mu([event], relation) ** 2)
        return cost_units(rdp_at(event, self.order, relation))

    def to_dict(self) -> dict[str, Any]:
        """The rule as JSON-ready values; units exceed the 2**53 that JSON readers keep exact."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**values, "units": str(self.units), "since": None if self.since is None else self.since.key}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WindowRule:
        """Reads what `to_dict` wrote."""
        since = None if values["since"] is None else IsoWeek.parse(values["since"])
        return cls(**{**values, "units": int(values["units"]), "since": since})


def window_rules(
    budget: Budget,
    mode: Mode,
    plan: Sequence[Gaussian] | None,
    relation: NeighboringRelation,
    created: IsoWeek | None = None,
) -> dict[WindowName, WindowRule]:
    """The rules of every window that has an allowance, where charges are admitted by a filter.

    In renyi mode each window gets one fixed order, chosen from the plan, which is data-independent, so that the filter
    is valid under full adaptivity (Feldman & Zrnic 2021, arXiv:2008.11193). The order is the one at which the plan uses
    the smallest share of the window.

    An even week is an equal share of the year. With a plan it is measured at an order of its own, at which the share
    certifies the smallest epsilon; the plan gives the rate of exchange between the two orders. The year is checked at
    its own order all the same, so no rate could overspend it.

    Args:
        budget: the allowances.
        mode: "gaussian" or "renyi"; the windows of a committed plan are those of its releases.
        plan: the releases that are expected.
        relation: the neighbouring relation.
        created: the ledger's first week, from which a cumulative carry-over counts.

    Raises:
        InvalidValueError: for another mode, an epsilon that no order certifies, or a carry-over that counts from
            nowhere.
    """
    if mode == "plan":
        raise InvalidValueError("mode", mode, '"gaussian" or "renyi", the modes that admit charges by a filter')
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
    if budget.carry_over == "cumulative":
        if created is None:
            raise InvalidValueError("created", created, "the ledger's first week, which the carry-over counts from")
        rules["week"] = replace(rules["week"], since=created)
    return {name: replace(rule, reserve=budget.reserve_evaluation) for name, rule in rules.items()}


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
