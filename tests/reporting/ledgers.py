"""Ledgers that pages, exports and plots are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedDP.accounting import FullParticipation, Gaussian, Poisson
from fedDP.budget import Budget, Ledger
from tests.budget.ledgers import SetClock, authorise

FULL = Gaussian(120.0)
SAMPLED = Gaussian(20.0, sampling=Poisson(0.1))
YEARLY = Budget(delta=1e-6, year=0.5, week="even")


def charged_ledger(path: Path, *, event: Gaussian = FULL, budget: Budget = YEARLY, **terms: Any) -> Ledger:
    """Two runs over the end of 2026, with a release of every fate, as `Ledger.load` opens it.

    ========  ========  ==================================================
    week      run       charges
    ========  ========  ==================================================
    2026-W52  =first    train 1 (released), train 2 (released)
    2026-W53  =first    train 3 (abandoned, then released as attempt 2)
    2027-W01  second    train 1 (released), eval 1 (open)
    ========  ========  ==================================================
    """
    clock = SetClock(kind="system")
    plan = [Gaussian(event.noise_multiplier, sampling=event.sampling, count=106)]
    mode = "gaussian" if isinstance(event.sampling, FullParticipation) else "renyi"
    asked: dict[str, Any] = {
        "budget": budget,
        "unit": "patient",
        "population": "county",
        "mode": mode,
        "plan": plan,
        "clock": clock,
        **terms,
    }
    clock.set_week("2026-W52")
    ledger = Ledger.open(str(path), **asked)
    for round in (1, 2):
        ledger.mark_released(authorise(ledger, event, run_id="=first", round=round))
    clock.set_week("2026-W53")
    authorise(ledger, event, run_id="=first", round=3)
    ledger = Ledger.open(str(path), **asked)  # as after a crash
    ledger.mark_released(authorise(ledger, event, run_id="=first", round=3))
    clock.set_week("2027-W01")
    ledger.mark_released(authorise(ledger, event, run_id="second", round=1))
    authorise(ledger, event, run_id="second", round=1, purpose="eval")
    return Ledger.load(str(path))
