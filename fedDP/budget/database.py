"""The ledger's database: SQLite through SQLAlchemy, every commit on the disk before it returns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from fedDP.budget.records import entries
from fedDP.errors import InvalidValueError, LedgerError, UnsupportedError

_LOCK_SECONDS = 30.0


class Database:
    """Rows, appended one exclusive transaction at a time.

    Args:
        url: ``sqlite:///path/to/ledger.db``, or just the path.

    Raises:
        UnsupportedError: for a database that is not available yet.
    """

    def __init__(self, url: str) -> None:
        try:
            # A path is taken as it is: in a URL, % and ? have meanings of their own.
            is_path = "://" not in url
            parsed = sqlalchemy.URL.create("sqlite", database=url) if is_path else sqlalchemy.make_url(url)
        except SQLAlchemyError as error:
            raise InvalidValueError("ledger", url, "a URL such as sqlite:///ledger.db") from error
        if parsed.get_backend_name() != "sqlite":
            raise UnsupportedError(
                f"ledger={url!r}: {parsed.get_backend_name()} is not available yet: it arrives in a later version. "
                "Use sqlite:///path/to/ledger.db"
            )
        if not parsed.database or parsed.database == ":memory:":
            raise InvalidValueError("ledger", url, "a file", "A ledger in memory would not survive a crash.")
        if not is_path and (parsed.query or parsed.database.startswith("file:")):
            # SQLite's options can switch its locks off, and with them the exclusive transaction.
            raise InvalidValueError("ledger", url, "sqlite:/// and a path, without options")
        self.path = Path(parsed.database)
        self.url = f"sqlite:///{url}" if is_path else url
        # No pool: a connection lives as long as its transaction, so nothing is shared over a fork or left locked.
        self._engine = sqlalchemy.create_engine(
            parsed, poolclass=sqlalchemy.NullPool, connect_args={"timeout": _LOCK_SECONDS}
        )
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))

    def exists(self) -> bool:
        """Whether the file is there, whatever it holds."""
        return self.path.exists()

    def create(self) -> None:
        """Creates the file and its table, durably.

        Raises:
            LedgerError: when the folder cannot be written, or the file is another database.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"The ledger {self.url} cannot be created: {error}") from error
        with self.transaction() as connection:
            if others := set(sqlalchemy.inspect(connection).get_table_names()) - {entries.name}:
                raise LedgerError(f"{self.url} is not a ledger: it holds the tables {', '.join(sorted(others))}.")
            entries.create(connection, checkfirst=True)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One exclusive transaction, committed and synced when the block ends, rolled back when it raises.

        Raises:
            LedgerError: when the database is locked, read-only, full, or not a ledger; nothing was written.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise LedgerError(f"The ledger {self.url} cannot be used ({cause}); nothing was granted.") from error


def read_rows(connection: Connection, from_seq: int) -> Iterator[Mapping[str, Any]]:
    """The rows from `from_seq` on, in order; none where there is no table yet."""
    if not sqlalchemy.inspect(connection).has_table(entries.name):
        return
    query = select(entries).where(entries.c.seq >= from_seq).order_by(entries.c.seq)
    result = connection.execute(query)
    names = tuple(result.keys())
    for row in result:  # not through its mapping: a ledger may have hundreds of thousands of rows
        yield dict(zip(names, row, strict=True))


def append_row(connection: Connection, row: dict[str, Any]) -> None:
    """Inserts one row."""
    connection.execute(insert(entries).values(row))


def _configure(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are ours: BEGIN IMMEDIATE
    cursor = connection.cursor()
    # The rollback journal, with its directory synced too (EXTRA): when COMMIT returns, the row is on the disk, and the
    # file alone is the whole ledger.
    cursor.execute("PRAGMA journal_mode=DELETE")
    cursor.execute("PRAGMA synchronous=EXTRA")
    cursor.close()
