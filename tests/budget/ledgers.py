"""Clocks, budgets and noise that the ledger's tests share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, smallest_noise_multiplier
from fedDP.accounting.events import FullParticipation, Sampling
from fedDP.budget import Budget, BudgetExceeded, Grant, IsoWeek, Ledger, anchors, sqlite
from fedDP.budget.clock import ClockKind
from fedDP.budget.definition import LedgerDefinition
from fedDP.budget.policy import Mode, window_rules
from fedDP.budget.sqlite import _configure
from fedDP.budget.state import LedgerState
from fedDP.budget.weeks import weeks_in_iso_year
from fedDP.budget.windows import Windows

START = datetime(2026, 3, 2, tzinfo=UTC)  # Monday of 2026-W10
FULL = FullParticipation()


@dataclass
class SetClock:
    """A clock that says what a test sets; simulated, so that it may leap over months."""

    time: datetime = START
    kind: ClockKind = "simulated"

    def now(self, round: int) -> datetime:
        return self.time

    def set_week(self, key: str) -> None:
        self.time = IsoWeek.parse(key).monday


def noise_for(
    rounds: int,
    budget: Budget,
    mode: Mode,
    sampling: Sampling = FULL,
    week: str = "2026-W10",
) -> float:
    """The smallest noise multiplier with which `rounds` rounds of one week fit the budget under the ledger's rule."""

    def fits(noise_multiplier: float) -> bool:
        event = Gaussian(noise_multiplier, sampling=sampling)
        plan = [Gaussian(noise_multiplier, sampling=sampling, count=rounds)]
        rules = window_rules(budget, mode, plan, "zero_out").values()
        return all(rule.cost(event, "zero_out") * rounds <= rule.limit(IsoWeek.parse(week)) for rule in rules)

    return smallest_noise_multiplier(fits)


def windows_of(budget: Budget, created: str = "2027-W01", **changes: Any) -> Windows:
    """The windows of an empty ledger that nobody keeps; 2027 has 52 weeks."""
    terms: dict[str, Any] = {
        "unit": "patient",
        "population": None,
        "neighboring_relation": "zero_out",
        "mode": "gaussian",
        "plan": None,
        "exclusive": False,
        "clock": "system",
        "simulation": False,
        **changes,
    }
    return Windows(LedgerDefinition.create(budget=budget, created=IsoWeek.parse(created), **terms), LedgerState())


def charge(windows: Windows, event: Gaussian, week: str, purpose: str = "train") -> None:
    """One charge, as a ledger would make it."""
    costs, when = windows.costs(event), IsoWeek.parse(week)
    planned = windows.check(event, costs, when, purpose)
    windows.state.add(when, event, costs, purpose)
    if planned is not None:
        windows.state.next_planned = planned + 1


def fill(windows: Windows, event: Gaussian, week: str, purpose: str = "train") -> int:
    """Charges a week until it is refused; how often it was not."""
    for done in range(1000):
        try:
            charge(windows, event, week, purpose)
        except BudgetExceeded:
            return done
    raise AssertionError("never refused")


def weeks_of(year: int) -> list[str]:
    """Every week of an ISO year."""
    return [f"{year}-W{week:02d}" for week in range(1, weeks_in_iso_year(year) + 1)]


@dataclass
class Run:
    """A run that charges one round after the other."""

    ledger: Ledger
    event: Gaussian
    run_id: str = "run"
    round: int = 0
    grants: list[Grant] = field(default_factory=list)

    def charge(self, **changes: Any) -> Grant:
        self.round += 1
        grant = authorise(self.ledger, self.event, **{"run_id": self.run_id, "round": self.round, **changes})
        self.grants.append(grant)
        return grant

    def charge_until_refused(self, at_most: int = 1000, **changes: Any) -> BudgetExceeded:
        for _ in range(at_most):
            try:
                self.charge(**changes)
            except BudgetExceeded as refusal:
                return refusal
        raise AssertionError("never refused")


def authorise(ledger: Ledger, event: Gaussian, **changes: Any) -> Grant:
    values: dict[str, Any] = {
        "run_id": "run",
        "round": 1,
        "purpose": "train",
        "clip_norm": 1.0,
        "denominator": 10.0,
        **changes,
    }
    return ledger.authorise(event, **values)


def anchor_beside(path: Path) -> Path:
    """The operator file of a ledger."""
    return path.with_name(path.name + ".anchor")


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, behind the ledger's back."""
    with closing(sqlite3.connect(path)) as connection:
        yield connection
        connection.commit()


def count_rows(path: Path, kind: str | None = None) -> int:
    with raw(path) as connection:
        if kind is None:
            return int(connection.execute("SELECT count(*) FROM entries").fetchone()[0])
        return int(connection.execute("SELECT count(*) FROM entries WHERE kind = ?", (kind,)).fetchone()[0])


def without_sync(monkeypatch: pytest.MonkeyPatch, *pragmas: str) -> None:
    """Spares tests that do not speak of durability the wait for SQLite's disk; `pragmas` run with every connection."""

    def configure(connection: sqlite3.Connection, record: Any) -> None:
        _configure(connection, record)
        for pragma in ("PRAGMA synchronous=OFF", *pragmas):
            connection.execute(pragma)

    monkeypatch.setattr(sqlite, "_configure", configure)
    monkeypatch.setattr(anchors, "_sync", lambda descriptor: None)
