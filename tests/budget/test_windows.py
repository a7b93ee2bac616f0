"""Windows in time, with known whole numbers: what fits into a week and a year, and where a year ends."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import ACCOUNTANTS, Gaussian, Poisson
from fedDP.budget import Budget, BudgetExceeded, IsoWeek, Ledger, PlannedRelease
from fedDP.budget.windows import Windows
from fedDP.errors import InvalidValueError

from .ledgers import SetClock, authorise, charge, fill, noise_for, weeks_of, windows_of, without_sync

Case = dict[str, Any]
CASES: list[Case] = json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))["cases"]


def of(*kinds: str) -> pytest.MarkDecorator:
    """One test a case of these kinds."""
    chosen = [case for case in CASES if case["kind"] in kinds]
    assert chosen
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def test_every_case_is_used() -> None:
    used = {"ledger_scenario_gdp", "ledger_scenario_rdp", "yearly_gaussian_q1", "yearly_poisson"}
    assert {case["kind"] for case in CASES} == used


def of_case(case: Case, **allowances: Any) -> tuple[Windows, Gaussian]:
    """An empty ledger of the year 2027, and one round."""
    given = case["inputs"]
    budget = Budget(delta=given["delta"], year=given["eps_year"], **allowances)
    windows = windows_of(budget, mode="renyi" if "alpha" in given else "gaussian")
    assert windows.definition.rules["year"].covers == "year"
    orders = {getattr(rule, "order", None) for rule in windows.definition.rules.values()}
    assert orders == {given.get("alpha")}
    return windows, Gaussian(given["z"], sampling=Poisson(given["q"]))


@of("ledger_scenario_gdp", "ledger_scenario_rdp")
def test_rounds_that_fit_into_a_week(case: Case) -> None:
    windows, event = of_case(case, week="even")
    assert fill(windows, event, "2027-W01") == case["value"]
    assert fill(windows, event, "2027-W02") == case["value"]


@of("ledger_scenario_gdp", "ledger_scenario_rdp")
def test_rounds_that_fit_into_a_year(case: Case) -> None:
    windows, event = of_case(case)
    many = [IsoWeek(2027, 1)] * 1000
    assert windows.would_grant(event, many) == case["rounds_per_year"]
    windows, event = of_case(case, week="even")
    by_weeks = [IsoWeek.parse(week) for week in weeks_of(2027) for _ in range(case["value"])]
    assert windows.would_grant(event, by_weeks) == 52 * case["value"]


@of("ledger_scenario_gdp")
def test_rounds_that_fit_into_the_first_weeks_when_the_rest_is_carried_over(case: Case) -> None:
    windows, event = of_case(case, week="even", carry_over="cumulative")
    assert [fill(windows, event, week) for week in weeks_of(2027)[:8]] == case["carry_over_first_8_weeks"]


@of("yearly_gaussian_q1")
def test_the_noise_of_a_year_of_rounds(case: Case) -> None:
    given = case["inputs"]
    budget = Budget(delta=given["delta"], year=given["eps"], week="even")
    noise = noise_for(given["rounds_per_week"], budget, "gaussian", week="2027-W01")
    assert case["value"] <= noise <= case["value"] * (1 + 1e-9)
    rule = windows_of(budget).definition.rules["week"]
    certified = rule.limit_epsilon(IsoWeek(2027, 1), given["delta"])
    assert certified == pytest.approx(case["weekly_eps_same_delta"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.skipif("pld" not in ACCOUNTANTS, reason="the values are of the numerical accountant")
@of("yearly_poisson")
def test_the_noise_of_a_committed_year_of_sampled_rounds(case: Case) -> None:
    given = case["inputs"]
    budget = Budget(delta=given["delta"], year=given["eps"], week="even")

    def plan(noise: float) -> list[PlannedRelease]:
        event = Gaussian(noise, sampling=Poisson(given["q"]), count=given["rounds_per_week"])
        return [PlannedRelease(event, IsoWeek.parse(week)) for week in weeks_of(2027)]

    windows = windows_of(budget, mode="plan", plan=plan(case["value"] + case["tol"]))
    certified = windows.definition.rules["week"].limit_epsilon(IsoWeek(2027, 30), given["delta"])
    assert certified == pytest.approx(case["weekly_eps_pld"], abs=1e-4)
    with pytest.raises(InvalidValueError, match="in the year 2027"):
        windows_of(budget, mode="plan", plan=plan(case["value"] - case["tol"]))


# Years of 52 and 53 weeks

EVENT = Gaussian(200.0)
YEAR = Budget(delta=1e-6, year=0.5)


def test_a_week_of_a_long_year_has_a_53rd_of_it() -> None:
    windows = windows_of(Budget(delta=1e-6, year=0.5, week="even"), "2026-W01")
    # 616 rounds a year: 11.6 a week of 53, 11.8 a week of 52.
    assert [fill(windows, EVENT, week) for week in weeks_of(2026)] == [11] * 53
    windows = windows_of(Budget(delta=1e-6, year=0.5, week="even"), "2025-W01")
    assert [fill(windows, EVENT, week) for week in weeks_of(2025)] == [11] * 52


def test_the_year_caps_the_weeks_of_a_long_year() -> None:
    """A week that is set by hand is the same in every year; the 53rd finds the year spent."""
    noise = 58.2  # 52 weeks of one such round are the year
    windows = windows_of(Budget(delta=1e-6, year=0.5, week=0.0605), "2026-W01")
    assert [fill(windows, Gaussian(noise), week) for week in weeks_of(2026)] == [1] * 52 + [0]


@pytest.mark.parametrize(
    ("day", "week", "year"),
    [
        (date(2025, 12, 28), "2025-W52", "2025"),
        (date(2025, 12, 29), "2026-W01", "2026"),
        (date(2025, 12, 31), "2026-W01", "2026"),
        (date(2026, 1, 1), "2026-W01", "2026"),
        (date(2026, 12, 31), "2026-W53", "2026"),
        (date(2027, 1, 1), "2026-W53", "2026"),
        (date(2027, 1, 3), "2026-W53", "2026"),
        (date(2027, 1, 4), "2027-W01", "2027"),
        (date(2024, 12, 30), "2025-W01", "2025"),
    ],
)
def test_a_charge_at_a_years_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day: date, week: str, year: str
) -> None:
    without_sync(monkeypatch)
    clock = SetClock(datetime(day.year, day.month, day.day, 12, tzinfo=UTC))
    ledger = Ledger.open(str(tmp_path / "ledger.db"), budget=YEAR, unit="patient", mode="gaussian", clock=clock)
    assert authorise(ledger, EVENT).week.key == week
    assert {(status.window, status.key) for status in ledger.windows()} == {
        ("week", week),
        ("year", year),
        ("trailing", week),
        ("lifetime", "lifetime"),
    }


def test_a_full_year_resumes_on_the_first_monday_of_the_next_iso_year() -> None:
    for year, monday in [(2025, "2025-12-29"), (2026, "2027-01-04"), (2027, "2028-01-03")]:
        windows = windows_of(Budget(delta=1e-6, year=0.5, trailing=5.0), f"{year}-W01")
        assert fill(windows, EVENT, f"{year}-W52") == 616
        with pytest.raises(BudgetExceeded) as caught:
            charge(windows, EVENT, f"{year}-W52")
        assert (caught.value.window, caught.value.resumes) == ("year", monday)


def test_a_year_that_starts_anew_is_held_back_by_the_53_weeks_before() -> None:
    windows = windows_of(YEAR, "2026-W30")
    assert fill(windows, EVENT, "2026-W30") == 616
    for week, room in [("2026-W53", 0), ("2027-W01", 0), ("2027-W29", 0), ("2027-W30", 616)]:
        assert IsoWeek.parse(week).index - IsoWeek.parse("2026-W30").index <= 53
        assert fill(windows, EVENT, week) == room
    assert IsoWeek.parse("2026-W30").plus(53).key == "2027-W30"


def test_a_lifetime_never_renews() -> None:
    windows = windows_of(Budget(delta=1e-6, lifetime=0.5))
    assert fill(windows, EVENT, "2027-W01") == 616
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, EVENT, "2035-W01")
    assert (caught.value.window, caught.value.resumes) == ("lifetime", None)


def test_a_release_too_large_for_a_long_years_week_waits_for_a_short_one() -> None:
    """11.7 rounds in one: more than a 53rd of the year, less than a 52nd."""
    windows = windows_of(Budget(delta=1e-6, year=0.5, week="even"), "2026-W10")
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, Gaussian(200.0 / 11.7**0.5), "2026-W10")
    assert (caught.value.window, caught.value.resumes) == ("week", "2027-01-04")


def test_weeks_start_on_monday_in_utc() -> None:
    windows = windows_of(Budget(delta=1e-6, week=0.0605))
    sunday = datetime(2027, 1, 10, 23, 59, 59, tzinfo=UTC)
    for moment, room in [(sunday, 1), (sunday + timedelta(seconds=1), 1)]:
        assert fill(windows, Gaussian(58.2), IsoWeek.of(moment).key) == room
