"""``feddp budget``: exit statuses, streams and files."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedDP.budget import Budget, Ledger
from fedDP.cli import main
from tests.budget.ledgers import authorise, without_sync
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


@pytest.mark.parametrize("command", ["show", "export"])
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
