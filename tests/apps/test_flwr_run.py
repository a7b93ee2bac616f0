"""The Flower apps under Flower's own runtime: ``flwr run`` of a copy of the repository, hermetic."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedDP.scenario.load import load_scenario
from fedDP.simulation.run import run

ROOT = Path(__file__).resolve().parents[2]
APP_PARTS = ("pyproject.toml", "README.md", "LICENSE", "fedDP", "clients", "server", "simulations")
OVERRIDES = {"scenario.seed": 11, "server.rounds": 3}

pytestmark = pytest.mark.e2e


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which Flower installs nothing, reports nothing, and keeps its files in `tmp_path`."""
    home = tmp_path / "flower"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local-in-memory:"\n'
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    yield environment
    for pid in superlinks(str(home)):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while superlinks(str(home)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in superlinks(str(home)):
        os.kill(pid, signal.SIGKILL)


def superlinks(home: str) -> list[int]:
    """The processes that were started with this FLWR_HOME; the SuperLink outlives its run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_flwr_run_completes_and_gives_the_model_of_a_local_run(tmp_path: Path, flower: dict[str, str]) -> None:
    app, out, elsewhere = tmp_path / "app", tmp_path / "out", tmp_path / "elsewhere"
    app.mkdir()
    elsewhere.mkdir()
    for part in APP_PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, app / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, app / part)
    overrides = " ".join(f"{key}={value}" for key, value in OVERRIDES.items())
    started = subprocess.run(
        [
            "flwr",
            "run",
            str(app),
            "--stream",
            "--federation-config",
            "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2",
            "--run-config",
            f'out="{out}" set="{overrides}"',
        ],
        env=flower,
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=400,
    )
    log = started.stdout + started.stderr
    listed = subprocess.run(
        ["flwr", "ls", "--format", "json"], env=flower, cwd=elsewhere, capture_output=True, text=True, timeout=60
    )
    # The exit status of `flwr run` is 0 for a failed run too.
    assert [entry["status"] for entry in json.loads(listed.stdout)["runs"]] == ["finished:completed"], log
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["rounds_completed"] == 3
    assert (out / "ledger.db").exists()
    scenario = load_scenario("hospital", {**OVERRIDES, "resources.engine": "local"})
    local = run(scenario, tmp_path / "local")
    assert summary["model_sha256"] == local.summary["model_sha256"]
