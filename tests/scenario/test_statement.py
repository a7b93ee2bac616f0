"""The privacy statement: its fields, its numbers, and what it does not cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedDP.budget import EnrolmentTerms, Ledger
from fedDP.scenario.privacy_plan import PrivacyPlan, plan_privacy
from fedDP.scenario.run_directory import RunDirectory
from fedDP.scenario.run_ledger import open_ledger
from fedDP.scenario.statement import statements
from tests.scenario.runs import hospital

FIELDS = {
    "unit", "neighboring_relation", "trust_model", "adversary", "sampling", "accountant", "delta", "epsilon",
    "epsilon_certified", "window", "clock", "scope", "mode", "rng", "not_covered",
}  # fmt: skip

NOT_COVERED = (
    "enrolment and sizes", "timing", "floating-point", "hyper-parameters tuned", "private initial model",
    "loss of whole machines",
)  # fmt: skip

CLIENTS = 500


def charged(folder: Path, rounds: list[int], **overrides: object) -> tuple[PrivacyPlan, Ledger | None]:
    """A plan, and its ledger with a charge for each of `rounds`."""
    layers = {name.replace("__", "."): value for name, value in overrides.items()}
    plan = plan_privacy(hospital(12, {"server.rounds_per_week": 4, **layers}), CLIENTS)
    directory = RunDirectory(folder / "run", plan.scenario)
    enrolment = EnrolmentTerms(num_clients=CLIENTS, sha256="0" * 64)
    ledger, _ = open_ledger(plan, directory, rng="csprng", run_id="r", start_round=1, enrolment=enrolment)
    for round in rounds:
        assert ledger is not None
        ledger.authorise(
            plan.event(), run_id="r", round=round, purpose="train", clip_norm=1.0, denominator=plan.denominator
        )
    return plan, ledger


def states(plan: PrivacyPlan, ledger: Ledger | None, **changes: Any) -> dict[str, dict[str, Any]]:
    options: dict[str, Any] = {"rng": "csprng", "one_row_per_client": False, "scope": "this run only", **changes}
    return {statement["window"]: statement for statement in statements(plan, ledger, **options)}


def test_a_statement_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [1, 2])
    found = states(plan, ledger)
    assert list(found) == ["week", "year", "lifetime"]
    for statement in found.values():
        assert set(statement) >= FIELDS
        assert statement["level"] == "client"
        assert (statement["unit"], statement["delta"], statement["clock"]) == ("patient", 1e-5, "simulated")
        assert (statement["accountant"], statement["mode"], statement["rng"]) == ("pld", "renyi", "csprng")
        assert statement["sampling"]["kind"] == "poisson"
        assert "server is trusted" in statement["trust_model"]
        for part in NOT_COVERED:
            assert any(part in line for line in statement["not_covered"]), part


def test_the_worst_week_is_chosen(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [1, 5, 6, 7, 9, 10])
    week = states(plan, ledger)["week"]
    assert (week["key"], week["charges"]) == ("2026-W02", 3)
    assert week["epsilon"] == pytest.approx(plan.epsilon(3), rel=1e-12)


def test_what_is_certified_is_not_less_than_what_is_spent(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, list(range(1, 13)))
    found = states(plan, ledger)
    assert all(statement["epsilon"] <= statement["epsilon_certified"] for statement in found.values())
    assert found["year"]["epsilon_certified"] == pytest.approx(1.0, rel=1e-9)
    # The lifetime has seen one year.
    assert found["lifetime"]["epsilon_certified"] == pytest.approx(1.0, rel=1e-9)
    assert found["week"]["epsilon_certified"] < found["year"]["epsilon_certified"]
    assert found["week"]["spent_fraction"] == pytest.approx(1.0)


def test_the_lifetime_of_two_years_has_no_certificate_of_one(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [1, 5], budget__start="2026-W53")
    found = states(plan, ledger)
    assert found["lifetime"]["epsilon_certified"] == "inf"
    assert found["year"]["epsilon_certified"] == pytest.approx(1.0, rel=1e-9)


def test_a_lifetime_bounds_its_weeks_and_years(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [1, 2], budget__year=None, budget__week=None, privacy__target_epsilon=2.0)
    certified = [statement["epsilon_certified"] for statement in states(plan, ledger).values()]
    assert certified == pytest.approx([2.0, 2.0, 2.0], rel=1e-9)


def test_without_any_allowance_nothing_is_certified(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [1, 2], budget__year=None, budget__week=None, privacy__noise_multiplier=5.0)
    assert {statement["epsilon_certified"] for statement in states(plan, ledger).values()} == {"inf"}


def test_a_ledger_without_charges_says_zero(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [])
    (statement,) = states(plan, ledger).values()
    assert (statement["window"], statement["epsilon"], statement["charges"]) == ("lifetime", 0.0, 0)


def test_without_privacy_epsilon_is_inf(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [], budget__year=None, budget__week=None, privacy__noise_multiplier=0)
    assert ledger is None
    (statement,) = states(plan, ledger, scope="no ledger").values()
    assert set(statement) >= FIELDS
    assert (statement["epsilon"], statement["epsilon_certified"]) == ("inf", "inf")
    assert (statement["accountant"], statement["mode"]) == ("none", "none")


def test_what_a_run_does_not_cover_depends_on_it(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [1])
    plain = states(plan, ledger)["year"]["not_covered"]
    rows = states(plan, ledger, one_row_per_client=True)["year"]["not_covered"]
    seeded = states(plan, ledger, rng="seeded")["year"]
    assert any("counts as k clients" in line for line in plain)
    assert [line for line in rows if line not in plain] == [
        "one row = one client: a patient with several rows is protected for each row only"
    ]
    assert [line for line in seeded["not_covered"] if line not in plain] == [
        "seeded randomness: every epsilon is nominal, whoever knows the seed can remove the noise"
    ]
    assert seeded["rng"] == "seeded"


def test_all_clients_are_stated_exactly(tmp_path: Path) -> None:
    plan, ledger = charged(tmp_path, [1], privacy__sampling="all", privacy__sampling_rate=None)
    year = states(plan, ledger)["year"]
    assert (year["accountant"], year["mode"], year["sampling"]["kind"]) == ("gdp", "gaussian", "all")
    assert year["sampling"]["rate"] == 1.0
