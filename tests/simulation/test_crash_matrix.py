"""A run that is killed at any moment: what was released stays paid for, and the same command goes on with it."""

from __future__ import annotations

import json
import signal
from base64 import b64encode
from pathlib import Path

import pytest

from tests.scenario.runs import own_table, read_rounds, strict
from tests.simulation.commands import Commands, Ended
from tests.simulation.crashes import (
    CHARGED,
    CROWDED,
    FULL_WEEKS,
    KILLED,
    RELEASED,
    ROOMY,
    ROUNDS,
    SEEDED,
    TIGHT,
    Finished,
    check_equal,
    check_finished,
    check_killed,
    feddp_run,
    read_checkpoint,
    straight,
)
from tests.simulation.kill_points import AT_THE_END, AT_THE_START, IN_A_ROUND

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tight(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return straight(commands, tmp_path_factory.mktemp("tight"), TIGHT)


@pytest.fixture(scope="module")
def full_weeks(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return straight(commands, tmp_path_factory.mktemp("full weeks"), FULL_WEEKS)


@pytest.mark.slow
@pytest.mark.parametrize("round", range(1, ROUNDS + 1))
@pytest.mark.parametrize("point", IN_A_ROUND)
def test_a_seeded_run_that_is_killed_in_a_round(
    commands: Commands, tmp_path: Path, seeded: Finished, point: str, round: int
) -> None:
    out, arguments = tmp_path / "run", feddp_run(SEEDED, tmp_path / "run")
    ended = commands(arguments, point=point, round=round)
    if point in ("in the journal", "in the commit"):
        assert (out / "ledger.db-journal").stat().st_size
    charged, released = round - 1 + CHARGED[point], round - 1 + RELEASED[point]
    check_killed(ended, out, released=released, charged=charged)
    wasted = charged - released
    finished = check_finished(commands(arguments), out, charged=ROUNDS + wasted)
    check_equal(finished, seeded, wasted=wasted, before=round)


@pytest.mark.slow
@pytest.mark.parametrize("round", range(1, ROUNDS + 1))
@pytest.mark.parametrize("point", IN_A_ROUND)
def test_an_unseeded_run_that_is_killed_in_a_round(commands: Commands, tmp_path: Path, point: str, round: int) -> None:
    out, arguments, keys = tmp_path / "run", feddp_run(ROOMY, tmp_path / "run"), tmp_path / "keys"
    ended = commands(arguments, point=point, round=round, keys=keys)
    charged, released = round - 1 + CHARGED[point], round - 1 + RELEASED[point]
    check_killed(ended, out, released=released, charged=charged)
    kept = read_checkpoint(out)
    ended = commands(arguments, keys=keys)
    check_finished(ended, out, charged=ROUNDS + charged - released)
    assert read_rounds(out)[:released] == (kept.rounds if kept else [])
    drawn_in_vain = point in NOISED and not RELEASED[point]
    check_keys(keys, tmp_path, uses=ROUNDS + drawn_in_vain)


NOISED = set(list(IN_A_ROUND)[list(IN_A_ROUND).index("after the noise") :])
"""Points at which the round's noise has been drawn."""


def check_keys(log: Path, folder: Path, *, uses: int) -> None:
    """No key has made noise twice, and no file that a run leaves holds one."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    noise = [line["noise_key"] for line in lines if "noise_key" in line]
    assert len(noise) == len(set(noise)) == uses
    secrets = {bytes.fromhex(line[name]) for line in lines for name in ("root", "noise_key") if name in line}
    assert len(secrets) > uses
    log.unlink()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"run", "run.private", "checkpoint"}
    for path in files:
        data = path.read_bytes()
        for secret in secrets:
            for text in (secret, secret.hex().encode(), b64encode(secret)[:42]):
                assert text not in data, path


@pytest.mark.slow
@pytest.mark.parametrize("point", AT_THE_START)
def test_a_run_that_is_killed_before_its_first_charge(
    commands: Commands, tmp_path: Path, seeded: Finished, point: str
) -> None:
    out, arguments = tmp_path / "run", feddp_run(SEEDED, tmp_path / "run")
    assert commands(arguments, point=point).status in KILLED
    assert read_checkpoint(out) is None
    check_equal(check_finished(commands(arguments), out, charged=ROUNDS), seeded, wasted=0, before=1)


@pytest.mark.slow
@pytest.mark.parametrize("point", AT_THE_END)
def test_a_run_that_is_killed_after_its_last_round(
    commands: Commands, tmp_path: Path, seeded: Finished, point: str
) -> None:
    out, arguments = tmp_path / "run", feddp_run(SEEDED, tmp_path / "run")
    check_killed(commands(arguments, point=point), out, released=ROUNDS, charged=ROUNDS)
    check_equal(check_finished(commands(arguments), out, charged=ROUNDS), seeded, wasted=0, before=1)


def test_a_run_that_is_killed_after_its_summary_is_finished(
    commands: Commands, tmp_path: Path, seeded: Finished
) -> None:
    out, arguments = tmp_path / "run", feddp_run(SEEDED, tmp_path / "run")
    assert commands(arguments, point="after the summary").status in KILLED
    assert Finished.of(out) == seeded
    refused = commands(arguments)
    assert refused.status == 1
    assert "holds a finished run" in refused.errors
    check_finished(Ended(0, "", ""), out, charged=ROUNDS)


def test_a_run_that_is_killed_again_and_again_wastes_a_charge_a_time(
    commands: Commands, tmp_path: Path, seeded: Finished
) -> None:
    out, arguments = tmp_path / "run", feddp_run(SEEDED, tmp_path / "run")
    charged = 0
    for point, round, released in (
        ("after the ledger's creation", None, 0),
        ("after the commit", 1, 0),
        ("in training", 1, 0),
        ("before the checkpoint's name", 1, 0),
        ("in the commit", 1, 0),
        ("before the mark", 1, 1),
        ("before rounds.jsonl's name", None, 1),
        ("after the noise", 2, 1),
        ("in rounds.jsonl", 2, 2),
        ("after the noise", 3, 2),
        ("in the checkpoint", 3, 2),
    ):
        ended = commands(arguments, point=point, round=round)
        if round is not None:
            charged += CHARGED[point]
        check_killed(ended, out, released=released, charged=charged)
    wasted = 6
    assert charged == 2 + wasted
    finished = check_finished(commands(arguments), out, charged=ROUNDS + wasted)
    check_equal(finished, seeded, wasted=wasted, before=1)


@pytest.mark.parametrize(("point", "round"), [("after the commit", 1), ("after the noise", 2), ("in training", 3)])
def test_a_wasted_charge_can_be_what_stops_a_run(
    commands: Commands, tmp_path: Path, tight: Finished, point: str, round: int
) -> None:
    out, arguments = tmp_path / "run", feddp_run(TIGHT, tmp_path / "run")
    check_killed(commands(arguments, point=point, round=round), out, released=round - 1, charged=round)
    ended = commands(arguments)
    finished = check_finished(ended, out, charged=ROUNDS, rounds=ROUNDS - 1)
    assert finished.summary["status"] == "stopped-by-budget"
    assert "The budget of the ledger's lifetime cannot take this release" in " ".join(ended.output.split())
    rows, unbroken = ([strict(line) for line in each.rows.splitlines()] for each in (finished, tight))
    assert [row["metrics"] for row in rows] == [row["metrics"] for row in unbroken[: ROUNDS - 1]]


@pytest.mark.parametrize("point", ["before the append", "in the commit", "before the mark", "in rounds.jsonl"])
def test_a_crash_that_wastes_nothing_takes_nothing_from_a_tight_budget(
    commands: Commands, tmp_path: Path, tight: Finished, point: str
) -> None:
    out, arguments = tmp_path / "run", feddp_run(TIGHT, tmp_path / "run")
    assert commands(arguments, point=point, round=2).status in KILLED
    assert check_finished(commands(arguments), out, charged=ROUNDS) == tight


@pytest.mark.parametrize("round", [3, 4])
@pytest.mark.parametrize("point", ["after the noise", "before the mark"])
def test_a_full_week_moves_the_rounds_only_when_a_charge_was_wasted(
    commands: Commands, tmp_path: Path, full_weeks: Finished, point: str, round: int
) -> None:
    out, arguments = tmp_path / "run", feddp_run(FULL_WEEKS, tmp_path / "run")
    assert commands(arguments, point=point, round=round).status in KILLED
    wasted = not RELEASED[point]
    finished = check_finished(commands(arguments), out, charged=5 + wasted, rounds=5)
    if not wasted:
        assert finished == full_weeks
        return
    assert finished.summary["model_sha256"] == full_weeks.summary["model_sha256"]
    weeks = [int(row["week"][-2:]) for row in map(strict, finished.rows.splitlines())]
    assert weeks == ([1, 1, 3, 3, 4] if round == 3 else [1, 1, 2, 3, 4])
    assert {statement["window"]: statement["charges"] for statement in finished.summary["privacy"]}["week"] == 2


def test_a_release_without_its_mark_is_no_wasted_charge(commands: Commands, tmp_path: Path) -> None:
    unbroken = commands(feddp_run(CROWDED, tmp_path / "straight" / "run"))
    assert "stopped by its budget after 2 of 3 rounds" in " ".join(unbroken.output.split())
    out, arguments = tmp_path / "run", feddp_run(CROWDED, tmp_path / "run")
    for round, point in ((None, "before rounds.jsonl's name"), (1, "before the mark"), (2, "before the mark")):
        assert commands(arguments, point=point, round=round).status in KILLED
    finished = check_finished(commands(arguments), out, charged=2, rounds=2)
    assert finished == Finished.of(tmp_path / "straight" / "run")


def test_a_run_that_is_killed_when_it_notes_where_its_ledger_is(commands: Commands, tmp_path: Path) -> None:
    own_table(tmp_path)
    elsewhere, note = tmp_path / "vault" / "ledger.db", tmp_path / "county.patient.ledger.url"
    arguments = [
        "run",
        str(tmp_path / "own.toml"),
        "--set",
        f"budget.ledger={elsewhere}",
        "--out",
        str(tmp_path / "run"),
    ]
    ended = commands(arguments, point="before the name of the ledger's note")
    assert ended.status == -signal.SIGKILL
    assert not note.exists()
    assert commands(arguments).status == 0
    assert note.read_text() == f"{elsewhere}\n"
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_reader_of_the_ledger_that_is_killed_changes_nothing(commands: Commands, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert commands(feddp_run(ROOMY, out)).status == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert commands(["budget", "show", str(out)], point="while a ledger is read").status == -signal.SIGKILL
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert commands(["budget", "show", str(out)]).status == 0
