"""The charges of a ledger with what became of them, for pages and exports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedDP.accounting import Gaussian
from fedDP.budget.records import charged_event
from fedDP.budget.weeks import IsoWeek


@dataclass(frozen=True, kw_only=True)
class ChargedRelease:
    """One charge row, read.

    Attributes:
        row: the row as it is stored.
        status: "charged" (nobody has marked it: a run goes on, or has died), "released" or "abandoned". All are spent.
        event: what was charged.
        costs: what it costs in each window that has an allowance, in units of 2**-80.
        week: the ISO week it was charged to.
    """

    row: Mapping[str, Any]
    status: str
    event: Gaussian
    costs: Mapping[str, int]
    week: IsoWeek


def charged_releases(rows: Iterable[Mapping[str, Any]]) -> list[ChargedRelease]:
    """The charges among the rows of a ledger, in order."""
    charges: dict[int, Mapping[str, Any]] = {}
    status: dict[int, str] = {}
    for row in rows:
        if row["kind"] == "charge":
            charges[row["seq"]] = row
        elif row["charge_seq"] is not None:
            status[row["charge_seq"]] = row["kind"]
    # A ledger repeats few events and costs many times.
    texts = {text for row in charges.values() for text in (row["event"], row["costs"])}
    read = {text: json.loads(text) for text in texts}
    events = {text: charged_event(read[text]) for text in {row["event"] for row in charges.values()}}
    costs = {text: {name: int(units) for name, units in read[text].items()} for text in texts - events.keys()}
    return [
        ChargedRelease(
            row=row,
            status=status.get(seq, "charged"),
            event=events[row["event"]],
            costs=costs[row["costs"]],
            week=IsoWeek(row["iso_year"], row["iso_week"]),
        )
        for seq, row in charges.items()
    ]
