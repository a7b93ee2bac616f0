"""Tables as they are stored: the one that ships with fedDP, and a CSV file of the user's own.

Messages name file, row and column but never a cell's content, which may be a person's name. Rows are counted from 1,
without the header.
"""

from __future__ import annotations

import csv
import importlib.resources
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedDP.errors import DataError

HEART_DISEASE_TARGETS = ("num", "disease")
"""Two forms of the same diagnosis: neither may be a feature."""

_ZERO_MEANS_MISSING = ("chol", "trestbps")
_ROWS_PER_CHUNK = 8192
_MAX_TEXT = 200


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of one length.

    Attributes:
        source: what messages call it.
        columns: (R,) float64 with NaN where a value is missing, or (R,) str for the client and site columns.
    """

    source: str
    columns: Mapping[str, NDArray[np.float64] | NDArray[np.str_]]

    @property
    def num_rows(self) -> int:
        """R."""
        return len(next(iter(self.columns.values())))

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Returns a numeric column.

        Raises:
            DataError: when it is text.
        """
        column = self.columns[name]
        if column.dtype != np.float64:
            raise DataError(f"{self.source}: column {name!r} is text and cannot be used as a number.")
        return column.astype(np.float64, copy=False)

    def text(self, name: str) -> NDArray[np.str_]:
        """Returns a text column.

        Raises:
            DataError: when it is numeric.
        """
        column = self.columns[name]
        if column.dtype.kind != "U":
            raise DataError(f"{self.source}: column {name!r} is numeric and cannot name clients or sites.")
        return column.astype(np.str_, copy=False)


def read_heart_disease() -> Table:
    """Reads the heart-disease table that ships with fedDP: 920 patients of four hospitals.

    A cholesterol or a blood pressure of 0 is a missing value (``packaged/heart_disease.md``) and is read as one.

    Returns:
        The column ``site`` as text; the 13 features and ``num`` (0-4) in UCI codes; ``disease``, 1 where ``num`` > 0.
    """
    file = importlib.resources.files("fedDP.scenario.packaged") / "heart_disease.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    cells = dict(zip(content["columns"], zip(*content["rows"], strict=True), strict=True))
    site = np.array(cells.pop("site"), dtype=np.str_)
    numbers = {name: np.array(column, dtype=np.float64) for name, column in cells.items()}  # None becomes NaN
    for name in _ZERO_MEANS_MISSING:
        numbers[name][numbers[name] == 0.0] = np.nan
    numbers["disease"] = (numbers["num"] > 0).astype(np.float64)
    return Table(source="heart-disease", columns={"site": site, **numbers})


def read_csv_header(path: str | Path) -> tuple[str, ...]:
    """Returns the column names of a CSV file.

    Raises:
        DataError: for a file that `read_csv` would refuse for its kind, its encoding or its header.
    """
    return next(_records(Path(path)))


def read_csv(path: str | Path, *, text_columns: Collection[str], skip: Collection[str] = ()) -> Table:
    """Reads a CSV file: UTF-8, separated by commas, with a header.

    Args:
        path: the file; its name ends in ``.csv``.
        text_columns: the client and site columns. Their cells are stripped of surrounding white space.
        skip: columns that are not used; they may hold anything and are not in the result.

    Returns:
        The columns in the file's order, without those in `skip`. An empty cell of a numeric column is NaN.

    Raises:
        DataError: a file that is missing, empty, not a CSV, not UTF-8; a column name that is empty, doubled or (from
            `text_columns`) not there; a row with too many or too few cells; an empty client or site; a cell that is
            not a finite number. It names file, row and column, and the remedy.
    """
    path = Path(path)
    records = _records(path)
    header = next(records)
    absent = [name for name in text_columns if name not in header]
    if absent:
        raise DataError(f"{path}: there is no column {absent[0]!r}; the header has {', '.join(header)}.")
    used = [(index, name) for index, name in enumerate(header) if name not in skip]
    numbers: dict[str, list[NDArray[np.float64]]] = {name: [] for _, name in used if name not in text_columns}
    texts: dict[str, list[NDArray[np.str_]]] = {name: [] for _, name in used if name in text_columns}
    first_row = 1
    while chunk := list(islice(records, _ROWS_PER_CHUNK)):
        cells = list(zip(*chunk, strict=True))
        for index, name in used:
            if name in texts:
                texts[name].append(_parse_text(cells[index], path, first_row, name))
            else:
                numbers[name].append(_parse_numbers(cells[index], path, first_row, name))
        first_row += len(chunk)
    if first_row == 1:
        raise DataError(f"{path}: the file has a header and no rows.")
    columns = {
        name: np.concatenate(texts[name]) if name in texts else np.concatenate(numbers[name]) for _, name in used
    }
    return Table(source=str(path), columns=columns)


def _records(path: Path) -> Iterator[tuple[str, ...]]:
    """Yields the header and then every row; refuses what is not a clean CSV file."""
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path}: {path.suffix or 'a file without extension'} cannot be read yet; save it as CSV.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _checked(csv.reader(file, strict=True), path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the file is not UTF-8 text; save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{path}: not a valid CSV file ({error}); save it again as CSV.") from error
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror}); check the path.") from error


def _checked(reader: Iterator[list[str]], path: Path) -> Iterator[tuple[str, ...]]:
    header = tuple(name.strip() for name in next(reader, []))
    _check_header(header, path)
    yield header
    blank_since = 0
    for row, cells in enumerate(reader, start=1):
        if not cells:
            blank_since = blank_since or row
            continue
        if blank_since or len(cells) != len(header):
            found = "is blank" if blank_since else f"has {len(cells)} cells and the header {len(header)}"
            remedy = "Delete the row." if blank_since else "Quote cells that hold a comma."
            raise DataError(f"{_where(path, blank_since or row)} {found}. {remedy}")
        yield tuple(cells)


def _check_header(header: Sequence[str], path: Path) -> None:
    if not header:
        raise DataError(f"{path}: the file is empty; expected a header with the column names and at least one row.")
    if len(header) == 1 and any(separator in header[0] for separator in ";\t|"):
        raise DataError(f"{path}: the header is one cell; save the file as CSV with commas between the cells.")
    for position, name in enumerate(header, start=1):
        if not name:
            raise DataError(f"{path}: column {position} has no name; the first line must name every column.")
        if name in header[: position - 1]:
            raise DataError(f"{path}: two columns are called {name!r}; rename or delete one.")


def _parse_text(cells: Sequence[str], path: Path, first_row: int, name: str) -> NDArray[np.str_]:
    texts = [cell.strip() for cell in cells]
    for row, text in enumerate(texts, start=first_row):
        if not text or "\0" in text or len(text) > _MAX_TEXT:
            allowed = f"1 to {_MAX_TEXT} characters; every row needs its client and site"
            raise DataError(
                f"{_where(path, row)}, column {name!r}: expected {allowed}. Fill the cell or delete the row."
            )
    return np.array(texts, dtype=np.str_)


def _parse_numbers(cells: Sequence[str], path: Path, first_row: int, name: str) -> NDArray[np.float64]:
    joined = "".join(cells)
    plain = joined.isascii() and "_" not in joined  # float() also reads 1_000 and digits of other scripts
    try:
        values = np.array([float(cell) if cell else math.nan for cell in cells])
        if plain and np.count_nonzero(~np.isfinite(values)) == cells.count(""):
            return values
    except ValueError:
        pass  # one cell by one, to name the first that is wrong
    return np.array([_parse_number(cell, path, row, name) for row, cell in enumerate(cells, start=first_row)])


def _parse_number(cell: str, path: Path, row: int, name: str) -> float:
    cell = cell.strip()
    if not cell:
        return math.nan
    try:
        value = float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        remedy = "Write a number, leave the cell empty if the value is missing, or put the column into data.drop."
        raise DataError(f"{_where(path, row)}, column {name!r}: expected a finite number. {remedy}")
    return value


def _where(path: Path, row: int) -> str:
    return f"{path}: row {row} (not counting the header)"
