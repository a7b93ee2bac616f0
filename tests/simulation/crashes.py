"""Runs that are killed: their settings, what must hold after the kill, and what must hold when they have gone on."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from fedDP.budget import Ledger
from fedDP.scenario.run_directory import Checkpoint
from fedDP.training.parameters import model_sha256
from tests.scenario.runs import read_rounds, read_summary, strict
from tests.simulation.commands import Commands, Ended
from tests.simulation.kill_points import IN_A_ROUND

ROUNDS = 3
PUBLISHED = {"ledger.db", "model.safetensors", "rounds.jsonl", "scenario.toml", "summary.json"}
PRIVATE = {"checkpoint", "lock", "times.jsonl"}
TIMES = ("seconds", "total_seconds", "clients_per_second")
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)

# A week has room for the charges that crashes waste, and the server's optimiser remembers.
ROOMY: dict[str, object] = {
    "resources.engine": "local",
    "server.rounds": ROUNDS,
    "server.optimizer": "fedadam",
    "server.learning_rate": 0.1,
    "privacy.noise_multiplier": 8.0,
    "budget.week": 0.5,
}
SEEDED: dict[str, object] = {**ROOMY, "scenario.seed": 5}
# No window but the lifetime, which has room for the rounds and for no other charge.
TIGHT: dict[str, object] = {
    "resources.engine": "local",
    "server.rounds": ROUNDS,
    "scenario.seed": 5,
    "budget.week": "",
    "budget.year": "",
    "budget.lifetime": 0.3,
}
# A week has room for two rounds, though more are planned for it.
CROWDED: dict[str, object] = {
    **TIGHT,
    "privacy.noise_multiplier": 8.0,
    "budget.lifetime": "",
    "budget.week": 0.15,
    "server.rounds_per_week": 9,
}
# Two rounds fill a week, and the noise is the least with which a year's rounds fit.
FULL_WEEKS: dict[str, object] = {"resources.engine": "local", "server.rounds": 5, "scenario.seed": 5}

CHARGED = {name: place >= list(IN_A_ROUND).index("after the commit") for place, name in enumerate(IN_A_ROUND)}
RELEASED = {name: place >= list(IN_A_ROUND).index("before the mark") for place, name in enumerate(IN_A_ROUND)}


def feddp_run(settings: Mapping[str, object], out: Path) -> list[str]:
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["run", "hospital", "--out", str(out), *sets]


@dataclass(frozen=True)
class Finished:
    """What a finished run has published, without its times."""

    rows: str
    summary: dict[str, Any]

    @classmethod
    def of(cls, out: Path) -> Finished:
        summary = read_summary(out)
        kept = {name: value for name, value in summary.items() if name not in TIMES}
        if kept["baseline"] is not None:
            del kept["baseline"]["seconds"]
        return cls((out / "rounds.jsonl").read_text(), kept)


def straight(commands: Commands, folder: Path, settings: Mapping[str, object]) -> Finished:
    assert commands(feddp_run(settings, folder / "run")).status == 0
    return Finished.of(folder / "run")


def read_checkpoint(out: Path) -> Checkpoint | None:
    path = out.with_name(out.name + ".private") / "checkpoint" / "latest.pickle"
    if not path.exists():
        return None
    checkpoint = pickle.loads(path.read_bytes())
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint


def check_killed(ended: Ended, out: Path, *, released: int, charged: int) -> None:
    """Everything in the directory of a killed run is whole, and paid for."""
    assert ended.status in KILLED, ended
    assert not (out / "summary.json").exists()
    checkpoint = read_checkpoint(out)
    assert (checkpoint.round if checkpoint else 0) == released
    # The last line may be torn: what counts are those that a reader can read.
    text = (out / "rounds.jsonl").read_text() if (out / "rounds.jsonl").exists() else ""
    lines = text.splitlines(keepends=True)
    rows = [strict(line) for line in lines if line.endswith("\n")]
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) <= released
    ledger = Ledger.load(str(out / "ledger.db"))  # checks every row's hash
    assert ledger.num_charges() == charged >= released
    if checkpoint:
        assert ledger.charged_rounds(checkpoint.run_id) >= set(range(1, released + 1))
        assert checkpoint.rounds[: len(rows)] == rows


def check_finished(ended: Ended, out: Path, *, charged: int, rounds: int = ROUNDS) -> Finished:
    """The run has gone on to its end, and nothing is left of the crash."""
    assert (ended.status, ended.errors) == (0, ""), ended
    assert {path.name for path in out.iterdir()} == PUBLISHED
    private = out.with_name(out.name + ".private")
    assert {path.name for path in private.iterdir()} <= PRIVATE
    assert sorted(path.name for path in (private / "checkpoint").iterdir()) == ["latest.pickle", "ledger.anchor"]
    assert private.stat().st_mode & 0o777 == 0o700
    assert [row["round"] for row in read_rounds(out)] == list(range(1, rounds + 1))
    ledger = Ledger.load(str(out / "ledger.db"))
    assert ledger.num_charges() == charged
    assert ledger.num_charges(unreleased=True) == charged - rounds
    finished = Finished.of(out)
    assert finished.summary["privacy"][-1]["charges"] == charged
    assert finished.summary["model_sha256"] == model_sha256(load_file(out / "model.safetensors"))
    return finished


def check_equal(finished: Finished, straight: Finished, *, wasted: int, before: int) -> None:
    """A seeded run repeats itself; a charge that was wasted shows in what is spent from its round on, nowhere else."""
    if not wasted:
        assert finished == straight
        return
    spent, unbroken = ([strict(line) for line in each.rows.splitlines()] for each in (finished, straight))
    assert spent[: before - 1] == unbroken[: before - 1]
    for row, other in zip(spent[before - 1 :], unbroken[before - 1 :], strict=True):
        assert row["epsilon"]["total"] > other["epsilon"]["total"]
        assert {**row, "epsilon": None, "spent_fraction": None} == {**other, "epsilon": None, "spent_fraction": None}
    assert {**finished.summary, "privacy": None} == {**straight.summary, "privacy": None}
