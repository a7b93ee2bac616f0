"""Commands of `feddp`, each in a process of its own that a signal may end; started at the price of a fork.

``python -m tests.simulation.commands`` imports everything once, runs a scenario to warm up, and then forks a process
for every order on its standard input. With an order as its argument it is that process itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
SERVER = [sys.executable, "-m", "tests.simulation.commands"]
WARM_UP = ["run", "hospital", "--quiet", "--set", "resources.engine=local", "--set", "server.rounds=2"]


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit status, or minus the signal that ended it, and what it printed."""

    status: int
    output: str
    errors: str


def make_order(
    arguments: Sequence[str],
    *,
    point: str | None = None,
    round: int | None = None,
    signal_name: str = "SIGKILL",
    keys: Path | None = None,
) -> dict[str, Any]:
    """What a process is to do.

    Args:
        arguments: of `feddp`.
        point: where it sends itself a signal, one of `kill_points.POINTS`.
        round: in which round; at the first passage of the point otherwise.
        signal_name: the signal.
        keys: file to note the keys of its noise in.
    """
    return {
        "arguments": list(arguments),
        "point": point,
        "round": round,
        "signal_name": signal_name,
        "keys": keys and str(keys),
    }


class Commands:
    """Runs commands one after the other, each in a fork of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = subprocess.Popen(SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def __call__(self, arguments: Sequence[str], **options: Any) -> Ended:
        """Runs a command; the options are those of `make_order`."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        streams = [self._folder / "output", self._folder / "errors"]
        order = {"order": make_order(arguments, **options), "streams": [str(path) for path in streams]}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        return Ended(status, *(path.read_text() for path in streams))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()


def carry_out(order: dict[str, Any], output: str | None = None, errors: str | None = None) -> int:
    """Runs a command in this process, its streams redirected to files; returns the exit status."""
    from fedDP.cli import main
    from tests.simulation import kill_points

    for stream, path in ((1, output), (2, errors)):
        if path is not None:
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    if order["keys"]:
        kill_points.watch_keys(Path(order["keys"]))
    if order["point"]:
        kill_points.install(order["point"], order["round"], order["signal_name"])
    try:
        return main(order["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def serve() -> None:
    """Forks a process for every order on the standard input, and answers with how it ended."""
    from fedDP.cli import main
    from tests.simulation import kill_points  # noqa: F401 - before the forks, not in each

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the table of the warm-up is no answer
    with tempfile.TemporaryDirectory() as folder:
        assert main([*WARM_UP, "--out", f"{folder}/run"]) == 0
    for line in sys.stdin:
        order = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = carry_out(order["order"], *order["streams"])
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve()
    else:
        sys.exit(carry_out(json.loads(sys.argv[1])))
