"""`feddp plan`: its keys, its numbers, and what it warns of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedDP
from fedDP.errors import InvalidValueError
from fedDP.scenario.load import load_scenario
from fedDP.scenario.schema import Scenario
from fedDP.scenario.strict_json import strict_json
from fedDP.simulation.plan import Plan, plan, resolve_nodes
from tests.scenario.runs import hospital, own_table, strict, write_table

SILO = Path(__file__).resolve().parents[2] / "simulations" / "hospital-silo.toml"

KEYS = {
    "scenario", "unit", "population", "delta", "clip_norm", "noise_multiplier", "noise_std", "sampling", "mode",
    "accountant", "rounds", "epsilon", "budget", "warnings", "estimate",
}  # fmt: skip

NO_WINDOW: Mapping[str, object] = {"budget.year": None, "budget.week": None}


def codes(scenario: Scenario) -> set[str]:
    return {warning["code"] for warning in plan(scenario).warnings}


def page(scenario: Scenario) -> dict[str, Any]:
    """What ``--json`` prints, through strict JSON."""
    found: dict[str, Any] = strict(strict_json(plan(scenario).to_dict()))
    return found


def test_the_json_has_the_keys_of_the_contract() -> None:
    found = page(hospital(4))
    assert set(found) >= KEYS
    assert {"kind", "rate"} <= set(found["sampling"])
    assert set(found["rounds"]) == {"requested", "allowed", "stopped_by"}
    assert set(found["epsilon"]) == {"round", "by_round", "by_week", "year", "total"}
    assert set(found["budget"]) >= {"week", "year", "lifetime"}
    assert set(found["estimate"]) == {"seconds", "memory_bytes"}
    assert (found["scenario"], found["unit"], found["population"]) == ("hospital", "patient", 694)


def test_the_numbers_belong_together() -> None:
    found = page(hospital(5))
    epsilon = found["epsilon"]
    assert found["rounds"] == {"requested": 5, "allowed": 5, "stopped_by": None}
    assert len(epsilon["by_round"]) == 5
    assert epsilon["by_round"] == sorted(epsilon["by_round"])
    assert (epsilon["by_round"][0], epsilon["by_round"][-1]) == (epsilon["round"], epsilon["total"])
    assert [week["week"] for week in epsilon["by_week"]] == ["2026-W01", "2026-W02", "2026-W03"]
    assert epsilon["by_week"][0]["epsilon"] == epsilon["by_week"][1]["epsilon"] == epsilon["by_round"][1]
    assert epsilon["by_week"][2]["epsilon"] == epsilon["round"]
    assert found["noise_std"] == pytest.approx(
        found["noise_multiplier"] * found["clip_norm"] / (found["sampling"]["rate"] * found["population"])
    )
    assert found["budget"] == {"week": "even", "year": 1.0, "lifetime": None}


def test_the_year_is_the_fullest_one() -> None:
    found = page(hospital(8, {"budget.start": "2026-W53", "server.rounds_per_week": 2}))
    assert found["epsilon"]["year"] < found["epsilon"]["total"]
    assert found["epsilon"]["year"] == found["epsilon"]["by_round"][5]


def test_without_noise_every_epsilon_is_inf() -> None:
    found = page(hospital(2, {"privacy.noise_multiplier": 0, **NO_WINDOW}))
    epsilon = found["epsilon"]
    assert {epsilon["round"], epsilon["total"], epsilon["year"], *epsilon["by_round"]} == {"inf"}
    assert (found["mode"], found["accountant"]) == ("none", "none")
    assert found["budget"] == {"week": None, "year": None, "lifetime": None}
    assert "no-privacy" in {warning["code"] for warning in found["warnings"]}


def test_no_round_fits() -> None:
    found = page(hospital(4, {"privacy.noise_multiplier": 0.5, "budget.year": 0.5}))
    assert found["rounds"] == {"requested": 4, "allowed": 0, "stopped_by": "year"}
    assert found["epsilon"]["by_round"] == found["epsilon"]["by_week"] == []
    assert found["epsilon"]["total"] == found["epsilon"]["year"] == 0.0


def test_python_gives_the_same_plan() -> None:
    found = fedDP.plan(fedDP.load_scenario("hospital", overrides={"server.rounds": 3}))
    assert isinstance(found, Plan)
    assert found.privacy.allowed_rounds == 3
    assert found.num_parameters == 23
    assert (found.seconds, found.memory_bytes) > (0.0, 0.0)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"privacy.noise_multiplier": 0.1, **NO_WINDOW}, "vacuous-epsilon"),
        ({"privacy.noise_multiplier": 2000.0}, "noise-drowns-signal"),
        ({}, "budget-unused"),
        ({"privacy.noise_multiplier": 5.0, "server.rounds_per_week": 4}, "rounds-do-not-fit"),
        ({"scenario.seed": 1}, "seeded"),
        ({"privacy.delta": 0.01}, "delta-too-large"),
        ({"privacy.noise_multiplier": 0, **NO_WINDOW}, "no-privacy"),
        ({"privacy.noise_multiplier": 5.0, **NO_WINDOW}, "no-budget"),
    ],
)
def test_warnings_come_when_they_should(overrides: dict[str, object], code: str) -> None:
    assert code in codes(hospital(4, overrides))


def test_the_scenario_that_ships_has_nothing_else_to_beware_of() -> None:
    assert codes(load_scenario("hospital")) == {"uncovered-releases"}


def test_few_clients_are_warned_about_with_the_ratio() -> None:
    silo = load_scenario(SILO)
    found = {warning["code"]: warning["text"] for warning in plan(silo).warnings}
    assert "Only 4 clients (hospital)" in found["few-clients"]
    assert "times as long as the longest average that clipping allows" in found["few-clients"]
    assert "noise-drowns-signal" in found
    assert "uncovered-releases" in found


def test_rows_as_clients_and_columns_without_a_range_are_warned_about(tmp_path: Path) -> None:
    write_table(tmp_path)
    named = own_table(tmp_path)
    assert not {"row-is-client", "unscaled-features", "uncovered-releases"} & codes(named)
    bare = own_table(tmp_path, {"data.client_column": None, "data.features": ["age", "dose"], "data.ranges": None})
    assert {"row-is-client", "unscaled-features"} <= codes(bare)


def test_the_vacuous_epsilon_is_named() -> None:
    texts = [each["text"] for each in plan(hospital(4, {"privacy.noise_multiplier": 0.1, **NO_WINDOW})).warnings]
    assert any(text.startswith("epsilon ") and "promises next to nothing" in text for text in texts)


def test_a_cohort_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"privacy.cohort_size=695: expected a whole number in \[1, 694\]"):
        plan(hospital(2, {"privacy.sampling_rate": None, "privacy.cohort_size": 695}))


def test_more_work_is_estimated_to_take_longer() -> None:
    few, many = plan(hospital(4)), plan(hospital(40))
    assert many.seconds > few.seconds
    assert plan(hospital(4, {"data.public": False})).seconds < few.seconds  # no baseline to train


def test_nodes() -> None:
    assert resolve_nodes(hospital(1)) == 1
    assert resolve_nodes(hospital(1, {"resources.nodes": 3})) == 3
    assert resolve_nodes(load_scenario("hospital", {"resources.engine": "ray"})) >= 1


def test_an_id_at_two_sites_is_named(tmp_path: Path) -> None:
    own_table(tmp_path)
    table = tmp_path / "table.csv"
    table.write_text(table.read_text() + "p000,h1,30,0,1\np001,h0,30,0,1\n")
    (warning,) = [found for found in plan(own_table(tmp_path)).warnings if found["code"] == "clients-at-several-sites"]
    assert warning["text"].startswith("2 ids are seen at more than one site.")


def test_records_beyond_the_cap_are_named(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {"data.max_records": 1})
    (warning,) = [found for found in plan(scenario).warnings if found["code"] == "records-left-out"]
    clients = plan(scenario).privacy.num_clients
    assert warning["text"].startswith(f"{clients} clients have more than data.max_records=1 records")


def test_the_plan_says_what_a_shared_ledger_would_still_grant(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {"server.rounds": 4})
    assert "ledger-in-use" not in codes(scenario)
    fedDP.run(scenario, tmp_path / "first")
    (warning,) = [found for found in plan(scenario).warnings if found["code"] == "ledger-in-use"]
    assert "would grant 4 from 2026-W03 on" in warning["text"]
    spent = own_table(
        tmp_path, {"server.rounds": 106, "privacy.noise_multiplier": plan(scenario).privacy.noise_multiplier}
    )
    result = fedDP.run(spent, tmp_path / "second")
    assert result.status == "stopped-by-budget"
    (warning,) = [found for found in plan(scenario).warnings if found["code"] == "ledger-in-use"]
    assert "100% of its 2026 is spent" in warning["text"]
    assert "would grant 0" in warning["text"]
