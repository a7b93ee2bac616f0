"""Ledgers in SQLite files: damaged, in the way of others, on full or read-only disks."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, Ledger
from fedDP.budget.database import Database
from fedDP.errors import InvalidValueError, LedgerError

from .ledgers import SetClock, anchor_beside, authorise, count_rows, raw, without_sync

BUDGET = Budget(delta=1e-6, year=0.5)
EVENT = Gaussian(50.0)


def open_ledger(path: Path | str) -> Ledger:
    return Ledger.open(str(path), budget=BUDGET, unit="patient", mode="gaussian", clock=SetClock())


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with two charges."""
    ledger = open_ledger(tmp_path / "ledger.db")
    authorise(ledger, EVENT)
    authorise(ledger, EVENT, round=2)
    return tmp_path / "ledger.db"


def assert_refused(path: Path, message: str) -> None:
    content = path.read_bytes()
    for open_it in (open_ledger, lambda path: Ledger.load(str(path))):
        with pytest.raises(LedgerError, match=message):
            open_it(path)
    assert path.read_bytes() == content


# Files that are no ledger


def test_text_that_is_no_text(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("UPDATE entries SET run_id = CAST(x'ff' AS TEXT) WHERE seq = 2")
    assert_refused(path, "cannot be used|was altered: row 2")


def test_an_open_ledger_whose_file_was_removed(path: Path) -> None:
    ledger = open_ledger(path)
    path.unlink()
    with pytest.raises(LedgerError, match="was altered: row 2"):
        authorise(ledger, EVENT, round=3)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to have a header" * 100, b"SQLite format 3\x00" * 99]
)
def test_a_file_that_is_not_a_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    assert_refused(path, "cannot be used")


def test_a_damaged_file(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    path.write_bytes(content)
    assert_refused(path, "cannot be used|was altered")


def test_an_empty_file_left_by_a_crash_becomes_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(LedgerError, match="holds no definition"):
        Ledger.load(str(path))
    assert authorise(open_ledger(path), EVENT).seq == 1


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be used"):
        open_ledger(tmp_path)
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger.load(str(tmp_path))


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


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_a_ledger_in_memory_is_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="would not survive a crash"):
        open_ledger(url)


@pytest.mark.parametrize("url", ["sqlite:///ledger.db?nolock=1", "sqlite:///file:ledger.db?mode=ro"])
def test_options_are_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="without options"):
        open_ledger(url)


def test_every_new_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("fedDP.budget.database._sync", synced.append)
    open_ledger(tmp_path / "a" / "b" / "ledger.db")
    assert synced == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


# Disks that cannot be written


@contextmanager
def as_anybody() -> Iterator[None]:
    """What follows is done without the rights of root, who may write everything."""
    if (user := os.geteuid()) != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def open_path(path: Path) -> Iterator[Path]:
    """The same ledger where everybody may enter and write."""
    folder = Path(tempfile.mkdtemp())
    copy = Path(shutil.copy(path, folder))
    folder.chmod(0o777)
    copy.chmod(0o666)
    Path(shutil.copy(anchor_beside(path), folder)).chmod(0o666)
    yield copy
    shutil.rmtree(folder)


def test_a_file_that_cannot_be_written(open_path: Path) -> None:
    with as_anybody():
        ledger = open_ledger(open_path)
    open_path.chmod(0o444)
    with as_anybody(), pytest.raises(LedgerError, match=r"readonly database\); nothing was granted"):
        authorise(ledger, EVENT, round=3)
    assert count_rows(open_path) == 3
    open_path.chmod(0o666)
    with as_anybody():
        assert authorise(ledger, EVENT, round=3).seq == 3


def test_a_folder_that_cannot_be_written(open_path: Path) -> None:
    with as_anybody():
        ledger = open_ledger(open_path)
    open_path.parent.chmod(0o555)  # no room for the journal
    with as_anybody(), pytest.raises(LedgerError, match=r"database( file)?\); nothing was granted"):
        authorise(ledger, EVENT, round=3)
    with as_anybody(), pytest.raises(LedgerError, match="database"):
        open_ledger(open_path.with_name("another.db"))
    open_path.parent.chmod(0o777)
    with as_anybody():
        assert authorise(ledger, EVENT, round=3).seq == 3


FILL_THE_DISK = """
import resource, sys
from fedDP.accounting import Gaussian
from fedDP.budget import Budget, Ledger
from fedDP.errors import LedgerError
path = sys.argv[1]
ledger = Ledger.open(path, budget=Budget(delta=1e-6), unit="patient", mode="gaussian")
def charge(round):
    ledger.authorise(Gaussian(50.0), run_id="r", round=round, purpose="train", clip_norm=1.0, denominator=10.0)
charge(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
granted = 1
while True:
    try:
        charge(granted)
    except LedgerError as error:
        print(error)
        break
    granted += 1
print(granted, ledger.num_charges(), len(ledger.charged_rounds("r")))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
charge(granted)
print(ledger.num_charges())
"""


@pytest.mark.e2e
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    command = [sys.executable, "-c", FILL_THE_DISK, str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    message, counts, after = output.splitlines()
    granted = int(counts.split()[0])
    assert "nothing was granted" in message
    assert granted > 10
    assert counts == f"{granted} {granted} {granted}"
    assert after == str(granted + 1)
    assert count_rows(path, "charge") == granted + 1
    assert Ledger.load(str(path)).num_charges() == granted + 1


def test_a_database_that_may_not_grow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(path)
    with raw(path) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    with monkeypatch.context() as full:
        without_sync(full, f"PRAGMA max_page_count={pages}")
        with pytest.raises(LedgerError, match=r"database or disk is full\); nothing was granted"):  # noqa: PT012
            for round in range(3, 1000):
                authorise(ledger, EVENT, round=round)
    charges = ledger.num_charges()
    assert count_rows(path, "charge") == charges
    assert authorise(ledger, EVENT, round=2000).seq == charges + 1


# Others


def test_a_reader_in_the_way_of_a_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedDP.budget.database._LOCK_SECONDS", 0.05)
    ledger = open_ledger(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM entries").fetchone()
        with pytest.raises(LedgerError, match=r"locked.*nothing was granted"):
            authorise(ledger, EVENT, round=3)
        other.execute("ROLLBACK")
    assert authorise(ledger, EVENT, round=3).seq == 3


def test_a_short_lock_is_waited_for(path: Path) -> None:
    ledger = open_ledger(path)
    other = Database(str(path)).transaction()
    other.__enter__()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(authorise, ledger, EVENT, round=3)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.1)
        other.__exit__(None, None, None)
        assert waiting.result(timeout=30).seq == 3
