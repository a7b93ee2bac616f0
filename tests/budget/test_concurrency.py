"""Many processes and threads on one ledger: exactly what the budget covers is granted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fedDP.accounting import FullParticipation, Gaussian, Poisson
from fedDP.accounting.events import Sampling
from fedDP.budget import Budget, BudgetExceeded, IsoWeek, Ledger
from fedDP.budget.policy import Mode

from .ledgers import SetClock, authorise, noise_for, without_sync
from .places import Place, count_rows

BUDGET = Budget(delta=1e-6, lifetime=0.5)
COVERED = 50

# Opens (or creates) the ledger together with the others, waits for the start, and charges until it has asked 100 times.
WORKER = """
import json, sys
from fedDP.accounting import Gaussian, event_from_dict
from fedDP.budget import Budget, BudgetExceeded, Ledger
url, mode, run_id, text = sys.argv[1:]
event = event_from_dict(json.loads(text))
plan = [Gaussian(event.noise_multiplier, sampling=event.sampling, count=50)]
ledger = Ledger.open(url, budget=Budget(delta=1e-6, lifetime=0.5), unit="patient", mode=mode, plan=plan)
print("ready", flush=True)
sys.stdin.readline()
rows = []
for round in range(100):
    try:
        grant = ledger.authorise(event, run_id=run_id, round=round, purpose="train", clip_norm=1.0, denominator=10.0)
        rows.append(grant.seq)
    except BudgetExceeded:
        pass
print(json.dumps(rows))
"""

EVENTS: dict[Mode, Sampling] = {"gaussian": FullParticipation(), "renyi": Poisson(0.1)}


def charge_together(place: Place, mode: Mode, events: Sequence[Gaussian]) -> list[list[int]]:
    """A process for each event, all started at once; returns the rows that each was granted."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, place.url, mode, f"run {index}", json.dumps(event.to_dict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, event in enumerate(events)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [json.loads(output) for output in outputs]


def lifetime_units(ledger: Ledger) -> tuple[int, int]:
    """What is spent and what may be, in the ledger's integer units."""
    rule = ledger.definition.rules["lifetime"]
    return ledger._state.spent_units("lifetime", ledger.last_week), rule.limit(ledger.last_week)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gaussian", "renyi"])
def test_eight_processes_get_what_the_budget_covers(place: Place, mode: Mode) -> None:
    event = Gaussian(noise_for(COVERED, BUDGET, mode, EVENTS[mode]), sampling=EVENTS[mode])
    granted = charge_together(place, mode, [event] * 8)
    assert sorted(seq for rows in granted for seq in rows) == list(range(1, COVERED + 1))
    assert count_rows(place) == count_rows(place, "charge") + 1 == COVERED + 1
    ledger = Ledger.open(place.url, budget=BUDGET, unit="patient", mode=mode)  # the chain is whole
    spent, limit = lifetime_units(ledger)
    assert spent == COVERED * ledger.definition.rules["lifetime"].cost(event, "zero_out") <= limit
    with pytest.raises(BudgetExceeded):
        authorise(ledger, event)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gaussian", "renyi"])
def test_runs_of_different_kinds_share_a_ledger(place: Place, mode: Mode) -> None:
    # Neither can spend it all with its 100 charges, both together can.
    noise = noise_for(110, BUDGET, mode, EVENTS[mode])
    sampling = Poisson(0.2) if mode == "renyi" else FullParticipation()
    events = [Gaussian(noise, sampling=EVENTS[mode]), Gaussian(2.0 * noise, sampling=sampling)]
    granted = charge_together(place, mode, events)
    seqs = sorted(seq for rows in granted for seq in rows)
    assert seqs == list(range(1, len(seqs) + 1))
    ledger = Ledger.load(place.url)
    costs = [ledger.definition.rules["lifetime"].cost(event, "zero_out") for event in events]
    spent, limit = lifetime_units(ledger)
    assert spent == sum(len(rows) * cost for rows, cost in zip(granted, costs, strict=True)) <= limit
    assert limit - spent < max(costs)
    for index, rows in enumerate(granted):
        assert rows  # neither kept the other out
        assert len(ledger.charged_rounds(f"run {index}")) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gaussian", "renyi"])
@pytest.mark.parametrize("shared", [True, False])
def test_eight_threads_get_what_the_budget_covers(
    place: Place, mode: Mode, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sync(monkeypatch)
    event = Gaussian(noise_for(COVERED, BUDGET, mode, EVENTS[mode]), sampling=EVENTS[mode])
    plan = [Gaussian(event.noise_multiplier, sampling=event.sampling, count=COVERED)]
    terms: dict[str, Any] = {"budget": BUDGET, "unit": "patient", "mode": mode, "plan": plan, "clock": SetClock()}
    ledgers = [Ledger.open(place.url, **terms)] * 8
    if not shared:
        ledgers = [Ledger.open(place.url, **terms) for _ in range(8)]

    def charge(thread: int) -> list[int]:
        rows = []
        for round in range(25):
            try:
                rows.append(authorise(ledgers[thread], event, run_id=f"run {thread}", round=round).seq)
            except BudgetExceeded:
                continue
        return rows

    with ThreadPoolExecutor(8) as pool:
        granted = list(pool.map(charge, range(8)))
    assert sorted(seq for rows in granted for seq in rows) == list(range(1, COVERED + 1))
    assert Ledger.load(place.url).status("lifetime", IsoWeek(2026, 10)).charges == COVERED
