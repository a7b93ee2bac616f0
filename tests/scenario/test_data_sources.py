"""CSV files: what is read, and what is refused with file, row, column and remedy."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

from fedDP.errors import DataError
from fedDP.scenario.sources import read_csv, read_csv_header


def write(folder: Path, content: str | bytes, name: str = "my.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def test_reads_numbers_missing_values_and_text(tmp_path: Path) -> None:
    path = write(tmp_path, '\ufeff who ,age,x\r\n" Ann, B. ",41,\r\nБ,-1e3, 2.5 \r\n007,  ,0\r\n\r\n')
    table = read_csv(path, text_columns=["who"])
    assert list(table.columns) == ["who", "age", "x"] == list(read_csv_header(path))
    assert table.text("who").tolist() == ["Ann, B.", "Б", "007"]
    np.testing.assert_array_equal(table.numbers("age"), [41.0, -1000.0, np.nan])
    np.testing.assert_array_equal(table.numbers("x"), [np.nan, 2.5, 0.0])
    assert table.num_rows == 3


def test_chunks_join(tmp_path: Path) -> None:
    path = write(tmp_path, "id,x\n" + "".join(f"c{row},{row}\n" for row in range(20_000)))
    table = read_csv(path, text_columns=["id"])
    np.testing.assert_array_equal(table.numbers("x"), np.arange(20_000))
    assert table.text("id")[19_999] == "c19999"


def test_skipped_columns_may_hold_anything(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path, "name,x\nAnn,1\n,2\n"), text_columns=[], skip=["name"])
    assert list(table.columns) == ["x"]


def test_columns_keep_their_kind(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path, "id,x\na,1\n"), text_columns=["id"])
    with pytest.raises(DataError, match="'id' is text"):
        table.numbers("id")
    with pytest.raises(DataError, match="'x' is numeric"):
        table.text("x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,x\na,1\nb,abc\n", "row 2 (not counting the header), column 'x': expected a finite number. Write a number"),
        ("id,x\na,inf\n", "row 1 (not counting the header), column 'x': expected a finite number"),
        ("id,x\na,\nb,-Infinity\n", "row 2 (not counting the header), column 'x': expected a finite number"),
        ("id,x\na,1\nb,\nc,nan\n", "row 3 (not counting the header), column 'x': expected a finite number"),
        ("id,x\na,1e999\n", "row 1 (not counting the header), column 'x'"),
        ("id,x\na,1_000\n", "row 1 (not counting the header), column 'x'"),
        ("id,x\na,\u0661\n", "row 1 (not counting the header), column 'x'"),
        ("id,x\na,NA\n", "leave the cell empty if the value is missing"),
        ("id,x\na,TRUE\n", "column 'x': expected a finite number"),
        ("id,x,x\na,1,2\n", "two columns are called 'x'; rename or delete one"),
        ("id,x, x \na,1,2\n", "two columns are called 'x'"),
        ("id,\na,1\n", "column 2 has no name"),
        ("id,x\na,1\nb\n", "row 2 (not counting the header) has 1 cells and the header 2"),
        ("id,x\na,1,2\n", "row 1 (not counting the header) has 3 cells and the header 2. Quote cells"),
        ("id,x\n\na,1\n", "row 1 (not counting the header) is blank. Delete the row"),
        ("", "the file is empty"),
        ("id,x\n", "a header and no rows"),
        ("id,x\n\n\n", "a header and no rows"),
        ("other,x\na,1\n", "no column 'id'; the header has other, x"),
        ("id;x\na;1\n", "with commas"),
        ("id,x\n,1\n", "row 1 (not counting the header), column 'id': expected 1 to 200 characters"),
        ("id,x\na,1\n  ,1\n", "row 2 (not counting the header), column 'id'"),
        ("id,x\n" + "a" * 201 + ",1\n", "row 1 (not counting the header), column 'id'"),
        ("id,x\na\0,1\n", "row 1 (not counting the header), column 'id'"),
        ('id,x\n"a,1\n', "not a valid CSV file"),
        (b"id,x\nZ\xfcrich,1\n", "not UTF-8"),
    ],
)
def test_refuses(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_csv(path, text_columns=["id"])
    assert str(path) in str(caught.value)


def test_messages_do_not_quote_cells(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_csv(write(tmp_path, "id,x\na,Ann Smith\n"), text_columns=["id"])
    assert "Smith" not in str(caught.value)


def test_counts_rows_over_chunks(tmp_path: Path) -> None:
    rows = [f"c{row},{row}" for row in range(1, 9001)]
    rows[8999] = "c9000,oops"
    with pytest.raises(DataError, match="row 9000 "):
        read_csv(write(tmp_path, "\n".join(["id,x", *rows])), text_columns=["id"])


@pytest.mark.parametrize("name", ["my.parquet", "my.npz", "my.xlsx", "my.csv.gz", "my"])
def test_refuses_other_formats(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be read yet; save it as CSV"):
        read_csv(write(tmp_path, "id,x\na,1\n", name), text_columns=["id"])


def test_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.csv: the file cannot be read \(No such file.*check the path"):
        read_csv_header(tmp_path / "no.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv: the file cannot be read"):
        read_csv_header(tmp_path / "folder.csv")


@pytest.mark.slow
def test_a_large_file_loads_in_seconds(tmp_path: Path) -> None:
    line = ",".join(["0.123456"] * 60 + [""] * 6)
    path = write(tmp_path, "\n".join([",".join(f"x{i}" for i in range(66)), *[line] * 60_000]))
    start = time.perf_counter()
    table = read_csv(path, text_columns=[])
    assert table.num_rows == 60_000
    assert time.perf_counter() - start < 20.0  # about 2 seconds; the margin is for a busy machine
