"""What ``feddp budget verify`` has found: values and text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedDP.budget import Verification
from fedDP.reporting.terminal import table


def verification_page(ledger: str, found: Verification) -> dict[str, Any]:
    """A verification as JSON-ready values.

    Args:
        ledger: its location.
        found: what `fedDP.budget.verify` returned; it raises where something is wrong.
    """
    seq, digest = found.head
    return {
        "ledger": ledger,
        "verified": True,
        "ledger_id": found.ledger_id,
        "rows": found.rows,
        "charges": found.charges,
        "kinds": found.kinds,
        "anchors": found.anchors,
        "head": {"seq": seq, "hash": digest},
    }


def verification_text(page: Mapping[str, Any]) -> str:
    """The same for a person."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in page["kinds"].items())
    anchors = (
        f"{page['anchors']}, and the ledger holds the row that each has seen"
        if page["anchors"]
        else "none was found or given: rows that were cut off the end would not be missed"
    )
    return f"Verified {page['ledger']}: nothing is wrong.\n" + table(
        [
            ("ledger", page["ledger_id"]),
            ("rows", f"{page['rows']}: {kinds}"),
            ("head", f"row {page['head']['seq']}, {page['head']['hash']}"),
            ("anchors", anchors),
            (
                "checked",
                "every row's hash, day, week and attempt; the allowances against the budget; every charge's costs "
                "against its event, and that every window could take it when it was made",
            ),
        ]
    )
