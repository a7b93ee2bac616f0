"""What a ledger may commit to, what it stores of it, and what its windows certify then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson, epsilon
from fedDP.budget import Budget, IsoWeek, PlannedRelease
from fedDP.budget.committed_plan import CommittedPlan
from fedDP.budget.definition import LedgerDefinition
from fedDP.budget.plan_limits import plan_limits
from fedDP.budget.policy import WindowName
from fedDP.errors import InvalidValueError, LedgerError

from .ledgers import SetClock, authorise, charge, fill, raw, weeks_of, windows_of, without_sync
from .plans import CUMULATIVE, DELTA, EVAL, OTHER, SCHEDULE, TRAIN, WIDE, open_ledger, planned, times, two_a_week


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture
def clock() -> SetClock:
    clock = SetClock()
    clock.set_week("2027-W10")
    return clock


# What the ledger commits to


@pytest.mark.parametrize(
    ("budget", "window"),
    [
        (Budget(delta=DELTA, year=1.0, trailing=50.0), "year 2027"),
        (Budget(delta=DELTA, trailing=1.0), "trailing 2028-W05"),
        (Budget(delta=DELTA, lifetime=1.0), "lifetime lifetime"),
        (Budget(delta=DELTA, week=0.5), "week 2027-W11"),
    ],
)
def test_a_plan_beyond_its_budget_makes_no_ledger(tmp_path: Path, clock: SetClock, budget: Budget, window: str) -> None:
    plan = [
        *two_a_week("2027-W10"),
        planned(Gaussian(1.0, sampling=Poisson(0.1)), "2027-W11", 4),
        *two_a_week("2028-W05"),
    ]
    with pytest.raises(InvalidValueError, match=rf"plan='epsilon [\d.]+ in the {window}': expected at most .* there"):
        open_ledger(tmp_path, clock, plan, budget)
    assert not list(tmp_path.iterdir())


def test_the_plan_is_accounted_for_as_a_whole() -> None:
    """No filter's loss: the budget may be the epsilon of the plan, to the last bit."""
    plan = [planned(TRAIN, week, 5) for week in weeks_of(2027)]
    exactly = epsilon([times(TRAIN, 260)], DELTA)
    windows = windows_of(Budget(delta=DELTA, year=exactly), mode="plan", plan=plan)
    assert sum(fill(windows, TRAIN, week) for week in weeks_of(2027)) == 260
    assert windows.status("year", IsoWeek(2027, 52)).spent_epsilon == exactly
    with pytest.raises(InvalidValueError, match="plan="):
        windows_of(Budget(delta=DELTA, year=exactly * (1 - 1e-9)), mode="plan", plan=plan)
    renyi = windows_of(Budget(delta=DELTA, year=exactly), mode="renyi", plan=plan)
    assert renyi.would_grant(TRAIN, [IsoWeek(2027, 1)] * 260) <= 260


def test_it_is_accounted_for_under_the_ledgers_relation() -> None:
    """What replaces a client's data moves the sum by twice as much."""
    plan = [Gaussian(50.0, count=10)]
    single, double = epsilon(plan, DELTA), epsilon(plan, DELTA, neighboring_relation="replace_one")
    budget = Budget(delta=DELTA, lifetime=(single + double) / 2)
    windows_of(budget, mode="plan", plan=plan)
    with pytest.raises(InvalidValueError, match="plan="):
        windows_of(budget, mode="plan", plan=plan, neighboring_relation="replace_one")
    windows = windows_of(Budget(delta=DELTA), mode="plan", plan=plan, neighboring_relation="replace_one")
    assert windows.status("lifetime", IsoWeek(2027, 1)).allowance_epsilon == double


def test_what_it_certifies_is_the_epsilon_of_the_plan() -> None:
    windows = windows_of(WIDE, mode="plan", plan=SCHEDULE)
    of_week, everything = [times(TRAIN, 2), EVAL], [times(TRAIN, 4), OTHER, times(EVAL, 2)]
    charge(windows, TRAIN, "2027-W10")
    week = windows.status("week", IsoWeek(2027, 10))
    assert week.allowance_epsilon == epsilon(of_week, DELTA)
    assert week.spent_epsilon == epsilon([TRAIN], DELTA)
    assert (week.spent_fraction, week.charges) == (1 / 3, 1)
    wide: tuple[WindowName, ...] = ("year", "trailing", "lifetime")
    for name in wide:
        status = windows.status(name, IsoWeek(2027, 13))
        assert status.allowance_epsilon == epsilon(everything, DELTA)
        assert status.spent_fraction == 1 / 7
    assert windows.status("week", IsoWeek(2027, 12)).allowance_epsilon == 0.0
    assert windows.status("week", IsoWeek(2027, 12)).spent_fraction is None


def test_the_plan_and_its_hash_are_in_the_first_row(tmp_path: Path, clock: SetClock) -> None:
    ledger = open_ledger(tmp_path, clock)
    with raw(tmp_path / "ledger.db") as connection:
        ((text,),) = connection.execute("SELECT definition FROM entries WHERE seq = 0")
    stored = json.loads(text)["plan"]
    assert stored["sha256"] == CommittedPlan.of(SCHEDULE).sha256
    assert stored["releases"][1] == {"event": EVAL.to_dict(), "week": "2027-W10", "purpose": "eval"}
    assert LedgerDefinition.from_json(text) == ledger.definition
    other = text.replace('"noise_multiplier":9.0', '"noise_multiplier":90.0')
    assert other != text
    with pytest.raises(LedgerError, match="not the one that was committed to"):
        LedgerDefinition.from_json(other)


def test_it_is_reopened_with_its_plan_or_without(tmp_path: Path, clock: SetClock) -> None:
    first = open_ledger(tmp_path, clock)
    for changes in ({}, {"mode": "auto"}, {"plan": None}, {"plan": None, "mode": "auto"}):
        assert open_ledger(tmp_path, clock, **changes).definition == first.definition
    (tmp_path / "late").mkdir()
    first = open_ledger(tmp_path / "late", clock, budget=CUMULATIVE)
    assert open_ledger(tmp_path / "late", clock, budget=CUMULATIVE).definition == first.definition


def test_a_plan_written_otherwise_is_the_same(tmp_path: Path, clock: SetClock) -> None:
    first = open_ledger(tmp_path, clock)
    split = [PlannedRelease(TRAIN, IsoWeek(2027, 10))] * 2 + SCHEDULE[1:]
    assert open_ledger(tmp_path, clock, split).definition == first.definition


@pytest.mark.parametrize("mode", ["plan", "auto"])
@pytest.mark.parametrize(
    "changed",
    [
        SCHEDULE[:-1],
        SCHEDULE[1:],
        [*SCHEDULE, planned(TRAIN, "2027-W14")],
        [planned(OTHER, "2027-W10", 2), *SCHEDULE[1:]],
        [planned(TRAIN, "2027-W10", 3), *SCHEDULE[1:]],
        [planned(TRAIN, "2027-W09", 2), *SCHEDULE[1:]],
        [planned(TRAIN, "2027-W10", 2, "metric"), *SCHEDULE[1:]],
        [TRAIN],
    ],
)
def test_another_plan_is_refused(tmp_path: Path, clock: SetClock, changed: Any, mode: str) -> None:
    open_ledger(tmp_path, clock)
    with pytest.raises(LedgerError, match="created with other terms: plan is "):
        open_ledger(tmp_path, clock, changed, mode=mode)


def test_other_modes_do_not_take_its_place(tmp_path: Path, clock: SetClock) -> None:
    open_ledger(tmp_path, clock)
    with pytest.raises(LedgerError, match="mode is 'plan' in the ledger, 'renyi' was asked"):
        open_ledger(tmp_path, clock, mode="renyi")


def test_a_plan_in_a_ledger_of_another_mode_commits_to_nothing(tmp_path: Path, clock: SetClock) -> None:
    ledger = open_ledger(tmp_path, clock, mode="renyi")
    assert ledger.definition.plan is None
    authorise(ledger, OTHER)
    open_ledger(tmp_path, clock, two_a_week("2027-W20"), mode="renyi")


# Plans that make no sense


@pytest.mark.parametrize(
    ("plan", "budget", "message"),
    [
        (None, WIDE, "plan=None: expected the schedule"),
        ([], WIDE, r"plan=\[\]: expected the schedule"),
        ([*two_a_week("2027-W11"), *two_a_week("2027-W10")], WIDE, "in the order of their weeks"),
        ([*two_a_week("2027-W11"), TRAIN], WIDE, "a week for all of them, or for none"),
        ([TRAIN], Budget(delta=DELTA, week=5.0), r"PlannedRelease\(event, week="),
        ([TRAIN], Budget(delta=DELTA, year=5.0, week="even"), r"PlannedRelease\(event, week="),
        (SCHEDULE, Budget(delta=DELTA, year=5.0, reserve_evaluation=0.1), 'purpose="eval"'),
        ([PlannedRelease(TRAIN, purpose="")], WIDE, "purpose="),
        ([PlannedRelease(TRAIN, purpose=None)], WIDE, "purpose="),  # type: ignore[arg-type]
    ],
)
def test_a_plan_that_makes_no_sense(tmp_path: Path, clock: SetClock, plan: Any, budget: Budget, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        open_ledger(tmp_path, clock, plan, budget)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("week", ["2027-W10", 10, IsoWeek(2027, 53), IsoWeek(2027, 0), (2027, 10)])
def test_a_week_that_is_none(week: Any) -> None:
    with pytest.raises(InvalidValueError, match="week="):
        PlannedRelease(TRAIN, week)


@pytest.mark.parametrize("counts", [[2, 2, 2], [2, 3, 2], [3, 2, 2], [1, 1, 0], [0, 1], [4, 4, 1]])
def test_an_even_week_is_equal_numbers(counts: list[int]) -> None:
    budget = Budget(delta=DELTA, year=5.0, week="even")
    plan = [planned(TRAIN, f"2027-W{10 + ahead}", count) for ahead, count in enumerate(counts) if count]
    windows = windows_of(budget, mode="plan", plan=plan)
    assert [fill(windows, TRAIN, f"2027-W{10 + ahead}") for ahead in range(len(counts))] == counts


@pytest.mark.parametrize("counts", [[2, 4, 3], [2, 0, 2], [1, 3]])
def test_an_uneven_week_is_refused(counts: list[int]) -> None:
    plan = [planned(TRAIN, f"2027-W{10 + ahead}", count) for ahead, count in enumerate(counts) if count]
    with pytest.raises(InvalidValueError, match=r"releases a week in 2027.*differ by at most one.*Spread"):
        windows_of(Budget(delta=DELTA, year=5.0, week="even"), mode="plan", plan=plan)


def test_every_year_is_split_by_itself() -> None:
    plan = [*[planned(TRAIN, f"2027-W{week}", 5) for week in (51, 52)], planned(TRAIN, "2028-W01", 1)]
    windows_of(Budget(delta=DELTA, year=5.0, week="even"), mode="plan", plan=plan)


def test_the_limits_of_a_plan_leave_out_windows_within_others() -> None:
    plan = CommittedPlan.of([planned(TRAIN, week, 1) for year in (2027, 2028) for week in weeks_of(year)])
    budget = Budget(delta=DELTA, year=1.0, week=0.5, lifetime=3.0)
    limits = plan_limits(plan, budget)
    by_window = {name: [limit for limit in limits if limit.window == name] for name in ("week", "year", "lifetime")}
    assert {name: len(found) for name, found in by_window.items()} == {"week": 104, "year": 2, "lifetime": 1}
    assert {limit.epsilon for limit in by_window["week"]} == {0.5}
    trailing = [limit for limit in limits if limit.window == "trailing"]
    assert {sum(event.count for event in limit.events) for limit in trailing} == {53}
    assert len(trailing) == 104 - 53 + 1
    one_year = CommittedPlan.of([planned(TRAIN, week) for week in weeks_of(2027)])
    assert len([limit for limit in plan_limits(one_year, budget) if limit.window == "trailing"]) == 1
