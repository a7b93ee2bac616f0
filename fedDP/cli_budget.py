"""``feddp budget``, for those who answer for a ledger: its page, its integrity, its rows, and an operator's acts."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedDP.errors import InvalidValueError

if TYPE_CHECKING:
    from fedDP.budget import Ledger

Command = Callable[[argparse.Namespace], int]


def add_budget_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``budget`` and what stands below it."""
    budget = commands.add_parser("budget", help="what a ledger has spent; its integrity; its rows; an operator's acts")
    below = budget.add_subparsers(required=True, metavar="COMMAND")
    show = _command(below, "show", _show, "allowance, spent and left by window; charges by purpose and run")
    show.add_argument("--all", action="store_true", help="every week and run, also where there are many alike")
    show.add_argument("--plot", metavar="FILE.png", help="also draw the last year: by week, and how it fills up")
    verify = _command(below, "verify", _verify, "derive every hash, cost and decision again; name the first bad row")
    verify.add_argument(
        "--anchor",
        dest="anchors",
        action="append",
        default=[],
        metavar="FILE",
        help="a head that was kept elsewhere: an anchor file, or what `budget show --json` said; may be repeated",
    )
    export = _command(below, "export", _export, "every row, with all that an auditor needs to recompute epsilon")
    export.add_argument("--format", choices=("csv", "json"), help="default: csv; json has the ledger's terms too")
    export.add_argument("--out", metavar="FILE", help="a new file (default: the standard output)")
    _operator_command(below, "acknowledge", _acknowledge, "vouch for a clock that has jumped ahead")
    enrol = _operator_command(below, "enrol", _enrol, "begin another enrolment; runs under the old one cannot go on")
    enrol.add_argument("--clients", type=int, required=True, metavar="N", help="the number of enrolled clients")
    enrol.add_argument("--sha256", required=True, metavar="HEX", help="fingerprint of the enrolment list")
    _operator_command(below, "reset-anchor", _reset_anchor, "begin a new anchor file where the old one was lost")


def _command(
    below: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, line: str
) -> argparse.ArgumentParser:
    parser = below.add_parser(name, help=line)
    parser.set_defaults(command=command)
    parser.add_argument("ledger", metavar="LEDGER", help="a ledger file, its URL, or a run directory")
    parser.add_argument("--json", action="store_true", help="print JSON on the standard output")
    return parser


def _operator_command(
    below: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, line: str
) -> argparse.ArgumentParser:
    parser = _command(below, name, command, line)
    parser.add_argument("--operator", required=True, metavar="NAME", help="who decides; kept in the ledger")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; kept in the ledger")
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


def _verify(options: argparse.Namespace) -> int:
    from fedDP.budget import verify
    from fedDP.reporting.verification_page import verification_page, verification_text
    from fedDP.scenario.strict_json import strict_json

    location = _location(options.ledger)
    page = verification_page(location, verify(location, [_anchor(path) for path in options.anchors]))
    print(strict_json(page) if options.json else verification_text(page))
    return 0


def _anchor(path: str) -> Any:
    """The anchor in a file, or the one that ``budget show --json`` has among the rest."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidValueError("anchor", path, "a JSON file with an anchor", f"It cannot be read: {error}") from error
    return found.get("anchor", found) if isinstance(found, dict) else found


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


def _acknowledge(options: argparse.Namespace) -> int:
    from fedDP.budget import Ledger

    return _operate(options, Ledger.acknowledge_clock_jump)


def _enrol(options: argparse.Namespace) -> int:
    from fedDP.budget import EnrolmentTerms, Ledger

    terms = EnrolmentTerms(num_clients=options.clients, sha256=options.sha256)
    return _operate(options, partial(Ledger.change_enrolment, enrolment=terms))


def _reset_anchor(options: argparse.Namespace) -> int:
    from fedDP.budget import Ledger

    return _operate(options, Ledger.reset_anchor)


def _operate(options: argparse.Namespace, act: Callable[..., None]) -> int:
    """Has an operator's act written into the ledger, and says in which row."""
    ledger = _load(options)
    act(ledger, operator=options.operator, reason=options.reason)
    from fedDP.scenario.strict_json import strict_json

    seq, digest = ledger.head
    print(strict_json({"ledger": ledger.url, **ledger.anchor}) if options.json else f"Noted in row {seq}, {digest}.")
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
