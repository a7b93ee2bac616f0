"""Plots of the year: the numbers that are drawn, and the file."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, Ledger
from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.reporting.budget_page import budget_page
from fedDP.reporting.budget_plot import budget_year, draw, save_budget_plot
from tests.budget.ledgers import SetClock, authorise, without_sync
from tests.reporting.ledgers import charged_ledger

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def page_of(path: Path, budget: Budget) -> dict[str, Any]:
    """Charges in weeks 1 (two), 3 and 4 of 2026, a year of 53 weeks."""
    clock = SetClock()
    clock.set_week("2026-W01")
    ledger = Ledger.open(str(path), budget=budget, unit="patient", mode="gaussian", clock=clock)
    for round, week in enumerate(("2026-W01", "2026-W01", "2026-W03", "2026-W04")):
        clock.set_week(week)
        authorise(ledger, Gaussian(90.0), round=round)
    return budget_page(Ledger.load(str(path)))


EVEN = Budget(delta=1e-6, year=0.5, week="even")


def test_the_numbers_are_the_ledger_s(tmp_path: Path) -> None:
    page = page_of(tmp_path / "ledger.db", EVEN)
    shown = budget_year(page)
    weeks = {window["key"]: window for window in page["windows"] if window["window"] == "week"}
    (year,) = [window for window in page["windows"] if window["window"] == "year"]
    assert (shown.year, len(shown.weeks), shown.last) == (2026, 53, 3)
    assert shown.week_used is not None
    assert shown.year_used is not None
    assert shown.week_used[:5] == (
        weeks["2026-W01"]["spent_fraction"],
        0.0,
        weeks["2026-W03"]["spent_fraction"],
        weeks["2026-W04"]["spent_fraction"],
        0.0,
    )
    unit = year["spent_fraction"] / 4
    assert shown.year_used[:5] == pytest.approx((2 * unit, 2 * unit, 3 * unit, 4 * unit, 4 * unit), rel=1e-12)
    assert shown.year_used[-1] == pytest.approx(year["spent_fraction"], rel=1e-12)
    assert "each patient (zero_out), delta 1e-06, accountant gdp" in shown.terms
    assert shown.week_caption.startswith("worst week 2026-W01: epsilon spent ")
    assert shown.year_caption.endswith("certified 0.5")


def test_the_last_year_is_shown(tmp_path: Path) -> None:
    shown = budget_year(budget_page(charged_ledger(tmp_path / "ledger.db")))
    assert (shown.year, len(shown.weeks), shown.last) == (2027, 52, 0)


def test_only_what_has_an_allowance_is_drawn(tmp_path: Path) -> None:
    weeks = budget_year(page_of(tmp_path / "w.db", Budget(delta=1e-6, week=0.2)))
    assert weeks.week_used is not None
    assert weeks.year_used is None
    year = budget_year(page_of(tmp_path / "y.db", Budget(delta=1e-6, year=0.5)))
    assert year.week_used is None
    assert year.year_used is not None
    with pytest.raises(InvalidValueError, match="an allowance by week or year"):
        budget_year(page_of(tmp_path / "n.db", Budget(delta=1e-6)))


def test_a_ledger_without_charges_has_nothing_to_plot(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(str(path), budget=EVEN, unit="patient", clock=SetClock())
    with pytest.raises(InvalidValueError, match="a ledger with charges"):
        budget_year(budget_page(Ledger.load(str(path))))


@pytest.mark.parametrize("budget", [EVEN, Budget(delta=1e-6, year=0.5)], ids=["both", "year"])
def test_bars_and_steps_are_the_numbers(tmp_path: Path, budget: Budget) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle, StepPatch

    shown = budget_year(page_of(tmp_path / "ledger.db", budget))
    figure = Figure()
    draw(shown, figure)
    *bars, year = figure.axes
    if shown.week_used is not None:
        heights = [patch.get_height() for patch in bars[0].patches if isinstance(patch, Rectangle)]
        assert tuple(heights) == shown.week_used
    assert shown.year_used is not None
    steps = [patch.get_data()[0] for patch in year.patches if isinstance(patch, StepPatch)]
    assert [tuple(values) for values in steps] == [shown.year_used[:4]] * 2
    for axes in figure.axes:
        assert axes.get_xlabel() == "ISO week of 2026"
        assert "share of the " in axes.get_ylabel()
        assert [line.get_ydata()[0] for line in axes.lines] == [1.0]  # type: ignore[index]
    assert shown.terms in figure.get_suptitle()


def test_the_file_is_a_picture_and_the_same_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    page = page_of(tmp_path / "ledger.db", EVEN)
    save_budget_plot(page, tmp_path / "one.png")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 30.0)  # a style of the user's own changes nothing
    save_budget_plot(page, tmp_path / "two.png")
    one = (tmp_path / "one.png").read_bytes()
    assert one == (tmp_path / "two.png").read_bytes()
    assert one[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", one[16:24]) == (1200, 864)
    assert 10_000 < len(one) < 200_000


@pytest.mark.e2e
def test_no_display_is_asked_for(tmp_path: Path) -> None:
    """pyplot would choose a backend, and with it a display; nothing here may load it."""
    page_of(tmp_path / "ledger.db", EVEN)
    code = (
        "import sys\n"
        "from fedDP.cli import main\n"
        "status = main(['budget', 'show', 'ledger.db', '--plot', 'one.png'])\n"
        "print('LOADED', status, 'matplotlib.pyplot' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.splitlines()[-1] == "LOADED 0 False"


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path / "ledger.db", EVEN)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'fedDP\[plots\]'"):
        save_budget_plot(page, tmp_path / "one.png")
    assert not (tmp_path / "one.png").exists()


def test_only_png_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"ends in \.png"):
        save_budget_plot({}, tmp_path / "ledger.db")
