"""Where a run of `feddp` is ended from outside: points that a process installs around the product's own functions.

The product has no hooks for this. At a point the process sends itself a signal, SIGKILL as a rule; in the middle of a
write the kernel ends it instead, with the signal for a file that grows past its limit, which nothing handles.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedDP.budget import Ledger
from fedDP.privacy.keys import RootKey
from fedDP.scenario.run_directory import RunDirectory
from fedDP.strategies.client_level_dp import ClientLevelDP
from fedDP.training.vectorised import VectorisedTrainer

Action = Callable[[], None]


class Progress:
    """How far this process has come: the round of its last charge, and whether its model is written."""

    round = 0
    model_written = False


def install(point: str, round: int | None, signal_name: str) -> None:
    """Ends this process at a point, in a round for those that each round passes."""
    around(Ledger, "authorise", before=lambda *_, **numbers: setattr(Progress, "round", numbers["round"]))
    around(RunDirectory, "save_model", after=lambda *_: setattr(Progress, "model_written", True))
    sent: list[str] = []

    def end() -> None:
        if (round is None or Progress.round == round) and not sent:
            sent.append(signal_name)
            os.kill(os.getpid(), getattr(signal, signal_name))

    def cut(size: int) -> None:
        if round is None or Progress.round == round:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it otherwise
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    POINTS[point](end, cut)


def around(owner: Any, name: str, *, before: Any = None, after: Any = None) -> None:
    """Calls `before` and `after` with the arguments of `owner.name`, around it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before:
            before(*arguments, **named)
        result = original(*arguments, **named)
        if after:
            after(*arguments, **named)
        return result

    setattr(owner, name, wrapped)


def _statement(words: str, kind: str, *, before: Action | None = None, after: Action | None = None) -> None:
    """Acts around an SQL statement that begins with `words` and, for a row of the ledger, inserts one of `kind`."""

    def listen(name: str, action: Action) -> None:
        def listener(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            values = parameters.values() if isinstance(parameters, Mapping) else parameters
            if statement.lstrip().startswith(words) and (not kind or kind in values):
                action()

        event.listen(Engine, name, listener)

    if before:
        listen("before_cursor_execute", before)
    if after:
        listen("after_cursor_execute", after)


def _row(kind: str, *, before: Action | None = None, after: Action | None = None) -> None:
    _statement("INSERT", kind, before=before, after=after)


def _commit(kind: str, action: Callable[[Path], None]) -> None:
    """Acts when a transaction is committed that has appended a row of `kind`; with the database's file."""
    appended: list[str] = []
    _row(kind, after=lambda: appended.append(kind))

    def commit(connection: Any) -> None:
        if appended:
            action(Path(connection.engine.url.database))

    event.listen(Engine, "commit", commit)


def _call(owner: Any, name: str, *, before: Action | None = None, after: Action | None = None) -> None:
    around(
        owner,
        name,
        before=before and (lambda *_, **__: before()),
        after=after and (lambda *_, **__: after()),
    )


def _rename(file: str, end: Action) -> None:
    """Ends the process when a file is written under its temporary name, before it gets its own."""
    around(Path, "replace", before=lambda path, _target: end() if path.name == f"{file}.tmp" else None)


def _remove_one(file: Path, end: Action) -> None:
    """Ends the process when one file of a folder is removed and the others are still there."""
    if file.exists():
        file.unlink()
        end()


Install = Callable[[Action, Callable[[int], None]], None]

IN_A_ROUND: dict[str, Install] = {
    "before the append": lambda end, cut: _row("charge", before=end),
    "after the append": lambda end, cut: _row("charge", after=end),
    "in the journal": lambda end, cut: _commit("charge", lambda path: cut(2000)),
    "in the commit": lambda end, cut: _commit("charge", lambda path: cut(path.stat().st_size - 1000)),
    "after the commit": lambda end, cut: _call(Ledger, "authorise", after=end),
    "in training": lambda end, cut: _call(VectorisedTrainer, "train", after=end),
    "after the noise": lambda end, cut: _call(ClientLevelDP, "aggregate_train", after=end),
    "in the checkpoint": lambda end, cut: _call(RunDirectory, "save_checkpoint", before=lambda: cut(1000)),
    "before the checkpoint's name": lambda end, cut: _rename("latest.pickle", end),
    "before the mark": lambda end, cut: _call(Ledger, "mark_released", before=end),
    "after the mark's append": lambda end, cut: _row("released", after=end),
    "after the mark": lambda end, cut: _call(Ledger, "mark_released", after=end),
    "in rounds.jsonl": lambda end, cut: around(
        RunDirectory, "append_round", before=lambda directory, _row: cut(directory.rounds_path.stat().st_size + 40)
    ),
}
"""Points that every round passes, in their order."""

AT_THE_START: dict[str, Install] = {
    "in scenario.toml": lambda end, cut: _call(RunDirectory, "__init__", before=lambda: cut(40)),
    "before scenario.toml's name": lambda end, cut: _rename("scenario.toml", end),
    "before the ledger's table": lambda end, cut: _statement("CREATE TABLE", "", before=end),
    "after the ledger's table": lambda end, cut: _statement("CREATE TABLE", "", after=end),
    "before the ledger's definition": lambda end, cut: _row("definition", before=end),
    "after the ledger's definition": lambda end, cut: _row("definition", after=end),
    "after the ledger's creation": lambda end, cut: _call(Ledger, "open", after=end),
    "before rounds.jsonl's name": lambda end, cut: _rename("rounds.jsonl", end),
}
"""Points before the first charge, in their order."""

AT_THE_END: dict[str, Install] = {
    "before the model": lambda end, cut: _call(RunDirectory, "save_model", before=end),
    "in the model": lambda end, cut: _call(RunDirectory, "save_model", before=lambda: cut(100)),
    "before the model's name": lambda end, cut: _rename("model.safetensors", end),
    "in the baseline": lambda end, cut: _call(
        VectorisedTrainer, "train", after=lambda: end() if Progress.model_written else None
    ),
    "in the baseline's removal": lambda end, cut: around(
        shutil, "rmtree", before=lambda folder, **_: _remove_one(folder / "run" / "scenario.toml", end)
    ),
    "before the summary": lambda end, cut: _call(RunDirectory, "write_summary", before=end),
    "in the summary": lambda end, cut: _call(RunDirectory, "write_summary", before=lambda: cut(100)),
    "before the summary's name": lambda end, cut: _rename("summary.json", end),
}
"""Points after the last round, in their order."""

ELSEWHERE: dict[str, Install] = {
    "after the summary": lambda end, cut: _call(RunDirectory, "write_summary", after=end),
    "before the name of the ledger's note": lambda end, cut: _rename("county.patient.ledger.url", end),
    "while a ledger is read": lambda end, cut: _statement("SELECT", "", after=end),
}

POINTS = IN_A_ROUND | AT_THE_START | AT_THE_END | ELSEWHERE


def watch_keys(log: Path) -> None:
    """Notes the root keys and every key of the noise that this process uses: one JSON object a line."""

    def note(**line: Any) -> None:
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    for_round, create = RootKey.for_round, RootKey.create

    def noted_key(self: RootKey, purpose: str, round: int, attempt: int) -> bytes:
        key = for_round(self, purpose, round, attempt)
        if purpose.startswith("noise"):
            note(round=round, noise_key=key.hex(), root=self.secret.hex())
        return key

    def noted_root(seed: int | None = None) -> RootKey:
        root = create(seed)
        note(root=root.secret.hex())
        return root

    RootKey.for_round = noted_key  # type: ignore[method-assign]
    RootKey.create = noted_root  # type: ignore[method-assign]
