"""Runs that are interrupted, and runs on Ray whose driver is killed: nothing is left running, and they go on."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedDP.budget import Ledger
from tests.scenario.runs import read_rounds, read_summary
from tests.simulation.commands import ROOT, SERVER, Commands, make_order
from tests.simulation.crashes import CHARGED, RELEASED, ROUNDS, SEEDED, Finished, check_equal, check_finished, feddp_run

pytestmark = pytest.mark.e2e

# These two of Ray's own processes hold no data; when their server dies with the driver, they end a minute later.
AGENTS = (b"ray::DashboardAgent", b"ray::RuntimeEnvAgent")

ON_RAY: dict[str, object] = {**SEEDED, "resources.engine": "ray", "resources.nodes": 2}


@pytest.mark.parametrize("point", ["after the append", "in training", "before the mark", "in the baseline"])
@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_ends_with_130_and_goes_on(
    commands: Commands, tmp_path: Path, seeded: Finished, signal_name: str, point: str
) -> None:
    out, arguments = tmp_path / "run", feddp_run(SEEDED, tmp_path / "run")
    round = 2 if point in CHARGED else None
    ended = commands(arguments, point=point, round=round, signal_name=signal_name)
    assert ended.status == 130
    assert "Interrupted. What was released is charged and kept; go on with:\n  feddp run hospital" in ended.errors
    assert "Traceback" not in ended.errors
    wasted = CHARGED.get(point, False) and not RELEASED[point]
    finished = check_finished(commands(arguments), out, charged=ROUNDS + wasted)
    check_equal(finished, seeded, wasted=wasted, before=2)


def start_on_ray(arguments: list[str], mark: str, *, signal_name: str) -> subprocess.Popen[str]:
    """A run in a fresh process that sends itself a signal in round 2; all that it starts inherits `mark`."""
    order = make_order(arguments, point="after the noise", round=2, signal_name=signal_name)
    return subprocess.Popen(
        [*SERVER, json.dumps(order)],
        cwd=ROOT,
        env={**os.environ, "FEDDP_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def marked(mark: str) -> set[int]:
    """The living processes that have inherited a mark, without Ray's agents."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = f"FEDDP_TEST_MARK={mark}\0".encode() in (process / "environ").read_bytes()
            if ours and not (process / "cmdline").read_bytes().startswith(AGENTS):
                found.add(int(process.name))
    return found


def wait_until_gone(mark: str) -> None:
    deadline = time.monotonic() + 60
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == set()


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_on_ray_whose_driver_is_killed_leaves_no_process_and_goes_on(tmp_path: Path, seeded: Finished) -> None:
    out, arguments, mark = tmp_path / "run", feddp_run(ON_RAY, tmp_path / "run"), str(tmp_path)
    with start_on_ray(arguments, mark, signal_name="SIGSTOP") as process:
        try:
            wait_until_stopped(process.pid)
            assert len(marked(mark)) > 3  # the driver, Ray's own services and the two nodes
        finally:
            process.kill()
    assert len(read_rounds(out)) == 1
    assert Ledger.load(str(out / "ledger.db")).num_charges() == 2
    wait_until_gone(mark)
    command = [*SERVER, json.dumps(make_order(arguments))]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "FEDDP_TEST_MARK": mark}, check=True, capture_output=True)
    assert read_summary(out)["model_sha256"] == seeded.summary["model_sha256"]
    assert Ledger.load(str(out / "ledger.db")).num_charges() == ROUNDS + 1
    wait_until_gone(mark)


@pytest.mark.slow
def test_a_run_on_ray_that_is_told_to_end_leaves_no_process(tmp_path: Path) -> None:
    out, mark = tmp_path / "run", str(tmp_path)
    with start_on_ray(feddp_run(ON_RAY, out), mark, signal_name="SIGTERM") as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Interrupted. What was released is charged and kept" in errors
    assert "Traceback" not in errors
    wait_until_gone(mark)
    assert len(read_rounds(out)) == 1
