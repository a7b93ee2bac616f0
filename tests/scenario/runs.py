"""Small runs in this process: a table of one's own, short scenarios, and what a run directory holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedDP.scenario.load import load_scenario
from fedDP.scenario.schema import Scenario
from fedDP.simulation.run import Silent

LOCAL: dict[str, object] = {"resources.engine": "local"}

OWN_TABLE = """
[scenario]
name = "own"
unit = "patient"
[data]
path = "table.csv"
population_id = "county"
target = "sick"
client_column = "patient"
site_column = "hospital"
[data.ranges]
age = [20, 90]
dose = [0, 1]
[server]
rounds = 2
rounds_per_week = 2
[privacy]
delta = 1e-3
clip_norm = 0.5
sampling_rate = 0.5
[budget]
year = 5.0
week = "even"
[resources]
engine = "local"
"""


def hospital(rounds: int = 2, overrides: Mapping[str, object] | None = None) -> Scenario:
    """The scenario that ships, on the local engine and with few rounds."""
    return load_scenario("hospital", {**LOCAL, "server.rounds": rounds, **(overrides or {})})


def write_table(folder: Path, *, clients: int = 60, sites: int = 2) -> None:
    """``table.csv`` with two rows a client."""
    rows = ["patient,hospital,age,dose,sick"]
    for client in range(clients):
        for visit in range(2):
            sick = int((client * 7 + visit) % 5 > 2)
            rows.append(f"p{client:03d},h{client % sites},{20 + client},{(client % 10) / 10},{sick}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")


def own_table(folder: Path, overrides: Mapping[str, object] | None = None) -> Scenario:
    """A scenario over a table of one's own in `folder`, which is not declared public."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "table.csv").exists():
        write_table(folder)
    (folder / "own.toml").write_text(OWN_TABLE)
    return load_scenario(folder / "own.toml", overrides)


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not strict JSON")


def strict(text: str) -> Any:
    """Parses JSON that knows no NaN and no Infinity."""
    return json.loads(text, parse_constant=_refuse)


def read_rounds(directory: Path) -> list[dict[str, Any]]:
    """The rows of ``rounds.jsonl``."""
    return [strict(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]


def read_summary(directory: Path) -> dict[str, Any]:
    """``summary.json``."""
    summary: dict[str, Any] = strict((directory / "summary.json").read_text())
    return summary


class Interrupting(Silent):
    """Presses Ctrl-C after a round."""

    def __init__(self, after: int) -> None:
        self._after = after

    def round_finished(self, row: dict[str, Any], seconds: float) -> None:
        if row["round"] == self._after:
            raise KeyboardInterrupt
