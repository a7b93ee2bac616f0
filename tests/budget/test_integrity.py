"""Files that were altered, damaged, locked, or never were a ledger: nothing is granted from them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, Grant, Ledger
from fedDP.budget.records import COLUMNS
from fedDP.errors import InvalidValueError, LedgerError, UnsupportedError

from .ledgers import SetClock, anchor_beside, authorise, count_rows, raw, without_sync

BUDGET = Budget(delta=1e-6, year=0.5)
EVENT = Gaussian(50.0)


def open_ledger(path: Path | str) -> Ledger:
    return Ledger.open(str(path), budget=BUDGET, unit="patient", mode="gaussian", clock=SetClock())


def load(path: Path) -> Ledger:
    return Ledger.load(str(path))


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with rows of most kinds: a definition (0), charges (1, 2, 5), released (3), abandoned (4)."""
    path = tmp_path_factory.mktemp("original") / "ledger.db"
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    ledger.mark_released(authorise(ledger, EVENT, round=2))
    authorise(open_ledger(path), EVENT)
    with raw(path) as connection:
        kinds = [kind for (kind,) in connection.execute("SELECT kind FROM entries ORDER BY seq")]
    assert kinds == ["definition", "charge", "charge", "released", "abandoned", "charge"]
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    shutil.copy(anchor_beside(original), tmp_path)
    return Path(shutil.copy(original, tmp_path))


def assert_refused(path: Path, message: str) -> None:
    size = path.stat().st_size
    for open_it in (open_ledger, load):
        with pytest.raises(LedgerError, match=message):
            open_it(path)
    assert path.stat().st_size == size


def test_the_untouched_copy_is_fine(path: Path) -> None:
    assert open_ledger(path).head[0] == 5


@pytest.mark.parametrize("seq", range(6))
@pytest.mark.parametrize("column", COLUMNS)
def test_any_column_of_any_row(path: Path, seq: int, column: str) -> None:
    with raw(path) as connection:
        (old,) = connection.execute(f"SELECT {column} FROM entries WHERE seq = ?", (seq,)).fetchone()
        if isinstance(old, str):
            new: object = old[:-1] + ("0" if old[-1] != "0" else "1")
        else:
            new = 7 if old is None else old + 100
        connection.execute(f"UPDATE entries SET {column} = ? WHERE seq = ?", (new, seq))
    named = seq
    if column == "seq":  # the row is now the last one, and the gap shows at the next
        named = seq + 1 if seq < 5 else 105
    assert_refused(path, rf"was altered: row {named} does not continue the chain")


@pytest.mark.parametrize(
    "value", [1.5, 0.0, "9e999", "'text'", "x'00ff'", "NULL"], ids=["1.5", "0", "infinite", "text", "bytes", "null"]
)
def test_any_kind_of_value(path: Path, value: object) -> None:
    with raw(path) as connection:
        connection.execute(f"UPDATE entries SET clip_norm = {value} WHERE seq = 2")
    assert_refused(path, "was altered: row 2")


def test_text_that_is_no_text(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("UPDATE entries SET run_id = CAST(x'ff' AS TEXT) WHERE seq = 2")
    assert_refused(path, "cannot be used|was altered: row 2")


@pytest.mark.parametrize("seq", range(5))
def test_a_row_that_was_deleted(path: Path, seq: int) -> None:
    with raw(path) as connection:
        connection.execute("DELETE FROM entries WHERE seq = ?", (seq,))
    assert_refused(path, f"row {seq + 1} does not continue the chain after row {seq - 1}")


def test_rows_cut_off_the_end_while_the_ledger_was_closed(path: Path) -> None:
    """A chain vouches for what is before its head; that more came after is known to the anchor alone."""
    with raw(path) as connection:
        connection.execute("DELETE FROM entries WHERE seq >= 4")
    assert_refused(path, "was rolled back: row 4 is missing, and an anchor has seen row 5")
    anchor_beside(path).unlink()
    assert load(path).head[0] == 3


def test_rows_cut_off_the_end_while_the_ledger_is_open(path: Path) -> None:
    ledger = open_ledger(path)
    with raw(path) as connection:
        connection.execute("DELETE FROM entries WHERE seq >= 4")
    with pytest.raises(LedgerError, match="row 5, its last one so far, is not there any more"):
        authorise(ledger, EVENT, round=3)
    assert count_rows(path) == 4


def test_an_older_copy_put_in_place_of_an_open_ledger(path: Path, tmp_path: Path) -> None:
    older = shutil.copy(path, tmp_path / "older.db")
    ledger = open_ledger(path)
    grant = authorise(ledger, EVENT, round=3)
    shutil.copy(older, path)
    uses: list[Callable[[], Grant | None]] = [
        lambda: authorise(ledger, EVENT, round=4),
        lambda: ledger.mark_released(grant),
    ]
    for use in uses:
        with pytest.raises(LedgerError, match="was altered: row 6"):
            use()


def test_an_open_ledger_whose_file_was_removed(path: Path) -> None:
    ledger = open_ledger(path)
    path.unlink()
    with pytest.raises(LedgerError, match="was altered: row 5"):
        authorise(ledger, EVENT, round=3)


def test_a_ledger_that_is_gone_is_not_begun_anew(path: Path) -> None:
    path.unlink()
    for open_it in (open_ledger, load):
        with pytest.raises(LedgerError, match="was rolled back: row 0 is missing, and an anchor has seen row 5"):
            open_it(path)
    assert not path.exists()


def test_another_ledger_put_in_place_of_an_open_one(path: Path, tmp_path: Path) -> None:
    ledger = open_ledger(path)
    other = open_ledger(tmp_path / "other.db")
    for round in range(1, 7):
        authorise(other, EVENT, round=round)
    shutil.copy(tmp_path / "other.db", path)
    with pytest.raises(LedgerError, match="was altered: row 5"):
        authorise(ledger, EVENT, round=9)


def test_a_row_altered_elsewhere_is_found_by_the_next_to_read_it(path: Path) -> None:
    ledger = open_ledger(path)
    authorise(open_ledger(path), EVENT, round=3)
    with raw(path) as connection:
        connection.execute("UPDATE entries SET costs = '{}' WHERE seq = 6")
    with pytest.raises(LedgerError, match="was altered: row 6"):
        authorise(ledger, EVENT, round=4)


def test_a_row_that_was_added(path: Path) -> None:
    with raw(path) as connection:
        connection.execute(
            "INSERT INTO entries (seq, kind, time_utc, iso_year, iso_week, previous_hash, hash) "
            "SELECT 6, 'released', time_utc, iso_year, iso_week, hash, 'x' FROM entries WHERE seq = 5"
        )
    assert_refused(path, "was altered: row 6")


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to have a header" * 100, b"SQLite format 3\x00" * 99]
)
def test_a_file_that_is_not_a_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    assert_refused(path, "cannot be used")
    assert path.read_bytes() == content


def test_a_damaged_file(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    path.write_bytes(content)
    assert_refused(path, "cannot be used|was altered")


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with raw(path) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(LedgerError, match="is not a ledger: it holds the tables people"):
        open_ledger(path)
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.load(str(path))
    with raw(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("people",)]


def test_an_entries_table_of_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with raw(path) as connection:
        connection.execute("CREATE TABLE entries (text TEXT)")
    assert_refused(path, "no such column")


def test_an_empty_file_left_by_a_crash_becomes_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(LedgerError, match="holds no definition"):
        Ledger.load(str(path))
    assert authorise(open_ledger(path), EVENT).seq == 1


def test_a_table_without_a_definition_left_by_a_crash_becomes_the_ledger(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("DELETE FROM entries")
    anchor_beside(path).unlink()
    assert authorise(open_ledger(path), EVENT).seq == 1


def test_a_directory(tmp_path: Path) -> None:
    for open_it in (open_ledger, load):
        with pytest.raises(LedgerError, match="cannot be used"):
            open_it(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be created"):
        open_ledger(tmp_path / "file" / "ledger.db")


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    assert authorise(open_ledger(tmp_path / "a" / "b" / "ledger.db"), EVENT).seq == 1


def test_a_missing_ledger_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="There is no ledger"):
        Ledger.load(str(tmp_path / "ledger.db"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_cannot_be_written(path: Path) -> None:
    ledger = open_ledger(path)
    path.chmod(0o400)
    with pytest.raises(LedgerError, match="nothing was granted"):
        authorise(ledger, EVENT, round=3)


def test_a_database_that_refuses_to_write(path: Path) -> None:
    ledger = open_ledger(path)
    with raw(path) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(LedgerError, match=r"disk full.*nothing was granted"):
        authorise(ledger, EVENT, round=3)
    with raw(path) as connection:
        connection.execute("DROP TRIGGER full")
    assert authorise(ledger, EVENT, round=3).seq == 6


def test_a_locked_database(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedDP.budget.database._LOCK_SECONDS", 0.05)
    ledger = open_ledger(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match=r"locked.*nothing was granted"):
            authorise(ledger, EVENT, round=3)
        with pytest.raises(LedgerError, match="locked"):
            open_ledger(path)
        other.execute("ROLLBACK")
    assert authorise(ledger, EVENT, round=3).seq == 6


@pytest.mark.parametrize(
    "url", ["postgresql://host/ledger", "postgresql+psycopg://u@host/ledger", "mysql://host/ledger"]
)
def test_other_databases_are_refused_by_name(url: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{url.split(':')[0].split('+')[0]} is not available yet"):
        open_ledger(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_a_ledger_in_memory_is_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="would not survive a crash"):
        open_ledger(url)


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="ledger="):
        open_ledger("://nothing")
