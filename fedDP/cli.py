"""The command line: ``feddp plan | run | budget``. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedDP import __version__
from fedDP.cli_budget import add_budget_commands
from fedDP.errors import DataError, FedDPError, InvalidValueError, ModelError, ScenarioError, UnsupportedError

if TYPE_CHECKING:
    from fedDP.scenario.schema import Scenario

_FAILURES_ON_SCREEN = 5

OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status.

    0: completed, or stopped by its budget; 1: failed; 2: bad usage or scenario; 130: interrupted (SIGINT or SIGTERM).
    """
    options = _parser().parse_args(arguments)
    # Nothing that we start reports home.
    for variable in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(variable, "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a unit's name must not end a run on an ASCII terminal
    if os.getcwd() not in sys.path:  # a console script does not see the user's own modules otherwise
        sys.path.insert(0, os.getcwd())
    command: Callable[[argparse.Namespace], int] = options.command
    handler = _terminal_log()
    try:
        return command(options)
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    except (DataError, InvalidValueError, ModelError, UnsupportedError) as error:  # what the scenario asks for
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return BAD_USAGE
    except FedDPError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (as in `feddp plan ... | head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception:
        traceback.print_exc()
        return FAILED
    finally:
        logging.getLogger().removeHandler(handler)


def _terminal_log() -> logging.Handler:
    """Shows warnings on stderr until the handler is removed."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.addFilter(_FirstFailures())
    logging.getLogger().addHandler(handler)
    return handler


class _FirstFailures(logging.Filter):
    """Shows the first failures of clients and nodes with their tracebacks; all are in the run's private folder."""

    _shown = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != "fedDP.node":
            return True
        self._shown += 1
        if self._shown == _FAILURES_ON_SCREEN + 1:
            print("Further failures are not shown; they are in <run directory>.private/failures.log.", file=sys.stderr)
        return self._shown <= _FAILURES_ON_SCREEN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feddp", description="Federated learning with client-level differential privacy."
    )
    parser.add_argument("--version", action="version", version=f"fedDP {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="what a scenario will cost; trains nothing")
    plan.set_defaults(command=_plan)
    run = commands.add_parser("run", help="train a scenario, or go on with an unfinished run")
    run.set_defaults(command=_run)
    for sub in (plan, run):
        sub.add_argument("scenario", metavar="SCENARIO", help="a TOML file, or the name of a scenario that ships")
        sub.add_argument(
            "--set",
            dest="overrides",
            action="append",
            default=[],
            metavar="SECTION.KEY=VALUE",
            help="override a key of the scenario; may be repeated",
        )
        sub.add_argument("--json", action="store_true", help="print JSON on the standard output")
    run.add_argument("--out", metavar="DIR", help="run directory (default: runs/<name>-<UTC time>)")
    run.add_argument("--quiet", action="store_true", help="only the final table")
    add_budget_commands(commands)
    return parser


def _plan(options: argparse.Namespace) -> int:
    scenario = _load(options)
    from fedDP.reporting.terminal import plan_text
    from fedDP.scenario.strict_json import strict_json
    from fedDP.simulation.plan import plan

    page = plan(scenario).to_dict(by_round=options.json)
    print(strict_json(page) if options.json else plan_text(page))
    return OK


def _run(options: argparse.Namespace) -> int:
    scenario = _load(options)
    from fedDP.reporting.terminal import Terminal, summary_text
    from fedDP.scenario.strict_json import strict_json
    from fedDP.simulation.run import run

    # Ctrl-C also where a parent shell has told its background jobs to ignore it; and what a machine sends before it
    # switches off ends a run the same way.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.default_int_handler)
    terminal = Terminal(sys.stderr if options.json else sys.stdout, quiet=options.quiet)
    try:
        result = run(scenario, options.out, observer=terminal)
    except KeyboardInterrupt:
        where = terminal.directory
        if where is not None:
            print(
                f"\nInterrupted. What was released is charged and kept; go on with:\n"
                f"  feddp run {options.scenario} --out {where}"
                + "".join(f" --set {override!r}" for override in options.overrides),
                file=sys.stderr,
            )
        return INTERRUPTED
    print(strict_json(result.summary) if options.json else summary_text(result.summary, result.directory))
    return OK


def _load(options: argparse.Namespace) -> Scenario:
    from fedDP.scenario.load import load_scenario, parse_override

    overrides: dict[str, object] = {}
    faults: list[str] = []
    for text in options.overrides:
        try:
            name, value = parse_override(text)
        except ScenarioError as error:
            faults += error.faults
        else:
            overrides[name] = value
    try:
        scenario = load_scenario(options.scenario, overrides)
    except ScenarioError as error:
        faults += error.faults
    if faults:
        raise ScenarioError(options.scenario, faults)
    return scenario


if __name__ == "__main__":
    sys.exit(main())
