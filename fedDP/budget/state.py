"""What a ledger's rows add up to, kept in memory and brought forward row by row.

Everything here is derived from the rows, so that no cached total in the database can disagree with them, and the cost
of a charge does not grow with the ledger.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from fedDP.accounting import Gaussian
from fedDP.budget.definition import LedgerDefinition, check_text
from fedDP.budget.enrolment_terms import EnrolmentTerms, RunTerms, population_conflict
from fedDP.budget.operator_acts import AnchorReset, ClockJumpAcknowledged, EnrolmentChanged, act_from_json
from fedDP.budget.policy import EVALUATION_PURPOSES, TRAILING_WEEKS, Coverage, WindowName
from fedDP.budget.records import GENESIS_HASH, charged_event, row_hash
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import LedgerError, UnsupportedError

ReleaseKey = tuple[str, int, str]  # run_id, round, purpose


class _Wrong(Exception):
    """What is wrong with a row, as the end of a sentence about it."""


@dataclass(slots=True)
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
    definition: LedgerDefinition | None = None
    last_time: datetime | None = None
    last_charge: datetime | None = None
    acknowledged_week: IsoWeek | None = None  # of a jump since the last charge
    enrolment: EnrolmentTerms | None = None
    enrolment_version: int = 0
    run_terms: dict[tuple[str, str], RunTerms] = field(default_factory=dict)
    charges: dict[int, Charge] = field(default_factory=dict)
    attempts: dict[ReleaseKey, list[Charge]] = field(default_factory=lambda: defaultdict(list))
    # Per ISO week: cost in units by window, and how often each event was charged.
    week_units: dict[IsoWeek, defaultdict[str, int]] = field(default_factory=dict)
    week_events: dict[IsoWeek, dict[Gaussian, int]] = field(default_factory=dict)
    # The part of both that is not evaluation.
    training_units: dict[IsoWeek, defaultdict[str, int]] = field(default_factory=dict)
    training_events: dict[IsoWeek, dict[Gaussian, int]] = field(default_factory=dict)
    num_releases: int = 0  # a charge of an event with a count is so many
    # What years (at None: all of them) have cost, and the part that is not evaluation: a charge then takes as long in a
    # ledger of any length.
    year_units: dict[tuple[int | None, bool], defaultdict[str, int]] = field(default_factory=dict)
    next_planned: int = 0  # the first release of a committed plan that is not used up
    # What texts say, since thousands of rows say the same.
    _days: dict[str, tuple[datetime, IsoWeek]] = field(default_factory=dict)
    _charges_read: dict[tuple[str, str], tuple[Gaussian, dict[WindowName, int]]] = field(default_factory=dict)

    def apply(self, row: Mapping[str, Any]) -> None:
        """Checks `row` and adds it.

        Raises:
            LedgerError: as `check`; the state is unchanged.
        """
        self.check(row)
        day = self.day_of(row)
        match row["kind"]:
            case "charge":
                self._apply_charge(row)
                self.last_charge, self.acknowledged_week = day, None
            case "operator":
                self._apply_act(row)
            case "definition":
                self.definition = LedgerDefinition.from_json(row["definition"])
                self.enrolment = self.definition.enrolment
                self.enrolment_version = 0 if self.enrolment is None else 1
            case _:
                self.charges[row["charge_seq"]].status = row["kind"]
        self.head_seq = row["seq"]
        self.head_hash = row["hash"]
        self.last_time = day

    def check(self, row: Mapping[str, Any]) -> None:
        """Passes if `row` continues the chain and says something that can follow what came before.

        Raises:
            LedgerError: naming the row, when it does not.
        """
        seq = row["seq"]
        if not self._is_continued_by(row):
            raise LedgerError(
                f"The ledger was altered: row {seq} does not continue the chain after row {self.head_seq}. "
                "Nothing is granted from it; restore the file from a copy whose head you know."
            )
        try:
            self._check_day(row)
            kind = row["kind"]
            if (kind == "definition") != (seq == 0):
                raise _Wrong(f"is of kind {kind!r}, and the first row alone is a definition")
            if kind == "charge":
                self._check_charge(row)
            elif kind in ("released", "abandoned"):
                charge = self.charges.get(row["charge_seq"])
                if charge is None or charge.status != "charged":
                    raise _Wrong("marks a charge that is not open")
            elif kind == "operator":
                self._check_act(row)
            elif kind != "definition":
                raise _Wrong(f"has the unknown kind {kind!r}")
        except _Wrong as error:
            raise LedgerError(f"The ledger was altered: row {seq} {error}.") from error
        except (UnsupportedError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise LedgerError(f"The ledger was altered: row {seq} cannot be read ({error}).") from error

    def day_of(self, row: Mapping[str, Any]) -> datetime:
        """The start of the day of a row that was checked."""
        return self._days[row["time_utc"]][0]

    def charge_of(self, row: Mapping[str, Any]) -> tuple[Gaussian, dict[WindowName, int]]:
        """The event of a charge row, and its costs in units."""
        texts = row["event"], row["costs"]
        if texts not in self._charges_read:
            costs = {window: int(units) for window, units in json.loads(texts[1]).items()}
            if any(units < 0 for units in costs.values()):
                raise _Wrong("charges less than nothing")
            self._charges_read[texts] = charged_event(json.loads(texts[0])), costs
        return self._charges_read[texts]

    def conflict(self, key: ReleaseKey, event: Gaussian, denominator: float) -> str | None:
        """Why the enrolment does not allow a charge; None when it does, or when none is kept."""
        if self.enrolment is None:
            return None
        asked = RunTerms(self.enrolment_version, event.sampling, denominator)
        first = self.run_terms.get((key[0], key[2]), asked)
        return first.conflict(asked) or population_conflict(event, self.enrolment)

    def add(self, week: IsoWeek, event: Gaussian, costs: Mapping[WindowName, int], purpose: str) -> None:
        """Adds a charge of `week` to the sums."""
        sums = [(self.week_units, self.week_events, False)]
        if purpose not in EVALUATION_PURPOSES:
            sums.append((self.training_units, self.training_events, True))
        for week_units, week_events, training in sums:
            totals = [self.year_units.setdefault((year, training), defaultdict(int)) for year in (week.year, None)]
            for units in (week_units.setdefault(week, defaultdict(int)), *totals):
                for window, cost in costs.items():
                    units[window] += cost
            week_events.setdefault(week, defaultdict(int))[event] += 1
        self.num_releases += event.count

    def trial(self) -> LedgerState:
        """A state with the same costs, to try charges on."""
        return LedgerState(
            week_units={week: defaultdict(int, units) for week, units in self.week_units.items()},
            training_units={week: defaultdict(int, units) for week, units in self.training_units.items()},
            year_units={key: defaultdict(int, units) for key, units in self.year_units.items()},
            num_releases=self.num_releases,
            next_planned=self.next_planned,
        )

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
        covers = covers or window
        if covers in ("year", "lifetime"):
            total = self.year_units.get((week.year if covers == "year" else None, training))
            return total[window] if total and window in total else 0
        sums = self.training_units if training else self.week_units
        return sum(sums[other].get(window, 0) for other in self.weeks(covers, week) if other in sums)

    def spent_events(self, window: Coverage, week: IsoWeek, *, training: bool = False) -> list[Gaussian]:
        """The events charged in the weeks that `window` covers, equal ones grouped; `training`: without evaluation."""
        counts: dict[Gaussian, int] = defaultdict(int)
        sums = self.training_events if training else self.week_events
        for other in self.weeks(window, week):
            for event, times in sums.get(other, {}).items():
                counts[replace(event, count=1)] += event.count * times
        return [event.repeated(count) for event, count in counts.items()]

    def num_charges(self, window: Coverage, week: IsoWeek) -> int:
        """How many charges were made in the weeks that `window` covers."""
        return sum(sum(self.week_events[other].values()) for other in self.weeks(window, week))

    def _is_continued_by(self, row: Mapping[str, Any]) -> bool:
        if row["seq"] != self.head_seq + 1 or row["previous_hash"] != self.head_hash:
            return False
        try:
            return bool(row["hash"] == row_hash(row))
        except (TypeError, ValueError):  # a value that no row was ever written with, such as an infinity or bytes
            return False

    def _check_day(self, row: Mapping[str, Any]) -> None:
        text = row["time_utc"]
        if text not in self._days:
            day = datetime.fromisoformat(text)
            if day != day.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC):
                raise _Wrong(f"is of {text!r}, which is not a day in UTC")
            self._days[text] = day, IsoWeek.of(day)
        day, week = self._days[text]
        if (row["iso_year"], row["iso_week"]) != (week.year, week.week):
            raise _Wrong(f"is put into week {row['iso_year']}-W{row['iso_week']}, its day {text} lies in {week.key}")
        if self.last_time is not None and day < self.last_time:
            raise _Wrong(f"is of {text}, before the row it follows")

    def _check_charge(self, row: Mapping[str, Any]) -> None:
        event, _ = self.charge_of(row)
        key, attempt, enrolment = _key_of(row), row["attempt"], row["enrolment"]
        past = self.attempts.get(key, [])
        if attempt != len(past) + 1 or (past and past[-1].status != "abandoned"):
            status = f", the last one {past[-1].status}" if past else ""
            raise _Wrong(f"is attempt {attempt} at a release with {len(past)} before it{status}")
        if enrolment != (self.enrolment_version or None):
            raise _Wrong(f"is charged under enrolment {enrolment}, where {self.enrolment_version or None} holds")
        if conflict := self.conflict(key, event, row["denominator"]):
            raise _Wrong(f"breaks the terms of its run: {conflict}")
        planned = row["planned"]
        assert self.definition is not None  # of row 0
        if (planned is None) != (self.definition.plan is None) or (planned is not None and planned < self.next_planned):
            raise _Wrong(f"uses up release {planned} of the plan, where {self.next_planned} is the next")

    def _apply_charge(self, row: Mapping[str, Any]) -> None:
        event, costs = self.charge_of(row)
        self.add(self._days[row["time_utc"]][1], event, costs, row["purpose"])
        if row["planned"] is not None:
            self.next_planned = row["planned"] + 1
        charge = Charge(row["seq"], _key_of(row), row["attempt"])
        self.charges[charge.seq] = charge
        self.attempts[charge.key].append(charge)
        if self.enrolment is not None:
            terms = RunTerms(self.enrolment_version, event.sampling, row["denominator"])
            self.run_terms.setdefault((row["run_id"], row["purpose"]), terms)

    def _check_act(self, row: Mapping[str, Any]) -> None:
        check_text("operator", row["operator"])
        check_text("reason", row["reason"])
        match act_from_json(row["act"]):
            case EnrolmentChanged(version=version) if version != self.enrolment_version + 1:
                raise _Wrong(f"begins enrolment {version} after {self.enrolment_version}")
            case AnchorReset(seq=seq, hash=digest) if (seq, digest) != (self.head_seq, self.head_hash):
                raise _Wrong(f"begins an anchor after row {seq}, which is not the row before it")

    def _apply_act(self, row: Mapping[str, Any]) -> None:
        match act_from_json(row["act"]):
            case ClockJumpAcknowledged(week=key):
                self.acknowledged_week = IsoWeek.parse(key)
            case EnrolmentChanged(version=version, enrolment=terms):
                self.enrolment, self.enrolment_version = terms, version


def _key_of(row: Mapping[str, Any]) -> ReleaseKey:
    return row["run_id"], row["round"], row["purpose"]
