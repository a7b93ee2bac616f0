"""Ledgers on a PostgreSQL server that goes away, is set up carelessly, or may not be written."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, Ledger
from fedDP.budget.database import Database
from fedDP.errors import LedgerError

from .ledgers import SetClock, authorise
from .places import PostgreSQLPlace, count_rows
from .postgresql import USER, Server
from .proxy import PORT, Proxy

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

BUDGET = Budget(delta=1e-6, year=0.5)
EVENT = Gaussian(50.0)


def open_ledger(url: str) -> Ledger:
    return Ledger.open(url, budget=BUDGET, unit="patient", mode="gaussian", clock=SetClock())


@pytest.fixture
def place(server: Server) -> Iterator[PostgreSQLPlace]:
    place = PostgreSQLPlace(server)
    yield place
    place.close()


@pytest.fixture
def stopped(server: Server) -> Iterator[Server]:
    """The server, which a test may stop or start otherwise; it runs as before afterwards."""
    yield server
    server.stop()
    server.start()


# A server that goes away


def test_a_server_that_is_down(place: PostgreSQLPlace, stopped: Server) -> None:
    ledger = open_ledger(place.url)
    authorise(ledger, EVENT)
    stopped.stop()
    with pytest.raises(LedgerError, match=r"connection to server.*failed.*nothing was granted"):
        authorise(ledger, EVENT, round=2)
    for use in (open_ledger, Ledger.load):
        with pytest.raises(LedgerError, match=r"connection to server.*failed"):
            use(place.url)
    assert ledger.num_charges() == 1
    stopped.start()  # it recovers from its log: what was granted is there
    assert authorise(ledger, EVENT, round=2).seq == 2
    assert open_ledger(place.url).head == ledger.head


def test_a_server_that_crashes_in_a_transaction(place: PostgreSQLPlace, stopped: Server) -> None:
    ledger = open_ledger(place.url)
    grant = authorise(ledger, EVENT)
    with pytest.raises(LedgerError, match="nothing was granted"), ledger._database.transaction() as connection:  # noqa: PT012 - the block is what fails
        connection.exec_driver_sql("UPDATE entries SET kind = kind")
        stopped.stop()
    stopped.start()
    ledger.mark_released(grant)
    assert authorise(ledger, EVENT, round=2).seq == 3
    assert open_ledger(place.url).head == ledger.head


def test_a_connection_that_is_cut_in_a_transaction(place: PostgreSQLPlace) -> None:
    ledger = open_ledger(place.url)
    authorise(ledger, EVENT)
    with pytest.raises(LedgerError, match=r"nothing was granted\.$"), ledger._database.transaction() as connection:  # noqa: PT012 - the block is what fails
        (backend,) = connection.exec_driver_sql("SELECT pg_backend_pid()").one()
        place.execute(f"SELECT pg_terminate_backend({backend})")
        connection.exec_driver_sql("DELETE FROM entries")
    assert authorise(ledger, EVENT, round=2).seq == 2


@pytest.mark.parametrize("deliver", [False, True])
def test_a_connection_that_is_cut_in_a_commit(place: PostgreSQLPlace, server: Server, deliver: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(server.folder, Path(folder), deliver=deliver)
        ledger = open_ledger(f"postgresql://{USER}@/{place.name}?host={folder}&port={PORT}")
        authorise(ledger, EVENT)
        proxy.armed = True
        with pytest.raises(LedgerError, match="nothing was granted, and if the charge is there all the same"):
            authorise(ledger, EVENT, round=2)
        assert not proxy.armed
        assert ledger.num_charges() == 1
        assert authorise(ledger, EVENT, round=2).attempt == 1 + deliver
        assert ledger.num_charges() == count_rows(place, "charge") == 2 + deliver
        proxy.close()
    assert open_ledger(place.url).head == ledger.head


def test_who_stands_still_in_a_transaction_loses_it(place: PostgreSQLPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(place.url)
    monkeypatch.setattr("fedDP.budget.postgresql._IDLE_SECONDS", 0.05)
    with pytest.raises(LedgerError, match="idle-in-transaction"), ledger._database.transaction() as connection:  # noqa: PT012 - the block is what fails
        connection.exec_driver_sql("DELETE FROM entries")
        assert authorise(open_ledger(place.url), EVENT).seq == 1  # waits, and gets its turn
    assert authorise(ledger, EVENT, round=2).seq == 2


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedDP.budget.database._LOCK_SECONDS", 0.1)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/.s.PGSQL.{PORT}")
        listener.listen()
        with pytest.raises(LedgerError, match="timeout"):
            open_ledger(f"postgresql://{USER}@/ledger?host={folder}&port={PORT}")


def test_a_database_that_is_not_there(server: Server) -> None:
    for use in (open_ledger, Ledger.load):
        with pytest.raises(LedgerError, match='database "nowhere" does not exist'):
            use(server.url("nowhere"))


# Settings


@pytest.mark.parametrize("setting", ["synchronous_commit", "default_transaction_isolation", "extra_float_digits"])
def test_careless_defaults_do_not_matter(place: PostgreSQLPlace, setting: str) -> None:
    value = {"synchronous_commit": "off", "default_transaction_isolation": "'repeatable read'"}.get(setting, "-15")
    place.execute(f"ALTER DATABASE {place.name} SET {setting} = {value}")
    ledgers = [open_ledger(place.url) for _ in range(2)]
    for round in range(4):  # each sees what the other wrote just before
        assert authorise(ledgers[round % 2], EVENT, round=round, clip_norm=0.1 + 0.2).seq == round + 1
    with ledgers[0]._database.transaction() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    assert open_ledger(place.url).num_charges() == 4


def test_a_server_that_does_not_sync_is_refused(place: PostgreSQLPlace, stopped: Server) -> None:
    ledger = open_ledger(place.url)
    stopped.stop()
    stopped.start("fsync=off")
    with pytest.raises(LedgerError, match=r"fsync=off.*nothing was granted"):
        authorise(ledger, EVENT)
    with pytest.raises(LedgerError, match="fsync=off"):
        open_ledger(place.url)
    assert count_rows(place) == 1


def test_a_database_that_cannot_hold_every_text_is_refused(server: Server) -> None:
    server.execute("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    with pytest.raises(LedgerError, match="LATIN1"):
        open_ledger(server.url("latin"))
    server.execute("postgres", "DROP DATABASE latin")


def test_a_read_only_database(place: PostgreSQLPlace, server: Server) -> None:
    ledger = open_ledger(place.url)
    authorise(ledger, EVENT)
    place.execute(f"ALTER DATABASE {place.name} SET default_transaction_read_only = on")
    with pytest.raises(LedgerError, match=r"read-only transaction\); nothing was granted"):
        authorise(ledger, EVENT, round=2)
    assert Ledger.load(place.url).num_charges() == 1
    server.execute("postgres", f"ALTER DATABASE {place.name} RESET ALL")
    assert authorise(ledger, EVENT, round=2).seq == 2


def test_a_role_that_may_append_and_no_more(place: PostgreSQLPlace, server: Server) -> None:
    open_ledger(place.url)
    place.execute("CREATE ROLE appender LOGIN")
    try:
        place.execute("GRANT USAGE ON SCHEMA public TO appender")
        place.execute("GRANT SELECT, INSERT ON entries TO appender")
        url = place.url.replace(f"{USER}@", "appender@")
        ledger = open_ledger(url)
        ledger.mark_released(authorise(ledger, EVENT))
        for statement in ("UPDATE entries SET costs = '{}'", "DELETE FROM entries"):
            with pytest.raises(LedgerError, match="permission denied"), Database(url).transaction() as connection:
                connection.exec_driver_sql(statement)
        assert open_ledger(url).head == ledger.head
    finally:
        place.execute("DROP OWNED BY appender")
        place.execute("DROP ROLE appender")


def test_no_connection_outlives_its_transaction(place: PostgreSQLPlace) -> None:
    """So that nothing is shared over a fork, and a server that was started again is no surprise."""
    ledger = open_ledger(place.url)
    authorise(ledger, EVENT)
    deadline = time.monotonic() + 10
    while place.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'feddp'") != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
