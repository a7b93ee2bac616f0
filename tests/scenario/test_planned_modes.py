"""Committed plans, carry-over and the reserve: what is planned is granted, and one more is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedDP.budget import BudgetExceeded
from fedDP.errors import InvalidValueError
from fedDP.scenario.privacy_plan import plan_privacy
from tests.scenario.test_privacy_plan import ALL, CLIENTS, POISSON, authorise, granted, ledger_of, scenario

EVEN: dict[str, object] = {"budget.year": 1.0, "budget.week": "even"}
PLANNED: dict[str, object] = {"budget.mode": "plan"}
CUMULATIVE: dict[str, object] = {"budget.carry_over": "cumulative"}
RESERVED: dict[str, object] = {"budget.reserve_evaluation": 0.2}


@pytest.mark.parametrize(
    "budget",
    [EVEN, {"budget.year": 1.0}, {"budget.week": 0.3, "budget.year": 1.0}, {"privacy.target_epsilon": 0.7}],
    ids=["even", "year", "week", "target"],
)
def test_a_committed_plan_is_granted_to_its_end_with_the_least_noise(tmp_path: Path, budget: dict[str, object]) -> None:
    chosen = scenario(budget, POISSON, PLANNED)
    plan = plan_privacy(chosen, CLIENTS)
    assert (plan.mode, plan.mode_reason, plan.allowed_rounds) == ("plan", "plan, as asked", 12)
    ledger = ledger_of(plan, tmp_path)
    assert granted(ledger, plan, 13) == (12, "lifetime")
    numbers = replace(chosen.privacy, noise_multiplier=plan.noise_multiplier * 0.999)
    with pytest.raises(InvalidValueError, match="Plan fewer releases or more noise"):
        plan_privacy(replace(chosen, privacy=numbers), CLIENTS)


def test_a_plan_whose_last_week_ends_early_is_even() -> None:
    plan = plan_privacy(scenario(EVEN, POISSON, PLANNED, rounds=10, rounds_per_week=4), CLIENTS)
    assert (plan.mode, plan.allowed_rounds) == ("plan", 10)


def test_a_system_clock_does_not_know_the_weeks_of_a_plan() -> None:
    with pytest.raises(InvalidValueError, match="a week for every release"):
        plan_privacy(scenario({"budget.week": 0.5}, PLANNED, {"server.rounds_per_week": None}), CLIENTS)


def test_auto_never_commits_to_a_plan() -> None:
    plan = plan_privacy(scenario(EVEN, POISSON), CLIENTS)
    assert plan.mode == "renyi"
    assert plan.mode_reason.startswith("auto picked renyi")


@pytest.mark.parametrize("sampling", [POISSON, ALL], ids=["poisson", "all"])
def test_unused_weeks_carry_over(tmp_path: Path, sampling: dict[str, object]) -> None:
    """Noise that allows one round and a half a week allows three in two weeks."""
    one = plan_privacy(scenario(EVEN, sampling, rounds=53, rounds_per_week=1), CLIENTS)
    noise: dict[str, object] = {"privacy.noise_multiplier": one.noise_multiplier * (2 / 3) ** 0.5}
    lapse = plan_privacy(scenario(EVEN, sampling, noise, rounds=12, rounds_per_week=1), CLIENTS)
    carry = plan_privacy(scenario(EVEN, sampling, noise, CUMULATIVE, rounds=12, rounds_per_week=1), CLIENTS)
    for plan in (lapse, carry):
        folder = tmp_path / str(plan.scenario.budget.carry_over)
        assert granted(ledger_of(plan, folder), plan, 12) == (plan.allowed_rounds, plan.stopped_by)
    fitted = plan_privacy(scenario(EVEN, sampling, CUMULATIVE, rounds=12, rounds_per_week=3), CLIENTS)
    assert granted(ledger_of(fitted, tmp_path / "fitted"), fitted, 12) == (12, None)


@pytest.mark.parametrize("sampling", [POISSON, ALL], ids=["poisson", "all"])
def test_rounds_leave_the_reserve(tmp_path: Path, sampling: dict[str, object]) -> None:
    plan = plan_privacy(scenario({"budget.year": 1.0}, sampling, RESERVED, rounds_per_week=40), CLIENTS)
    ledger = ledger_of(plan, tmp_path)
    assert granted(ledger, plan, 13) == (12, "year")
    assert granted(ledger, plan, 20, purpose="eval") == (3, "year")  # a fifth of 15 rounds
    with pytest.raises(BudgetExceeded):
        authorise(ledger, plan, 14)


def test_a_reserve_costs_training_its_share_of_the_squared_noise() -> None:
    whole = plan_privacy(scenario({"budget.year": 1.0}, ALL), CLIENTS)
    part = plan_privacy(scenario({"budget.year": 1.0}, ALL, RESERVED), CLIENTS)
    assert part.noise_multiplier == pytest.approx(whole.noise_multiplier / 0.8**0.5, rel=1e-8)
