"""Where a ledger under test is kept: a SQLite file or a PostgreSQL database, and what lies behind the ledger's back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy
from sqlalchemy import text

from fedDP.budget.records import COLUMNS, entries

from .postgresql import Server


class Place(Protocol):
    """An empty place at first; a ledger opened at its `url` is kept there."""

    @property
    def url(self) -> str: ...

    def another(self) -> Place:
        """A further empty place of this kind."""
        ...

    def copy(self) -> Place:
        """A place that holds the same."""
        ...

    def replace(self, other: Place) -> None:
        """Puts what `other` holds in the place of what is here."""
        ...

    def execute(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs SQL, with ``:name`` for values; returns the rows, if it has any."""
        ...

    def close(self) -> None: ...


def count_rows(place: Place, kind: str | None = None) -> int:
    condition = "" if kind is None else f"WHERE kind = '{kind}'"
    return int(place.execute(f"SELECT count(*) FROM entries {condition}")[0][0])


class SQLitePlace:
    """A file in a folder that is removed after the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def another(self) -> SQLitePlace:
        number = len(list(self.path.parent.iterdir()))
        return SQLitePlace(self.path.with_name(f"{number}-{self.path.name}"))

    @property
    def anchor(self) -> Path:
        """The operator file beside it."""
        return self.path.with_name(self.path.name + ".anchor")

    def copy(self) -> SQLitePlace:
        other = self.another()
        other.replace(self)
        return other

    def replace(self, other: Place) -> None:
        """With its operator file, as whoever covers his tracks would."""
        assert isinstance(other, SQLitePlace)
        shutil.copy(other.path, self.path)
        shutil.copy(other.anchor, self.anchor)

    def execute(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        return _execute(self.url, statement, values)

    def close(self) -> None:
        """Nothing to do: the test's folder goes with it."""


class PostgreSQLPlace:
    """A database of the tests' server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._others: list[PostgreSQLPlace] = []
        self.name = server.lend_database()
        self.url = server.url(self.name)

    def another(self) -> PostgreSQLPlace:
        self._others.append(PostgreSQLPlace(self._server))
        return self._others[-1]

    def copy(self) -> PostgreSQLPlace:
        other = self.another()
        other.replace(self)
        return other

    def replace(self, other: Place) -> None:
        columns = ", ".join(COLUMNS)
        values = ", ".join(f":{name}" for name in COLUMNS)
        with _engine(self.url).begin() as connection:
            entries.drop(connection, checkfirst=True)
            entries.create(connection)
            for row in other.execute(f"SELECT {columns} FROM entries ORDER BY seq"):
                connection.execute(
                    text(f"INSERT INTO entries ({columns}) VALUES ({values})"), dict(zip(COLUMNS, row, strict=True))
                )

    def execute(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        return _execute(self.url, statement, values)

    def close(self) -> None:
        """Empties it and those that were made from it."""
        for place in self._others:
            place.close()
        self._server.give_back(self.name)


def _engine(url: str) -> sqlalchemy.Engine:
    url = url.replace("postgresql:", "postgresql+psycopg:")
    return sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)


def _execute(url: str, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with _engine(url).begin() as connection:
        result = connection.execute(text(statement), values)
        return [tuple(row) for row in result] if result.returns_rows else []
