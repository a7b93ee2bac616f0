"""What goes wrong while a ledger is charged: nothing is granted, nothing is lost, and it works again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, BudgetExceeded, Ledger
from fedDP.budget.database import Database
from fedDP.errors import LedgerError

from .ledgers import SetClock, authorise, noise_for, without_sync
from .places import Place, SQLitePlace, count_rows

BUDGET = Budget(delta=1e-6, lifetime=0.5)
EVENT = Gaussian(noise_for(3, BUDGET, "gaussian"))


def open_ledger(place: Place) -> Ledger:
    return Ledger.open(place.url, budget=BUDGET, unit="patient", mode="gaussian", clock=SetClock())


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def refuse_charges(place: Place) -> None:
    """From now on the database refuses to insert charges, and charges alone."""
    if isinstance(place, SQLitePlace):
        place.execute(
            "CREATE TRIGGER full BEFORE INSERT ON entries WHEN NEW.kind = 'charge' "
            "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
        return
    place.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'the disk is full' USING ERRCODE = 'disk_full', DETAIL = 'the row'; END$$"
    )
    place.execute(
        "CREATE TRIGGER \"full\" BEFORE INSERT ON entries FOR EACH ROW WHEN (NEW.kind = 'charge') "
        "EXECUTE FUNCTION refuse()"
    )


def accept_charges(place: Place) -> None:
    place.execute("DROP TRIGGER full" if isinstance(place, SQLitePlace) else 'DROP TRIGGER "full" ON entries')


def test_a_charge_that_cannot_be_written_leaves_nothing(place: Place) -> None:
    """Not even the row before it in the same transaction, here or in memory."""
    authorise(open_ledger(place), EVENT)
    ledger = open_ledger(place)  # as after a crash: the charge above is open, and will be abandoned
    before = ledger.head
    refuse_charges(place)
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"\(the disk is full\); nothing was granted\.$"):
            authorise(ledger, EVENT)
    assert ledger.head == before == open_ledger(place).head
    assert ledger.num_charges() == count_rows(place, "charge") == 1
    assert count_rows(place) == 2
    accept_charges(place)
    assert authorise(ledger, EVENT).attempt == 2
    assert count_rows(place, "abandoned") == 1


def test_messages_do_not_hold_the_row(place: Place) -> None:
    ledger = open_ledger(place)
    refuse_charges(place)
    with pytest.raises(LedgerError, match=r"\(the disk is full\); nothing was granted\.$") as caught:
        authorise(ledger, EVENT, run_id="a run of one person")
    cause = caught.value.__cause__
    assert cause is not None
    assert "one person" not in str(cause)  # which a traceback shows


@pytest.mark.parametrize("written", [False, True])
def test_a_commit_of_which_nobody_knows_the_outcome(place: Place, written: bool) -> None:
    """It grants nothing, and counts when it is there."""
    ledger = open_ledger(place)
    authorise(ledger, EVENT)
    lose_the_next_commit(ledger, written=written)
    with pytest.raises(LedgerError, match="nothing was granted, and if the charge is there all the same, it counts"):
        authorise(ledger, EVENT, round=2)
    assert ledger.num_charges() == 1
    assert count_rows(place, "charge") == 1 + written
    again = authorise(ledger, EVENT, round=2)
    assert (again.attempt, ledger.num_charges()) == (1 + written, 2 + written)
    if written:
        with pytest.raises(BudgetExceeded):  # made for three
            authorise(ledger, EVENT, round=3)
    else:
        authorise(ledger, EVENT, round=3)
    assert open_ledger(place).head == ledger.head


@pytest.mark.parametrize("written", [False, True])
def test_a_mark_of_which_nobody_knows_whether_it_was_written(place: Place, written: bool) -> None:
    ledger = open_ledger(place)
    grant = authorise(ledger, EVENT)
    lose_the_next_commit(ledger, written=written)
    with pytest.raises(LedgerError, match="cannot be used"):
        ledger.mark_released(grant)
    assert ledger.num_charges(unreleased=True) == 1
    if written:
        with pytest.raises(LedgerError, match="is released already"):
            ledger.mark_released(grant)
    else:
        ledger.mark_released(grant)
    assert ledger.num_charges(unreleased=True) == 0
    assert count_rows(place, "released") == 1


def lose_the_next_commit(ledger: Ledger, *, written: bool) -> None:
    """The next COMMIT ends with an error, after or before it did its work."""
    dialect: Any = ledger._database._engine.dialect
    real: Callable[[Any], None] = dialect.do_commit

    def do_commit(connection: Any) -> None:
        dialect.do_commit = real
        if written:
            real(connection)
        raise dialect.dbapi.OperationalError("the connection was lost")

    dialect.do_commit = do_commit


def test_a_ledger_that_another_holds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedDP.budget.database._LOCK_SECONDS", 0.05)
    ledger = open_ledger(place)
    with Database(place.url).transaction():
        with pytest.raises(LedgerError, match=r"lock.*nothing was granted"):
            authorise(ledger, EVENT, round=3)
        with pytest.raises(LedgerError, match="lock"):
            open_ledger(place)
        with pytest.raises(LedgerError, match="lock"):
            Ledger.load(place.url)
    assert authorise(ledger, EVENT, round=3).seq == 1


def test_an_error_in_a_transaction_leaves_nothing(place: Place) -> None:
    ledger = open_ledger(place)
    with pytest.raises(ZeroDivisionError), ledger._database.transaction() as connection:  # noqa: PT012
        connection.exec_driver_sql("DELETE FROM entries")
        raise ZeroDivisionError
    assert authorise(ledger, EVENT).seq == 1
