"""With an enrolment, a ledger holds every run to what its first charge said; an operator alone begins another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson
from fedDP.accounting.events import FixedSize
from fedDP.budget import Budget, EnrolmentTerms, Ledger, verify
from fedDP.budget.enrolment_terms import population_conflict
from fedDP.errors import InvalidValueError, LedgerError

from .ledgers import SetClock, authorise, count_rows, raw, without_sync

BUDGET = Budget(delta=1e-6, year=5.0)
FIRST = EnrolmentTerms(num_clients=100, sha256="0" * 64)
SECOND = EnrolmentTerms(num_clients=120, sha256="1" * 64)


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def open_ledger(path: Path, enrolment: EnrolmentTerms | None = FIRST) -> Ledger:
    return Ledger.open(str(path), budget=BUDGET, unit="patient", mode="renyi", clock=SetClock(), enrolment=enrolment)


def event(noise: float = 50.0, rate: float = 0.1) -> Gaussian:
    return Gaussian(noise, sampling=Poisson(rate))


def test_an_enrolment_is_fixed_at_creation(path: Path) -> None:
    open_ledger(path)
    assert open_ledger(path).definition.enrolment == FIRST
    for other in (SECOND, None):
        with pytest.raises(LedgerError, match=r"kept for enrolment=.*num_clients=100.*feddp budget enrol LEDGER"):
            open_ledger(path, other)


def test_a_ledger_without_one_does_not_acquire_one_silently(path: Path) -> None:
    open_ledger(path, None)
    with pytest.raises(LedgerError, match="kept for enrolment=None"):
        open_ledger(path, FIRST)
    Ledger.load(str(path)).change_enrolment(FIRST, operator="Ada", reason="first list")
    assert authorise(open_ledger(path, FIRST), event()).seq == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [({"denominator": 11.0}, "denominator is 10.0"), ({"event": event(rate=0.2)}, r"sampling is Poisson\(rate=0.1\)")],
)
def test_a_run_keeps_the_terms_of_its_first_charge(path: Path, change: dict[str, Any], message: str) -> None:
    ledger = open_ledger(path)
    authorise(ledger, event())
    for each in (ledger, open_ledger(path)):
        with pytest.raises(LedgerError, match=f"train of run 'run' cannot be charged: its {message}"):
            authorise(each, **{"event": event(), "round": 2, **change})
    assert count_rows(path) == 2
    authorise(ledger, event(noise=60.0), round=2)  # noise may change from round to round
    authorise(ledger, **{"event": event(), "run_id": "another", **change})
    authorise(ledger, **{"event": event(), "purpose": "metric", **change})
    assert verify(str(path)).charges == 4


def test_without_an_enrolment_nothing_is_asked(path: Path) -> None:
    ledger = open_ledger(path, None)
    authorise(ledger, event())
    authorise(ledger, event(rate=0.2), round=2, denominator=11.0)
    assert [row["enrolment"] for row in ledger.rows()] == [None] * 3
    assert verify(str(path)).charges == 2


def test_an_operator_begins_another_enrolment(path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, event())
    Ledger.load(str(path)).change_enrolment(SECOND, operator="Ada", reason="twenty joined")
    with pytest.raises(LedgerError, match=r"its enrolment is 1 since its first charge, now 2.*run_id of its own"):
        authorise(ledger, event(), round=2)
    with pytest.raises(LedgerError, match=r"kept for enrolment=.*num_clients=120"):
        open_ledger(path)
    reopened = open_ledger(path, SECOND)
    authorise(reopened, event(rate=0.3), run_id="another", denominator=36.0)
    rows = list(reopened.rows())
    assert [row["enrolment"] for row in rows] == [None, 1, None, 2]
    assert (rows[2]["operator"], rows[2]["reason"]) == ("Ada", "twenty joined")
    assert json.loads(rows[2]["act"]) == {
        "type": "enrolment-changed",
        "version": 2,
        "enrolment": {"num_clients": 120, "sha256": "1" * 64},
    }
    assert verify(str(path)).kinds == {"definition": 1, "charge": 2, "operator": 1}


def test_the_same_enrolment_is_no_change(path: Path) -> None:
    with pytest.raises(LedgerError, match="already"):
        open_ledger(path).change_enrolment(FIRST, operator="Ada", reason="none")
    with pytest.raises(InvalidValueError, match="enrolment="):
        open_ledger(path).change_enrolment({"num_clients": 3}, operator="Ada", reason="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="operator="):
        open_ledger(path).change_enrolment(SECOND, operator="", reason="x")
    assert count_rows(path) == 1


def test_a_cohort_is_drawn_from_the_enrolled(path: Path) -> None:
    of_hundred, of_fewer = (Gaussian(50.0, sampling=FixedSize(10, population)) for population in (100, 90))
    assert population_conflict(of_hundred, FIRST) is None
    assert population_conflict(of_fewer, None) is None
    assert population_conflict(of_fewer, FIRST) == "its cohort is drawn from 90 clients and 100 are enrolled"
    assert open_ledger(path)._state.conflict(("run", 1, "train"), of_fewer, 10.0) is not None


@pytest.mark.parametrize(
    "values",
    [{"num_clients": value} for value in (0, -1, 1.5, True, float("nan"), float("inf"), "100", 10**10)]
    + [{"sha256": value} for value in ("", "0" * 63, "0" * 65, "A" * 64, "g" * 64, 0, None)],
    ids=repr,
)
def test_terms_outside_their_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=f"{next(iter(values))}="):
        EnrolmentTerms(**{"num_clients": 100, "sha256": "0" * 64, **values})


def test_what_is_no_enrolment_is_refused(path: Path) -> None:
    with pytest.raises(InvalidValueError, match="enrolment="):
        open_ledger(path, {"num_clients": 100, "sha256": "0" * 64})  # type: ignore[arg-type]
    assert not path.exists()


def test_a_table_of_an_earlier_schema_is_refused_by_its_version(path: Path) -> None:
    open_ledger(path)
    with raw(path) as connection:
        connection.execute("ALTER TABLE entries DROP COLUMN enrolment")
    with pytest.raises(LedgerError, match=r"reads ledgers of schema version 2.*no such column as enrolment"):
        Ledger.load(str(path))
