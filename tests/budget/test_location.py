"""Which paths and URLs a ledger takes, and that no password gets past them."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import pytest

from fedDP.budget import Budget, Ledger
from fedDP.budget.database import Database
from fedDP.budget.location import POSTGRESQL_OPTIONS, check_location
from fedDP.errors import InvalidValueError, UnsupportedError

SECRET = "hunter2"


@pytest.mark.parametrize(
    "location",
    [
        "ledger.db",
        "a folder/100%?&password=yes@8:00/ledger.db",  # a path is taken as it is
        "sqlite:///ledger.db",
        "sqlite:////data/a@b:c/ledger.db",
        "postgresql://host/ledger",
        "postgresql://user@host:5433/ledger",
        "postgresql+psycopg://user@[::1]:5433/ledger",
        "postgresql:///ledger?host=/run/postgresql&port=5433",
        "postgresql://user@host/ledger?sslmode=verify-full&sslrootcert=/etc/ca.pem&passfile=/run/pgpass",
        "postgresql:///?service=ledger",
    ],
)
def test_locations_that_hold_no_secret(location: str) -> None:
    assert check_location("ledger", location) == location


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@host/ledger",
        f"postgresql+psycopg://user:{SECRET}@host/ledger",
        f"postgresql://:{SECRET}@host/ledger",
        f"postgresql://user:p@{SECRET}@host/ledger",
        f"postgresql://user:p/{SECRET}@host/ledger",
        f"postgresql://user:p?{SECRET}#@host/ledger",
        f"postgresql://user:{SECRET}@host:port/ledger",
        f"postgresql://host/ledger?password={SECRET}",
        f"postgresql://host/ledger?sslmode=require&sslpassword={SECRET}",
        f"postgresql://host/ledger?pass%77ord={SECRET}",
        f"postgresql://host/ledger?token={SECRET}",
        f"postgresql://host/ledger?PASSWORD={SECRET}",
        f"postgres://user:{SECRET}@host/ledger",
        f"mysql://user:{SECRET}@host/ledger",
        f"mysql://host/ledger?passwd={SECRET}",
        f"sqlite:///ledger.db?password={SECRET}",
    ],
)
def test_a_password_is_refused_and_not_repeated(url: str) -> None:
    for use in (Database, Ledger.load, lambda url: Ledger.open(url, budget=Budget(delta=1e-6), unit="patient")):
        with pytest.raises(InvalidValueError, match="ledger=") as caught:
            use(url)
        shown = "".join(traceback.format_exception_only(caught.value)) + repr(vars(caught.value))
        assert SECRET not in shown
        assert SECRET not in str(caught.value.__cause__)
    if "@" in url and url.startswith("postgresql"):
        assert "PGPASSWORD" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://host/ledger?options=-csynchronous_commit%3Doff", "no other options than"),
        ("postgresql://host/ledger?host=other&host=third", "one server"),
        ("postgresql://host,other/ledger", "one server"),
        ("postgresql:///ledger?host=host,other", "one server"),
        ("postgresql://host", "expected a database"),
        ("postgresql://host/", "expected a database"),
        ("postgresql://host/ledger?host", "a URL such as"),
        ("postgresql://[host/ledger", "a URL such as"),
        ("://nothing", "a URL such as"),
    ],
)
def test_urls_that_a_ledger_does_not_take(url: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Database(url)


@pytest.mark.parametrize("location", ["", None, 5, b"ledger.db", "a\0b"])
def test_what_is_no_text_is_refused(location: Any) -> None:
    with pytest.raises(InvalidValueError, match="expected a path or a URL"):
        Database(location)


@pytest.mark.parametrize(
    "url", ["mysql://host/ledger", "postgres://host/ledger", "postgresql+psycopg2://host/l", "postgresql+asyncpg://h/l"]
)
def test_other_databases_are_refused_by_name(url: str) -> None:
    with pytest.raises(UnsupportedError, match=r"is not available\. Use sqlite:///path/to/ledger\.db or postgresql://"):
        Database(url)


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'fedDP\[postgresql\]'"):
        Database("postgresql://host/ledger")


def test_no_option_could_hold_a_secret_or_change_the_session() -> None:
    assert not {"password", "sslpassword", "options", "target_session_attrs", "user", "dbname"} & {*POSTGRESQL_OPTIONS}


def test_a_url_is_shown_as_it_was_given() -> None:
    assert Database("postgresql://user@host/ledger").url == "postgresql://user@host/ledger"
    assert Database("a b%.db").url == "sqlite:///a b%.db"
