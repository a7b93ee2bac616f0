"""The plan against the ledger: what it promises is granted, and one more is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from fedDP.accounting import FullParticipation, Gaussian, Poisson, epsilon
from fedDP.budget import BudgetExceeded, IsoWeek, Ledger, SimulatedClock
from fedDP.budget.timekeeping import Timekeeper
from fedDP.errors import InvalidValueError
from fedDP.scenario.load import load_scenario
from fedDP.scenario.privacy_plan import PrivacyPlan, make_clock, plan_privacy
from fedDP.scenario.schema import Scenario

CLIENTS = 700

POISSON: dict[str, object] = {"privacy.sampling": "poisson", "privacy.sampling_rate": 0.2}
ALL: dict[str, object] = {"privacy.sampling": "all", "privacy.sampling_rate": None}
NO_WINDOW: dict[str, object] = {
    "budget.week": None,
    "budget.year": None,
    "budget.trailing": None,
    "budget.lifetime": None,
}

BUDGETS: dict[str, dict[str, object]] = {
    "week even": {"budget.year": 1.0, "budget.week": "even"},
    "week explicit": {"budget.week": 0.3},
    "year and a larger week": {"budget.year": 1.0, "budget.week": 0.9},
    "year and no week": {"budget.year": 1.0},
    "trailing": {"budget.trailing": 0.8},
    "trailing below year": {"budget.trailing": 0.7, "budget.year": 1.0},
    "lifetime": {"budget.lifetime": 2.0},
    "target epsilon": {"privacy.target_epsilon": 1.5},
    "target below lifetime": {"privacy.target_epsilon": 0.5, "budget.lifetime": 2.0},
}


def scenario(*layers: dict[str, object], rounds: int = 12, rounds_per_week: int = 4) -> Scenario:
    overrides: dict[str, object] = {**NO_WINDOW, "server.rounds": rounds, "server.rounds_per_week": rounds_per_week}
    for layer in layers:
        overrides.update(layer)
    return load_scenario("hospital", overrides)


def ledger_of(plan: PrivacyPlan, folder: Path) -> Ledger:
    """The ledger that a run of the plan opens."""
    return Ledger.open(str(folder / "ledger.db"), **plan.ledger_terms(), clock=make_clock(plan.scenario))


def authorise(
    ledger: Ledger, plan: PrivacyPlan, round: int, noise_multiplier: float | None = None, purpose: str = "train"
) -> None:
    event = Gaussian(noise_multiplier or plan.noise_multiplier, sampling=plan.sampling)
    ledger.authorise(event, run_id="r", round=round, purpose=purpose, clip_norm=1.0, denominator=plan.denominator)


def granted(ledger: Ledger, plan: PrivacyPlan, rounds: int, purpose: str = "train") -> tuple[int, str | None]:
    """How many rounds the ledger grants before its first refusal, and the window that refuses."""
    for round in range(1, rounds + 1):
        try:
            authorise(ledger, plan, round, purpose=purpose)
        except BudgetExceeded as refusal:
            return round - 1, refusal.window
    return rounds, None


def cases(configurations: dict[str, dict[str, object]], *, fast: dict[str, str]) -> list[ParameterSet]:
    """Every configuration with both samplings; slow, but for those named with their sampling."""
    return [
        pytest.param(value, sampling, id=f"{name}, {kind}", marks=[] if fast.get(name) == kind else [pytest.mark.slow])
        for name, value in configurations.items()
        for kind, sampling in (("poisson", POISSON), ("all", ALL))
    ]


@pytest.mark.parametrize(
    ("budget", "sampling"),
    cases(BUDGETS, fast={"week even": "poisson", "week explicit": "all", "trailing below year": "poisson"}),
)
def test_auto_noise_is_the_smallest_that_gets_all_rounds_granted(
    tmp_path: Path, budget: dict[str, object], sampling: dict[str, object]
) -> None:
    chosen = scenario(budget, sampling)
    planned = plan_privacy(chosen, CLIENTS)
    assert (planned.allowed_rounds, planned.stopped_by) == (12, None)
    assert granted(ledger_of(planned, tmp_path / "planned"), planned, 12) == (12, None)
    numbers = replace(chosen.privacy, noise_multiplier=planned.noise_multiplier * 0.999)
    less = plan_privacy(replace(chosen, privacy=numbers), CLIENTS)
    assert less.allowed_rounds < 12
    assert granted(ledger_of(less, tmp_path / "less"), less, 12) == (less.allowed_rounds, less.stopped_by)


@pytest.mark.parametrize("sampling", [POISSON, ALL], ids=["poisson", "all"])
def test_one_more_round_in_a_full_week_is_refused(tmp_path: Path, sampling: dict[str, object]) -> None:
    rounds_per_week = 2
    plan = plan_privacy(scenario(BUDGETS["week even"], sampling, rounds=106, rounds_per_week=rounds_per_week), CLIENTS)
    ledger = ledger_of(plan, tmp_path)
    ledger._timekeeper = Timekeeper(SimulatedClock(rounds_per_week=3, start="2026-W01"))
    authorise(ledger, plan, 1)
    authorise(ledger, plan, 2)
    with pytest.raises(BudgetExceeded) as refusal:
        authorise(ledger, plan, 3)
    assert (refusal.value.window, refusal.value.key) == ("week", "2026-W01")
    assert refusal.value.resumes == "2026-01-05"


@pytest.mark.parametrize("sampling", [POISSON, ALL], ids=["poisson", "all"])
def test_one_more_round_in_a_full_year_is_refused(tmp_path: Path, sampling: dict[str, object]) -> None:
    plan = plan_privacy(scenario(BUDGETS["year and no week"], sampling, rounds=53, rounds_per_week=1), CLIENTS)
    assert {week.year for week in plan.weeks} == {2026}
    ledger = ledger_of(plan, tmp_path)
    ledger._timekeeper = Timekeeper(SimulatedClock(rounds_per_week=2, start="2026-W01"))
    for round in range(1, 54):
        authorise(ledger, plan, round)
    with pytest.raises(BudgetExceeded) as refusal:
        authorise(ledger, plan, 54)
    assert (refusal.value.window, refusal.value.key) == ("year", "2026")


CONFIGURATIONS: dict[str, dict[str, object]] = {
    "week": {"budget.week": 0.4, "privacy.noise_multiplier": 3.0},
    "even week of 53": {"budget.year": 3.0, "budget.week": "even", "privacy.noise_multiplier": 4.0},
    "even week of 52": {
        "budget.year": 3.0,
        "budget.week": "even",
        "privacy.noise_multiplier": 4.0,
        "budget.start": "2027-W01",
    },
    "year": {"budget.year": 1.0, "privacy.noise_multiplier": 4.0},
    "year changes": {"budget.year": 1.0, "privacy.noise_multiplier": 4.0, "budget.start": "2026-W50"},
    "trailing over the year's end": {
        "budget.year": 1.2,
        "budget.trailing": 0.9,
        "privacy.noise_multiplier": 4.0,
        "budget.start": "2026-W49",
    },
    "trailing window moves on": {
        "budget.trailing": 0.6,
        "privacy.noise_multiplier": 12.0,
        "server.rounds": 120,
        "server.rounds_per_week": 1,
        "budget.start": "2026-W30",
    },
    "lifetime": {"budget.lifetime": 1.0, "privacy.noise_multiplier": 4.0},
    "target": {"privacy.target_epsilon": 1.0, "privacy.noise_multiplier": 4.0},
    "nothing fits": {"budget.week": 0.1, "privacy.noise_multiplier": 1.0},
    "no window": {"privacy.noise_multiplier": 1.0},
    "all windows": {
        "budget.week": 0.5,
        "budget.year": 1.0,
        "budget.lifetime": 1.1,
        "privacy.noise_multiplier": 5.0,
        "budget.start": "2026-W51",
    },
    "replace one": {
        "budget.year": 2.0,
        "privacy.noise_multiplier": 10.0,
        "privacy.neighboring_relation": "replace_one",
        **ALL,
    },
    "renyi though nothing is sampled": {
        "budget.year": 1.0,
        "privacy.noise_multiplier": 20.0,
        "budget.mode": "renyi",
        **ALL,
    },
}


@pytest.mark.parametrize(
    ("configuration", "sampling"),
    cases(
        CONFIGURATIONS,
        fast={
            "week": "poisson",
            "even week of 52": "all",
            "year changes": "poisson",
            "trailing window moves on": "all",
            "lifetime": "all",
            "nothing fits": "poisson",
            "all windows": "poisson",
        },
    ),
)
def test_allowed_rounds_are_those_that_the_ledger_grants(
    tmp_path: Path, configuration: dict[str, object], sampling: dict[str, object]
) -> None:
    chosen = scenario({"server.rounds": 30, "server.rounds_per_week": 3}, sampling, configuration)
    plan = plan_privacy(chosen, CLIENTS)
    found = granted(ledger_of(plan, tmp_path), plan, chosen.server.rounds)
    assert found == (plan.allowed_rounds, plan.stopped_by)


def test_the_configurations_stop_in_every_window() -> None:
    chosen = (scenario({"server.rounds": 30, "server.rounds_per_week": 3}, POISSON, each) for each in
              (value for name, value in CONFIGURATIONS.items() if name != "replace one"))  # fmt: skip
    stops = {plan_privacy(each, CLIENTS).stopped_by for each in chosen}
    assert stops == {"week", "year", "trailing", "lifetime", None}


def test_the_plan_s_weeks_are_the_ledger_s(tmp_path: Path) -> None:
    plan = plan_privacy(scenario(BUDGETS["year and no week"], rounds=8, rounds_per_week=2), CLIENTS)
    ledger = ledger_of(plan, tmp_path)
    granted(ledger, plan, 8)
    weeks = [status.key for status in ledger.windows() if status.window == "week"]
    assert weeks == sorted({week.key for week in plan.weeks}) == ["2026-W01", "2026-W02", "2026-W03", "2026-W04"]


def test_printed_epsilons_are_what_the_ledger_spends(tmp_path: Path) -> None:
    plan = plan_privacy(scenario(BUDGETS["year and no week"], POISSON), CLIENTS)
    ledger = ledger_of(plan, tmp_path)
    granted(ledger, plan, 12)
    by_window = {(status.window, status.key): status.spent_epsilon for status in ledger.windows()}
    assert by_window["year", "2026"] == pytest.approx(plan.epsilon(12), rel=1e-12)
    assert by_window["week", "2026-W01"] == pytest.approx(plan.epsilon(4), rel=1e-12)
    assert plan.epsilon(12) <= 1.0


def test_on_the_system_clock_all_rounds_count_in_one_week() -> None:
    plan = plan_privacy(scenario(BUDGETS["week explicit"], {"server.rounds_per_week": None}), CLIENTS)
    assert len(set(plan.weeks)) == 1
    assert isinstance(plan.weeks[0], IsoWeek)
    assert plan.allowed_rounds == 12


def test_a_cohort_size_is_a_rate() -> None:
    layer: dict[str, object] = {"privacy.sampling_rate": None, "privacy.cohort_size": 70}
    plan = plan_privacy(scenario(BUDGETS["lifetime"], layer), CLIENTS)
    assert plan.sampling == Poisson(0.1)
    assert plan.denominator == pytest.approx(70.0)
    assert plan.noise_std == pytest.approx(plan.noise_multiplier * plan.scenario.privacy.clip_norm / 70.0)
    rate = plan_privacy(scenario(BUDGETS["lifetime"], {"privacy.sampling_rate": 0.1}), CLIENTS)
    assert plan.noise_multiplier == rate.noise_multiplier


def test_a_cohort_of_everybody_is_allowed_and_a_larger_one_is_not() -> None:
    layer: dict[str, object] = {"privacy.sampling_rate": None, "privacy.cohort_size": CLIENTS}
    plan = plan_privacy(scenario(BUDGETS["lifetime"], layer), CLIENTS)
    assert (plan.rate, plan.accountant) == (1.0, "gdp")
    with pytest.raises(InvalidValueError, match=r"privacy.cohort_size=700: expected a whole number in \[1, 699\]"):
        plan_privacy(scenario(BUDGETS["lifetime"], layer), CLIENTS - 1)


def test_all_clients_are_exact() -> None:
    plan = plan_privacy(scenario(BUDGETS["lifetime"], ALL), CLIENTS)
    assert plan.sampling == FullParticipation()
    assert (plan.mode, plan.accountant, plan.denominator) == ("gaussian", "gdp", CLIENTS)
    assert plan.epsilon(12) == pytest.approx(2.0, rel=1e-9)


def test_the_accountant_can_be_chosen() -> None:
    plan = plan_privacy(scenario(BUDGETS["lifetime"], ALL, {"privacy.accountant": "rdp"}), CLIENTS)
    assert plan.accountant == "rdp"
    assert plan.epsilon(3) == epsilon([plan.event(3)], plan.scenario.privacy.delta, "rdp")
    assert plan.epsilon(3) > epsilon([plan.event(3)], plan.scenario.privacy.delta, "gdp")


def test_without_noise_nothing_is_promised() -> None:
    plan = plan_privacy(scenario({"privacy.noise_multiplier": 0}), CLIENTS)
    assert (plan.noise_multiplier, plan.budget, plan.mode, plan.rules) == (0.0, None, "none", {})
    assert (plan.allowed_rounds, plan.stopped_by) == (12, None)
    assert plan.epsilon(1) == float("inf")
    assert plan.epsilon(0) == 0.0


@pytest.mark.parametrize(
    "layer",
    [
        {"budget.lifetime": 1e-6, "server.rounds": 100_000, "server.rounds_per_week": 10_000},
        {"privacy.target_epsilon": 1e-6, "server.rounds": 100_000, "server.rounds_per_week": 10_000},
    ],
)
def test_a_budget_that_no_noise_can_keep_is_refused(layer: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError, match=r"privacy.noise_multiplier='auto': expected a budget that some noise"):
        plan_privacy(scenario(ALL, layer), CLIENTS)


def test_nobody_enrolled_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="enrolled clients=0: expected at least 1"):
        plan_privacy(scenario(BUDGETS["lifetime"]), 0)


def test_too_many_clients_for_exact_sums_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="integer sums are exact"):
        plan_privacy(scenario(BUDGETS["lifetime"]), 2**22)


def test_rounds_beyond_the_calendar_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"server.rounds=1000000: expected rounds that end by the year 9990"):
        plan_privacy(scenario(BUDGETS["lifetime"], rounds=1_000_000, rounds_per_week=1), CLIENTS)
