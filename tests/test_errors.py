"""Errors say what, the allowed range and a remedy, and survive a trip between processes."""

from __future__ import annotations

import pickle
from datetime import date

import pytest

from fedDP.budget import BudgetExceeded
from fedDP.errors import DataError, FedDPError, InvalidValueError, LedgerError, ScenarioError

ERRORS = [
    InvalidValueError("delta", -1.0, "a number in (0, 1)", "Choose it well below 1 / clients."),
    ScenarioError("study.toml", ["one", "two"]),
    DataError("table.csv: row 3"),
    LedgerError("altered"),
    BudgetExceeded(
        window="week",
        key="2026-W05",
        spent=0.1,
        asked=0.2,
        allowance=0.15,
        resumes=date(2026, 2, 2),
        spent_fraction=0.6,
        asked_fraction=0.5,
    ),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_pickle(error: FedDPError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_an_invalid_value_names_value_range_and_remedy() -> None:
    assert str(ERRORS[0]) == "delta=-1.0: expected a number in (0, 1). Choose it well below 1 / clients."


def test_a_scenario_error_lists_every_fault() -> None:
    assert str(ERRORS[1]) == "study.toml: 2 faults\n  - one\n  - two"
