"""Unused weekly allowances that are carried over: the sum so far stays within the allowances so far."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson, epsilon, gdp_epsilon, gdp_squared_budget
from fedDP.budget import Budget, BudgetExceeded, IsoWeek, Ledger
from fedDP.budget.policy import window_rules
from fedDP.errors import InvalidValueError, LedgerError

from .ledgers import Run, SetClock, authorise, charge, fill, weeks_of, windows_of, without_sync

DELTA = 1e-6
EVENT = Gaussian(200.0)  # 616 a year of epsilon 0.5
EVEN = Budget(delta=DELTA, year=0.5, week="even", carry_over="cumulative")


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.mark.parametrize("carry_over", ["Cumulative", "", None, True, 1, "capped"])
def test_an_unknown_rule_is_refused(carry_over: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"carry_over=.*none, cumulative"):
        Budget(delta=DELTA, year=0.5, week="even", carry_over=carry_over)


def test_it_needs_a_week() -> None:
    with pytest.raises(InvalidValueError, match=r"carry_over='cumulative'.*Set a week"):
        Budget(delta=DELTA, year=0.5, carry_over="cumulative")
    with pytest.raises(InvalidValueError, match="created="):
        window_rules(EVEN, "gaussian", None, "zero_out")


def test_what_a_week_leaves_is_for_the_next_ones() -> None:
    windows = windows_of(EVEN)
    charge(windows, EVENT, "2027-W01")
    assert fill(windows, EVENT, "2027-W03") == 34  # 35 fit into three weeks
    assert fill(windows, EVENT, "2027-W03") == 0
    assert fill(windows, EVENT, "2027-W04") == 12  # 47 into four


def test_without_it_the_rest_lapses() -> None:
    windows = windows_of(Budget(delta=DELTA, year=0.5, week="even"))
    charge(windows, EVENT, "2027-W01")
    assert fill(windows, EVENT, "2027-W03") == 11


def test_a_later_week_is_never_borrowed_from() -> None:
    windows = windows_of(EVEN)
    assert [fill(windows, EVENT, week) for week in weeks_of(2027)[:3]] == [11, 12, 12]


@pytest.mark.parametrize("year", [2026, 2027])
def test_all_weeks_together_are_the_year(year: int) -> None:
    windows = windows_of(EVEN, f"{year}-W01")
    assert sum(fill(windows, EVENT, week) for week in weeks_of(year)) == 616
    windows = windows_of(EVEN, f"{year}-W01")
    assert fill(windows, EVENT, weeks_of(year)[-1]) == 616


def test_weeks_count_from_the_ledgers_first() -> None:
    windows = windows_of(EVEN, "2027-W10")
    assert fill(windows, EVENT, "2027-W10") == 11
    assert fill(windows, EVENT, "2027-W11") == 12
    assert fill(windows, EVENT, "2027-W52") == 43 * 616 // 52 - 23


def test_nothing_is_carried_into_another_year() -> None:
    windows = windows_of(Budget(delta=DELTA, year=0.5, week="even", trailing=5.0, carry_over="cumulative"), "2027-W50")
    assert fill(windows, EVENT, "2028-W01") == 11
    assert fill(windows, EVENT, "2028-W03") == 24


def test_a_year_that_was_spent_early_still_holds_back_the_next() -> None:
    windows = windows_of(EVEN, "2027-W01")
    assert fill(windows, EVENT, "2027-W52") == 616
    assert fill(windows, EVENT, "2028-W01") == 0
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2028-W01")
    # The trailing window lets go of 2027-W52 53 weeks later.
    assert (caught.value.window, caught.value.resumes) == ("trailing", "2029-01-01")


def test_the_other_windows_are_always_enforced() -> None:
    budget = Budget(delta=DELTA, year=0.5, week=0.4, lifetime=0.5, carry_over="cumulative")
    windows = windows_of(budget)
    assert fill(windows, EVENT, "2027-W40") == 616
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2027-W41")
    assert (caught.value.window, caught.value.resumes) == ("lifetime", None)


def test_a_week_of_its_own_epsilon_accumulates_in_the_additive_domain() -> None:
    budget = Budget(delta=DELTA, week=0.1, carry_over="cumulative")
    windows = windows_of(budget)
    squared = gdp_squared_budget(0.1, DELTA)
    event = Gaussian((10.6 / squared) ** 0.5)  # 10.6 a week
    assert [fill(windows, event, week) for week in weeks_of(2027)[:4]] == [10, 11, 10, 11]
    rule = windows.definition.rules["week"]
    for weeks in (1, 2, 52):
        certified = rule.limit_epsilon(IsoWeek(2027, weeks), DELTA)
        assert certified == pytest.approx(gdp_epsilon((weeks * squared) ** 0.5, DELTA), rel=1e-9)


def test_a_large_release_resumes_when_enough_is_saved() -> None:
    windows = windows_of(EVEN, "2027-W05")
    assert fill(windows, EVENT, "2027-W05") == 11
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, Gaussian(200.0 / 47**0.5), "2027-W05")
    # 11 + 47 rounds: five weeks of 11.85.
    assert (caught.value.window, caught.value.key) == ("week", "2027-W05")
    assert caught.value.resumes == IsoWeek(2027, 9).monday.date().isoformat()
    charge(windows, Gaussian(200.0 / 47**0.5), "2027-W09")


def test_a_release_that_only_a_long_year_can_save_for_waits_for_it() -> None:
    budget = Budget(delta=DELTA, week=0.1, carry_over="cumulative")
    windows = windows_of(budget, "2027-W01")
    event = Gaussian((1 / (52.5 * gdp_squared_budget(0.1, DELTA))) ** 0.5)
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, event, "2027-W01")
    assert caught.value.resumes == IsoWeek(2032, 53).monday.date().isoformat()
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, Gaussian((1 / (53.5 * gdp_squared_budget(0.1, DELTA))) ** 0.5), "2027-W01")
    assert caught.value.resumes is None


def test_a_refusal_speaks_of_the_year_so_far() -> None:
    windows = windows_of(EVEN)
    for week in weeks_of(2027)[:3]:
        fill(windows, EVENT, week)
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2027-W03")
    refusal = caught.value
    assert (refusal.window, refusal.key, refusal.resumes) == ("week", "2027-W03", "2027-01-25")
    assert refusal.spent == pytest.approx(epsilon([Gaussian(200.0, count=35)], DELTA), rel=1e-12)
    assert refusal.asked == pytest.approx(epsilon([Gaussian(200.0, count=36)], DELTA), rel=1e-12)
    assert refusal.spent < refusal.allowance < refusal.asked
    assert refusal.allowance == pytest.approx(gdp_epsilon((3 * gdp_squared_budget(0.5, DELTA) / 52) ** 0.5, DELTA))


def test_a_status_shows_the_accumulated_allowance() -> None:
    windows = windows_of(EVEN)
    fill(windows, EVENT, "2027-W01")
    charge(windows, EVENT, "2027-W02")
    status = windows.status("week", IsoWeek(2027, 2))
    assert (status.charges, status.spent_epsilon) == (1, epsilon([EVENT], DELTA))
    assert status.spent_fraction == pytest.approx(12 / (2 * 616.09 / 52), rel=1e-3)
    two_weeks = gdp_epsilon((2 * gdp_squared_budget(0.5, DELTA) / 52) ** 0.5, DELTA)
    assert status.allowance_epsilon == pytest.approx(two_weeks, rel=1e-9)
    first = windows.status("week", IsoWeek(2027, 1))  # what came later does not count there
    assert first.spent_fraction == pytest.approx(11 / (616.09 / 52), rel=1e-3)


@pytest.mark.parametrize("mode", ["gaussian", "renyi"])
def test_the_sum_so_far_never_exceeds_the_allowances_so_far(mode: str) -> None:
    generator = random.Random(7)
    sampled = Poisson(0.05) if mode == "renyi" else Poisson(1.0)
    plan = [Gaussian(200.0 if mode == "gaussian" else 8.0, sampling=sampled, count=600)]
    windows = windows_of(EVEN, "2027-W07", mode=mode, plan=plan)
    rule, granted = windows.definition.rules["week"], 0
    for number, week in enumerate(weeks_of(2027)[6:], start=1):
        for _ in range(generator.randrange(25)):
            event = Gaussian(plan[0].noise_multiplier * generator.choice((0.7, 1.0, 1.5, 2.0)), sampling=sampled)
            try:
                charge(windows, event, week)
                granted += 1
            except BudgetExceeded:
                continue
        share = rule.limit(IsoWeek.parse(week))
        spent = sum(units["week"] for units in windows.state.week_units.values())
        assert spent <= share <= number * (rule.limit(IsoWeek(2027, 7)) + 1)
    assert granted > 300


def test_would_grant_counts_what_is_granted() -> None:
    windows = windows_of(EVEN)
    charge(windows, EVENT, "2027-W01")
    weeks = [IsoWeek(2027, 2)] * 100
    assert windows.would_grant(EVENT, weeks) == fill(windows, EVENT, "2027-W02") == 22


def test_a_ledger_keeps_its_carry_over(tmp_path: Path) -> None:
    clock = SetClock()
    clock.set_week("2027-W10")
    path = str(tmp_path / "ledger.db")
    run = Run(Ledger.open(path, budget=EVEN, unit="patient", mode="gaussian", clock=clock), EVENT)
    run.charge_until_refused()
    clock.set_week("2027-W13")
    reopened = Ledger.open(path, budget=EVEN, unit="patient", mode="gaussian", clock=clock)
    assert reopened.definition == run.ledger.definition
    later = Run(reopened, EVENT, run_id="later")
    assert later.charge_until_refused().key == "2027-W13"
    assert (len(run.grants), len(later.grants)) == (11, 36)  # 47 in four weeks
    certified = gdp_epsilon((4 * gdp_squared_budget(0.5, DELTA) / 52) ** 0.5, DELTA)
    assert reopened.certified_epsilon()["week"] == pytest.approx(certified, rel=1e-9)
    with pytest.raises(LedgerError, match=r"budget.carry_over is 'cumulative' in the ledger, 'none' was asked"):
        Ledger.open(path, budget=Budget(delta=DELTA, year=0.5, week="even"), unit="patient", clock=clock)
    with pytest.raises(BudgetExceeded):
        authorise(reopened, EVENT, round=99)
