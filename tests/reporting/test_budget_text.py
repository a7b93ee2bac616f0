"""The page of a ledger, as a person reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedDP.budget import Budget, IsoWeek, Ledger
from fedDP.reporting.budget_page import budget_page
from fedDP.reporting.budget_text import budget_text, share_text
from tests.budget.ledgers import SetClock, authorise, without_sync
from tests.reporting.ledgers import FULL, SAMPLED, YEARLY, charged_ledger


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def cells(text: str, first: str) -> list[list[str]]:
    """The cells of the lines whose first word is `first`."""
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first]]


def test_spent_certified_used_and_left_are_columns(tmp_path: Path) -> None:
    page = budget_page(charged_ledger(tmp_path / "ledger.db"))
    text = budget_text(page)
    year = next(window for window in page["windows"] if window["key"] == "2026")
    assert cells(text, "year")[0] == [
        *("year", "2026", f"{year['spent_epsilon']:.4g}", "0.5"),
        *(f"{year['spent_fraction']:.1%}", f"{year['left_fraction']:.1%}", f"{year['spent_fraction']:.1%}", "4"),
    ]
    assert len(cells(text, "week")) == 3
    assert "None" not in text
    words = " ".join(text.split())
    assert "Certified: what holds whatever is charged next; promise this one." in words
    assert page["notes"]["weeks"] in words
    assert page["head"]["hash"] in text


@pytest.mark.parametrize("event", [FULL, SAMPLED], ids=["gaussian", "renyi"])
def test_the_terms_are_there(tmp_path: Path, event: Any) -> None:
    text = budget_text(budget_page(charged_ledger(tmp_path / "ledger.db", event=event)))
    for part in (
        "each patient as a client (zero_out",
        "county",
        "1e-06",
        "an even share of the year",
        "ISO weeks in UTC",
    ):
        assert part in text, part
    assert ("fixed for each window (week " in text) == (event is SAMPLED)
    assert "nominal" not in text


def test_a_simulation_says_that_its_epsilon_is_nominal(tmp_path: Path) -> None:
    assert "nominal" in budget_text(budget_page(charged_ledger(tmp_path / "ledger.db", simulation=True)))


def test_groups_come_with_the_reason_why_they_do_not_add(tmp_path: Path) -> None:
    text = budget_text(budget_page(charged_ledger(tmp_path / "ledger.db")))
    assert cells(text, "=first")[0][1:5] == ["4", "3", "0", "1"]
    assert cells(text, "eval")[0][1:5] == ["1", "0", "1", "0"]
    assert "Do not add the groups' epsilons" in " ".join(text.split())
    assert "of 2026  of 2027" in text


def year_of_weeks(path: Path) -> dict[str, Any]:
    clock = SetClock()
    clock.set_week("2026-W01")
    ledger = Ledger.open(str(path), budget=YEARLY, unit="patient", mode="gaussian", clock=clock)
    for week in range(1, 31):
        clock.time = IsoWeek(2026, week).monday
        for round in range(2 if week == 5 else 1):
            authorise(ledger, FULL, run_id=f"run{week}", round=round)
    return budget_page(Ledger.load(str(path)))


def test_a_long_year_shows_its_worst_and_last_weeks(tmp_path: Path) -> None:
    page = year_of_weeks(tmp_path / "ledger.db")
    text = budget_text(page)
    weeks = cells(text, "week")
    assert [row[1] for row in weeks] == ["2026-W05", "2026-W27", "2026-W28", "2026-W29", "2026-W30", "25"]
    assert weeks[-1][2:4] == ["more", "(--all)"]
    assert weeks[-1][-1] == "25"
    week = next(window for window in page["windows"] if window["key"] == "2026-W01")
    assert f"<= {week['spent_epsilon']:.4g}" in text
    assert len(cells(budget_text(page, everything=True), "week")) == 30


def test_many_runs_show_the_last_and_sum_up_the_rest(tmp_path: Path) -> None:
    page = year_of_weeks(tmp_path / "ledger.db")
    text = budget_text(page)
    assert "22 earlier (--all)" in text
    (earlier,) = [line.split() for line in text.splitlines() if "earlier (--all)" in line]
    assert earlier[3:] == ["23", "0", "23", "0", "-", "-", f"{sum(r['shares']['2026'] for r in page['runs'][:22]):.1%}"]
    assert "run1 " not in text
    assert "run30 " in text
    assert "run1 " in budget_text(page, everything=True)


def test_a_ledger_that_nobody_charged_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(str(path), budget=Budget(delta=1e-6), unit="patient", clock=SetClock())
    text = budget_text(budget_page(Ledger.load(str(path))))
    assert "none: nothing is refused" in text
    assert "By run" not in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(None, "-"), (0.0, "0.0%"), (1e-9, "<0.1%"), (0.057, "5.7%"), (0.99999, ">99.9%"), (1.0, "100.0%")],
)
def test_a_share_is_whole_or_nothing_only_when_it_is(fraction: float | None, text: str) -> None:
    assert share_text(fraction) == text


def test_operators_and_a_missing_anchor_file_are_on_the_page(tmp_path: Path) -> None:
    ledger = charged_ledger(tmp_path / "ledger.db")
    text = " ".join(budget_text(budget_page(ledger)).split())
    assert "ledger.db.anchor agrees" in text
    assert "Operators" not in text
    (tmp_path / "ledger.db.anchor").unlink()
    assert "ledger.db.anchor is MISSING" in " ".join(budget_text(budget_page(ledger)).split())
    ledger.reset_anchor(operator="Ada", reason="the disk was replaced")
    text = budget_text(budget_page(ledger))
    assert "row 12  anchor-reset  Ada  the disk was replaced" in text
