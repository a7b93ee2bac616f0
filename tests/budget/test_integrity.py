"""Ledgers that were altered, exchanged, or never were one: nothing is granted from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, Grant, Ledger
from fedDP.budget.records import COLUMNS
from fedDP.errors import LedgerError

from .ledgers import SetClock, authorise, without_sync
from .places import Place, SQLitePlace, count_rows

BUDGET = Budget(delta=1e-6, year=0.5)
EVENT = Gaussian(50.0)


def open_ledger(place: Place) -> Ledger:
    return Ledger.open(place.url, budget=BUDGET, unit="patient", mode="gaussian", clock=SetClock())


def load(place: Place) -> Ledger:
    return Ledger.load(place.url)


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> SQLitePlace:
    """A ledger with rows of every kind: a definition (0), charges (1, 2, 5), released (3), abandoned (4)."""
    place = SQLitePlace(tmp_path_factory.mktemp("original") / "ledger.db")
    ledger = open_ledger(place)
    authorise(ledger, EVENT)
    ledger.mark_released(authorise(ledger, EVENT, round=2))
    authorise(open_ledger(place), EVENT)
    kinds = [kind for (kind,) in place.execute("SELECT kind FROM entries ORDER BY seq")]
    assert kinds == ["definition", "charge", "charge", "released", "abandoned", "charge"]
    return place


@pytest.fixture
def empty(place: Place) -> Place:
    return place.another()


@pytest.fixture(name="place")
def copy_of_the_original(place: Place, original: SQLitePlace) -> Place:
    place.replace(original)
    return place


def rows(place: Place) -> list[tuple[Any, ...]]:
    return sorted(place.execute("SELECT * FROM entries"), key=repr)


def assert_refused(place: Place, message: str) -> None:
    before = rows(place)
    for open_it in (open_ledger, load):
        with pytest.raises(LedgerError, match=message):
            open_it(place)
    assert rows(place) == before


def test_the_untouched_copy_is_fine(place: Place) -> None:
    assert open_ledger(place).head[0] == 5


@pytest.mark.parametrize("seq", range(6))
@pytest.mark.parametrize("column", COLUMNS)
def test_any_column_of_any_row(place: Place, seq: int, column: str) -> None:
    ((old,),) = place.execute(f"SELECT {column} FROM entries WHERE seq = :seq", seq=seq)
    if isinstance(old, str):
        new: object = old[:-1] + ("0" if old[-1] != "0" else "1")
    else:
        new = "7" if old is None else old + 100
    place.execute(f"UPDATE entries SET {column} = :new WHERE seq = :seq", new=new, seq=seq)
    named = seq
    if column == "seq":  # the row is now the last one, and the gap shows at the next
        named = seq + 1 if seq < 5 else 105
    assert_refused(place, rf"was altered: row {named} does not continue the chain")


@pytest.mark.parametrize("value", [1.5, 0.0, float("inf"), None])
def test_any_kind_of_value(place: Place, value: object) -> None:
    place.execute("UPDATE entries SET clip_norm = :value WHERE seq = 2", value=value)
    assert_refused(place, "was altered: row 2")


@pytest.mark.parametrize("seq", range(5))
def test_a_row_that_was_deleted(place: Place, seq: int) -> None:
    place.execute("DELETE FROM entries WHERE seq = :seq", seq=seq)
    assert_refused(place, f"row {seq + 1} does not continue the chain after row {seq - 1}")


def test_rows_cut_off_the_end_while_the_ledger_was_closed(place: Place) -> None:
    """A chain vouches for what is before its head; that more came after is known to an anchor alone."""
    anchor = open_ledger(place).anchor
    place.execute("DELETE FROM entries WHERE seq >= 4")
    with pytest.raises(LedgerError, match="was rolled back: row 4 is missing, and an anchor has seen row 5"):
        Ledger.load(place.url, anchors=[anchor])
    if isinstance(place, SQLitePlace):
        assert_refused(place, "was rolled back: row 4 is missing, and an anchor has seen row 5")
        place.anchor.unlink()
    assert load(place).head[0] == 3


def test_a_ledger_that_is_gone_is_not_begun_anew(place: Place) -> None:
    if not isinstance(place, SQLitePlace):
        pytest.skip("without an operator file beside it")
    place.path.unlink()
    for open_it in (open_ledger, load):
        with pytest.raises(LedgerError, match="was rolled back: row 0 is missing, and an anchor has seen row 5"):
            open_it(place)
    assert not place.path.exists()


def test_rows_cut_off_the_end_while_the_ledger_is_open(place: Place) -> None:
    ledger = open_ledger(place)
    place.execute("DELETE FROM entries WHERE seq >= 4")
    with pytest.raises(LedgerError, match="row 5, its last one so far, is not there any more"):
        authorise(ledger, EVENT, round=3)
    assert count_rows(place) == 4


def test_an_older_copy_put_in_place_of_an_open_ledger(place: Place) -> None:
    older = place.copy()
    ledger = open_ledger(place)
    grant = authorise(ledger, EVENT, round=3)
    place.replace(older)
    uses: list[Callable[[], Grant | None]] = [
        lambda: authorise(ledger, EVENT, round=4),
        lambda: ledger.mark_released(grant),
    ]
    for use in uses:
        with pytest.raises(LedgerError, match="was altered: row 6"):
            use()


def test_another_ledger_put_in_place_of_an_open_one(place: Place) -> None:
    ledger = open_ledger(place)
    another = place.another()
    other = open_ledger(another)
    for round in range(1, 7):
        authorise(other, EVENT, round=round)
    place.replace(another)
    with pytest.raises(LedgerError, match="was altered: row 5"):
        authorise(ledger, EVENT, round=9)


def test_a_row_altered_elsewhere_is_found_by_the_next_to_read_it(place: Place) -> None:
    ledger = open_ledger(place)
    authorise(open_ledger(place), EVENT, round=3)
    place.execute("UPDATE entries SET costs = '{}' WHERE seq = 6")
    with pytest.raises(LedgerError, match="was altered: row 6"):
        authorise(ledger, EVENT, round=4)


def test_a_row_that_was_added(place: Place) -> None:
    place.execute(
        "INSERT INTO entries (seq, kind, time_utc, iso_year, iso_week, previous_hash, hash) "
        "SELECT 6, 'released', time_utc, iso_year, iso_week, hash, 'x' FROM entries WHERE seq = 5"
    )
    assert_refused(place, "was altered: row 6")


def test_a_table_without_a_definition_left_by_a_crash_becomes_the_ledger(place: Place) -> None:
    place.execute("DELETE FROM entries")
    if isinstance(place, SQLitePlace):
        place.anchor.unlink()
    assert authorise(open_ledger(place), EVENT).seq == 1


def test_an_open_ledger_whose_table_was_removed(place: Place) -> None:
    ledger = open_ledger(place)
    place.execute("DROP TABLE entries")
    with pytest.raises(LedgerError, match="was altered: row 5"):
        authorise(ledger, EVENT, round=3)


def test_another_programs_database_is_left_alone(empty: Place) -> None:
    empty.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(LedgerError, match="is not a ledger: it holds the tables people"):
        open_ledger(empty)
    with pytest.raises(LedgerError, match="no ledger"):
        load(empty)
    empty.execute("DROP TABLE people")  # the only one, so that now it is an empty database
    assert open_ledger(empty).head[0] == 0


def test_an_entries_table_of_another_shape(empty: Place) -> None:
    empty.execute("CREATE TABLE entries (text TEXT)")
    assert_refused(empty, "no such column")
