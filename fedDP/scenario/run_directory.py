"""A run's directory: what it publishes, and what stays private beside it."""

from __future__ import annotations

import fcntl
import os
import pickle
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from fedDP.errors import FedDPError
from fedDP.scenario.dump import to_tables, to_toml
from fedDP.scenario.load import load_scenario
from fedDP.scenario.schema import Scenario
from fedDP.scenario.strict_json import strict_json
from fedDP.training.parameters import Arrays


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where a run can go on: the model after `round`, and what its optimiser remembers. Never a ledger.

    `ledger_anchor` is the head that the ledger had reached (`Ledger.anchor`); the run goes on only where it is held.
    """

    round: int
    run_id: str
    arrays: Arrays
    inner_state: bytes
    rounds: list[dict[str, Any]]
    enrolment_sha256: str
    seconds: float
    ledger_anchor: dict[str, Any] | None = None


class RunDirectory:
    """``DIR`` with what is published, and ``DIR.private`` (mode 0700) with what is not.

    Guarantees:
        1. Files are replaced atomically: a crash leaves the old or the new one.
        2. A finished directory is never written to again.
        3. Two processes cannot run in one directory.

    Args:
        path: the directory; created when missing.
        scenario: the resolved scenario.

    Raises:
        FedDPError: when it is finished or in use, belongs to another scenario, or holds something else.
    """

    def __init__(self, path: Path, scenario: Scenario) -> None:
        self.path = path
        absolute = Path(os.path.abspath(path))  # "." has no name that the private folder could be called after
        if not absolute.name:
            raise FedDPError(f"{path} is the root of the file system and no run directory. Choose another --out.")
        self.private = absolute.with_name(absolute.name + ".private")
        if self.summary_path.exists():
            raise FedDPError(
                f"{path} holds a finished run (completed, or stopped by its budget) and is not written to again. "
                "Choose another --out."
            )
        if self.scenario_path.exists():
            if differing := _differing_keys(load_scenario(self.scenario_path), scenario):
                raise FedDPError(
                    f"{path} holds an unfinished run of another scenario: {', '.join(differing)} differ. Ask for the "
                    "same to go on, or choose another --out."
                )
        elif path.exists() and (not path.is_dir() or set(path.iterdir()) - {_temporary(self.scenario_path)}):
            raise FedDPError(f"{path} exists and is not a run directory. Choose another --out.")
        elif self.checkpoint_path.exists():
            # Going on with it would publish a model whose charges went with the directory's ledger.
            raise FedDPError(
                f"{self.private} holds a checkpoint of a run whose directory {path} is gone. Remove it, or choose "
                "another --out."
            )
        if self.private.is_symlink():
            raise FedDPError(f"{self.private} is a link; the private folder must be a folder of its own.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.private.mkdir(mode=0o700, exist_ok=True)
            self.private.chmod(0o700)
        except OSError as error:
            raise FedDPError(f"The run directory {path} cannot be created: {error}") from error
        lock = os.open(self.private / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, lock)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this object, or with the process
        except OSError as error:
            raise FedDPError(f"Another process is running in {path}. Wait for it, or choose another --out.") from error
        if not self.scenario_path.exists():
            write_atomically(self.scenario_path, to_toml(scenario).encode())

    @classmethod
    def default_path(cls, scenario: Scenario) -> Path:
        """``runs/<name>-<UTC time>`` below the working directory; numbered where another run took that name."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        first = Path("runs") / f"{scenario.scenario.name}-{stamp}"
        names = chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2)))
        return next(path for path in names if not path.exists())

    @property
    def scenario_path(self) -> Path:
        return self.path / "scenario.toml"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    @property
    def rounds_path(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.db"

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def checkpoint_path(self) -> Path:
        return self.private / "checkpoint" / "latest.pickle"

    @property
    def failures_path(self) -> Path:
        return self.private / "failures.log"

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, or None at the start of a run."""
        if not self.checkpoint_path.exists():
            return None
        try:
            with self.checkpoint_path.open("rb") as file:
                checkpoint = pickle.load(file)
        except Exception as error:  # whatever the bytes are
            raise FedDPError(f"{self.checkpoint_path} cannot be read: {error}") from error
        if not isinstance(checkpoint, Checkpoint):
            raise FedDPError(f"{self.checkpoint_path} is not a checkpoint.")
        return checkpoint

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint, durably."""
        self.checkpoint_path.parent.mkdir(exist_ok=True)
        write_atomically(self.checkpoint_path, pickle.dumps(checkpoint))

    def write_rounds(self, rounds: list[dict[str, Any]]) -> None:
        """Writes ``rounds.jsonl`` from the start."""
        write_atomically(self.rounds_path, "".join(strict_json(row) + "\n" for row in rounds).encode())

    def append_round(self, row: Mapping[str, Any]) -> None:
        """Adds a line to ``rounds.jsonl``."""
        with self.rounds_path.open("a") as file:
            file.write(strict_json(row) + "\n")

    def append_times(self, round: int, seconds: float) -> None:
        """Notes a round's wall time, which depends on the cohort, in the private folder."""
        with (self.private / "times.jsonl").open("a") as file:
            file.write(strict_json({"round": round, "seconds": seconds}) + "\n")

    def save_model(self, model: nn.Module, arrays: Arrays) -> None:
        """Writes the model's state_dict with the trained arrays; it loads strict into the model's class."""
        state = {name: value.detach().clone().contiguous() for name, value in model.state_dict().items()}
        for name, value in arrays.items():
            state[name] = torch.tensor(value)
        # Tied parameters have one trained array under several names.
        for name, parameter in model.named_parameters(remove_duplicate=False):
            for trained, other in model.named_parameters():
                if parameter is other and trained in arrays:
                    state[name] = torch.tensor(arrays[trained])
        write_atomically(self.model_path, save(state))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, which finishes the directory."""
        write_atomically(self.summary_path, (strict_json(summary, indent=2) + "\n").encode())


def _differing_keys(one: Scenario, other: Scenario) -> list[str]:
    """The keys in which two scenarios differ."""
    first, second = to_tables(one), to_tables(other)
    return [
        f"{section}.{name}"
        for section in sorted({*first, *second})
        for name in sorted({*first.get(section, {}), *second.get(section, {})})
        if first.get(section, {}).get(name) != second.get(section, {}).get(name)
    ]


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file durably; a crash leaves the old or the new one, and a temporary one that the next write replaces.

    Raises:
        FedDPError: when it cannot be written.
    """
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FedDPError(f"{path} cannot be written ({error}); what it held before is still there.") from error
    # Without this a power cut could bring the old file back, and a ledger's mark would find no model for its release.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")
