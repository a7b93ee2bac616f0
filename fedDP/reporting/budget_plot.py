"""Plots of a ledger's year: what each week has spent, and how the year fills up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedDP.budget.weeks import IsoWeek, weeks_in_iso_year
from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.reporting.terminal import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPENT, _ALLOWED = "#33658a", "#b3261e"
_DOTS_PER_INCH = 120


@dataclass(frozen=True, kw_only=True)
class BudgetYear:
    """What is plotted of one ISO year. All shares are of an allowance, in the domain in which costs add up.

    Attributes:
        weeks: the weeks of the year, all 52 or 53.
        week_used: share of the week's allowance by week; None where weeks have none.
        year_used: share of the year's allowance up to and including each week; None where the year has none.
        last: index of the last week to draw the year up to.
        terms: unit, delta and accountant, in words.
        week_caption, year_caption: epsilon spent and certified, in words.
    """

    year: int
    weeks: tuple[str, ...]
    week_used: tuple[float, ...] | None
    year_used: tuple[float, ...] | None
    last: int
    terms: str
    week_caption: str
    year_caption: str


def budget_year(page: Mapping[str, Any]) -> BudgetYear:
    """The last charged year of a ledger.

    Args:
        page: what `budget_page` returns.

    Raises:
        InvalidValueError: for a ledger that was never charged, or whose weeks and years have no allowance.
    """
    charged = {window["key"]: window for window in page["windows"] if window["window"] == "week"}
    if not charged:
        raise InvalidValueError("ledger", page["ledger"], "a ledger with charges to plot")
    year = max(IsoWeek.parse(key).year for key in charged)
    (total,) = [window for window in page["windows"] if window["key"] == f"{year:04d}"]
    weeks = tuple(IsoWeek(year, week).key for week in range(1, weeks_in_iso_year(year) + 1))
    of_year = [charged[key] for key in weeks if key in charged]
    week_used = year_used = None
    if all(week["spent_fraction"] is not None for week in of_year):
        week_used = tuple(charged[key]["spent_fraction"] if key in charged else 0.0 for key in weeks)
    if total["spent_fraction"] is not None:
        year_used = tuple(accumulate(charged[key]["share_of_year"] if key in charged else 0.0 for key in weeks))
    if week_used is None and year_used is None:
        raise InvalidValueError("ledger", page["ledger"], "a ledger with an allowance by week or year to plot against")
    worst = max(of_year, key=lambda week: float(week["spent_epsilon"]))
    return BudgetYear(
        year=year,
        weeks=weeks,
        week_used=week_used,
        year_used=year_used,
        last=weeks.index(of_year[-1]["key"]),
        terms=(
            f"each {page['unit']} ({page['neighboring_relation']}), delta {page['delta']:g}, "
            f"accountant {page['accountant']}, mode {page['mode']}, {page['clock']} weeks"
        ),
        week_caption=f"worst week {worst['key']}: {_epsilons(worst)}",
        year_caption=f"{year}: {_epsilons(total)}",
    )


def save_budget_plot(page: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Draws `budget_year` into a PNG file; the same page gives the same picture.

    Raises:
        InvalidValueError: for another suffix, or a ledger without anything to plot.
        UnsupportedError: without matplotlib.
    """
    if Path(path).suffix.lower() != ".png":
        raise InvalidValueError("plot", str(path), "a file that ends in .png")
    shown = budget_year(page)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            "Plots need matplotlib, which is not installed: pip install 'fedDP[plots]' brings it."
        ) from error
    # Neither a user's own style nor a display: a figure without pyplot draws with Agg; to set "backend" would load it.
    defaults: dict[Any, Any] = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    with matplotlib.rc_context(defaults):
        figure = Figure(
            figsize=(10, 3.6 * (1 + (None not in (shown.week_used, shown.year_used)))), layout="constrained"
        )
        draw(shown, figure)
        figure.savefig(path, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})


def draw(shown: BudgetYear, figure: Figure) -> None:
    """Draws the panels that the ledger has allowances for."""
    panels = [(shown.week_used, _draw_weeks), (shown.year_used, _draw_year)]
    present = [(used, panel) for used, panel in panels if used is not None]
    for index, (used, panel) in enumerate(present):
        axes = figure.add_subplot(len(present), 1, index + 1)
        panel(axes, shown, used)
        axes.set_xlim(0.25, len(shown.weeks) + 0.75)
        axes.set_ylim(0.0, 1.18 * max(1.0, *used))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel(f"ISO week of {shown.year}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", ncols=2, frameon=False)
    figure.suptitle(f"Privacy budget of {shown.year}: {shown.terms}", fontsize=10)


def _draw_weeks(axes: Axes, shown: BudgetYear, used: tuple[float, ...]) -> None:
    axes.bar(range(1, len(used) + 1), used, color=_SPENT, label="spent")
    axes.axhline(1.0, color=_ALLOWED, linestyle="--", label="allowance")
    axes.set_ylabel("share of the week's\nallowance (in costs)")
    axes.set_title(f"By week; {shown.week_caption}", fontsize=9)


def _draw_year(axes: Axes, shown: BudgetYear, used: tuple[float, ...]) -> None:
    until = used[: shown.last + 1]
    edges = [week + 0.5 for week in range(len(until) + 1)]
    axes.stairs(until, edges, fill=True, color=_SPENT, alpha=0.2)
    axes.stairs(until, edges, color=_SPENT, linewidth=1.5, label="spent so far")
    axes.axhline(1.0, color=_ALLOWED, linestyle="--", label="allowance")
    axes.set_ylabel("share of the year's\nallowance (in costs)")
    axes.set_title(f"The year so far; {shown.year_caption}", fontsize=9)


def _epsilons(window: Mapping[str, Any]) -> str:
    return f"epsilon spent {number(window['spent_epsilon'])}, certified {number(window['epsilon_certified'])}"
