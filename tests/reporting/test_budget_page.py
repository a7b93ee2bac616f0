"""What a ledger has spent, on what, and what is left."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, epsilon
from fedDP.budget import Budget, EnrolmentTerms, Ledger
from fedDP.reporting.budget_page import budget_page
from fedDP.scenario.strict_json import strict_json
from tests.budget.ledgers import SetClock, without_sync
from tests.reporting.ledgers import FULL, SAMPLED, charged_ledger
from tests.scenario.runs import strict

DELTA = 1e-6


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def page_of(path: Path, **terms: Any) -> dict[str, Any]:
    page: dict[str, Any] = strict(strict_json(budget_page(charged_ledger(path, **terms))))
    return page


@pytest.fixture(params=[FULL, SAMPLED], ids=["gaussian", "renyi"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return page_of(tmp_path / "ledger.db", event=request.param)


def windows(page: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [window for window in page["windows"] if window["window"] == kind]


def test_the_keys_that_others_read_are_there(page: dict[str, Any]) -> None:
    assert page.keys() >= {"ledger", "unit", "mode", "delta", "clock", "windows", "head"}
    for window in page["windows"]:
        assert window.keys() >= {
            "window",
            "key",
            "allowance_epsilon",
            "spent_epsilon",
            "spent_fraction",
            "charges",
            "left_fraction",
            "epsilon_certified",
        }
    assert [window["key"] for window in page["windows"]] == [
        *("2026-W52", "2026-W53", "2027-W01"),
        *("2026", "2027", "2027-W01", "lifetime"),
    ]
    assert page["head"]["seq"] == 11


def test_shares_of_weeks_runs_and_purposes_add_up_to_the_year_s(page: dict[str, Any]) -> None:
    for year in windows(page, "year"):
        weeks = [week["share_of_year"] for week in windows(page, "week") if week["key"].startswith(year["key"])]
        assert math.fsum(weeks) == pytest.approx(year["spent_fraction"], rel=1e-12)
        for kind in ("runs", "purposes"):
            shares = [group["shares"].get(year["key"], 0.0) for group in page[kind]]
            assert math.fsum(shares) == pytest.approx(year["spent_fraction"], rel=1e-12)
        assert year["left_fraction"] == 1.0 - year["spent_fraction"]
    # Equal events: the first week of 2026 has half of its charges, the year has 4 of 6.
    assert windows(page, "week")[0]["share_of_year"] == pytest.approx(windows(page, "year")[0]["spent_fraction"] / 2)
    assert page["shares_of"] == "year"


def test_every_charge_is_counted_with_what_became_of_it(page: dict[str, Any]) -> None:
    def fates(group: dict[str, Any]) -> list[Any]:
        return [group[name] for name in ("name", "charges", "released", "open", "abandoned")]

    assert [fates(group) for group in page["runs"]] == [["=first", 4, 3, 0, 1], ["second", 2, 1, 1, 0]]
    assert [fates(group) for group in page["purposes"]] == [["train", 5, 4, 0, 1], ["eval", 1, 0, 1, 0]]


@pytest.mark.parametrize("event", [FULL, SAMPLED], ids=["gaussian", "renyi"])
def test_a_group_s_epsilon_is_of_its_charges_alone(tmp_path: Path, event: Gaussian) -> None:
    page = page_of(tmp_path / "ledger.db", event=event)
    first, second = page["runs"]
    four, two = (Gaussian(event.noise_multiplier, sampling=event.sampling, count=count) for count in (4, 2))
    assert first["epsilon"] == pytest.approx(epsilon([four], DELTA), rel=1e-12)
    assert second["epsilon"] == pytest.approx(epsilon([two], DELTA), rel=1e-12)
    (lifetime,) = windows(page, "lifetime")
    assert lifetime["spent_epsilon"] < first["epsilon"] + second["epsilon"]


def test_what_is_certified_is_the_smallest_allowance_around(tmp_path: Path) -> None:
    budget = Budget(delta=DELTA, year=0.5, week=2.0, trailing=0.6, lifetime=3.0)
    page = page_of(tmp_path / "ledger.db", budget=budget)
    certified = {
        window["key"]: window["epsilon_certified"] for window in page["windows"] if window["window"] != "trailing"
    }
    # A week may have 2, but never more than its year; nothing bounds the lifetime but its own allowance.
    assert certified["2026-W52"] == pytest.approx(0.5, rel=1e-9)
    assert certified["2026"] == pytest.approx(0.5, rel=1e-9)
    assert certified["lifetime"] == pytest.approx(3.0, rel=1e-9)
    assert windows(page, "trailing")[0]["epsilon_certified"] == pytest.approx(0.6, rel=1e-9)
    assert windows(page, "week")[0]["allowance_epsilon"] == pytest.approx(2.0, rel=1e-9)
    assert page["runs"][0]["epsilon_certified"] == pytest.approx(0.5, rel=1e-9)
    # Training was charged in two years: the trailing window holds both.
    assert page["purposes"][0]["epsilon_certified"] == pytest.approx(0.6, rel=1e-9)


def test_a_lifetime_without_an_allowance_certifies_nothing(page: dict[str, Any]) -> None:
    (lifetime,) = windows(page, "lifetime")
    assert lifetime["epsilon_certified"] is None
    assert lifetime["left_fraction"] is None
    assert lifetime["spent_epsilon"] > 0


def test_without_a_year_shares_are_of_the_lifetime(tmp_path: Path) -> None:
    page = page_of(tmp_path / "ledger.db", budget=Budget(delta=DELTA, week=0.4, lifetime=2.0))
    assert page["shares_of"] == "lifetime"
    (lifetime,) = windows(page, "lifetime")
    assert page["runs"][0]["shares"] == {"lifetime": pytest.approx(lifetime["spent_fraction"] * 4 / 6)}
    assert "share_of_year" not in windows(page, "week")[0]
    page = page_of(tmp_path / "weeks.db", budget=Budget(delta=DELTA, week=0.4))
    assert page["shares_of"] is None
    assert page["runs"][0]["shares"] == {}
    assert page["runs"][0]["epsilon_certified"] is None


def test_where_a_reader_would_add_epsilons_there_is_the_joint_number(page: dict[str, Any]) -> None:
    year, lifetime = windows(page, "year")[0], windows(page, "lifetime")[0]
    assert f"the 2 weeks of 2026 together spent epsilon {year['spent_epsilon']:.4g}." in page["notes"]["weeks"]
    assert "2027" not in page["notes"]["weeks"]
    assert f"All charges together spent epsilon {lifetime['spent_epsilon']:.4g}" in page["notes"]["groups"]


def test_a_ledger_that_nobody_charged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(str(path), budget=Budget(delta=DELTA, year=0.5), unit="patient", clock=SetClock())
    page = strict(strict_json(budget_page(Ledger.load(str(path)))))
    assert [window["window"] for window in page["windows"]] == ["trailing", "lifetime"]
    assert page["runs"] == page["purposes"] == []
    assert page["notes"]["weeks"] == ""


def test_seeded_charges_are_counted(tmp_path: Path) -> None:
    assert page_of(tmp_path / "a.db")["seeded_charges"] == 0
    assert page_of(tmp_path / "b.db", simulation=True)["simulation"] is True


def test_operators_acts_and_the_enrolment_that_holds_are_there(tmp_path: Path) -> None:
    first, second = (EnrolmentTerms(num_clients=number, sha256=f"{number:064x}") for number in (100, 120))
    ledger = charged_ledger(tmp_path / "ledger.db", enrolment=first)
    assert budget_page(ledger)["enrolment"] == {"num_clients": 100, "sha256": f"{100:064x}"}
    assert budget_page(ledger)["acts"] == []
    ledger.change_enrolment(second, operator="Ada", reason="a site joined")
    page = strict(strict_json(budget_page(ledger)))
    assert page["enrolment"] == {"num_clients": 120, "sha256": f"{120:064x}"}
    (act,) = page["acts"]
    assert (act["seq"], act["operator"], act["reason"]) == (12, "Ada", "a site joined")
    assert act["act"]["type"] == "enrolment-changed"
    assert page["runs"][0]["charges"] == 4


def test_the_anchor_and_its_file_are_there(tmp_path: Path) -> None:
    ledger = charged_ledger(tmp_path / "ledger.db")
    page = budget_page(ledger)
    assert page["anchor"] == {"ledger_id": page["ledger_id"], **page["head"]}
    file = tmp_path / "ledger.db.anchor"
    assert page["anchor_file"] == {"path": str(file), "status": "kept"}
    file.unlink()
    assert budget_page(ledger)["anchor_file"] == {"path": str(file), "status": "missing"}
