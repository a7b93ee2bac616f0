"""The share of every window that training leaves for evaluation."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson, epsilon, gdp_epsilon, gdp_squared_budget
from fedDP.budget import Budget, BudgetExceeded, IsoWeek, Ledger
from fedDP.budget.policy import WINDOW_NAMES, Mode
from fedDP.errors import InvalidValueError

from .ledgers import Run, SetClock, authorise, charge, fill, weeks_of, windows_of, without_sync

DELTA = 1e-6
EVENT = Gaussian(200.0)  # 616 a year of epsilon 0.5, 123 of them a fifth
FIFTH = Budget(delta=DELTA, year=0.5, reserve_evaluation=0.2)


@pytest.mark.parametrize("reserve", [-0.1, 1.0, 1, 1.5, math.nan, math.inf, True, "0.2", None])
def test_a_reserve_outside_its_range_is_refused(reserve: Any) -> None:
    with pytest.raises(InvalidValueError, match="reserve_evaluation="):
        Budget(delta=DELTA, year=0.5, reserve_evaluation=reserve)


def test_training_leaves_the_reserve_alone_and_evaluation_may_use_it() -> None:
    windows = windows_of(FIFTH)
    assert fill(windows, EVENT, "2027-W01") == 492  # 616.09 * 0.8
    assert fill(windows, EVENT, "2027-W01", "eval") == 124
    assert fill(windows, EVENT, "2027-W01", "eval") == 0
    assert fill(windows, EVENT, "2027-W01") == 0


def test_everything_together_is_at_most_the_window() -> None:
    windows = windows_of(FIFTH)
    assert fill(windows, EVENT, "2027-W01", "eval") == 616
    assert fill(windows, EVENT, "2027-W01") == 0
    windows = windows_of(FIFTH)
    for _ in range(300):
        charge(windows, EVENT, "2027-W01", "metric")
    assert fill(windows, EVENT, "2027-W01") == 316
    assert fill(windows, EVENT, "2027-W01", "metric") == 0


@pytest.mark.parametrize(
    ("purpose", "room"),
    [("eval", 616), ("metric", 616)]
    + [(purpose, 492) for purpose in ("train", "clipnorm", "calibration", "preprocess", "evaluate", "Eval", "metrics")],
)
def test_only_evaluation_opens_the_reserve(purpose: str, room: int) -> None:
    assert fill(windows_of(FIFTH), EVENT, "2027-W01", purpose) == room


def test_every_kind_of_training_shares_what_is_left() -> None:
    windows = windows_of(FIFTH)
    for purpose in ("train", "preprocess", "clipnorm", "something new"):
        for _ in range(123):
            charge(windows, EVENT, "2027-W01", purpose)
    assert fill(windows, EVENT, "2027-W01", "calibration") == 0


@pytest.mark.parametrize("name", WINDOW_NAMES)
def test_every_window_has_its_reserve(name: str) -> None:
    allowances: dict[str, Any] = {name: 0.5}
    windows = windows_of(Budget(delta=DELTA, reserve_evaluation=0.2, **allowances))
    assert fill(windows, EVENT, "2027-W01") == 492
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2027-W01")
    assert (caught.value.window, caught.value.reserve) == (name, 0.2)


def test_a_share_is_what_is_written() -> None:
    """0.3 as a float is a little less than three tenths, and 1 - 0.3 not seven of them."""
    windows = windows_of(Budget(delta=DELTA, year=0.5, reserve_evaluation=0.3))
    rule = windows.definition.rules["year"]
    week = IsoWeek(2027, 1)
    assert rule.limit(week, "train") == rule.limit(week) * 7 // 10
    assert rule.limit(week, "eval") == rule.limit(week, None)


def test_no_reserve_leaves_everything_to_training() -> None:
    windows = windows_of(Budget(delta=DELTA, year=0.5))
    assert fill(windows, EVENT, "2027-W01") == 616


def test_the_documented_reserve() -> None:
    """A fifth of mu squared for evaluation costs training 11.8 % more noise."""
    windows = windows_of(FIFTH)
    squared = gdp_squared_budget(0.5, DELTA)
    noise = math.sqrt(52 / (0.8 * squared)) * (1 + 1e-9)
    assert noise / math.sqrt(52 / squared) == pytest.approx(1.118, abs=5e-4)
    assert fill(windows, Gaussian(noise), "2027-W01") == 52


def test_a_refusal_by_the_reserve_says_so() -> None:
    windows = windows_of(FIFTH)
    for _ in range(50):
        charge(windows, EVENT, "2027-W01", "eval")
    assert fill(windows, EVENT, "2027-W01") == 492
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2027-W01")
    refusal = caught.value
    assert (refusal.window, refusal.key, refusal.reserve) == ("year", "2027", 0.2)
    assert refusal.spent == epsilon([Gaussian(200.0, count=492)], DELTA)
    assert refusal.asked == pytest.approx(epsilon([Gaussian(200.0, count=493)], DELTA), rel=1e-12)
    left = gdp_epsilon(math.sqrt(0.8 * gdp_squared_budget(0.5, DELTA)), DELTA)
    assert refusal.allowance == pytest.approx(left, rel=1e-9)
    assert "for training, without the 0.2 of it that is reserved for evaluation," in str(refusal)
    assert "99.8% is spent" in str(refusal)
    assert pickle.loads(pickle.dumps(refusal)).reserve == 0.2


def test_a_refusal_of_everything_does_not_blame_the_reserve() -> None:
    windows = windows_of(FIFTH)
    fill(windows, EVENT, "2027-W01", "eval")
    for purpose in ("eval", "train"):
        with pytest.raises(BudgetExceeded) as caught:
            charge(windows, EVENT, "2027-W01", purpose)
        assert caught.value.reserve == 0.0
        assert caught.value.spent == epsilon([Gaussian(200.0, count=616)], DELTA)
        assert caught.value.allowance == pytest.approx(0.5, rel=1e-9)
        assert "reserved" not in str(caught.value)


def test_a_full_share_resumes_when_the_window_does() -> None:
    windows = windows_of(Budget(delta=DELTA, week=0.5, reserve_evaluation=0.2), "2026-W53")
    fill(windows, EVENT, "2026-W53")
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2026-W53")
    assert caught.value.resumes == "2027-01-04"
    charge(windows, EVENT, "2026-W53", "eval")
    lifetime = windows_of(Budget(delta=DELTA, lifetime=0.5, reserve_evaluation=0.2))
    fill(lifetime, EVENT, "2027-W01")
    with pytest.raises(BudgetExceeded) as caught:
        charge(lifetime, EVENT, "2027-W01")
    assert caught.value.resumes is None


def test_a_release_that_training_never_gets_is_refused_for_ever() -> None:
    windows = windows_of(Budget(delta=DELTA, week=0.5, reserve_evaluation=0.5))
    large = Gaussian(200.0 / 400**0.5)  # 400 of 616
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, large, "2027-W01")
    assert (caught.value.resumes, caught.value.reserve) == (None, 0.5)
    charge(windows, large, "2027-W01", "eval")


def test_it_works_with_what_is_carried_over() -> None:
    budget = Budget(delta=DELTA, year=0.5, week="even", carry_over="cumulative", reserve_evaluation=0.25)
    windows = windows_of(budget)
    rounds = [fill(windows, EVENT, week) for week in weeks_of(2027)[:4]]
    assert rounds == [8, 9, 9, 9]  # 8.886 a week
    assert fill(windows, EVENT, "2027-W04", "eval") == 47 - 35
    assert fill(windows, EVENT, "2027-W05") == 9
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2027-W05")
    assert (caught.value.reserve, caught.value.spent) == (0.25, epsilon([Gaussian(200.0, count=44)], DELTA))


@pytest.mark.parametrize("carry_over", ["none", "cumulative"])
def test_it_works_at_every_windows_own_order(carry_over: Any) -> None:
    event = Gaussian(4.0, sampling=Poisson(0.02))
    budget = Budget(delta=DELTA, year=0.5, week="even", carry_over=carry_over, reserve_evaluation=0.5)
    windows = windows_of(budget, mode="renyi", plan=[Gaussian(4.0, sampling=Poisson(0.02), count=520)])
    orders = [getattr(rule, "order", None) for rule in windows.definition.rules.values()]
    assert len(set(orders)) > 1
    for week in weeks_of(2027)[:10]:
        trained, evaluated = fill(windows, event, week), fill(windows, event, week, "eval")
        assert {trained, evaluated} <= {4, 5}
    for name, rule in windows.definition.rules.items():
        spent = windows.state.spent_units(name, IsoWeek(2027, 10), covers=rule.covers)
        trained = windows.state.spent_units(name, IsoWeek(2027, 10), covers=rule.covers, training=True)
        assert 2 * trained <= spent <= rule.limit(IsoWeek(2027, 10))


def test_would_grant_leaves_the_reserve() -> None:
    windows = windows_of(FIFTH)
    charge(windows, EVENT, "2027-W01", "eval")
    charge(windows, EVENT, "2027-W01")
    weeks = [IsoWeek(2027, 1)] * 1000
    assert windows.would_grant(EVENT, weeks) == 491
    assert windows.would_grant(EVENT, weeks, "eval") == 614


@pytest.mark.parametrize("mode", ["gaussian", "renyi"])
def test_a_ledger_keeps_its_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    without_sync(monkeypatch)
    budget = Budget(delta=DELTA, year=0.5, reserve_evaluation=0.5)

    def open_ledger() -> Ledger:
        return Ledger.open(str(tmp_path / "ledger.db"), budget=budget, unit="patient", mode=mode, clock=SetClock())

    event = Gaussian(45.0 if mode == "gaussian" else 50.0)
    room = windows_of(budget, mode=mode).would_grant(event, [IsoWeek(2027, 1)] * 100, "eval")
    run = Run(open_ledger(), event)
    assert run.charge_until_refused().reserve == 0.5
    assert len(run.grants) == room // 2
    reopened = open_ledger()
    with pytest.raises(BudgetExceeded, match="reserved for evaluation"):
        authorise(reopened, event, round=99)
    evaluation = Run(reopened, event, run_id="evaluation")
    assert evaluation.charge_until_refused(purpose="eval").reserve == 0.0
    assert len(run.grants) + len(evaluation.grants) == room
    assert isinstance(reopened.status("year", IsoWeek(2026, 10)).spent_fraction, float)
