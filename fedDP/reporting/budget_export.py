"""A ledger as a table that an auditor can use without fedDP: ``feddp budget export``."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from fedDP.budget import Ledger
from fedDP.budget.policy import WINDOW_NAMES
from fedDP.budget.records import COLUMNS
from fedDP.reporting.charged_releases import ChargedRelease, charged_releases

ExportFormat = Literal["csv", "json"]

HASHED_COLUMNS: tuple[str, ...] = tuple(name for name in COLUMNS if name != "hash")
"""What a row's hash covers, in this order."""

_DERIVED = {
    "iso_year": ("week",),
    "iso_week": (),
    "definition": (),  # the terms stand in every charge, the whole of it in the JSON
    "event": ("mechanism", "noise_multiplier", "sampling", "sampling_rate", "cohort_size", "population_size", "count"),
    "costs": ("neighboring_relation", "delta", *(f"cost_{name}" for name in WINDOW_NAMES)),
    "charge_seq": ("charge_seq", "status"),
}

CSV_COLUMNS: tuple[str, ...] = tuple(flat for name in COLUMNS for flat in _DERIVED.get(name, (name,)))
"""The ledger's columns, with those that hold JSON taken apart."""

# A spreadsheet runs a cell that begins like this as a formula; so does one that reads ";" as the separator.
_FORMULA = re.compile(r"(^|[,;|\"])(?=['=+\-@\uFF1D\uFF0B\uFF0D\uFF20])")
_ESCAPED = re.compile(r"(^|[,;|\"])'")


def export_csv(ledger: Ledger) -> str:
    """Every row, with the columns `CSV_COLUMNS`.

    Guarantees:
        1. Numbers survive exactly: floats are written as their shortest repr, costs as whole numbers.
        2. No text becomes a formula in a spreadsheet; `unescape` gives it back as it was.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in exported_rows(ledger):
        writer.writerow([_cell(row[name]) for name in CSV_COLUMNS])
    return stream.getvalue()


def export_json(ledger: Ledger) -> dict[str, Any]:
    """The definition and every row: what `export_csv` has, and each column that the row's hash covers.

    A row's hash is the SHA-256 of the JSON array of its `hashed_columns`, without spaces.
    """
    return {
        "ledger": ledger.url,
        "definition": json.loads(ledger.definition.to_json()),
        "anchor": ledger.anchor,
        "hashed_columns": HASHED_COLUMNS,
        "rows": list(exported_rows(ledger)),
    }


def exported_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Every row as it is stored, with the columns that its event, its costs and the ledger's terms give."""
    rows = list(ledger.rows())
    charges = {charge.row["seq"]: charge for charge in charged_releases(rows)}
    empty = dict.fromkeys(CSV_COLUMNS)
    for row in rows:
        charge = charges.get(row["seq"])
        week = f"{row['iso_year']:04d}-W{row['iso_week']:02d}"
        yield {**empty, **row, "week": week, **(_charged(charge, ledger) if charge else {})}


def unescape(text: str) -> str:
    """The text of a cell of `export_csv` as it stands in the ledger.

    >>> unescape("'=1+1"), unescape("''quoted'"), unescape("a-b")
    ('=1+1', "'quoted'", 'a-b')
    """
    return _ESCAPED.sub(r"\1", text)


def _charged(charge: ChargedRelease, ledger: Ledger) -> dict[str, Any]:
    event = charge.event.to_dict()
    sampling: Mapping[str, Any] = event["sampling"]
    return {
        "status": charge.status,
        "mechanism": event["type"],
        "noise_multiplier": event["noise_multiplier"],
        "sampling": sampling["type"],
        "sampling_rate": sampling.get("rate"),
        "cohort_size": sampling.get("cohort_size"),
        "population_size": sampling.get("population"),
        "count": event["count"],
        "neighboring_relation": ledger.definition.neighboring_relation,
        "delta": ledger.definition.budget.delta,
        # As text: JSON readers keep whole numbers exact to 2**53 only.
        **{f"cost_{name}": str(units) for name, units in charge.costs.items()},
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _FORMULA.sub(r"\1'", value)
    return repr(value)
