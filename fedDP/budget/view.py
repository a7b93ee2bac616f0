"""What a ledger shows: the numbers of its windows, its rows, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from fedDP.accounting import Gaussian
from fedDP.budget.anchors import Anchor
from fedDP.budget.database import Database
from fedDP.budget.definition import LedgerDefinition
from fedDP.budget.opening import read_pages
from fedDP.budget.policy import WindowName
from fedDP.budget.state import LedgerState
from fedDP.budget.timekeeping import last_time
from fedDP.budget.weeks import IsoWeek
from fedDP.budget.windows import Windows, WindowStatus
from fedDP.errors import LedgerError

_CONTAINING: dict[WindowName, tuple[WindowName, ...]] = {
    "week": ("year", "trailing", "lifetime"),
    "year": ("year", "trailing", "lifetime"),
    "trailing": ("lifetime",),
    "lifetime": ("lifetime",),
}


class LedgerView:
    """The rows of a ledger, as far as they were read, and what follows from them."""

    def __init__(self, database: Database, definition: LedgerDefinition, state: LedgerState) -> None:
        self.definition = definition
        self._database = database
        self._state = state
        self._windows = Windows(definition, state)

    @property
    def url(self) -> str:
        return self._database.url

    @property
    def head(self) -> tuple[int, str]:
        """The number and hash of the last row."""
        return self._state.head_seq, self._state.head_hash

    @property
    def anchor(self) -> dict[str, Any]:
        """What to keep elsewhere, such as in a run's checkpoint: the ledger's id and its head, JSON-ready.

        Given to `Ledger.open` later, a ledger that has lost this row, or never had it, is refused.
        """
        return self._anchor_at(*self.head).to_dict()

    def _anchor_at(self, seq: int, digest: str) -> Anchor:
        return Anchor(ledger_id=self.definition.ledger_id, seq=seq, hash=digest)

    @property
    def last_week(self) -> IsoWeek:
        """The week of the last row."""
        return IsoWeek.of(last_time(self._state))

    def num_charges(self, *, unreleased: bool = False) -> int:
        """How many releases were charged, or of how many it is not known that they were released."""
        charges = self._state.charges.values()
        return sum(charge.status != "released" for charge in charges) if unreleased else len(charges)

    @property
    def last_charged(self) -> datetime | None:
        """The time of the last row, when anything was charged at all."""
        return self._state.last_time if self._state.charges else None

    def status(self, window: WindowName, week: IsoWeek) -> WindowStatus:
        """What `window` has spent as of `week`."""
        return self._windows.status(window, week)

    def windows(self) -> list[WindowStatus]:
        """Every window that was charged: the weeks, the years, the trailing one as of now, and the lifetime."""
        return self._windows.charged(self.last_week)

    def would_grant(self, event: Gaussian, weeks: Sequence[IsoWeek], purpose: str = "train") -> int:
        """How many releases like `event`, one in each of `weeks` in turn, it would grant before it refuses one."""
        return self._windows.would_grant(event, weeks, purpose)

    def events(self) -> list[Gaussian]:
        """Everything that was charged, equal events grouped."""
        return self._state.spent_events("lifetime", self.last_week)

    def charged_rounds(self, run_id: str) -> set[int]:
        """The rounds of a run that were charged."""
        return {charge.key[1] for charge in self._state.charges.values() if charge.key[0] == run_id}

    def certified_epsilon(self) -> dict[WindowName, float]:
        """The epsilon that each window with an allowance certifies, as of the last week."""
        delta = self.definition.budget.delta
        return {name: rule.limit_epsilon(self.last_week, delta) for name, rule in self.definition.rules.items()}

    def certified(self, status: WindowStatus) -> float | None:
        """The epsilon that is certified of a window: by its own allowance or one that contains it; None without any.

        A week is also bounded by its year, and the one year of a ledger by its lifetime, and the other way round.
        """
        one_year = len({week.year for week in self._state.week_units}) == 1
        containing = _CONTAINING["year" if status.window == "lifetime" and one_year else status.window]
        allowances = [value for name, value in self.certified_epsilon().items() if name in containing]
        return min((value for value in (status.allowance_epsilon, *allowances) if value is not None), default=None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row up to the head, in order, by column; read from the database again.

        Raises:
            LedgerError: when the rows are no longer those that were read before.
        """
        head_seq, head_hash = self.head
        rows = read_pages(self._database)
        for row in rows:
            yield dict(row)
            if row["seq"] >= head_seq:
                break
        else:
            row = {}
        if row.get("hash") != head_hash:
            raise LedgerError(f"The ledger was altered: row {head_seq}, its last one so far, is not there any more.")
