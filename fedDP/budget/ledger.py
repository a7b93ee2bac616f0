"""The ledger: every release is charged here, durably, before any client trains for it."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.engine import Connection

from fedDP.accounting import Gaussian, NeighboringRelation
from fedDP.budget.clock import Clock, SystemClock
from fedDP.budget.database import Database, append_row, read_rows
from fedDP.budget.definition import LedgerDefinition, check_text
from fedDP.budget.grant import Grant
from fedDP.budget.policy import Budget, WindowName
from fedDP.budget.records import GENESIS_HASH, canonical_json, chained_row
from fedDP.budget.state import LedgerState, ReleaseKey
from fedDP.budget.weeks import IsoWeek
from fedDP.budget.windows import Windows, WindowStatus
from fedDP.errors import LedgerError
from fedDP.privacy.keys import RngKind
from fedDP.privacy.limits import CLIP_NORM, DENOMINATOR, MAX_WEIGHT
from fedDP.ranges import Range

_SKEW = timedelta(minutes=5)
_ROUND = Range(low=0, high=10**9, integer=True)


class Ledger:
    """An append-only, hash-chained account of one population's releases.

    Guarantees:
        1. When `authorise` returns a grant, its charge is on the disk. There are no refunds: a crash can waste budget,
           never hide a release.
        2. A grant is given only if every window can take the release: the sums of costs, rounded up, stay within the
           allowances, rounded down. The filter is valid however later rounds are chosen (Gaussian mode: Smith &
           Thakurta 2022, arXiv:2210.17520; Rényi mode: Feldman & Zrnic 2021, arXiv:2008.11193, at one order a window).
        3. The check and the charge are one exclusive transaction, so that processes cannot spend the same budget twice.
        4. A decision depends on the ledger, the clock and configured numbers alone.
        5. Altered or missing rows are found when the ledger is opened, and rows missing from its end or altered there
           also when it is next used; nothing is granted from it. Rows cut off the end of a closed ledger cannot be
           told from rows that never were: compare `head` with a copy kept elsewhere.

    Create one with `Ledger.open`. Threads may share it; processes open their own.
    """

    def __init__(
        self, database: Database, definition: LedgerDefinition, state: LedgerState, clock: Clock | None
    ) -> None:
        self.definition = definition
        self._database = database
        self._state = state
        self._windows = Windows(definition, state)
        self._clock = clock
        self._lock = threading.Lock()
        # By process: a fork must not draw noise for a grant of its parent.
        self._grants: dict[tuple[int, ReleaseKey], Grant] = {}

    @classmethod
    def open(
        cls,
        url: str,
        *,
        budget: Budget,
        unit: str,
        population: str | None = None,
        neighboring_relation: NeighboringRelation = "zero_out",
        mode: str = "auto",
        plan: Sequence[Gaussian] | None = None,
        clock: Clock | None = None,
        simulation: bool = False,
    ) -> Ledger:
        """Opens a ledger, or creates it.

        Args:
            url: ``sqlite:///path/to/ledger.db``, a path, or ``postgresql://user@host/database``.
            budget: the allowances; fixed at creation.
            unit: what is protected, such as "patient"; fixed at creation.
            population: names the people; fixed at creation.
            mode: "gaussian" (nothing sampled, exact), "renyi", or "auto": gaussian when the plan samples nothing.
            plan: the releases that are expected, which must not depend on data; chooses the orders at creation.
            clock: the system clock by default; its kind is fixed at creation.
            simulation: whether seeded runs may charge it.

        Raises:
            LedgerError: when it cannot be read, was altered, or was created for something else.
        """
        clock = clock or SystemClock()
        database = Database(url)
        fixed: dict[str, Any] = {
            "budget": budget,
            "unit": unit,
            "population": population,
            "neighboring_relation": neighboring_relation,
            "clock": clock.kind,
            "simulation": simulation,
        }
        definition = None
        if database.exists():
            with database.transaction() as connection:
                state, definition = _read(connection)
        if definition is None:
            wanted = LedgerDefinition.create(**fixed, mode=mode, plan=plan)
            database.create()
            with database.transaction() as connection:
                state, definition = _read(connection)  # another process may have been first
                if definition is None:
                    row = chained_row(0, GENESIS_HASH, _utc(clock, 1), kind="definition", definition=wanted.to_json())
                    append_row(connection, row)
            if definition is None:
                state.apply(row)
                definition = wanted
        if differences := definition.differences(fixed, mode=mode):
            raise LedgerError(
                f"The ledger {database.url} was created with other terms: {'; '.join(differences)}. They are fixed for "
                "its life; ask for the same."
            )
        return cls(database, definition, state, clock)

    @classmethod
    def load(cls, url: str) -> Ledger:
        """Opens an existing ledger as it is, to look at; it has no clock and grants nothing.

        Raises:
            LedgerError: when there is none, or it was altered.
        """
        database = Database(url)
        if not database.exists():
            raise LedgerError(f"There is no ledger at {url}.")
        with database.transaction() as connection:
            state, definition = _read(connection)
        if definition is None:
            raise LedgerError(f"There is no ledger at {url}: the file holds no definition.")
        return cls(database, definition, state, None)

    @property
    def url(self) -> str:
        return self._database.url

    @property
    def head(self) -> tuple[int, str]:
        """The number and hash of the last row."""
        return self._state.head_seq, self._state.head_hash

    @property
    def last_week(self) -> IsoWeek:
        """The week of the last row."""
        return IsoWeek.of(self._last_time)

    def num_charges(self, *, unreleased: bool = False) -> int:
        """How many releases were charged, or of how many it is not known that they were released."""
        charges = self._state.charges.values()
        return sum(charge.status != "released" for charge in charges) if unreleased else len(charges)

    @property
    def last_charged(self) -> datetime | None:
        """The time of the last row, when anything was charged at all."""
        return self._state.last_time if self._state.charges else None

    def authorise(
        self,
        event: Gaussian,
        *,
        run_id: str,
        round: int,
        purpose: str,
        clip_norm: float,
        denominator: float,
        max_weight: float = 1.0,
        rng: RngKind = "csprng",
    ) -> Grant:
        """Charges one release and grants it; the charge is on the disk when this returns.

        In the process that made it, an unused grant is returned again for the same key and numbers. A charge that an
        earlier process left open stays spent; the release is charged again as the next attempt.

        Args:
            event: what the release is, with ``count=1``.
            run_id, round, purpose: the key of the release, two texts and a whole number; at most one attempt of a key
                may be released.
            clip_norm: the bound that the clients are sent.
            denominator: the fixed public divisor of the sum.
            max_weight: the cap on one client's weight.
            rng: "seeded" is refused unless the ledger is a simulation's.

        Raises:
            BudgetExceeded: when a window cannot take it; nothing was charged.
            LedgerError: when the ledger cannot vouch for it; nothing was granted.
            InvalidValueError: for a number outside its range, or an empty key.
            UnsupportedError: when the ledger's mode has no sound cost for the event.
        """
        if not isinstance(event, Gaussian) or event.count != 1:
            raise LedgerError(f"event={event!r}: expected one Gaussian event with count=1.")
        if rng not in ("csprng", "seeded"):
            raise LedgerError(f'rng={rng!r}: expected "csprng" or "seeded".')
        if rng == "seeded" and not self.definition.simulation:
            raise LedgerError(
                "A seeded run cannot charge a real ledger: whoever knows the seed can remove its noise. Drop the seed."
            )
        costs = self._windows.costs(event)
        numbers = {
            "clip_norm": CLIP_NORM.check("clip_norm", clip_norm),
            "denominator": DENOMINATOR.check("denominator", denominator),
            "max_weight": MAX_WEIGHT.check("max_weight", max_weight),
        }
        key = _release_key(run_id, round, purpose)
        with self._lock:
            return self._charge(event, costs, key, numbers, rng)

    def mark_released(self, grant: Grant) -> None:
        """Notes that the grant's release left the aggregator.

        Raises:
            LedgerError: for a grant that is not this ledger's or was marked before.
        """
        with self._lock:
            with self._database.transaction() as connection:
                self._catch_up(connection)
                charge = self._state.charges.get(grant.seq)
                if charge is None or (charge.key, charge.attempt) != (
                    (grant.run_id, grant.round, grant.purpose),
                    grant.attempt,
                ):
                    raise LedgerError(
                        f"Row {grant.seq} is not a charge for round {grant.round} of run {grant.run_id!r}."
                    )
                if charge.status != "charged":
                    raise LedgerError(f"The charge of row {grant.seq} is {charge.status} already.")
                # A mark charges nothing, so it does not need a right clock.
                now = max(self._last_time, _utc(self._clock, grant.round)) if self._clock else self._last_time
                row = self._row([], now, kind="released", charge_seq=grant.seq)
                append_row(connection, row)
            self._state.apply(row)

    def status(self, window: WindowName, week: IsoWeek) -> WindowStatus:
        """What `window` has spent as of `week`."""
        return self._windows.status(window, week)

    def windows(self) -> list[WindowStatus]:
        """Every window that was charged: the weeks, the years, the trailing one as of now, and the lifetime."""
        return self._windows.charged(self.last_week)

    def would_grant(self, event: Gaussian, weeks: Sequence[IsoWeek]) -> int:
        """How many releases like `event`, one in each of `weeks` in turn, it would grant before it refuses one."""
        return self._windows.would_grant(event, weeks)

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

    def _charge(
        self, event: Gaussian, costs: dict[WindowName, int], key: ReleaseKey, numbers: dict[str, float], rng: RngKind
    ) -> Grant:
        run_id, round, purpose = key
        with self._database.transaction() as connection:
            self._catch_up(connection)
            if (known := self._unused_grant(key)) is not None:
                if known.event == event and all(getattr(known, name) == value for name, value in numbers.items()):
                    return known
                raise LedgerError(f"Round {round} was granted with other numbers in this process; use that grant.")
            past = self._state.attempts.get(key, [])
            if any(charge.status == "released" for charge in past):
                raise LedgerError(
                    f"{purpose} of round {round} in run {run_id!r} was released already. Another release needs a "
                    "round or a run_id of its own."
                )
            now = self._now(round)
            week = IsoWeek.of(now)
            self._windows.check(event, costs, week)
            rows: list[dict[str, Any]] = []
            for charge in past:
                if charge.status == "charged":
                    rows.append(self._row(rows, now, kind="abandoned", charge_seq=charge.seq))
            row = self._row(
                rows,
                now,
                kind="charge",
                run_id=run_id,
                round=round,
                purpose=purpose,
                attempt=len(past) + 1,
                event=canonical_json(event.to_dict()),
                costs=canonical_json({name: str(units) for name, units in costs.items()}),
                rng=rng,
                nonce=secrets.token_hex(8),
                **numbers,
            )
            rows.append(row)
            for new in rows:
                append_row(connection, new)
        for new in rows:
            self._state.apply(new)
        grant = Grant(
            seq=row["seq"],
            run_id=run_id,
            round=round,
            purpose=purpose,
            attempt=row["attempt"],
            event=event,
            noise_multiplier=event.noise_multiplier,
            clip_norm=numbers["clip_norm"],
            denominator=numbers["denominator"],
            max_weight=numbers["max_weight"],
            sampling=event.sampling,
            week=week,
        )
        self._grants[os.getpid(), key] = grant
        return grant

    def _unused_grant(self, key: ReleaseKey) -> Grant | None:
        grant = self._grants.get((os.getpid(), key))
        if grant is None or grant.used or self._state.charges[grant.seq].status != "charged":
            return None
        return grant

    def _now(self, round: int) -> datetime:
        if self._clock is None:
            raise LedgerError(f"The ledger {self.url} was loaded to look at; use Ledger.open to charge it.")
        now, last = _utc(self._clock, round), self._last_time
        # Simulated rounds of two runs may share a week, in any order.
        simulated = self._clock.kind == "simulated"
        if IsoWeek.of(now) < IsoWeek.of(last) if simulated else now < last - _SKEW:
            raise LedgerError(
                f"The clock went back: it says {now.isoformat()}, the ledger's last row is of {last.isoformat()}. "
                "Set the clock right; nothing was granted."
            )
        return max(now, last)

    @property
    def _last_time(self) -> datetime:
        assert self._state.last_time is not None  # row 0 has a time
        return self._state.last_time

    def _catch_up(self, connection: Connection) -> None:
        rows = read_rows(connection, self._state.head_seq)
        head = next(rows, None)
        if head is None or head["hash"] != self._state.head_hash:
            raise LedgerError(
                f"The ledger was altered: row {self._state.head_seq}, its last one so far, is not there any more."
            )
        for row in rows:
            self._state.apply(row)

    def _row(self, pending: Sequence[dict[str, Any]], now: datetime, **values: Any) -> dict[str, Any]:
        seq = self._state.head_seq + len(pending) + 1
        previous = pending[-1]["hash"] if pending else self._state.head_hash
        return chained_row(seq, previous, now, **values)


def _utc(clock: Clock, round: int) -> datetime:
    return clock.now(round).astimezone(UTC)


def _release_key(run_id: str, round: int, purpose: str) -> ReleaseKey:
    """The key as the database gives it back, so that a row's hash is the same when it is read."""
    return check_text("run_id", run_id), int(_ROUND.check("round", round)), check_text("purpose", purpose)


def _read(connection: Connection) -> tuple[LedgerState, LedgerDefinition | None]:
    state = LedgerState()
    definition = None
    for row in read_rows(connection, 0):
        state.apply(row)
        if row["seq"] == 0:
            definition = LedgerDefinition.from_json(row["definition"])
    return state, definition
