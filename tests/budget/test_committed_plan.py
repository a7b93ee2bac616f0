"""Ledgers that committed to a schedule: that is granted, in its order and weeks, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson, epsilon
from fedDP.budget import Budget, BudgetExceeded, IsoWeek, PlannedRelease
from fedDP.budget.committed_plan import CommittedPlan
from fedDP.budget.policy import WINDOW_NAMES
from fedDP.errors import InvalidValueError, LedgerError

from .ledgers import Run, SetClock, authorise, charge, count_rows, fill, raw, windows_of, without_sync
from .plans import CUMULATIVE, DELTA, EVAL, OTHER, SCHEDULE, TRAIN, WIDE, open_ledger, planned, times, two_a_week


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture
def clock() -> SetClock:
    clock = SetClock()
    clock.set_week("2027-W10")
    return clock


# What is granted


def test_a_plan_is_granted_as_it_is(tmp_path: Path, clock: SetClock) -> None:
    run = Run(open_ledger(tmp_path, clock), TRAIN)
    assert run.charge().event == TRAIN
    run.charge()
    evaluation = authorise(run.ledger, EVAL, round=2, purpose="eval")
    assert (evaluation.purpose, evaluation.noise_multiplier) == ("eval", 40.0)
    clock.set_week("2027-W11")
    authorise(run.ledger, OTHER, round=3)
    authorise(run.ledger, EVAL, round=3, purpose="eval")
    clock.set_week("2027-W13")
    run.charge(round=4)
    run.charge(round=5)
    assert count_rows(tmp_path / "ledger.db", "charge") == 7
    with raw(tmp_path / "ledger.db") as connection:
        rows = connection.execute("SELECT planned FROM entries WHERE kind = 'charge' ORDER BY seq")
        assert [number for (number,) in rows] == list(range(7))
    with pytest.raises(BudgetExceeded) as caught:
        run.charge(round=6)
    assert (caught.value.window, caught.value.resumes) == ("lifetime", None)


@pytest.mark.parametrize(
    ("event", "purpose"),
    [
        (Gaussian(8.0 + 1e-12, sampling=Poisson(0.1)), "train"),
        (Gaussian(100.0, sampling=Poisson(0.1)), "train"),  # less privacy lost, but not what was committed to
        (Gaussian(8.0, sampling=Poisson(0.05)), "train"),
        (Gaussian(8.0), "train"),
        (EVAL, "eval"),  # planned, but not next
        (OTHER, "train"),
        (TRAIN, "eval"),
        (TRAIN, "metric"),
    ],
)
def test_anything_else_is_refused_with_nothing_written(
    tmp_path: Path, clock: SetClock, event: Gaussian, purpose: str
) -> None:
    run = Run(open_ledger(tmp_path, clock), TRAIN)
    with pytest.raises(LedgerError, match=r"has PlannedRelease.*noise_multiplier=8\.0.*next.*followed as it is"):
        authorise(run.ledger, event, purpose=purpose)
    assert count_rows(tmp_path / "ledger.db") == 1
    run.charge()
    with pytest.raises(LedgerError, match="followed as it is"):
        authorise(run.ledger, event, purpose=purpose, round=2)
    run.charge()


def test_whole_numbers_and_floats_are_the_same_release(tmp_path: Path, clock: SetClock) -> None:
    ledger = open_ledger(tmp_path, clock, [PlannedRelease(Gaussian(8, sampling=Poisson(0.1)), IsoWeek(2027, 10))])
    assert authorise(ledger, TRAIN).seq == 1


def test_a_release_before_its_week_is_refused_until_then(tmp_path: Path, clock: SetClock) -> None:
    run = Run(open_ledger(tmp_path, clock), TRAIN)
    run.charge()
    run.charge()
    authorise(run.ledger, EVAL, purpose="eval")
    for event, purpose, resumes in [
        (TRAIN, "train", "2027-03-29"),
        (EVAL, "eval", "2027-03-15"),
        (TRAIN, "eval", None),
    ]:
        with pytest.raises(BudgetExceeded) as caught:
            authorise(run.ledger, event, purpose=purpose, round=9)
        assert (caught.value.window, caught.value.key, caught.value.resumes) == ("week", "2027-W10", resumes)
    assert count_rows(tmp_path / "ledger.db", "charge") == 3


def test_a_week_that_the_plan_leaves_out(tmp_path: Path, clock: SetClock) -> None:
    clock.set_week("2027-W12")
    run = Run(open_ledger(tmp_path, clock), TRAIN)
    with pytest.raises(BudgetExceeded) as caught:
        run.charge()
    assert (caught.value.key, caught.value.resumes, caught.value.allowance) == ("2027-W12", "2027-03-29", 0.0)


def test_releases_of_weeks_that_are_over_are_lost() -> None:
    windows = windows_of(WIDE, mode="plan", plan=SCHEDULE)
    charge(windows, TRAIN, "2027-W10")
    with pytest.raises(LedgerError, match="followed as it is"):  # W11 has its own release
        charge(windows, TRAIN, "2027-W11")
    charge(windows, OTHER, "2027-W11")
    assert fill(windows, TRAIN, "2027-W13") == 2
    assert windows.state.next_planned == 7
    assert windows.state.spent_units("lifetime", IsoWeek(2027, 13)) == 4


def test_a_plan_may_be_stopped_early_and_joined_late() -> None:
    windows = windows_of(WIDE, mode="plan", plan=SCHEDULE)
    assert fill(windows, TRAIN, "2027-W13") == 2
    assert fill(windows, TRAIN, "2027-W14") == 0


def test_a_year_that_is_over_keeps_its_releases() -> None:
    for carry_over in ("none", "cumulative"):
        budget = Budget(delta=DELTA, year=5.0, week=5.0, carry_over=carry_over)
        windows = windows_of(budget, mode="plan", plan=[*two_a_week("2027-W52"), *two_a_week("2028-W02")])
        assert fill(windows, TRAIN, "2028-W01") == 0
        with pytest.raises(BudgetExceeded) as caught:
            charge(windows, TRAIN, "2028-W01")
        assert (caught.value.window, caught.value.resumes) == ("week", "2028-01-10")
        assert fill(windows, TRAIN, "2028-W02") == 2


def test_a_full_week_at_the_end_of_a_year_waits_for_the_next() -> None:
    windows = windows_of(WIDE, mode="plan", plan=[*two_a_week("2027-W52"), *two_a_week("2028-W02")])
    assert fill(windows, TRAIN, "2027-W52") == 2
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, TRAIN, "2027-W52")
    assert (caught.value.window, caught.value.key, caught.value.resumes) == ("year", "2027", "2028-01-10")


# Carry-over


def test_carried_over_releases_may_still_be_made_in_their_order() -> None:
    plan = [planned(TRAIN, "2027-W10", 2), planned(OTHER, "2027-W11"), planned(TRAIN, "2027-W12")]
    windows = windows_of(CUMULATIVE, mode="plan", plan=plan)
    charge(windows, TRAIN, "2027-W10")
    charge(windows, TRAIN, "2027-W12")  # the second of W10
    assert windows.state.next_planned == 2
    charge(windows, OTHER, "2027-W12")
    charge(windows, TRAIN, "2027-W20")
    assert windows.state.next_planned == 4
    assert fill(windows, TRAIN, "2027-W20") == 0


def test_carried_over_releases_may_be_skipped_and_are_lost_then() -> None:
    plan = [planned(TRAIN, "2027-W10", 2), planned(OTHER, "2027-W11"), planned(TRAIN, "2027-W12")]
    windows = windows_of(CUMULATIVE, mode="plan", plan=plan)
    charge(windows, OTHER, "2027-W11")
    assert fill(windows, TRAIN, "2027-W12") == 1
    with pytest.raises(BudgetExceeded):
        charge(windows, OTHER, "2027-W12")


def test_carried_over_releases_do_not_make_this_weeks_ones_optional() -> None:
    plan = [planned(TRAIN, "2027-W10"), planned(OTHER, "2027-W11"), planned(EVAL, "2027-W11", purpose="eval")]
    windows = windows_of(CUMULATIVE, mode="plan", plan=plan)
    with pytest.raises(LedgerError, match="followed as it is"):
        charge(windows, EVAL, "2027-W11", "eval")
    charge(windows, TRAIN, "2027-W11")


def test_the_weekly_statement_is_that_of_the_year_so_far() -> None:
    plan = two_a_week("2027-W10", "2027-W11", "2028-W01")
    windows = windows_of(CUMULATIVE, mode="plan", plan=plan)
    rule = windows.definition.rules["week"]
    assert [rule.limit(IsoWeek(2027, week)) for week in (9, 10, 11, 52)] == [0, 2, 4, 4]
    assert rule.limit(IsoWeek(2028, 1)) == 2
    assert rule.limit_epsilon(IsoWeek(2027, 30), DELTA) == epsilon([times(TRAIN, 4)], DELTA)
    charge(windows, TRAIN, "2027-W10")
    assert fill(windows, TRAIN, "2027-W11") == 3
    status = windows.status("week", IsoWeek(2027, 11))
    assert (status.spent_fraction, status.charges) == (1.0, 3)
    assert windows.status("week", IsoWeek(2027, 10)).spent_fraction == 0.5


def test_releases_made_late_stay_within_the_53_weeks_that_were_checked() -> None:
    """Late releases of one year meet the next year's in one trailing window, which no plan as written would."""
    plan = two_a_week("2027-W01", "2028-W10")
    strict, late = CommittedPlan.of(plan), CommittedPlan.of(plan, carry_over=True)
    assert len(strict.may_hold("trailing", IsoWeek(2028, 10))) == 1
    assert len(late.may_hold("trailing", IsoWeek(2028, 10))) == 2
    four, two = epsilon([times(TRAIN, 4)], DELTA), epsilon([times(TRAIN, 2)], DELTA)
    allowances: dict[str, Any] = {"delta": DELTA, "year": 5.0, "week": 5.0, "trailing": (four + two) / 2}
    windows_of(Budget(**allowances), mode="plan", plan=plan)
    with pytest.raises(InvalidValueError, match="in the trailing 2028-W10"):
        windows_of(Budget(**allowances, carry_over="cumulative"), mode="plan", plan=plan)
    # And so it could have been:
    windows = windows_of(Budget(delta=DELTA, week=5.0, carry_over="cumulative"), mode="plan", plan=plan)
    assert fill(windows, TRAIN, "2027-W52") == fill(windows, TRAIN, "2028-W10") == 2
    assert windows.status("trailing", IsoWeek(2028, 10)).charges == 4


# Retries


def test_a_retry_uses_up_a_further_release(tmp_path: Path, clock: SetClock) -> None:
    plan = [planned(TRAIN, "2027-W10", 3)]
    first = Run(open_ledger(tmp_path, clock, plan), TRAIN)
    grant = first.charge()
    assert first.charge(round=1) is grant  # not a retry: the grant is unused
    again = Run(open_ledger(tmp_path, clock, plan), TRAIN)
    assert again.charge().attempt == 2
    again.charge()
    with pytest.raises(BudgetExceeded):
        again.charge()
    assert count_rows(tmp_path / "ledger.db", "charge") == 3


def test_two_processes_share_one_plan(tmp_path: Path, clock: SetClock) -> None:
    plan = [planned(TRAIN, "2027-W10", 3)]
    runs = [Run(open_ledger(tmp_path, clock, plan), TRAIN, run_id=name) for name in "ab"]
    for run in (runs[0], runs[1], runs[0]):
        run.charge()
    for run in runs:
        with pytest.raises(BudgetExceeded):
            run.charge()


# Without weeks


def test_a_plan_without_weeks_may_be_used_whenever() -> None:
    whole = epsilon([times(TRAIN, 3)], DELTA)
    windows = windows_of(Budget(delta=DELTA, year=whole), mode="plan", plan=[times(TRAIN, 3)])
    charge(windows, TRAIN, "2027-W01")
    charge(windows, TRAIN, "2028-W40")
    charge(windows, TRAIN, "2040-W40")
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, TRAIN, "2041-W01")
    assert (caught.value.window, caught.value.resumes) == ("lifetime", None)
    # Each of its windows could have held everything.
    assert windows.definition.rules["week"].limit_epsilon(IsoWeek(2027, 1), DELTA) == whole
    with pytest.raises(InvalidValueError, match="in the year"):
        windows_of(Budget(delta=DELTA, year=whole * 0.999, trailing=9.0), mode="plan", plan=[times(TRAIN, 3)])


def test_a_plan_without_weeks_has_its_order_too() -> None:
    windows = windows_of(WIDE, mode="plan", plan=[TRAIN, OTHER])
    with pytest.raises(LedgerError, match="followed as it is"):
        charge(windows, OTHER, "2027-W01")
    charge(windows, TRAIN, "2027-W01")
    with pytest.raises(LedgerError, match="followed as it is"):
        charge(windows, TRAIN, "2027-W02")


# What a plan may still do


def test_would_grant_follows_the_plan() -> None:
    windows = windows_of(WIDE, mode="plan", plan=SCHEDULE)
    weeks = [IsoWeek(2027, 10)] * 5
    assert windows.would_grant(TRAIN, weeks) == 2
    assert windows.would_grant(EVAL, weeks, "eval") == 0
    assert windows.would_grant(TRAIN, [IsoWeek(2027, 10), IsoWeek(2027, 13), IsoWeek(2027, 13)]) == 3
    assert windows.state.next_planned == 0
    charge(windows, TRAIN, "2027-W10")
    assert windows.would_grant(TRAIN, weeks) == 1


def test_no_window_ever_holds_more_than_it_certifies() -> None:
    """Whatever is left out and however late: in every window, what was granted is a part of what may be in it."""
    generator = random.Random(3)
    weeks = [f"2027-W{week}" for week in range(46, 53)] + [f"2028-W0{week}" for week in range(1, 8)]
    for trial in range(20):
        plan = [
            planned(generator.choice((TRAIN, OTHER)), week, generator.randrange(1, 4))
            for week in weeks
            for _ in range(2)
        ]
        budget = Budget(delta=DELTA, week=9.0, carry_over=generator.choice(("none", "cumulative")))
        windows = windows_of(budget, mode="plan", plan=plan)
        for week in weeks:
            for _ in range(generator.randrange(7)):
                try:
                    charge(windows, generator.choice((TRAIN, OTHER)), week)
                except (BudgetExceeded, LedgerError):
                    continue
        state, committed = windows.state, windows.definition.plan
        assert committed is not None
        for key in weeks:
            for name in WINDOW_NAMES:
                held = committed.may_hold(name, IsoWeek.parse(key))
                for event in state.spent_events(name, IsoWeek.parse(key)):
                    like = sum(each.count for each in held if each.noise_multiplier == event.noise_multiplier)
                    assert event.count <= like, (trial, name, key)
