"""A ledger in a PostgreSQL database: exclusive transactions, on the server's disk before COMMIT returns."""

from __future__ import annotations

import math

import sqlalchemy
from sqlalchemy import event, text
from sqlalchemy.engine import URL, Connection, Engine

from fedDP.errors import LedgerError, UnsupportedError

# One lock for all ledger transactions of a database. An advisory lock needs no right to change rows, so that a run's
# role can be allowed to read and append alone.
_LOCK = 0x66656464705F6C67  # "feddp_lg"

# For this transaction alone, so that neither a role's defaults nor a pool between us and the server matter.
_SESSION = text(
    "SELECT set_config('synchronous_commit', 'on', true), set_config('extra_float_digits', '1', true), "
    "set_config('lock_timeout', :lock, true), set_config('idle_in_transaction_session_timeout', :idle, true), "
    "current_setting('fsync'), current_setting('server_encoding')"
)
# A client that stands still in its transaction loses it, so that the others can go on; it could not commit afterwards.
_IDLE_SECONDS = 60.0


def postgresql_engine(parsed: URL, lock_seconds: float) -> Engine:
    """An engine that opens a connection for each transaction.

    Every transaction holds the ledger's lock from its beginning, so that one reads what the one before it committed.

    Args:
        parsed: the URL, which `check_location` has accepted.
        lock_seconds: how long a transaction waits for the server, and for the transactions of others.

    Raises:
        UnsupportedError: when psycopg is missing.
    """
    seconds = math.ceil(lock_seconds)
    options = {
        "application_name": "feddp",
        "client_encoding": "utf8",
        "connect_timeout": seconds,
        # A server that is gone without a word is noticed.
        "tcp_user_timeout": 1000 * seconds,
        "keepalives_idle": seconds,
    }
    try:
        engine = sqlalchemy.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            poolclass=sqlalchemy.NullPool,
            # Whoever has the lock sees, with its next statement, everything that was committed before.
            isolation_level="READ COMMITTED",
            connect_args={name: value for name, value in options.items() if name not in parsed.query},
            hide_parameters=True,
        )
    except ImportError as error:
        raise UnsupportedError(
            "A ledger in PostgreSQL needs psycopg, which is not installed: pip install 'fedDP[postgresql]'"
        ) from error

    def begin(connection: Connection) -> None:
        times = {"lock": _milliseconds(lock_seconds), "idle": _milliseconds(_IDLE_SECONDS)}
        *_, fsync, encoding = connection.execute(_SESSION, times).one()
        if fsync != "on":
            raise LedgerError(
                "The ledger's server runs with fsync=off: a charge could be lost after it was granted. Set fsync=on "
                "in postgresql.conf; nothing was granted."
            )
        if encoding != "UTF8":
            raise LedgerError(
                f"The ledger's database has the encoding {encoding}, which may not give back every text as it was. "
                "Create one with ENCODING 'UTF8'; nothing was granted."
            )
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})

    event.listen(engine, "begin", begin)
    return engine


def _milliseconds(seconds: float) -> str:
    return f"{max(1, math.ceil(seconds * 1000))}ms"  # 0 would be no limit at all
