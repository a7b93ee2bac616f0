"""Exports: what an auditor gets."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from fedDP.budget import Budget, EnrolmentTerms, Ledger
from fedDP.budget.records import GENESIS_HASH
from fedDP.reporting.budget_export import CSV_COLUMNS, export_csv, export_json, unescape
from fedDP.scenario.strict_json import strict_json
from tests.budget.ledgers import SetClock, authorise, without_sync
from tests.reporting.ledgers import FULL, SAMPLED, charged_ledger
from tests.scenario.runs import strict


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_every_row_is_there_with_flat_columns(tmp_path: Path) -> None:
    ledger = charged_ledger(tmp_path / "ledger.db", event=SAMPLED)
    rows = read(export_csv(ledger))
    assert [int(row["seq"]) for row in rows] == list(range(12))
    assert list(rows[0]) == list(CSV_COLUMNS)
    charges = [row for row in rows if row["kind"] == "charge"]
    assert [row["status"] for row in charges] == [
        "released",
        "released",
        "abandoned",
        "released",
        "released",
        "charged",
    ]
    assert [row["attempt"] for row in charges] == ["1", "1", "1", "2", "1", "1"]
    assert [row["week"] for row in charges] == ["2026-W52"] * 2 + ["2026-W53"] * 2 + ["2027-W01"] * 2
    for row in charges:
        assert float(row["noise_multiplier"]) == SAMPLED.noise_multiplier
        assert (row["mechanism"], row["sampling"], row["sampling_rate"]) == ("gaussian", "poisson", "0.1")
        assert (row["neighboring_relation"], row["delta"], row["count"]) == ("zero_out", "1e-06", "1")
        assert (row["clip_norm"], row["denominator"], row["max_weight"]) == ("1.0", "10.0", "1.0")
        assert int(row["cost_week"]) > int(row["cost_year"]) > 0
    assert all(row["status"] == row["noise_multiplier"] == "" for row in rows if row["kind"] != "charge")
    assert rows[-1]["hash"] == ledger.head[1]
    assert [row["previous_hash"] for row in rows[1:]] == [row["hash"] for row in rows[:-1]]


def test_full_participation_has_no_rate(tmp_path: Path) -> None:
    (row, *_) = [row for row in read(export_csv(charged_ledger(tmp_path / "l.db"))) if row["kind"] == "charge"]
    assert (row["sampling"], row["sampling_rate"], row["cost_lifetime"]) == ("full_participation", "", "")


def test_numbers_survive_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(
        str(path), budget=Budget(delta=1e-6, year=0.5), unit="patient", mode="gaussian", clock=SetClock()
    )
    clip, divisor = 0.1 + 0.2, 1e5 / 3
    authorise(ledger, FULL, clip_norm=clip, denominator=divisor)
    (stored,) = [row for row in ledger.rows() if row["kind"] == "charge"]
    (row,) = [row for row in read(export_csv(Ledger.load(str(path)))) if row["kind"] == "charge"]
    assert (float(row["clip_norm"]), float(row["denominator"])) == (clip, divisor)
    assert {name: row[f"cost_{name}"] for name in json.loads(stored["costs"])} == json.loads(stored["costs"])


FORMULAS = [
    "=1+1",
    "+1",
    "-2",
    "@sum(a)",
    "'=1",
    "\uff1d1",
    "a;=cmd|x",
    'say "=1"',
    "a,-b",
    "plain-name",
    "it's",
    "a|+b",
    "''",
]


def test_no_text_becomes_a_formula_and_all_of_it_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(str(path), budget=Budget(delta=1e-6), unit="patient", mode="gaussian", clock=SetClock())
    for name in FORMULAS:
        authorise(ledger, FULL, run_id=name, purpose=name)
    text = export_csv(Ledger.load(str(path)))
    for separator in (",", ";", "|"):  # a spreadsheet takes what its country does
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            assert not [cell for cell in row if cell[:1] in tuple("=+-@\uff1d\uff0b\uff0d\uff20")]
    rows = [row for row in read(text) if row["kind"] == "charge"]
    assert [unescape(row["run_id"]) for row in rows] == FORMULAS
    assert [unescape(row["purpose"]) for row in rows] == FORMULAS
    assert "plain-name" in [row["run_id"] for row in rows]


def test_the_chain_can_be_recomputed_from_the_json(tmp_path: Path) -> None:
    page: dict[str, Any] = strict(strict_json(export_json(charged_ledger(tmp_path / "ledger.db", event=SAMPLED))))
    previous = GENESIS_HASH
    for row in page["rows"]:
        text = json.dumps([row[name] for name in page["hashed_columns"]], separators=(",", ":"))
        assert row["previous_hash"] == previous
        assert row["hash"] == hashlib.sha256(text.encode()).hexdigest()
        previous = row["hash"]
    anchor = page["anchor"]
    assert (anchor["seq"], anchor["hash"]) == (len(page["rows"]) - 1, previous)
    assert json.loads(page["rows"][0]["definition"]) == page["definition"]
    assert page["definition"]["unit"] == "patient"
    assert set(page["rows"][1]) >= set(CSV_COLUMNS)


def test_nothing_finer_than_a_day_is_exported(tmp_path: Path) -> None:
    """How long a round took tells of its cohort, so neither format may show it."""
    for row in export_json(charged_ledger(tmp_path / "ledger.db"))["rows"]:
        assert row["time_utc"].endswith("T00:00:00+00:00")


def test_operators_rows_are_exported(tmp_path: Path) -> None:
    ledger = charged_ledger(tmp_path / "ledger.db")
    terms = EnrolmentTerms(num_clients=120, sha256="ab" * 32)
    ledger.change_enrolment(terms, operator="@Ada", reason="=a site joined")
    row = read(export_csv(Ledger.load(str(tmp_path / "ledger.db"))))[-1]
    assert (row["kind"], row["operator"], row["reason"]) == ("operator", "'@Ada", "'=a site joined")
    assert json.loads(unescape(row["act"]))["enrolment"] == {"num_clients": 120, "sha256": "ab" * 32}
    assert row["status"] == row["cost_year"] == ""
