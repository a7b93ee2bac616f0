"""Progress and tables on a terminal. What is private (cohorts, failures) goes to the standard error only."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

_LINE_WIDTH = 110


def table(rows: Sequence[Sequence[str]], *, indent: str = "  ") -> str:
    """Rows as aligned columns; a last cell that is too long for the line goes on below itself."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        lead = indent + "".join(cell.ljust(width) + "  " for cell, width in zip(row, widths, strict=False))
        parts = textwrap.wrap(row[-1], max(40, _LINE_WIDTH - len(lead))) or [""]
        lines += [(lead + parts[0]).rstrip(), *(" " * len(lead) + part for part in parts[1:])]
    return "\n".join(lines)


def number(value: Any) -> str:
    """A number for reading: four digits, "inf", or "-"."""
    if value is None:
        return "-"
    if value == "inf" or (isinstance(value, float) and math.isinf(value)):
        return "inf"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def seconds_text(value: float) -> str:
    """A duration for reading."""
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def main_metric(metrics: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The metric that stands for a run: AUC where there is one."""
    return next((name for name in ("auc", "accuracy", "loss") if name in metrics), None)


def plan_text(plan: Mapping[str, Any]) -> str:
    """The plan as a page."""
    epsilon, rounds = plan["epsilon"], plan["rounds"]
    sampling = plan["sampling"]
    worst_week = max((week["epsilon"] for week in epsilon["by_week"]), default=0.0)
    weeks = len(epsilon["by_week"])
    rows = [
        ("protects", f"each {plan['unit']} as a client ({plan['neighboring_relation']})"),
        ("data", f"{plan['population']} clients enrolled for training, {plan['held_out']} held out for testing"),
        ("sampling", f"{sampling['kind']}, rate {number(sampling['rate'])}: {sampling['assumption']}"),
        ("noise", f"multiplier {number(plan['noise_multiplier'])}, clip norm {number(plan['clip_norm'])}"),
        ("", f"standard deviation {number(plan['noise_std'])} on each of {plan['parameters']} coordinates of the mean"),
        ("rounds", f"{rounds['allowed']} of {rounds['requested']} fit" + _stopped(rounds)),
        ("epsilon", f"at delta {plan['delta']:g}, accountant {plan['accountant']}, mode {plan['mode_reason']}"),
        ("  a round", number(epsilon["round"])),
        ("  worst week", f"{number(worst_week)}{_of(plan, 'week')} ({weeks} week{'s' if weeks != 1 else ''} charged)"),
        ("  year", f"{number(epsilon['year'])}{_of(plan, 'year')}"),
        ("  total", f"{number(epsilon['total'])}{_of(plan, 'lifetime')}"),
        ("estimate", f"{plan['estimate']['seconds']:.0f} s, {plan['estimate']['memory_bytes'] / 1e9:.1f} GB"),
        ("trust", plan["trust_model"]),
        ("holds against", plan["adversary"]),
    ]
    text = f"Plan of {plan['scenario']}\n" + table(rows)
    if plan["noise_multiplier"]:
        text += "\n  Weeks' epsilons do not add up (costs add in another domain): the year is the joint number."
    return text + warnings_text(plan["warnings"])


def warnings_text(warnings: Sequence[Mapping[str, str]]) -> str:
    """Warnings, one a line."""
    return "".join(
        "\n" + textwrap.fill(f"  ! {warning['code']}: {warning['text']}", _LINE_WIDTH, subsequent_indent="    ")
        for warning in warnings
    )


def summary_text(summary: Mapping[str, Any], directory: Path) -> str:
    """The final table of a run."""
    by_window = {statement["window"]: statement for statement in summary["privacy"]}
    any_statement = summary["privacy"][0]
    name = main_metric(summary["metrics"])
    rows = [("status", _status(summary))]
    if name is not None:
        metric, baseline = summary["metrics"][name], summary["baseline"]
        compared = f", {number(baseline['metrics'][name]['value'])} without privacy" if baseline else ""
        rows.append((name, f"{number(metric['value'])}{compared} ({metric['status']}: exact, held-out, public data)"))
    else:
        rows.append(("metrics", "none: no held-out records of data that is declared public"))
    rows += [
        (f"epsilon, {label}", _spent_of(by_window[window]))
        for window, label in (("week", "worst week"), ("year", "year"), ("lifetime", "lifetime"))
        if window in by_window
    ]
    rows += [
        (
            "",
            f"for each {any_statement['unit']}, {any_statement['neighboring_relation']}, delta "
            f"{any_statement['delta']:g}, {any_statement['sampling']['kind']} sampling, accountant "
            f"{any_statement['accountant']}, {any_statement['clock']} weeks, {any_statement['scope']}",
        ),
        (
            "noise",
            f"multiplier {number(summary['noise_multiplier'])}, clip norm {number(summary['clip_norm'])}, "
            f"standard deviation {number(summary['noise_std'])} on the mean",
        ),
        (
            "speed",
            f"{summary['clients_per_second']:.0f} clients a second, {seconds_text(summary['seconds'])} of rounds",
        ),
        ("trust", "the server is trusted; sites see every released model. summary.json has the whole statement"),
        ("files", str(directory)),
    ]
    text = "\n" + table(rows)
    if any_statement["rng"] == "seeded":
        text += "\n  ! Seeded: whoever knows the seed can remove the noise, so every epsilon above is nominal."
    return text


class Terminal:
    """Tells a person how a run goes, a line a round.

    Args:
        stream: where lines go; the standard error when the standard output is for JSON.
        quiet: only the final table.
        rounds: how many are expected, where no plan is shown.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, rounds: int = 0) -> None:
        self._stream = stream or sys.stdout
        self._quiet = quiet
        self._rounds = rounds
        self._terms = ""
        self.directory: Path | None = None

    def planned(self, plan: Any, directory: Path) -> None:
        """Shows the plan."""
        page = plan.to_dict(by_round=False)
        self.directory = directory
        self._rounds = page["rounds"]["requested"]
        self._print(plan_text(page))
        self._print(f"  run directory  {directory}\n")
        self._terms = (
            f"Every epsilon is for each {page['unit']} as a client ({page['neighboring_relation']}), at delta "
            f"{page['delta']:g}, {page['sampling']['kind']} sampling, accountant {page['accountant']}."
        )

    def started(self, first_round: int, nodes: int) -> None:
        """Says where training starts."""
        begun = "Training" if first_round == 1 else f"Going on with round {first_round}"
        self._print(f"{begun} on {nodes} node{'s' if nodes != 1 else ''}. {self._terms}".rstrip())

    def round_finished(self, row: dict[str, Any], seconds: float) -> None:
        """A line a round."""
        name = main_metric(row["metrics"])
        metric = f"  {name} {row['metrics'][name]['value']:.4f} (simulation)" if name else ""
        self._print(
            f"round {row['round']:>{len(str(self._rounds))}}/{self._rounds}{metric}"
            f"{_spent(row, 'week')}{_spent(row, 'year')}  {seconds_text(seconds)}"
        )

    def baseline_started(self) -> None:
        """Says why it takes longer."""
        self._print("Training the same model without privacy, to compare.")

    def _print(self, text: str) -> None:
        if self._quiet:
            return
        try:
            print(text, file=self._stream, flush=True)
        except BrokenPipeError:  # nobody reads any more, as behind `| head`; the run goes on
            self._quiet = True


def _spent(row: Mapping[str, Any], window: str) -> str:
    """``  2026-W09 epsilon 0.13 (100% used)``: the share is of the allowance, in the domain that adds up."""
    fraction = row["spent_fraction"].get(window)
    used = "" if fraction is None else f" ({fraction:.0%} used)"
    return f"  {row[window]} epsilon {number(row['epsilon'][window])}{used}"


def _spent_of(statement: Mapping[str, Any]) -> str:
    fraction = statement.get("spent_fraction")
    used = "" if fraction is None else f", {fraction:.1%} of the allowance used"
    return f"{number(statement['epsilon'])} of {number(statement['epsilon_certified'])} ({statement['key']}{used})"


def _stopped(rounds: Mapping[str, Any]) -> str:
    return f"; the {rounds['stopped_by']} budget stops the run" if rounds["stopped_by"] else ""


def _of(plan: Mapping[str, Any], window: str) -> str:
    allowance = plan["allowances"].get(window)
    if allowance is None:
        return ", no limit"
    share = ", an even share of the year" if window == "week" and plan["budget"]["week"] == "even" else ""
    return f" of {number(allowance)}{share}"


def _status(summary: Mapping[str, Any]) -> str:
    done = f"{summary['rounds_completed']} of {summary['rounds_requested']} rounds"
    if summary["stop"]:
        return f"stopped by its budget after {done}. {summary['stop']['text']}"
    return f"{summary['status']}, {done}"
