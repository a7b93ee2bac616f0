"""``feddp budget``: exit statuses, streams and files."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedDP.budget import Budget, Ledger
from fedDP.cli import main
from tests.budget.ledgers import SetClock, authorise, raw, without_sync
from tests.reporting.ledgers import FULL, charged_ledger
from tests.scenario.runs import strict

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return charged_ledger(tmp_path / "ledger.db").url


def test_show_prints_a_page_or_json(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "show", ledger]) == 0
    assert capsys.readouterr().out.startswith(f"Ledger {ledger}\n")
    assert main(["budget", "show", ledger, "--json"]) == 0
    streams = capsys.readouterr()
    assert strict(streams.out)["head"]["seq"] == 11
    assert streams.err == ""


def test_show_draws_the_year(ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "show", ledger, "--json", "--plot", str(tmp_path / "year.png")]) == 0
    assert (tmp_path / "year.png").read_bytes().startswith(b"\x89PNG")
    strict(capsys.readouterr().out)


@pytest.mark.parametrize("plot", ["year.pdf", "nowhere/year.png"])
def test_a_plot_that_cannot_be_written_ends_with_2(
    plot: str, ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", "show", ledger, "--plot", str(tmp_path / plot)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("InvalidValueError: plot=")


def test_without_matplotlib_a_plot_ends_with_2(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["budget", "show", ledger, "--plot", str(tmp_path / "year.png")]) == 2
    assert "pip install 'fedDP[plots]'" in capsys.readouterr().err


def test_export_prints_csv_or_json(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "export", ledger]) == 0
    text = capsys.readouterr().out
    assert len(list(csv.DictReader(io.StringIO(text)))) == 12
    assert main(["budget", "export", ledger, "--format", "csv"]) == 0
    assert capsys.readouterr().out == text
    assert main(["budget", "export", ledger, "--format", "json"]) == 0
    page = capsys.readouterr().out
    assert len(strict(page)["rows"]) == 12
    assert main(["budget", "export", ledger, "--json"]) == 0
    assert capsys.readouterr().out == page


def test_export_writes_the_file_that_it_would_print(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", "export", ledger]) == 0
    text = capsys.readouterr().out
    assert main(["budget", "export", ledger, "--out", str(tmp_path / "ledger.csv")]) == 0
    assert (tmp_path / "ledger.csv").read_bytes() == text.encode()
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err == f"12 rows written to {tmp_path / 'ledger.csv'}\n"


def test_export_never_writes_over_a_file(ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (tmp_path / "ledger.db").read_bytes()
    for out in ("ledger.db", "nowhere/ledger.csv", "."):
        assert main(["budget", "export", ledger, "--out", str(tmp_path / out)]) == 2
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.startswith("InvalidValueError: out=")
    assert (tmp_path / "ledger.db").read_bytes() == before


def test_contradicting_formats_end_with_2(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "export", ledger, "--json", "--format", "csv"]) == 2
    assert "format='csv'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["budget", "export", ledger, "--format", "xml"])
    assert end.value.code == 2


def test_verify_says_what_was_checked(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "verify", ledger]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Verified {ledger}: nothing is wrong.\n")
    assert "12: 1 definition, 6 charge, 4 released, 1 abandoned" in text
    assert "1, and the ledger holds the row that each has seen" in text
    assert main(["budget", "verify", ledger, "--json"]) == 0
    streams = capsys.readouterr()
    page = strict(streams.out)
    assert (page["verified"], page["rows"], page["charges"], page["anchors"]) == (True, 12, 6, 1)
    assert page["head"]["seq"] == 11
    assert streams.err == ""


def test_verify_says_when_there_is_no_anchor(ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ledger.db.anchor").unlink()
    assert main(["budget", "verify", ledger]) == 0
    assert "rows that were cut off the end would not be missed" in " ".join(capsys.readouterr().out.split())


def test_verify_names_the_first_bad_row(ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with raw(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE entries SET clip_norm = 9 WHERE seq = 3")
    assert main(["budget", "verify", ledger, "--json"]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("LedgerError: The ledger was altered: row 3 ")


def test_a_head_from_another_day_shows_that_rows_were_cut_off(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", "show", ledger, "--json"]) == 0
    (tmp_path / "head.json").write_text(capsys.readouterr().out)
    copy = str(shutil.copy(tmp_path / "ledger.db.anchor", tmp_path / "copy.anchor"))
    for anchor in (str(tmp_path / "head.json"), copy):
        assert main(["budget", "verify", ledger, "--anchor", anchor]) == 0
        assert "2, and the ledger holds" in capsys.readouterr().out
    with raw(tmp_path / "ledger.db") as connection:
        connection.execute("DELETE FROM entries WHERE seq = 11")
    (tmp_path / "ledger.db.anchor").unlink()
    assert main(["budget", "verify", ledger]) == 0  # nobody knows
    capsys.readouterr()
    for anchor in (str(tmp_path / "head.json"), copy):
        assert main(["budget", "verify", ledger, "--anchor", anchor]) == 1
        assert "The ledger was rolled back: row 11 is missing" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "[1]", '{"seq": 3}', '{"anchor": 7}', "7"])
def test_an_anchor_that_is_none_ends_with_2(
    content: str | None, ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "head.json").write_text(content)
    assert main(["budget", "verify", ledger, "--anchor", str(tmp_path / "head.json")]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("InvalidValueError: anchor=")


WHO = ["--operator", "Ada", "--reason", "the clock is right"]


def test_an_operator_vouches_for_a_clock_that_jumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = SetClock(datetime(2020, 3, 2, tzinfo=UTC), kind="system")  # a charge long before anybody runs this
    path = str(tmp_path / "ledger.db")
    authorise(Ledger.open(path, budget=Budget(delta=1e-6), unit="patient", mode="gaussian", clock=clock), FULL)
    assert main(["budget", "acknowledge", path, *WHO]) == 0
    assert capsys.readouterr().out == "Noted in row {}, {}.\n".format(*Ledger.load(path).head)
    (*_, row) = Ledger.load(path).rows()
    assert (row["kind"], row["operator"], row["reason"]) == ("operator", "Ada", "the clock is right")


def test_an_operator_begins_another_enrolment(ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms = ["--clients", "120", "--sha256", "ab" * 32]
    assert main(["budget", "enrol", ledger, *terms, *WHO, "--json"]) == 0
    loaded = Ledger.load(ledger)
    assert strict(capsys.readouterr().out) == {"ledger": ledger, **loaded.anchor}
    assert loaded.head[0] == 12
    assert main(["budget", "enrol", ledger, *terms, *WHO]) == 1
    assert "the enrolment of" in capsys.readouterr().err


def test_an_operator_begins_another_anchor_file(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", "reset-anchor", ledger, *WHO]) == 1
    assert "there is nothing to reset" in capsys.readouterr().err
    (tmp_path / "ledger.db.anchor").unlink()
    assert main(["budget", "reset-anchor", ledger, *WHO]) == 0
    assert (tmp_path / "ledger.db.anchor").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["acknowledge", "--operator", "", "--reason", "why"],
        ["acknowledge", "--operator", "Ada", "--reason", "two\nlines"],
        ["enrol", "--clients", "0", "--sha256", "ab" * 32, *WHO],
        ["enrol", "--clients", "5", "--sha256", "ab", *WHO],
    ],
)
def test_acts_without_a_name_a_reason_or_sense_end_with_2(
    arguments: list[str], ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    assert main(["budget", command, ledger, *rest]) == 2
    assert capsys.readouterr().err.startswith("InvalidValueError: ")
    assert Ledger.load(ledger).head[0] == 11


@pytest.mark.parametrize("command", ["acknowledge", "enrol", "reset-anchor"])
def test_acts_need_a_name_and_a_reason(command: str, ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["budget", command, ledger])
    assert end.value.code == 2
    assert "--operator" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "export", "verify"])
def test_a_ledger_that_is_not_there_ends_with_1(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no ledger")
    for name in ("absent.db", "text", "."):
        assert main(["budget", command, str(tmp_path / name)]) == 1
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.startswith("LedgerError: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


@pytest.mark.e2e
def test_an_export_is_utf_8_whatever_the_terminal(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path / "ledger.db"), budget=Budget(delta=1e-6), unit="patient", mode="gaussian")
    authorise(ledger, FULL, run_id="\u00e9tude")
    done = subprocess.run(
        [sys.executable, "-m", "fedDP", "budget", "export", "ledger.db"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
    )
    assert "\u00e9tude" in done.stdout.decode("utf-8")
