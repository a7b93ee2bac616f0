"""The ledger's database: SQLite or PostgreSQL through SQLAlchemy, every commit on the disk before it returns."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from fedDP.budget.location import POSTGRESQL_SCHEMES, check_location
from fedDP.budget.postgresql import postgresql_engine
from fedDP.budget.records import entries
from fedDP.budget.sqlite import sqlite_engine
from fedDP.errors import InvalidValueError, LedgerError, UnsupportedError

_LOCK_SECONDS = 30.0


class Database:
    """Rows, appended one exclusive transaction at a time.

    Guarantees:
        1. Between the beginning and the end of a transaction nobody else has one.
        2. When a transaction ends without an error, what it wrote is on the disk.
        3. When it ends with one, nothing was written, except that an error in the commit itself leaves that open: then
           the rows are there as a whole, for the next transaction to see, or not at all.

    Args:
        url: ``sqlite:///path/to/ledger.db``, or just the path, or ``postgresql://user@host/database``.

    Attributes:
        url: the same as a URL; it holds no password.
        path: the file; None where there is none.

    Raises:
        InvalidValueError: for what is no such URL, or holds a password.
        UnsupportedError: for another database, or when psycopg is missing.
    """

    def __init__(self, url: str) -> None:
        check_location("ledger", url)
        try:
            # A path is taken as it is: in a URL, % and ? have meanings of their own.
            is_path = "://" not in url
            parsed = sqlalchemy.URL.create("sqlite", database=url) if is_path else sqlalchemy.make_url(url)
        except SQLAlchemyError as error:
            raise InvalidValueError("ledger", url, "a URL such as sqlite:///ledger.db") from error
        self.url = f"sqlite:///{url}" if is_path else url
        self.path: Path | None = None
        if parsed.get_backend_name() == "sqlite":
            self._engine = sqlite_engine(url, parsed, _LOCK_SECONDS)
            self.path = Path(str(parsed.database))
        elif parsed.drivername in POSTGRESQL_SCHEMES:
            self._engine = postgresql_engine(parsed, _LOCK_SECONDS)
        else:
            raise UnsupportedError(
                f"ledger={url!r}: a ledger in {parsed.drivername} is not available. Use sqlite:///path/to/ledger.db or "
                "postgresql://user@host/database"
            )

    def exists(self) -> bool:
        """Whether the file is there, whatever it holds, or the server's table.

        Raises:
            LedgerError: when the server cannot be asked.
        """
        if self.path is not None:
            return self.path.exists()
        with self.transaction() as connection:
            return _has_table(connection)

    def create(self) -> None:
        """Creates the table, and its file, durably.

        Raises:
            LedgerError: when the folder cannot be written, or there are tables of something else.
        """
        try:
            made = [] if self.path is None else _make_folders(self.path.parent)
        except OSError as error:
            raise LedgerError(f"The ledger {self.url} cannot be created: {error}") from error
        with self.transaction() as connection:
            if others := set(sqlalchemy.inspect(connection).get_table_names()) - {entries.name}:
                raise LedgerError(f"{self.url} is not a ledger: it holds the tables {', '.join(sorted(others))}.")
            entries.create(connection, checkfirst=True)
        for folder in made:
            _sync(folder)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One exclusive transaction, committed and synced when the block ends, rolled back when it raises.

        Raises:
            LedgerError: when the database is locked, read-only, full, out of reach, or not a ledger.
        """
        committing = False
        try:
            with self._engine.begin() as connection:
                yield connection
                committing = True
        except (SQLAlchemyError, sqlite3.Error) as error:
            # The first line: what follows may be the row.
            cause = str(getattr(error, "orig", None) or error).partition("\n")[0]
            outcome = "nothing was granted"
            if committing:
                outcome += ", and if the charge is there all the same, it counts as spent"
            raise LedgerError(f"The ledger {self.url} cannot be used ({cause}); {outcome}.") from error


def read_rows(connection: Connection, from_seq: int) -> Iterator[Mapping[str, Any]]:
    """The rows from `from_seq` on, in order; none where there is no table yet."""
    if not _has_table(connection):
        return
    query = select(entries).where(entries.c.seq >= from_seq).order_by(entries.c.seq)
    result = connection.execute(query)
    names = tuple(result.keys())
    for row in result:  # not through its mapping: a ledger may have hundreds of thousands of rows
        yield dict(zip(names, row, strict=True))


def append_row(connection: Connection, row: dict[str, Any]) -> None:
    """Inserts one row."""
    connection.execute(insert(entries).values(row))


def _has_table(connection: Connection) -> bool:
    return sqlalchemy.inspect(connection).has_table(entries.name)


def _make_folders(folder: Path) -> list[Path]:
    """Makes a folder and those above it; returns the ones that must be synced for a new file in it to last."""
    made = [folder]
    while not made[-1].exists():
        made.append(made[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    return made


def _sync(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
