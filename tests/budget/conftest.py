"""The two databases that a ledger can be kept in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .places import Place, PostgreSQLPlace, SQLitePlace
from .postgresql import Server, running_server

BACKENDS = ["sqlite", pytest.param("postgresql", marks=[pytest.mark.slow, pytest.mark.e2e])]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a ledger, on both databases in turn."""
    place: Place
    if request.param == "sqlite":
        place = SQLitePlace(tmp_path / "ledger.db")
    else:
        place = PostgreSQLPlace(request.getfixturevalue("server"))
    yield place
    place.close()
