"""Rules between keys: each is broken once, and the nearest scenario that keeps it is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from fedDP.errors import ScenarioError
from fedDP.scenario.load import DEFAULT, load_scenario
from fedDP.scenario.rules import names_people
from fedDP.scenario.schema import scenario_from_tables

OWN: dict[str, object] = {"data.path": "my.csv", "data.target": "y", "data.population_id": "bank-2026"}
FREE: dict[str, object] = {"budget.year": DEFAULT, "budget.week": DEFAULT, "privacy.noise_multiplier": 0}

BROKEN: list[tuple[dict[str, object], str]] = [
    ({"data.name": DEFAULT}, r"data\.name or data\.path is required"),
    ({**OWN, "data.name": "heart-disease"}, r"give one of them, not both"),
    ({**OWN, "data.target": DEFAULT}, r"data\.target is required"),
    ({**OWN, "data.population_id": DEFAULT}, r"data\.population_id is required"),
    ({"data.client_column": "site"}, r"scenario\.unit='patient' names people.*unit = 'hospital'"),
    ({"data.client_column": "site", "data.site_column": DEFAULT}, r"names people"),
    ({"model.hidden": [8]}, r"model\.hidden=\[8\].*no such key"),
    ({"budget.year": DEFAULT, "budget.week": DEFAULT}, r"'auto' needs something to fit"),
    ({"privacy.noise_multiplier": 0}, r"means no privacy"),
    ({**FREE, "privacy.target_epsilon": 1}, r"means no privacy"),
    ({"privacy.sampling_rate": DEFAULT}, r"needs privacy\.sampling_rate or privacy\.cohort_size"),
    ({"privacy.sampling_rate": 0.1, "privacy.cohort_size": 5}, r"give one of them, not both"),
    ({"privacy.sampling": "all", "privacy.sampling_rate": 0.1}, r"sampling_rate has no meaning"),
    ({"privacy.sampling": "all", "privacy.cohort_size": 5}, r"cohort_size has no meaning"),
    ({"privacy.neighboring_relation": "replace_one"}, r"no sound accountant"),
    ({"privacy.accountant": "gdp"}, r"no exact GDP bound"),
    ({"budget.mode": "gaussian"}, r"rounds of all clients only"),
    ({"budget.year": DEFAULT}, r"set budget\.year"),
    ({"server.rounds_per_week": DEFAULT, "budget.clock": "simulated"}, r"needs server\.rounds_per_week"),
    ({"scenario.seed": 7, "budget.ledger": "sqlite:///l.db"}, r"cannot charge a real ledger"),
    ({**OWN, "scenario.seed": 7}, r"cannot charge a real ledger"),
    ({"data.ranges.x": [0, 1], "data.categories.x": [0, 1]}, r"both hold 'x'"),
]

KEPT: list[dict[str, object]] = [
    OWN,
    {**OWN, "data.public": True, "scenario.seed": 7},
    {**OWN, **FREE, "scenario.seed": 7, "data.population_id": DEFAULT},
    {"data.client_column": "site", "scenario.unit": "hospital"},
    {"data.client_column": "person", "scenario.unit": "patient"},
    {"model.name": "mlp", "model.hidden": [8]},
    {"budget.year": DEFAULT, "budget.week": DEFAULT, "privacy.target_epsilon": 1},
    {"budget.year": DEFAULT, "budget.week": 0.1},
    {"budget.year": DEFAULT, "budget.week": DEFAULT, "budget.lifetime": 3.0},
    {"budget.year": DEFAULT, "budget.week": DEFAULT, "privacy.noise_multiplier": 1.5},
    FREE,
    {"privacy.cohort_size": 50},
    {"privacy.sampling": "all", "privacy.neighboring_relation": "replace_one"},
    {"privacy.sampling": "all", "budget.mode": "gaussian", "privacy.accountant": "gdp"},
    {"budget.ledger": "sqlite:///l.db"},
    {"server.rounds_per_week": DEFAULT, "budget.clock": "system"},
    {"client.momentum": 0.9, "server.beta_1": 0.5},
]


@pytest.mark.parametrize(("overrides", "message"), BROKEN)
def test_broken_rules(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        load_scenario("hospital", overrides)
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize("overrides", KEPT)
def test_kept_rules(overrides: dict[str, object]) -> None:
    load_scenario("hospital", overrides)


def test_rules_do_not_build_on_faulty_values() -> None:
    tables: dict[str, Any] = {
        "data": {"path": 3},
        "privacy": {"target_epsilon": "x", "sampling_rate": 2},
        "budget": {"week": "even", "year": True},
    }
    with pytest.raises(ScenarioError) as caught:
        scenario_from_tables(tables, source="test")
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize("unit", ["patient", "Patients", "bank customer", "person", "people", "employees", "citizen"])
def test_units_that_name_people(unit: str) -> None:
    assert names_people(unit)


@pytest.mark.parametrize("unit", ["hospital", "client", "branch", "bank", "device", "household"])
def test_units_that_do_not(unit: str) -> None:
    assert not names_people(unit)
