"""What a ledger's rows add up to, kept in memory and brought forward row by row.

Everything here is derived from the rows, so that no cached total in the database can disagree with them, and the cost
of a charge does not grow with the ledger.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fedDP.accounting import Event, event_from_dict
from fedDP.budget.policy import TRAILING_WEEKS, WindowName
from fedDP.budget.records import GENESIS_HASH, row_hash
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import LedgerError

ReleaseKey = tuple[str, int, str]  # run_id, round, purpose


@dataclass
class Charge:
    """A charge row and what became of it."""

    seq: int
    key: ReleaseKey
    attempt: int
    status: str = "charged"


@dataclass
class LedgerState:
    """The sums over rows 0..`head_seq`."""

    head_seq: int = -1
    head_hash: str = GENESIS_HASH
    last_time: datetime | None = None
    charges: dict[int, Charge] = field(default_factory=dict)
    attempts: dict[ReleaseKey, list[Charge]] = field(default_factory=lambda: defaultdict(list))
    # Per ISO week: cost in units by window, and how often each event was charged.
    week_units: dict[IsoWeek, defaultdict[str, int]] = field(default_factory=dict)
    week_events: dict[IsoWeek, dict[Event, int]] = field(default_factory=dict)
    _events: dict[str, Event] = field(default_factory=dict)

    def apply(self, row: Mapping[str, Any]) -> None:
        """Checks that `row` continues the chain and adds it.

        Raises:
            LedgerError: naming the row, when it does not; the state is unchanged.
        """
        seq = row["seq"]
        if not self._continues(row):
            raise LedgerError(
                f"The ledger was altered: row {seq} does not continue the chain after row {self.head_seq}. "
                "Nothing is granted from it; restore the file from a copy whose head you know."
            )
        if row["kind"] == "charge":
            self._apply_charge(row)
        elif row["kind"] in ("released", "abandoned"):
            charge = self.charges.get(row["charge_seq"])
            if charge is None or charge.status != "charged":
                raise LedgerError(f"The ledger was altered: row {seq} marks a charge that is not open.")
            charge.status = row["kind"]
        elif row["kind"] != "definition" or seq != 0:
            raise LedgerError(f"The ledger was altered: row {seq} has the unknown kind {row['kind']!r}.")
        self.head_seq = seq
        self.head_hash = row["hash"]
        self.last_time = datetime.fromisoformat(row["time_utc"])

    def _continues(self, row: Mapping[str, Any]) -> bool:
        if row["seq"] != self.head_seq + 1 or row["previous_hash"] != self.head_hash:
            return False
        try:
            return bool(row["hash"] == row_hash(row))
        except (TypeError, ValueError):  # a value that no row was ever written with, such as an infinity or bytes
            return False

    def _apply_charge(self, row: Mapping[str, Any]) -> None:
        text = row["event"]
        if text not in self._events:
            self._events[text] = event_from_dict(json.loads(text))
        event = self._events[text]
        costs = json.loads(row["costs"])
        week = IsoWeek(row["iso_year"], row["iso_week"])
        units = self.week_units.setdefault(week, defaultdict(int))
        for window, cost in costs.items():
            units[window] += int(cost)
        events = self.week_events.setdefault(week, defaultdict(int))
        events[event] += 1
        charge = Charge(row["seq"], (row["run_id"], row["round"], row["purpose"]), row["attempt"])
        self.charges[charge.seq] = charge
        self.attempts[charge.key].append(charge)

    def weeks(self, window: WindowName, week: IsoWeek) -> list[IsoWeek]:
        """The charged weeks that `window` covers when it is `week`."""
        if window == "week":
            return [week] if week in self.week_units else []
        if window == "year":
            return [other for other in self.week_units if other.year == week.year]
        if window == "trailing":
            return [other for other in self.week_units if 0 <= week.index - other.index < TRAILING_WEEKS]
        return list(self.week_units)

    def spent_units(self, window: WindowName, week: IsoWeek) -> int:
        """What the window has spent, in units at its own order."""
        return sum(self.week_units[other].get(window, 0) for other in self.weeks(window, week))

    def spent_events(self, window: WindowName, week: IsoWeek) -> list[Event]:
        """The events charged in the window, equal ones grouped."""
        counts: dict[Event, int] = defaultdict(int)
        for other in self.weeks(window, week):
            for event, count in self.week_events[other].items():
                counts[event] += count
        return [event.repeated(count) for event, count in counts.items()]
