"""``feddp budget show | verify | export``: a ledger, as those read it who answer for it."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedDP.errors import InvalidValueError

if TYPE_CHECKING:
    from fedDP.budget import Ledger

Command = Callable[[argparse.Namespace], int]


def add_budget_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``budget`` and what stands below it."""
    budget = commands.add_parser("budget", help="what a ledger has spent; its integrity; its rows for an auditor")
    below = budget.add_subparsers(required=True, metavar="COMMAND")
    show = _command(below, "show", _show, "allowance, spent and left by window; charges by purpose and run")
    show.add_argument("--all", action="store_true", help="every week and run, also where there are many alike")
    show.add_argument("--plot", metavar="FILE.png", help="also draw the last year: by week, and how it fills up")
    export = _command(below, "export", _export, "every row, with all that an auditor needs to recompute epsilon")
    export.add_argument("--format", choices=("csv", "json"), help="default: csv; json has the ledger's terms too")
    export.add_argument("--out", metavar="FILE", help="a new file (default: the standard output)")


def _command(
    below: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, line: str
) -> argparse.ArgumentParser:
    parser = below.add_parser(name, help=line)
    parser.set_defaults(command=command)
    parser.add_argument("ledger", metavar="LEDGER", help="a ledger file, its URL, or a run directory")
    parser.add_argument("--json", action="store_true", help="print JSON on the standard output")
    return parser


def _show(options: argparse.Namespace) -> int:
    ledger = _load(options)
    from fedDP.reporting.budget_page import budget_page
    from fedDP.reporting.budget_text import budget_text
    from fedDP.scenario.strict_json import strict_json

    page = budget_page(ledger)
    if options.plot is not None:
        from fedDP.reporting.budget_plot import save_budget_plot

        try:
            save_budget_plot(page, options.plot)
        except OSError as error:
            raise _unwritable("plot", options.plot, error) from error
    print(strict_json(page) if options.json else budget_text(page, everything=options.all))
    return 0


def _export(options: argparse.Namespace) -> int:
    if options.json and options.format == "csv":
        raise InvalidValueError("format", options.format, "json, since --json was given")
    ledger = _load(options)
    from fedDP.reporting.budget_export import export_csv, export_json
    from fedDP.scenario.strict_json import strict_json

    as_json = options.json or options.format == "json"
    text = strict_json(export_json(ledger), indent=1) + "\n" if as_json else export_csv(ledger)
    if options.out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # the same bytes as in a file, whatever the terminal
        sys.stdout.write(text)
        return 0
    try:
        # "x": a file that is there may be the ledger itself.
        with Path(options.out).open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise _unwritable("out", options.out, error) from error
    print(f"{ledger.head[0] + 1} rows written to {options.out}", file=sys.stderr)
    return 0


def _load(options: argparse.Namespace) -> Ledger:
    from fedDP.budget import Ledger

    return Ledger.load(_location(options.ledger))


def _location(ledger: str) -> str:
    """The ledger; of a run directory the one that it was charged to: its own, or the one beside a user's own data."""
    if not os.path.isdir(ledger):
        return ledger
    own, resolved = os.path.join(ledger, "ledger.db"), os.path.join(ledger, "scenario.toml")
    if not os.path.exists(own) and os.path.exists(resolved):
        from fedDP.scenario.load import load_scenario
        from fedDP.scenario.run_ledger import shared_ledger

        return shared_ledger(load_scenario(resolved)) or own
    return own


def _unwritable(name: str, path: str, error: OSError) -> InvalidValueError:
    reason = "it exists already" if isinstance(error, FileExistsError) else error.strerror
    return InvalidValueError(name, path, "a new file in a folder that can be written", f"Here {reason}.")
