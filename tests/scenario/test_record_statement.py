"""The statement about records, which stands beside that about clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedDP.accounting import Gaussian, Poisson, epsilon
from fedDP.budget import Budget, RecordLedgers, RecordRelease, SimulatedClock
from fedDP.scenario.record_statement import record_statements
from tests.scenario.test_statement import FIELDS

EVENTS = {"a": Gaussian(1.2, sampling=Poisson(0.01), count=20), "b": Gaussian(1.2, sampling=Poisson(0.02), count=20)}
RELEASES = {site: RecordRelease(event=event, clip_norm=1.0, denominator=32.0) for site, event in EVENTS.items()}


def charged(folder: Path, rounds: int, budget: Budget) -> RecordLedgers:
    clock = SimulatedClock(rounds_per_week=2)
    ledgers = RecordLedgers.open(folder, sites=list(EVENTS), population="trial", budget=budget, clock=clock)
    for round in range(1, rounds + 1):
        ledgers.charge_round(RELEASES, run_id="run", round=round)
    return ledgers


def states(ledgers: RecordLedgers, **changes: Any) -> dict[str, dict[str, Any]]:
    options: dict[str, Any] = {"rng": "csprng", "scope": "all runs of the trial", **changes}
    found = record_statements(ledgers, **options)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return {statement["window"]: statement for statement in found}


def test_the_statement_of_a_record(tmp_path: Path) -> None:
    ledgers = charged(tmp_path, 3, Budget(delta=1e-6, week=3.0, year=5.0))
    found = states(ledgers, persons=[ledgers.person(["a", "b"])])
    assert list(found) == ["week", "year", "lifetime"]
    for statement in found.values():
        assert set(statement) >= FIELDS
        assert (statement["level"], statement["unit"], statement["clock"]) == ("record", "record", "simulated")
        assert statement["trust_model"] == "record-level local: a record's own silo, and nobody else"
        assert statement["assumption"].startswith("participation in every round")
        assert (statement["sampling"]["kind"], statement["sampling"]["rate"]) == ("poisson", 0.02)
        assert (statement["accountant"], statement["mode"], statement["delta"]) == ("pld", "renyi", 1e-6)
        assert [site["site"] for site in statement["sites"]] == ["a", "b"]
        assert statement["epsilon"] == max(site["epsilon"] for site in statement["sites"])
        assert statement["epsilon"] <= statement["epsilon_certified"]
        assert any("a person with several records" in line for line in statement["not_covered"])
        assert not any("seeded" in line for line in statement["not_covered"])
    assert found["week"]["epsilon"] == epsilon([EVENTS["b"].repeated(2)], 1e-6)
    assert found["lifetime"]["epsilon"] == epsilon([EVENTS["b"].repeated(3)], 1e-6)
    assert (found["week"]["charges"], found["lifetime"]["charges"]) == (2, 3)
    (person,) = found["lifetime"]["persons"]
    assert person["epsilon"] == epsilon([event.repeated(3) for event in EVENTS.values()], 1e-6)
    assert person["sites"] == ["a", "b"]
    assert person["epsilon_certified"] > found["lifetime"]["epsilon_certified"]
    assert person["delta_certified"] == 2e-6


def test_nothing_charged_and_nothing_certified(tmp_path: Path) -> None:
    ledgers = charged(tmp_path, 0, Budget(delta=1e-6))
    found = states(ledgers, rng="seeded", persons=[ledgers.person(["a"])])
    assert list(found) == ["lifetime"]
    assert (found["lifetime"]["epsilon"], found["lifetime"]["epsilon_certified"]) == (0.0, "inf")
    assert found["lifetime"]["persons"][0]["epsilon_certified"] == "inf"
    assert any("seeded" in line for line in found["lifetime"]["not_covered"])
