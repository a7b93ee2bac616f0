"""The ledger's table and the hash chain over its rows.

Rows are only ever appended. Row 0 defines the ledger; a "charge" row pays for a release before anybody trains for it; a
"released" or "abandoned" row says later what became of it; an "operator" row says what a person decided. Each row's
hash covers the row and the hash before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import Column, Float, Integer, MetaData, Table, Text

from fedDP.accounting import Gaussian, event_from_dict
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import UnsupportedError

SCHEMA_VERSION = 2

_metadata = MetaData()

entries = Table(
    "entries",
    _metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),  # "definition" | "charge" | "released" | "abandoned" | "operator"
    Column("time_utc", Text, nullable=False),  # the start of the day
    Column("iso_year", Integer, nullable=False),
    Column("iso_week", Integer, nullable=False),
    Column("definition", Text),  # JSON; row 0 alone
    Column("charge_seq", Integer),  # the charge that a "released" or "abandoned" row speaks of
    Column("run_id", Text),
    Column("round", Integer),
    Column("purpose", Text),
    Column("attempt", Integer),
    Column("event", Text),  # JSON of the accounting event
    Column("costs", Text),  # JSON {window: cost in units of 2**-80, rounded up}
    Column("planned", Integer),  # which release of a committed plan the charge uses up, counted from 0
    Column("clip_norm", Float),
    Column("denominator", Float),
    Column("max_weight", Float),
    Column("rng", Text),  # "csprng" | "seeded"
    Column("nonce", Text),
    Column("enrolment", Integer),  # the version of the enrolment that was charged
    Column("operator", Text),  # who decided
    Column("reason", Text),  # why
    Column("act", Text),  # JSON of what was decided
    Column("previous_hash", Text, nullable=False),
    Column("hash", Text, nullable=False, unique=True),
)

COLUMNS: tuple[str, ...] = tuple(column.name for column in entries.columns)
GENESIS_HASH = "0" * 64

_hashed_values = itemgetter(*(name for name in COLUMNS if name != "hash"))
# Kept, since `json.dumps` makes a new encoder at every call, which costs more than hashing the row.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def charged_event(values: Mapping[str, Any]) -> Gaussian:
    """Reads the event of a charge.

    Raises:
        UnsupportedError: for what is no event, or of a kind that no ledger charges.
    """
    event = event_from_dict(values)
    if not isinstance(event, Gaussian):
        raise UnsupportedError(f"event={event!r}: a ledger charges Gaussian events.")
    return event


def canonical_json(value: object) -> str:
    """JSON with one spelling: sorted keys, no spaces, shortest round-trip floats, nothing non-finite."""
    return _encode(value)


def row_hash(row: Mapping[str, Any]) -> str:
    """The SHA-256 of a row: of the JSON array of all its columns but the hash, in order, the previous hash included."""
    return hashlib.sha256(_encode(_hashed_values(row)).encode()).hexdigest()


def chained_row(seq: int, previous_hash: str, now: datetime, **values: Any) -> dict[str, Any]:
    """A row of the day of `now`, with the hash that chains it to the row before; columns not given are NULL.

    The ledger is published, and how long a round took depends on its cohort, so only the day is kept.
    """
    week = IsoWeek.of(now)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row.update(
        values,
        seq=seq,
        time_utc=day.isoformat(),
        iso_year=week.year,
        iso_week=week.week,
        previous_hash=previous_hash,
    )
    row["hash"] = row_hash(row)
    return row
