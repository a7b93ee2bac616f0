"""A ledger that rows are appended to: how that is done, and what an operator may append."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy.engine import Connection

from fedDP.budget.anchors import AnchorFile, check_anchors
from fedDP.budget.clock import Clock, SystemClock
from fedDP.budget.database import Database, append_row, read_rows
from fedDP.budget.definition import LedgerDefinition, check_text
from fedDP.budget.enrolment_terms import EnrolmentTerms
from fedDP.budget.operator_acts import Act, AnchorReset, ClockJumpAcknowledged, EnrolmentChanged, act_to_json
from fedDP.budget.records import chained_row
from fedDP.budget.state import LedgerState
from fedDP.budget.timekeeping import Timekeeper, has_jumped, last_time
from fedDP.budget.view import LedgerView
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import InvalidValueError, LedgerError


class OperatedLedger(LedgerView):
    """The rows of a ledger, its operator file, and the acts of an operator."""

    def __init__(
        self,
        database: Database,
        definition: LedgerDefinition,
        state: LedgerState,
        clock: Clock | None,
        anchor_file: AnchorFile,
    ) -> None:
        super().__init__(database, definition, state)
        self._timekeeper = Timekeeper(clock) if clock else None
        self._anchor_file = anchor_file
        self._lock = threading.Lock()

    @property
    def anchor_file(self) -> AnchorFile:
        """The operator file."""
        return self._anchor_file

    def acknowledge_clock_jump(self, *, operator: str, reason: str) -> None:
        """Notes that a person vouches for the clock, which has jumped ahead: it may be charged in this ISO week.

        Args:
            operator, reason: who says so, and why; both are kept in the row.

        Raises:
            LedgerError: when there is no jump to acknowledge.
        """
        timekeeper = self._timekeeper or Timekeeper(SystemClock())

        def act() -> Act:
            now = timekeeper.read(0)
            if self.definition.clock == "simulated" or not has_jumped(self._state, now):
                raise LedgerError(f"The clock of {self.url} has not jumped: there is nothing to acknowledge.")
            return ClockJumpAcknowledged(week=IsoWeek.of(now).key)

        self._operate(act, operator, reason)

    def change_enrolment(self, enrolment: EnrolmentTerms, *, operator: str, reason: str) -> None:
        """Begins another enrolment, numbered on; runs that were charged under the one before cannot go on.

        Args:
            enrolment: who is enrolled from now on.
            operator, reason: who says so, and why; both are kept in the row.

        Raises:
            LedgerError: when it is the enrolment already.
        """
        if not isinstance(enrolment, EnrolmentTerms):
            raise InvalidValueError("enrolment", enrolment, "EnrolmentTerms")

        def act() -> Act:
            if enrolment == self._state.enrolment:
                raise LedgerError(f"{enrolment} is the enrolment of {self.url} already.")
            return EnrolmentChanged(version=self._state.enrolment_version + 1, enrolment=enrolment)

        self._operate(act, operator, reason)

    def reset_anchor(self, *, operator: str, reason: str) -> None:
        """Begins a new operator file where the old one was lost; the row is what remains of the loss.

        Args:
            operator, reason: who says so, and why; both are kept in the row.

        Raises:
            LedgerError: when the file is there, or none is kept.
        """

        def act() -> Act:
            if not self._anchor_file.is_missing:
                raise LedgerError(f"The ledger {self.url} misses no anchor file: there is nothing to reset.")
            seq, digest = self.head
            return AnchorReset(seq=seq, hash=digest)

        self._operate(act, operator, reason)

    def _operate(self, act: Callable[[], Act], operator: str, reason: str) -> None:
        who = {"operator": check_text("operator", operator), "reason": check_text("reason", reason)}
        with self._lock, self._appending() as rows:
            self._add_row(rows, self._time_of_note(), kind="operator", act=act_to_json(act()), **who)

    def _time_of_note(self, round: int | None = None) -> datetime:
        if self._timekeeper is None:
            return last_time(self._state)
        return self._timekeeper.time_of_note(self._state, round=round)

    @contextmanager
    def _appending(self) -> Iterator[list[dict[str, Any]]]:
        """One transaction: the rows that the block adds are committed, anchored and applied when it ends.

        The state follows the commit, so that it never knows more than the database.
        """
        rows: list[dict[str, Any]] = []
        with self._anchor_file.held():
            with self._database.transaction() as connection:
                self._catch_up(connection)
                yield rows
                for row in rows:
                    append_row(connection, row)
                if rows:
                    self._anchor_file.prepare(self._anchor_at(rows[-1]["seq"], rows[-1]["hash"]))
            for row in rows:
                self._state.apply(row)
            if rows:
                self._anchor_file.publish()

    def _catch_up(self, connection: Connection) -> None:
        rows = read_rows(connection, self._state.head_seq)
        head = next(rows, None)
        if head is None or head["hash"] != self._state.head_hash:
            raise LedgerError(
                f"The ledger was altered: row {self._state.head_seq}, its last one so far, is not there any more."
            )
        for row in rows:
            self._state.apply(row)
        # Another process may have been further than the database is now.
        anchor = self._anchor_file.read()
        if anchor is not None and anchor != self._anchor_at(*self.head):
            check_anchors(
                [anchor],
                ledger_id=self.definition.ledger_id,
                head_seq=self._state.head_seq,
                hashes={row["seq"]: row["hash"] for row in islice(read_rows(connection, anchor.seq), 1)},
            )

    def _add_row(self, rows: list[dict[str, Any]], now: datetime, **values: Any) -> dict[str, Any]:
        seq = self._state.head_seq + len(rows) + 1
        rows.append(chained_row(seq, rows[-1]["hash"] if rows else self._state.head_hash, now, **values))
        return rows[-1]
