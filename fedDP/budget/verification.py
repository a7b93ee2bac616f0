"""The full check of a ledger: not only that its rows are the ones that were written, but that each could be granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedDP.budget.anchors import Anchor, check_anchors
from fedDP.budget.database import Database
from fedDP.budget.definition import LedgerDefinition, check_text
from fedDP.budget.opening import anchor_file_of, no_ledger, read_pages
from fedDP.budget.plan_limits import check_plan
from fedDP.budget.policy import CHECK_ORDER, INTEGER_ORDERS, WindowRule, allowance_units
from fedDP.budget.state import LedgerState
from fedDP.budget.timekeeping import has_jumped
from fedDP.budget.weeks import IsoWeek
from fedDP.budget.windows import Windows
from fedDP.errors import FedDPError, LedgerError
from fedDP.privacy.limits import CLIP_NORM, DENOMINATOR, MAX_WEIGHT

_LONG_YEAR = IsoWeek(2026, 1)  # any week of a year with 53


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was verified.

    Attributes:
        ledger_id: names the ledger.
        rows, charges: how many there are.
        kinds: rows by kind.
        head: the number and hash of the last row.
        anchors: how many anchors it was compared with.
    """

    ledger_id: str
    rows: int
    charges: int
    kinds: dict[str, int]
    head: tuple[int, str]
    anchors: int


def verify(
    url: str, anchors: Sequence[Mapping[str, Any]] = (), *, anchor_file: Path | str | None = None
) -> Verification:
    """Reads a ledger and derives everything in it again.

    Guarantees, when it returns:
        1. The chain: every row is numbered, chained and hashed as the one after the row before it; its day, its week,
           its attempt, and what it says of an earlier row follow from those before.
        2. The definition: every allowance is what the budget's epsilon comes to at the window's order. An even week
           that has an order of its own certifies no more than at the year's; which plan chose an order is not kept.
        3. The charges: every cost is what its event comes to in every window, and when it was made, every window could
           take it, the clock had not jumped, and its run kept its terms.
        4. The anchors: the ledger holds each of them, and the one in its operator file.

    A forgery that keeps all of this spends nothing that an honest ledger could not have spent, and contradicts whatever
    anchor was kept of the honest one.

    Args:
        url: the ledger.
        anchors: values of `Ledger.anchor` that were kept elsewhere.
        anchor_file: the operator file, as for `Ledger.open`.

    Raises:
        LedgerError: naming the first row that is wrong, and in what.
    """
    database = Database(url)
    known = [Anchor.parse(anchor) for anchor in anchors]
    if (newest := anchor_file_of(database, anchor_file).read()) is not None:  # before the rows, which may go on
        known.append(newest)
    anchored = {anchor.seq for anchor in known}
    state, hashes, kinds = LedgerState(), dict[int, str](), Counter[str]()
    charges: _Charges | None = None
    for row in read_pages(database) if database.exists() else ():
        state.check(row)
        try:
            if charges is not None and row["kind"] == "charge":
                charges.check(row)
        except FedDPError as error:
            raise LedgerError(f"The ledger was altered: row {row['seq']} could not be granted. {error}") from error
        state.apply(row)
        if charges is None:
            assert state.definition is not None  # what row 0 is
            _check_rules(state.definition, IsoWeek(row["iso_year"], row["iso_week"]))
            charges = _Charges(state.definition, state)
        kinds[row["kind"]] += 1
        if state.head_seq in anchored:
            hashes[state.head_seq] = state.head_hash
    ledger_id = state.definition.ledger_id if state.definition else None
    check_anchors(known, ledger_id=ledger_id, head_seq=state.head_seq, hashes=hashes)
    if ledger_id is None:
        raise no_ledger(database)
    return Verification(
        ledger_id=ledger_id,
        rows=state.head_seq + 1,
        charges=len(state.charges),
        kinds=dict(kinds),
        head=(state.head_seq, state.head_hash),
        anchors=len(known),
    )


class _Charges:
    """Derives charges again, each against the state before it."""

    def __init__(self, definition: LedgerDefinition, state: LedgerState) -> None:
        self._definition = definition
        self._state = state
        self._windows = Windows(definition, state)
        self._costs: dict[str, dict[Any, int]] = {}

    def check(self, row: Mapping[str, Any]) -> None:
        """Passes if `row` could be granted.

        Raises:
            FedDPError: when not, and why.
        """
        event, costs = self._state.charge_of(row)
        if row["event"] not in self._costs:
            self._costs[row["event"]] = self._windows.costs(event)
        derived = self._costs[row["event"]]
        for window in sorted({*costs, *derived}):
            if not _agree(costs.get(window, 0), derived.get(window, 0)):
                raise LedgerError(
                    f"It charges {costs.get(window, 0)} units to window {window!r}, and {event} costs "
                    f"{derived.get(window, 0)}."
                )
        check_text("run_id", row["run_id"])
        check_text("purpose", row["purpose"])
        CLIP_NORM.check("clip_norm", row["clip_norm"])
        DENOMINATOR.check("denominator", row["denominator"])
        MAX_WEIGHT.check("max_weight", row["max_weight"])
        if row["rng"] != "csprng" and not (row["rng"] == "seeded" and self._definition.simulation):
            raise LedgerError(f"Its noise is {row['rng']!r}, which this ledger does not take.")
        if self._definition.clock == "system" and has_jumped(self._state, self._state.day_of(row)):
            raise LedgerError(f"It is of {row['time_utc']}, and nobody has acknowledged that the clock jumped.")
        week = IsoWeek(row["iso_year"], row["iso_week"])
        planned = self._windows.check(event, derived, week, row["purpose"])
        if planned != row["planned"]:
            raise LedgerError(f"It uses up release {row['planned']} of the plan, and the next is {planned}.")


def _check_rules(definition: LedgerDefinition, created: IsoWeek) -> None:
    """Passes if the allowances follow from the budget, or the committed plan keeps it.

    Raises:
        LedgerError: naming the one that does not.
    """
    if definition.plan is not None:
        try:
            check_plan(definition.plan, definition.budget, definition.neighboring_relation)
        except FedDPError as error:
            raise LedgerError(f"The ledger was altered: the plan of row 0 exceeds its budget. {error}") from error
        return
    budget = definition.budget
    rules = {name: rule for name, rule in definition.rules.items() if isinstance(rule, WindowRule)}
    accumulates = {"week"} if budget.carry_over == "cumulative" else set()
    sound = (definition.mode in ("gaussian", "renyi")) and list(rules) == [
        name for name in CHECK_ORDER if getattr(budget, name) is not None
    ]
    sound = sound and all(
        rule.name == name
        and (rule.order is None if definition.mode == "gaussian" else rule.order in INTEGER_ORDERS)
        and rule.since == (created if name in accumulates else None)
        and rule.reserve == budget.reserve_evaluation
        for name, rule in rules.items()
    )
    if not sound:
        raise LedgerError("The ledger was altered: row 0 has windows that do not follow from its budget and mode.")
    for name, rule in rules.items():
        epsilon = getattr(budget, name)
        if epsilon == "even":
            follows = rule.split_year and _is_share(rule, rules["year"], budget.delta)
        else:
            follows = not rule.split_year and _agree(rule.units, allowance_units(epsilon, budget.delta, rule.order))
        if not follows:
            raise LedgerError(
                f"The ledger was altered: row 0 allows {rule.units} units in window {name!r}, which is not what its "
                f"epsilon of {epsilon} comes to."
            )


def _is_share(week: WindowRule, year: WindowRule, delta: float) -> bool:
    one = replace(week, since=None)  # what a single week allows
    at_years_order = replace(one, order=year.order, units=year.units)
    if one.order == year.order:
        return one == at_years_order
    certified = one.limit_epsilon(_LONG_YEAR, delta)
    return certified <= at_years_order.limit_epsilon(_LONG_YEAR, delta) * (1.0 + 1e-12)


def _agree(recorded: int, derived: int) -> bool:
    """Whether two numbers of units are the same, or differ by what the last bits of another machine's arithmetic do.

    That is a tenth of the outward rounding of every cost and allowance, so what agrees still bounds the exact value.
    """
    return abs(recorded - derived) * 10**13 <= derived
