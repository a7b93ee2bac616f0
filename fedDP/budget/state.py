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

from fedDP.accounting import Gaussian, event_from_dict
from fedDP.budget.policy import EVALUATION_PURPOSES, TRAILING_WEEKS, Coverage, WindowName
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
    week_events: dict[IsoWeek, dict[Gaussian, int]] = field(default_factory=dict)
    # The part of both that is not evaluation.
    training_units: dict[IsoWeek, defaultdict[str, int]] = field(default_factory=dict)
    training_events: dict[IsoWeek, dict[Gaussian, int]] = field(default_factory=dict)
    next_planned: int = 0  # the first release of a committed plan that is not used up
    _events: dict[str, Gaussian] = field(default_factory=dict)

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
        costs = {window: int(cost) for window, cost in json.loads(row["costs"]).items()}
        week = IsoWeek(row["iso_year"], row["iso_week"])
        self.add(week, event, costs, row["purpose"])
        if row["planned"] is not None:
            self.next_planned = row["planned"] + 1
        charge = Charge(row["seq"], (row["run_id"], row["round"], row["purpose"]), row["attempt"])
        self.charges[charge.seq] = charge
        self.attempts[charge.key].append(charge)

    def add(self, week: IsoWeek, event: Gaussian, costs: Mapping[WindowName, int], purpose: str) -> None:
        """Adds a charge of `week` to the sums."""
        sums = [(self.week_units, self.week_events)]
        if purpose not in EVALUATION_PURPOSES:
            sums.append((self.training_units, self.training_events))
        for week_units, week_events in sums:
            units = week_units.setdefault(week, defaultdict(int))
            for window, cost in costs.items():
                units[window] += cost
            week_events.setdefault(week, defaultdict(int))[event] += 1

    def weeks(self, window: Coverage, week: IsoWeek) -> list[IsoWeek]:
        """The charged weeks that `window` covers when it is `week`."""
        if window == "week":
            return [week] if week in self.week_units else []
        if window == "year":
            return [other for other in self.week_units if other.year == week.year]
        if window == "year to date":
            return [other for other in self.week_units if other.year == week.year and other <= week]
        if window == "trailing":
            first = week.plus(1 - TRAILING_WEEKS)
            return [other for other in self.week_units if first <= other <= week]
        return list(self.week_units)

    def spent_units(
        self, window: WindowName, week: IsoWeek, *, covers: Coverage | None = None, training: bool = False
    ) -> int:
        """What the window has spent, in units at its own order.

        Args:
            window: whose order.
            week: which one.
            covers: the weeks that count; the window's own by default.
            training: whether evaluation is left out.
        """
        sums = self.training_units if training else self.week_units
        return sum(sums[other].get(window, 0) for other in self.weeks(covers or window, week) if other in sums)

    def spent_events(self, window: Coverage, week: IsoWeek, *, training: bool = False) -> list[Gaussian]:
        """The events charged in the weeks that `window` covers, equal ones grouped; `training`: without evaluation."""
        counts: dict[Gaussian, int] = defaultdict(int)
        sums = self.training_events if training else self.week_events
        for other in self.weeks(window, week):
            for event, count in sums.get(other, {}).items():
                counts[event] += count
        return [
            Gaussian(event.noise_multiplier, sampling=event.sampling, count=event.count * count)
            for event, count in counts.items()
        ]
