"""What a ledger has spent, on what, and what is left: the values behind ``feddp budget show``."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedDP.accounting import accountant_name, epsilon
from fedDP.budget import Ledger, WindowStatus
from fedDP.budget.anchors import AnchorFile
from fedDP.budget.policy import TRAILING_WEEKS, WINDOW_NAMES, WindowName
from fedDP.reporting.charged_releases import ChargedRelease, charged_releases
from fedDP.reporting.terminal import number

_AROUND: dict[WindowName, tuple[WindowName, ...]] = {
    "week": ("year", "trailing", "lifetime"),
    "year": ("trailing", "lifetime"),
    "trailing": ("lifetime",),
    "lifetime": (),
}
"""The windows that every window of a kind lies in."""


def budget_page(ledger: Ledger) -> dict[str, Any]:
    """Everything that ``feddp budget show`` says, JSON-ready.

    Guarantees:
        1. What was charged and what is certified are two numbers. `spent_epsilon` (of a group: `epsilon`) is of the
           charges so far, informational while rounds may still be chosen. `epsilon_certified` of a window holds
           whatever is charged next: its allowance, or that of a window around it; of a group it is the allowance of the
           smallest year or longer window around its charges so far. None where there is none.
        2. Shares (`spent_fraction`, `left_fraction`, `share_of_year`, `shares`) are of an allowance, in the domain in
           which costs add up: those of a year's weeks add up to the year's, those of all runs to the whole.
        3. A charge counts whatever became of it: released, abandoned or open.

    Args:
        ledger: as `Ledger.load` opens it.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    definition = ledger.definition
    terms = json.loads(definition.to_json())
    rows = list(ledger.rows())
    charges, acts = charged_releases(rows), _acts(rows)
    statuses = ledger.windows()
    view = _View(ledger, statuses, charges)
    windows = [view.window(status) for status in statuses]
    seq, digest = ledger.head
    return {
        "ledger": ledger.url,
        "ledger_id": definition.ledger_id,
        "population": definition.population,
        "unit": definition.unit,
        "neighboring_relation": definition.neighboring_relation,
        "mode": definition.mode,
        "mode_reason": terms.get("mode_reason"),
        "delta": definition.budget.delta,
        "accountant": accountant_name(ledger.events()),
        "clock": definition.clock,
        "simulation": definition.simulation,
        "seeded_charges": sum(charge.row["rng"] == "seeded" for charge in charges),
        "budget": {name: value for name, value in terms["budget"].items() if name != "delta"},
        "enrolment": next(
            (act["act"]["enrolment"] for act in reversed(acts) if "enrolment" in act["act"]), terms["enrolment"]
        ),
        "orders": {name: terms["rules"][name]["order"] for name in WINDOW_NAMES if name in terms["rules"]},
        "windows": windows,
        "shares_of": view.shares_of,
        "purposes": view.groups(lambda charge: str(charge.row["purpose"])),
        "runs": view.groups(lambda charge: str(charge.row["run_id"])),
        "notes": {"weeks": _about_weeks(windows), "groups": _about_groups(windows)},
        "acts": acts,
        "head": {"seq": seq, "hash": digest},
        "anchor": ledger.anchor,
        "anchor_file": _anchor_file(ledger.anchor_file),
    }


def _acts(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What operators have decided, in order."""
    return [
        {**{name: row[name] for name in ("seq", "operator", "reason")}, "act": json.loads(row["act"])}
        for row in rows
        if row["kind"] == "operator"
    ]


def _anchor_file(file: AnchorFile) -> dict[str, str] | None:
    """Where the newest anchor is kept, and whether it is there; None where none is kept."""
    return None if file.path is None else {"path": str(file.path), "status": "missing" if file.is_missing else "kept"}


class _View:
    """The charges of one ledger, seen by window and by group.

    Attributes:
        shares_of: the window whose allowance the shares of charges are of: the year's, or the lifetime's where there is
            none, or None.
    """

    def __init__(self, ledger: Ledger, statuses: Sequence[WindowStatus], charges: Sequence[ChargedRelease]) -> None:
        self._definition = ledger.definition
        self._allowances = ledger.certified_epsilon()
        self._charges = charges
        self.shares_of: WindowName | None = None
        self._used: dict[str, float] = {}
        windows: tuple[WindowName, ...] = ("lifetime", "year")
        for name in windows:
            used = {status.key: status.spent_fraction for status in statuses if status.window == name}
            if name in self._allowances:
                self.shares_of, self._used = name, {key: fraction or 0.0 for key, fraction in used.items()}
        self._spent = self._units(charges)
        self._by_week: dict[str, list[ChargedRelease]] = {}
        for charge in charges:
            self._by_week.setdefault(charge.week.key, []).append(charge)

    def window(self, status: WindowStatus) -> dict[str, Any]:
        """A window's status, with what is left of it and, for a week, its share of the year."""
        page = dataclasses.asdict(status)
        page["left_fraction"] = None if status.spent_fraction is None else 1.0 - status.spent_fraction
        page["epsilon_certified"] = self._smallest(status.allowance_epsilon, _AROUND[status.window])
        if status.window == "week" and self.shares_of == "year":
            page["share_of_year"] = self._shares(self._by_week[status.key])[status.key[:4]]
        return page

    def groups(self, name_of: Callable[[ChargedRelease], str]) -> list[dict[str, Any]]:
        """The charges by name, in the order of each name's first."""
        groups: dict[str, list[ChargedRelease]] = {}
        for charge in self._charges:
            groups.setdefault(name_of(charge), []).append(charge)
        return [self._group(name, charges) for name, charges in groups.items()]

    def _group(self, name: str, charges: Sequence[ChargedRelease]) -> dict[str, Any]:
        counts = Counter(charge.event for charge in charges)
        events = [dataclasses.replace(event, count=event.count * count) for event, count in counts.items()]
        relation, delta = self._definition.neighboring_relation, self._definition.budget.delta
        became = Counter(charge.status for charge in charges)
        return {
            "name": name,
            "charges": len(charges),
            "released": became["released"],
            "open": became["charged"],
            "abandoned": became["abandoned"],
            "epsilon": epsilon(events, delta, neighboring_relation=relation),
            "epsilon_certified": self._certified(charges),
            "shares": self._shares(charges),
        }

    def _certified(self, charges: Iterable[ChargedRelease]) -> float | None:
        weeks = {charge.week for charge in charges}
        around: list[WindowName] = ["lifetime"]
        if max(weeks).index - min(weeks).index < TRAILING_WEEKS:
            around.append("trailing")
        if len({week.year for week in weeks}) == 1:
            around.append("year")
        return self._smallest(None, around)

    def _smallest(self, own: float | None, around: Iterable[WindowName]) -> float | None:
        allowances = (own, *(self._allowances.get(name) for name in around))
        return min((value for value in allowances if value is not None), default=None)

    def _shares(self, charges: Iterable[ChargedRelease]) -> dict[str, float]:
        """The share that `charges` have of each year's (or the lifetime's) allowance, by its key."""
        return {key: self._used[key] * (units / self._spent[key]) for key, units in self._units(charges).items()}

    def _units(self, charges: Iterable[ChargedRelease]) -> Counter[str]:
        units: Counter[str] = Counter()
        if self.shares_of is not None:
            for charge in charges:
                units[_year(charge) if self.shares_of == "year" else "lifetime"] += charge.costs[self.shares_of]
        return units


def _year(charge: ChargedRelease) -> str:
    return f"{charge.week.year:04d}"


def _about_weeks(windows: Sequence[Mapping[str, Any]]) -> str:
    """Why weeks' epsilons must not be added, with the number that a reader wants instead; "" for single weeks."""
    weeks = Counter(window["key"][:4] for window in windows if window["window"] == "week")
    joint = [
        f"the {weeks[window['key']]} weeks of {window['key']} together spent epsilon {number(window['spent_epsilon'])}"
        for window in windows
        if window["window"] == "year" and weeks[window["key"]] > 1
    ]
    if not joint:
        return ""
    return (
        "Do not add the weeks' epsilons: the same clients are in every week, and what the weeks reveal of one client "
        f"adds up in the costs, not as epsilon. The joint number: {'; '.join(joint)}."
    )


def _about_groups(windows: Sequence[Mapping[str, Any]]) -> str:
    (lifetime,) = [window for window in windows if window["window"] == "lifetime"]
    return (
        "Every charge is spent, whatever became of it; open: not marked as released (its run goes on, or died). "
        "Epsilon alone is of that group's charges as if there were no others; certified is the allowance of the window "
        "around them. Do not add the groups' epsilons: they speak of the same clients. All charges together spent "
        f"epsilon {number(lifetime['spent_epsilon'])}; only the shares add up."
    )
