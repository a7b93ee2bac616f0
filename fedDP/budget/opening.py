"""Reading a ledger, each of its rows checked and compared with the anchors that are known; and its first row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Connection

from fedDP.budget.anchors import Anchor, AnchorFile, check_anchors
from fedDP.budget.database import Database, append_row, read_rows
from fedDP.budget.records import COLUMNS, SCHEMA_VERSION, entries
from fedDP.budget.state import LedgerState
from fedDP.errors import LedgerError

_PAGE = 5_000  # rows in one transaction: a long reading must not keep charges waiting


def anchor_file_of(database: Database, path: Path | str | None) -> AnchorFile:
    """The file at `path`; by default the one beside a database that is a file, and none for others."""
    beside: Path | None = getattr(database, "path", None)
    if path is not None:
        return AnchorFile(Path(path))
    return AnchorFile(beside and beside.with_name(beside.name + ".anchor"))


def read_ledger(database: Database, file: AnchorFile, anchors: Sequence[Mapping[str, Any]]) -> LedgerState:
    """What the rows add up to; a state without a definition where there is no ledger.

    Raises:
        LedgerError: when it was altered, rolled back or exchanged, or has another schema.
    """
    known = [Anchor.parse(anchor) for anchor in anchors]
    if not database.exists():
        _compare(LedgerState(), [*known, *_anchor_in(file)], {})
        return LedgerState()
    with file.held(), database.transaction() as connection:
        known += _anchor_in(file)
        check_schema(connection)
        state, hashes = LedgerState(), {}
        anchored = {anchor.seq for anchor in known}
        for row in read_rows(connection, 0):
            state.apply(row)
            if state.head_seq in anchored:
                hashes[state.head_seq] = state.head_hash
    _compare(state, known, hashes)
    return state


def no_ledger(database: Database) -> LedgerError:
    """What to say where there is none."""
    why = ": the file holds no definition" if database.exists() else ""
    return LedgerError(f"There is no ledger at {database.url}{why}.")


def create_ledger(database: Database, file: AnchorFile, row: dict[str, Any]) -> LedgerState:
    """Writes the first row, unless another process has been first; returns what is there then.

    Raises:
        LedgerError: when the database or its anchor file cannot be written; nothing was created.
    """
    database.create()
    with file.held():
        with database.transaction() as connection:
            state = LedgerState()
            for other in read_rows(connection, 0):
                state.apply(other)
            if is_first := state.definition is None:
                append_row(connection, row)
                state.apply(row)
                assert state.definition is not None
                file.prepare(Anchor(ledger_id=state.definition.ledger_id, seq=0, hash=row["hash"]))
        if is_first:
            file.publish()
    return state


def _anchor_in(file: AnchorFile) -> list[Anchor]:
    anchor = file.read()
    return [] if anchor is None else [anchor]


def _compare(state: LedgerState, anchors: Sequence[Anchor], hashes: Mapping[int, str]) -> None:
    ledger_id = state.definition.ledger_id if state.definition else None
    check_anchors(anchors, ledger_id=ledger_id, head_seq=state.head_seq, hashes=hashes)


def check_schema(connection: Connection) -> None:
    """Refuses a table that another version of fedDP, or another program, has made.

    Raises:
        LedgerError: when it lacks columns.
    """
    inspector = sqlalchemy.inspect(connection)
    if not inspector.has_table(entries.name):
        return
    if missing := set(COLUMNS) - {column["name"] for column in inspector.get_columns(entries.name)}:
        raise LedgerError(
            f"This fedDP reads ledgers of schema version {SCHEMA_VERSION}, and this one has no such column as "
            f"{', '.join(sorted(missing))}: another version has made it. Open it with that one."
        )


def read_pages(database: Database) -> Iterator[Mapping[str, Any]]:
    """All rows in order, in transactions of a few thousand, so that charges go on meanwhile."""
    seq = 0
    while True:
        with database.transaction() as connection:
            check_schema(connection)
            rows = list(islice(read_rows(connection, seq), _PAGE))
        yield from rows
        if len(rows) < _PAGE:
            return
        seq = rows[-1]["seq"] + 1
