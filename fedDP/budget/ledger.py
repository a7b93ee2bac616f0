"""The ledger: every release is charged here, durably, before any client trains for it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedDP.accounting import Gaussian, NeighboringRelation
from fedDP.budget.anchors import AnchorFile
from fedDP.budget.clock import Clock, SystemClock
from fedDP.budget.committed_plan import PlannedRelease
from fedDP.budget.database import Database
from fedDP.budget.definition import LedgerDefinition, check_text
from fedDP.budget.enrolment_terms import EnrolmentTerms
from fedDP.budget.grant import Grant
from fedDP.budget.opening import anchor_file_of, create_ledger, no_ledger, read_ledger
from fedDP.budget.operated_ledger import OperatedLedger
from fedDP.budget.policy import Budget, WindowName
from fedDP.budget.records import GENESIS_HASH, canonical_json, chained_row
from fedDP.budget.state import LedgerState, ReleaseKey
from fedDP.budget.timekeeping import Timekeeper
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import LedgerError
from fedDP.privacy.keys import RngKind
from fedDP.privacy.limits import CLIP_NORM, DENOMINATOR, MAX_WEIGHT
from fedDP.ranges import Range

_ROUND = Range(low=0, high=10**9, integer=True)


class Ledger(OperatedLedger):
    """An append-only, hash-chained account of one population's releases.

    Guarantees:
        1. When `authorise` returns a grant, its charge is on the disk. There are no refunds: a crash can waste budget,
           never hide a release.
        2. A grant is given only if every window can take the release: the sums of costs, rounded up, stay within the
           allowances, rounded down. The filter is valid however later rounds are chosen (Gaussian mode: Smith &
           Thakurta 2022, arXiv:2210.17520; Rényi mode: Feldman & Zrnic 2021, arXiv:2008.11193, at one order a window).
           In plan mode it is given only to the next release of a schedule that was committed to and fits as a whole.
        3. The check and the charge are one exclusive transaction, so that processes cannot spend the same budget twice.
        4. A decision depends on the ledger, the clock and configured numbers alone.
        5. Rows that are altered, missing, or do not follow from those before them are found when the ledger is opened,
           and at its end also when it is next used; so is an older copy, by the anchors that are kept outside (`anchor`
           in the checkpoints of runs, and an operator file that follows every row). Nothing is granted from it. Whoever
           can remove every anchor can still put an older copy in place.
        6. The clock may neither go back nor jump ahead (`timekeeping`), and with an enrolment, the sampling and the
           denominator of a run stay what they were in its first charge. What an operator changes is a row of its own.

    Create one with `Ledger.open`. Threads may share it; processes open their own.
    """

    def __init__(
        self,
        database: Database,
        definition: LedgerDefinition,
        state: LedgerState,
        clock: Clock | None,
        anchor_file: AnchorFile,
    ) -> None:
        super().__init__(database, definition, state, clock, anchor_file)
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
        plan: Sequence[Gaussian | PlannedRelease] | None = None,
        exclusive: bool = False,
        clock: Clock | None = None,
        simulation: bool = False,
        enrolment: EnrolmentTerms | None = None,
        anchors: Sequence[Mapping[str, Any]] = (),
        anchor_file: Path | str | None = None,
    ) -> Ledger:
        """Opens a ledger, or creates it.

        Args:
            url: ``sqlite:///path/to/ledger.db``, a path, or ``postgresql://user@host/database``.
            budget: the allowances; fixed at creation.
            unit: what is protected, such as "patient"; fixed at creation.
            population: names the people; fixed at creation.
            mode: "gaussian" (nothing sampled, exact), "renyi" (any rounds, however chosen), "plan" (a committed
                schedule, the tightest), or "auto", which picks one (`fedDP.budget.mode`); `definition.mode_reason`
                says why.
            plan: the releases that are expected, which must not depend on data. It chooses the orders at creation; a
                ledger in plan mode stores it with its hash and grants nothing else.
            exclusive: whether the ledger serves the plan's run alone, so that "auto" may commit to it.
            clock: the system clock by default; its kind is fixed at creation.
            simulation: whether seeded runs may charge it.
            enrolment: who is enrolled; fixed until an operator changes it, and with it each run's sampling and
                denominator. Without one, nothing is asked of them.
            anchors: values of `anchor` that were kept elsewhere, such as in checkpoints; the ledger must hold them all.
            anchor_file: the operator file; by default ``<path>.anchor`` beside a SQLite ledger, and none for others.

        Raises:
            LedgerError: when it cannot be read, was altered, rolled back or exchanged, was created for something else,
                or has charges and no operator file.
            InvalidValueError: for terms that make no sense, or a plan to commit to that exceeds the budget; no ledger
                is created.
        """
        clock = clock or SystemClock()
        database = Database(url)
        file = anchor_file_of(database, anchor_file)
        fixed: dict[str, Any] = {
            "budget": budget,
            "unit": unit,
            "population": population,
            "neighboring_relation": neighboring_relation,
            "clock": clock.kind,
            "simulation": simulation,
        }
        state = read_ledger(database, file, anchors)
        if state.definition is None:
            now = Timekeeper(clock).read(1)
            wanted = LedgerDefinition.create(
                **fixed, mode=mode, plan=plan, exclusive=exclusive, created=IsoWeek.of(now), enrolment=enrolment
            )
            row = chained_row(0, GENESIS_HASH, now, kind="definition", definition=wanted.to_json())
            state = create_ledger(database, file, row)
        elif file.is_missing and state.charges:
            raise LedgerError(
                f"The anchor file {file.path} is missing, and without it nobody can tell whether the ledger "
                f"{database.url} lacks its last rows. Put it back; if it is lost, have an operator say so: "
                "feddp budget reset-anchor LEDGER --operator NAME --reason TEXT."
            )
        definition = state.definition
        assert definition is not None
        if differences := definition.differences(fixed, mode=mode, plan=plan):
            raise LedgerError(
                f"The ledger {database.url} was created with other terms: {'; '.join(differences)}. They are fixed for "
                "its life; ask for the same."
            )
        if enrolment != state.enrolment:
            raise LedgerError(
                f"The ledger {database.url} is kept for enrolment={state.enrolment}, enrolment={enrolment} was asked. "
                "Ask for the same; if the enrolment has changed, have an operator say so: feddp budget enrol LEDGER "
                + (f"--clients {enrolment.num_clients} --sha256 {enrolment.sha256} " if enrolment else "")
                + "--operator NAME --reason TEXT."
            )
        return cls(database, definition, state, clock, file)

    @classmethod
    def load(
        cls, url: str, *, anchors: Sequence[Mapping[str, Any]] = (), anchor_file: Path | str | None = None
    ) -> Ledger:
        """Opens an existing ledger as it is, to look at or for an operator's acts; it grants nothing.

        Args:
            url, anchors, anchor_file: as for `open`; a missing operator file is no reason not to look.

        Raises:
            LedgerError: when there is none, or it was altered, rolled back or exchanged.
        """
        database = Database(url)
        file = anchor_file_of(database, anchor_file)
        state = read_ledger(database, file, anchors)
        if state.definition is None:
            raise no_ledger(database)
        return cls(database, state.definition, state, None, file)

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
            event: what the release is. With ``count > 1`` it is one release of something that is itself so many steps,
                such as what a client's training with noise in every step leaves of a round; all of them are charged.
                Its noise is drawn where the steps are made: before that, mark the grant with `Grant.use`, so that
                another training needs another charge.
            run_id, round, purpose: the key of the release, two texts and a whole number; at most one attempt of a key
                may be released.
            clip_norm: the bound that the clients are sent.
            denominator: the fixed public divisor of the sum.
            max_weight: the cap on one client's weight.
            rng: "seeded" is refused unless the ledger is a simulation's.

        Raises:
            BudgetExceeded: when a window cannot take it; nothing was charged.
            ClockJumped: when the clock is too far ahead of the last charge; nothing was charged.
            LedgerError: when the ledger cannot vouch for it, or has committed to another release; nothing was granted.
            InvalidValueError: for a number outside its range, or an empty key.
            UnsupportedError: when the ledger's mode has no sound cost for the event, as plan mode has none for several
                steps.
        """
        if not isinstance(event, Gaussian):
            raise LedgerError(f"event={event!r}: expected a Gaussian event.")
        if rng not in ("csprng", "seeded"):
            raise LedgerError(f'rng={rng!r}: expected "csprng" or "seeded".')
        if rng == "seeded" and not self.definition.simulation:
            raise LedgerError(
                "A seeded run cannot charge a real ledger: whoever knows the seed can remove its noise. Drop the seed."
            )
        if self._timekeeper is None:
            raise LedgerError(f"The ledger {self.url} was loaded to look at; use Ledger.open to charge it.")
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
        key = grant.run_id, grant.round, grant.purpose
        with self._lock, self._appending() as rows:
            charge = self._state.charges.get(grant.seq)
            if charge is None or (charge.key, charge.attempt) != (key, grant.attempt):
                raise LedgerError(f"Row {grant.seq} is not a charge for round {grant.round} of run {grant.run_id!r}.")
            if charge.status != "charged":
                raise LedgerError(f"The charge of row {grant.seq} is {charge.status} already.")
            self._add_row(rows, self._time_of_note(grant.round), kind="released", charge_seq=grant.seq)
        self._grants.pop((os.getpid(), key), None)

    def mark_published(self, *, run_id: str, round: int, purpose: str) -> None:
        """Marks a release whose process ended after publishing it, before its mark; a marked one is left as it is.

        Only the last attempt of a release can have been published.

        Raises:
            LedgerError: when it was never charged.
        """
        key = _release_key(run_id, round, purpose)
        with self._lock, self._appending() as rows:
            if not (past := self._state.attempts.get(key, [])):
                raise LedgerError(f"{purpose} of round {round} in run {run_id!r} was never charged.")
            if past[-1].status == "charged":
                self._add_row(rows, self._time_of_note(round), kind="released", charge_seq=past[-1].seq)

    def _charge(
        self, event: Gaussian, costs: dict[WindowName, int], key: ReleaseKey, numbers: dict[str, float], rng: RngKind
    ) -> Grant:
        run_id, round, purpose = key
        assert self._timekeeper is not None
        with self._appending() as rows:
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
            if conflict := self._state.conflict(key, event, numbers["denominator"]):
                raise LedgerError(
                    f"{purpose} of run {run_id!r} cannot be charged: {conflict}. With an enrolment these are fixed for "
                    "a run; a run with a run_id of its own may choose others."
                )
            now = self._timekeeper.time_of_charge(round, self._state)
            week = IsoWeek.of(now)
            planned = self._windows.check(event, costs, week, purpose)
            for charge in past:
                if charge.status == "charged":
                    self._add_row(rows, now, kind="abandoned", charge_seq=charge.seq)
            row = self._add_row(
                rows,
                now,
                kind="charge",
                run_id=run_id,
                round=round,
                purpose=purpose,
                attempt=len(past) + 1,
                event=canonical_json(event.to_dict()),
                costs=canonical_json({name: str(units) for name, units in costs.items()}),
                planned=planned,
                rng=rng,
                nonce=secrets.token_hex(8),
                enrolment=self._state.enrolment_version or None,
                **numbers,
            )
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


def _release_key(run_id: str, round: int, purpose: str) -> ReleaseKey:
    """The key as the database gives it back, so that a row's hash is the same when it is read."""
    return check_text("run_id", run_id), int(_ROUND.check("round", round)), check_text("purpose", purpose)
