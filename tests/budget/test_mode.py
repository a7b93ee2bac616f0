"""Which rule admits a ledger's charges: what "auto" picks, and the words for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import FixedSize, Gaussian, Poisson
from fedDP.budget import Budget, IsoWeek, Ledger, PlannedRelease
from fedDP.budget.mode import choose_mode, explain_mode
from fedDP.errors import InvalidValueError, UnsupportedError

from .ledgers import SetClock, without_sync

SAMPLED = [Gaussian(1.0, sampling=Poisson(0.01), count=100)]
FULL = [Gaussian(50.0, count=10)]
BY_WEEK = [PlannedRelease(Gaussian(9.0, sampling=Poisson(0.01)), IsoWeek(2026, week)) for week in (10, 11)]
BUDGET = Budget(delta=1e-6, year=0.5)


@pytest.mark.parametrize(
    ("mode", "plan", "expected"),
    [
        ("auto", FULL, "gaussian"),
        ("auto", [Gaussian(1.0, sampling=Poisson(1.0))], "gaussian"),
        ("auto", SAMPLED, "renyi"),
        ("auto", [*FULL, *SAMPLED], "renyi"),
        ("auto", [Gaussian(1.0, sampling=FixedSize(2, 5))], "renyi"),
        ("auto", None, "renyi"),
        ("auto", [], "renyi"),
        ("gaussian", None, "gaussian"),
        ("gaussian", FULL, "gaussian"),
        ("renyi", FULL, "renyi"),
    ],
)
def test_the_mode(mode: str, plan: Any, expected: str) -> None:
    assert choose_mode(mode, plan) == expected


@pytest.mark.parametrize(
    ("mode", "plan", "error", "message"),
    [
        ("gaussian", SAMPLED, UnsupportedError, "cannot account for sampled rounds"),
        ("plan", None, InvalidValueError, "plan=None"),
        ("plan", [], InvalidValueError, r"plan=\[\]"),
        ("Gaussian", None, InvalidValueError, "mode='Gaussian'"),
    ],
)
def test_modes_that_are_refused(mode: str, plan: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        choose_mode(mode, plan)


@pytest.mark.parametrize(
    ("plan", "budget", "exclusive", "mode", "reason"),
    [
        (None, BUDGET, False, "renyi", "no plan was given"),
        (None, BUDGET, True, "renyi", "no plan was given"),
        (FULL, BUDGET, False, "gaussian", "no round is sampled"),
        (FULL, BUDGET, True, "gaussian", "no round is sampled"),
        (SAMPLED, BUDGET, False, "renyi", "sampled rounds, and other runs may follow"),
        (SAMPLED, BUDGET, True, "renyi", "without their weeks"),
        (BY_WEEK, BUDGET, False, "renyi", "sampled rounds, and other runs may follow"),
        (BY_WEEK, BUDGET, True, "plan", "ledger of one run alone"),
        ([*BY_WEEK, *SAMPLED], BUDGET, True, "renyi", "without their weeks"),
        (BY_WEEK, Budget(delta=1e-6, year=0.5, reserve_evaluation=0.1), True, "renyi", "reserved for evaluation"),
    ],
)
def test_auto_says_what_it_picked_and_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: Any,
    budget: Budget,
    exclusive: bool,
    mode: str,
    reason: str,
) -> None:
    without_sync(monkeypatch)
    chosen, words = explain_mode("auto", plan, budget=budget, exclusive=exclusive)
    assert chosen == mode
    assert words.startswith(f"auto picked {mode}: ")
    assert reason in words
    path = str(tmp_path / "ledger.db")
    Ledger.open(path, budget=budget, unit="patient", plan=plan, exclusive=exclusive, clock=SetClock())
    definition = Ledger.load(path).definition
    assert (definition.mode, definition.mode_reason) == (mode, words)


@pytest.mark.parametrize("mode", ["gaussian", "renyi", "plan"])
def test_what_was_asked_for_is_said_to_be(mode: str) -> None:
    assert explain_mode(mode, FULL) == (mode, f"{mode}, as asked")
