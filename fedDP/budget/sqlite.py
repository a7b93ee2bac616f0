"""A ledger in a SQLite file: exclusive transactions, on the disk before COMMIT returns."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine

from fedDP.errors import InvalidValueError

_LONGEST_PAUSE_SECONDS = 0.01


def sqlite_engine(url: str, parsed: URL, lock_seconds: float) -> Engine:
    """An engine that opens a connection for each transaction.

    Args:
        url: what the user wrote, a path where it has no ``://``.
        parsed: the same for SQLAlchemy.
        lock_seconds: how long a transaction waits for those of others before it gives up.

    Raises:
        InvalidValueError: for a database in memory, or options.
    """
    if not parsed.database or parsed.database == ":memory:":
        raise InvalidValueError("ledger", url, "a file", "A ledger in memory would not survive a crash.")
    if "://" in url and (parsed.query or parsed.database.startswith("file:")):
        # SQLite's options can switch its locks off, and with them the exclusive transaction.
        raise InvalidValueError("ledger", url, "sqlite:/// and a path, without options")
    # No pool: a connection lives as long as its transaction, so nothing is shared over a fork or left locked.
    engine = sqlalchemy.create_engine(
        parsed, poolclass=sqlalchemy.NullPool, connect_args={"timeout": 0.0}, hide_parameters=True
    )

    def connect(connection: sqlite3.Connection, record: Any) -> None:
        _in_turn(lambda: _configure(connection, record), lock_seconds)

    def begin(connection: Connection) -> None:
        database: Any = connection.connection.driver_connection
        _in_turn(lambda: database.execute("BEGIN IMMEDIATE"), lock_seconds)
        # From here only somebody who reads the file by other means can be in the way, at COMMIT.
        database.execute(f"PRAGMA busy_timeout={int(lock_seconds * 1000)}")

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)
    return engine


def _in_turn(step: Callable[[], object], lock_seconds: float) -> None:
    """Does `step` as soon as the file is not locked.

    SQLite's own wait sleeps longer the longer it has waited, so that a busy ledger starves those who came first. Short
    random pauses give everybody the same chance each time.
    """
    deadline = time.monotonic() + lock_seconds
    while True:
        try:
            step()
            return
        except sqlite3.OperationalError as error:
            # The low byte; the others tell kinds of it apart.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0, _LONGEST_PAUSE_SECONDS))


def _configure(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are ours: BEGIN IMMEDIATE
    # The rollback journal, with its directory synced too (EXTRA): when COMMIT returns, the row is on the disk, and the
    # file alone is the whole ledger.
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("PRAGMA synchronous=EXTRA")
