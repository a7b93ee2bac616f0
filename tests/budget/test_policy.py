from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson, gdp_epsilon, gdp_squared_budget, rdp_at, rdp_budget
from fedDP.budget import Budget, IsoWeek
from fedDP.budget.policy import (
    CHECK_ORDER,
    INTEGER_ORDERS,
    WINDOW_NAMES,
    choose_order,
    cost_units,
    window_rules,
)
from fedDP.errors import InvalidValueError

UNIT = Fraction(1, 2**80)
SAMPLED = [Gaussian(1.0, sampling=Poisson(0.01), count=100)]
FULL = [Gaussian(50.0, count=10)]


@pytest.mark.parametrize("name", ["year", "week", "trailing", "lifetime"])
@pytest.mark.parametrize("value", [0, 0.0, -1.0, 1e-300, 1e7, math.inf, math.nan, True, "0.5", "Even"])
def test_an_epsilon_outside_its_range_is_refused(name: str, value: Any) -> None:
    values: dict[str, Any] = {"year": 0.5, name: value}
    with pytest.raises(InvalidValueError, match=f"{name}="):
        Budget(delta=1e-6, **values)


@pytest.mark.parametrize("delta", [0.0, 1.0, 1e-300, -1e-6, math.nan, math.inf, True, "1e-6", None])
def test_a_delta_outside_its_range_is_refused(delta: Any) -> None:
    with pytest.raises(InvalidValueError, match="delta="):
        Budget(delta=delta, year=0.5)


def test_even_needs_a_year() -> None:
    with pytest.raises(InvalidValueError, match="Set a year to split"):
        Budget(delta=1e-6, week="even")
    with pytest.raises(InvalidValueError, match="year="):
        Budget(delta=1e-6, year="even")  # type: ignore[arg-type]


def test_a_year_brings_a_trailing_window_unless_one_is_set() -> None:
    assert Budget(delta=1e-6, year=0.5).trailing == 0.5
    assert Budget(delta=1e-6, year=0.5, trailing=0.7).trailing == 0.7
    assert Budget(delta=1e-6, week=0.5).trailing is None


def test_whole_numbers_and_floats_are_the_same_budget() -> None:
    assert Budget(delta=1e-6, year=1) == Budget(delta=1e-6, year=1.0)
    assert type(Budget(delta=1e-6, year=1).year) is float


def test_is_limited() -> None:
    assert not Budget(delta=1e-6).is_limited
    values: list[dict[str, Any]] = [{name: 1.0} for name in WINDOW_NAMES]
    assert all(Budget(delta=1e-6, **each).is_limited for each in values)


@pytest.mark.parametrize("cost", [1e-20, 1e-9, 1 / 3, 0.1, 1.0, 12345.678, 1e12])
def test_costs_are_rounded_up(cost: float) -> None:
    units = cost_units(cost)
    assert Fraction(cost) <= units * UNIT <= Fraction(cost) * (1 + Fraction(2, 10**12)) + UNIT


@pytest.mark.parametrize("cost", [math.inf, math.nan])
def test_a_cost_that_overflows_is_refused(cost: float) -> None:
    with pytest.raises(InvalidValueError, match="larger noise multiplier"):
        cost_units(cost)


def test_no_cost_is_free() -> None:
    assert cost_units(5e-324) >= 1


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.5, 3.0, 1e6])
@pytest.mark.parametrize("delta", [1e-11, 1e-6, 0.1])
def test_gaussian_allowances_are_rounded_down(epsilon: float, delta: float) -> None:
    rule = window_rules(Budget(delta=delta, lifetime=epsilon), "gaussian", None, "zero_out")["lifetime"]
    budget = Fraction(gdp_squared_budget(epsilon, delta))
    assert rule.order is None
    assert budget * (1 - Fraction(2, 10**12)) - UNIT <= rule.units * UNIT <= budget
    week = IsoWeek(2026, 1)
    assert rule.limit_epsilon(week, delta) == pytest.approx(epsilon, rel=1e-9)
    assert rule.limit_epsilon(week, delta) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (0.5, 1e-6), (8.0, 1e-5)])
def test_renyi_allowances_are_rounded_down(epsilon: float, delta: float) -> None:
    rule = window_rules(Budget(delta=delta, lifetime=epsilon), "renyi", SAMPLED, "zero_out")["lifetime"]
    assert rule.order in INTEGER_ORDERS
    budget = Fraction(rdp_budget(epsilon, delta, rule.order))
    assert budget * (1 - Fraction(2, 10**12)) - UNIT <= rule.units * UNIT <= budget
    assert rule.limit_epsilon(IsoWeek(2026, 1), delta) == pytest.approx(epsilon, rel=1e-10)


@pytest.mark.parametrize("mode", ["gaussian", "renyi"])
@pytest.mark.parametrize("year", [2025, 2026, 2032])
def test_an_even_split_never_exceeds_its_year(mode: Any, year: int) -> None:
    rules = window_rules(Budget(delta=1e-6, year=0.5, week="even"), mode, None, "zero_out")
    weeks = 53 if year in (2026, 2032) else 52
    limits = [rules["week"].limit(IsoWeek(year, week)) for week in range(1, weeks + 1)]
    assert rules["year"].units - weeks < sum(limits) <= rules["year"].units
    assert len(set(limits)) == 1
    assert rules["week"].order == rules["year"].order


def test_an_even_week_certifies_the_documented_epsilon() -> None:
    rules = window_rules(Budget(delta=1e-6, year=0.5, week="even"), "gaussian", None, "zero_out")
    assert rules["week"].limit_epsilon(IsoWeek(2025, 1), 1e-6) == pytest.approx(0.060395, abs=1e-6)
    shorter = gdp_epsilon(math.sqrt(gdp_squared_budget(0.5, 1e-6) / 53), 1e-6)
    assert rules["week"].limit_epsilon(IsoWeek(2026, 1), 1e-6) == pytest.approx(shorter, rel=1e-9)


def test_every_window_has_its_own_order() -> None:
    """At one order for all, a week of 0.1 would have a negative allowance."""
    budget = Budget(delta=1e-6, year=0.5, week=0.1)
    rules = window_rules(budget, "renyi", None, "zero_out")
    assert rules["year"].order == 40
    assert rules["week"].order == 160
    assert rdp_budget(0.1, 1e-6, 40) < 0.0
    assert all(rule.units > 0 for rule in rules.values())


@pytest.mark.parametrize("plan", [None, SAMPLED, [Gaussian(0.8, sampling=Poisson(0.2), count=3), Gaussian(4.0)]])
def test_the_order_is_the_one_that_uses_the_least(plan: Any) -> None:
    def share(order: int) -> float:
        budget = rdp_budget(1.0, 1e-5, order)
        cost = sum(rdp_at(event, order) for event in plan or [Gaussian(1.0)])
        return cost / budget if budget > 0 else math.inf

    chosen = choose_order(1.0, 1e-5, plan, "zero_out")
    assert share(chosen) == min(share(order) for order in INTEGER_ORDERS)


def test_an_epsilon_that_no_order_certifies_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="Use gaussian mode"):
        choose_order(1e-6, 1e-11, None, "zero_out")


def test_rules_come_in_the_order_of_the_check() -> None:
    budget = Budget(delta=1e-6, week="even", year=0.5, lifetime=2.0)
    assert tuple(window_rules(budget, "gaussian", None, "zero_out")) == CHECK_ORDER
    assert set(CHECK_ORDER) == set(WINDOW_NAMES)
    assert window_rules(Budget(delta=1e-6), "renyi", None, "zero_out") == {}
    with pytest.raises(InvalidValueError, match="mode='plan'"):
        window_rules(budget, "plan", FULL, "zero_out")


def test_replace_one_costs_four_times_as_much() -> None:
    rules = window_rules(Budget(delta=1e-6, year=0.5), "gaussian", None, "zero_out")
    single, double = (rules["year"].cost(Gaussian(8.0), relation) for relation in ("zero_out", "replace_one"))
    assert double == pytest.approx(4 * single, rel=1e-15)
