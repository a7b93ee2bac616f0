"""Schedules that the tests of committed plans share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedDP.accounting import Gaussian, Poisson
from fedDP.budget import Budget, IsoWeek, Ledger, PlannedRelease

from .ledgers import SetClock

DELTA = 1e-6
WIDE = Budget(delta=DELTA, year=5.0)
TRAIN = Gaussian(8.0, sampling=Poisson(0.1))
OTHER = Gaussian(9.0, sampling=Poisson(0.1))
EVAL = Gaussian(40.0, sampling=Poisson(0.5))
CUMULATIVE = Budget(delta=DELTA, year=5.0, week=3.0, carry_over="cumulative")


def times(event: Gaussian, count: int) -> Gaussian:
    return Gaussian(event.noise_multiplier, sampling=event.sampling, count=count)


def planned(event: Gaussian, week: str, count: int = 1, purpose: str = "train") -> PlannedRelease:
    return PlannedRelease(times(event, count), IsoWeek.parse(week), purpose)


def two_a_week(*weeks: str) -> list[PlannedRelease]:
    return [planned(TRAIN, week, 2) for week in weeks]


SCHEDULE = [
    planned(TRAIN, "2027-W10", 2),
    planned(EVAL, "2027-W10", purpose="eval"),
    planned(OTHER, "2027-W11"),
    planned(EVAL, "2027-W11", purpose="eval"),
    planned(TRAIN, "2027-W13", 2),
]


def open_ledger(path: Path, clock: SetClock, plan: Any = SCHEDULE, budget: Budget = WIDE, **changes: Any) -> Ledger:
    values: dict[str, Any] = {"unit": "patient", "mode": "plan", **changes}
    return Ledger.open(str(path / "ledger.db"), budget=budget, plan=plan, clock=clock, **values)
