"""Charges of releases that are themselves several steps: what they cost, and where they are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson, epsilon
from fedDP.budget import Budget, BudgetExceeded, IsoWeek, Ledger, PlannedRelease, verify
from fedDP.budget.policy import Mode
from fedDP.budget.records import canonical_json
from fedDP.errors import LedgerError, UnsupportedError

from .ledgers import SetClock, authorise, charge, fill, windows_of, without_sync
from .test_verification import assert_forged

BUDGET = Budget(delta=1e-6, week=1.0, year=2.0, lifetime=3.0)
STEPS: dict[Mode, Gaussian] = {"gaussian": Gaussian(60.0), "renyi": Gaussian(2.0, sampling=Poisson(0.05))}


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture(params=["gaussian", "renyi"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


def open_ledger(path: Path, mode: Mode, plan: Any = None) -> Ledger:
    plan = plan or [STEPS[mode]]
    return Ledger.open(str(path), budget=BUDGET, unit="record", mode=mode, plan=plan, clock=SetClock())


def test_steps_cost_what_as_many_single_releases_cost(mode: Mode) -> None:
    one = STEPS[mode]
    apart, together = (windows_of(BUDGET, mode=mode, plan=[one]) for _ in range(2))
    taken = fill(apart, one, "2027-W10")
    assert taken > 10
    charge(together, replace(one, count=taken), "2027-W10")
    with pytest.raises(BudgetExceeded):
        charge(together, one, "2027-W10")
    fresh = windows_of(BUDGET, mode=mode, plan=[one])
    with pytest.raises(BudgetExceeded):
        charge(fresh, replace(one, count=taken + 1), "2027-W10")
    for name, units in together.state.week_units[IsoWeek(2027, 10)].items():
        assert units == pytest.approx(apart.state.week_units[IsoWeek(2027, 10)][name], rel=1e-10)


def test_charges_of_different_counts_add_up(tmp_path: Path, mode: Mode) -> None:
    one = STEPS[mode]
    ledger = open_ledger(tmp_path / "ledger.db", mode)
    for round, count in enumerate((5, 3, 5, 1), start=1):
        assert authorise(ledger, replace(one, count=count), round=round).event == replace(one, count=count)
    assert ledger.events() == [replace(one, count=14)]
    for status in ledger.windows():
        assert status.charges == 4
        assert status.spent_epsilon == epsilon([replace(one, count=14)], BUDGET.delta)
    found = verify(str(tmp_path / "ledger.db"))
    assert found.charges == 4
    assert open_ledger(tmp_path / "ledger.db", mode).events() == ledger.events()


def test_what_would_be_granted_counts_every_step(mode: Mode) -> None:
    one, week = STEPS[mode], IsoWeek(2027, 10)
    windows = windows_of(BUDGET, mode=mode, plan=[one])
    singles = windows.would_grant(one, [week] * 2000)
    assert 20 < singles < 2000
    assert windows.would_grant(replace(one, count=10), [week] * 2000) == singles // 10


def test_a_refusal_asks_for_all_steps(mode: Mode) -> None:
    one = STEPS[mode]
    windows = windows_of(BUDGET, mode=mode, plan=[one])
    with pytest.raises(BudgetExceeded) as caught:
        charge(windows, replace(one, count=10**5), "2027-W10")
    assert caught.value.asked >= epsilon([replace(one, count=10**5)], BUDGET.delta) * (1.0 - 1e-12)


def test_more_releases_than_can_be_counted_are_refused() -> None:
    windows = windows_of(Budget(delta=1e-6))
    charge(windows, Gaussian(1e5, count=10**9 - 1), "2027-W10")
    assert windows.would_grant(Gaussian(1e5), [IsoWeek(2027, 11)] * 2) == 1
    with pytest.raises(LedgerError, match="more than 1,000,000,000 releases"):
        charge(windows, Gaussian(1e5, count=2), "2027-W11")
    charge(windows, Gaussian(1e5), "2027-W11")
    assert windows.status("lifetime", IsoWeek(2027, 11)).charges == 2


def test_plan_mode_refuses_several_steps_at_once(tmp_path: Path) -> None:
    plan = [PlannedRelease(STEPS["renyi"].repeated(4), IsoWeek(2026, 10))]
    ledger = open_ledger(tmp_path / "ledger.db", "plan", plan=plan)
    with pytest.raises(UnsupportedError, match="this one is 4 steps at once"):
        authorise(ledger, STEPS["renyi"].repeated(4))
    with pytest.raises(UnsupportedError, match="steps at once"):
        ledger.would_grant(STEPS["renyi"].repeated(4), [IsoWeek(2026, 10)])
    for round in range(1, 5):
        authorise(ledger, STEPS["renyi"], round=round)


def test_a_forged_charge_of_several_steps_in_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    plan = [PlannedRelease(STEPS["renyi"].repeated(4), IsoWeek(2026, 10))]
    authorise(open_ledger(path, "plan", plan=plan), STEPS["renyi"])

    def edit(rows: list[dict[str, Any]]) -> None:
        rows[1]["event"] = canonical_json(STEPS["renyi"].repeated(4).to_dict())

    assert_forged(path, edit, "row 1 could not be granted. .*4 steps at once")
