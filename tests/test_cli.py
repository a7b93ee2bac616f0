"""The command line: exit statuses, streams, and what it imports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedDP.cli import _parser, main
from fedDP.scenario.load import load_scenario
from tests.scenario.runs import own_table, read_rounds, read_summary, strict, write_table

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("numpy", "torch", "flwr", "ray", "sqlalchemy")

LOCAL = ["--set", "resources.engine=local"]
SHORT = [*LOCAL, "--set", "server.rounds=2"]


def commands(parser: argparse.ArgumentParser, prefix: str = "feddp") -> Iterator[tuple[str, str | None, bool]]:
    """Every command with its line of help, and whether it is one that runs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, sub in action.choices.items():
                nested = list(commands(sub, f"{prefix} {name}"))
                yield f"{prefix} {name}", helps.get(name), not nested
                yield from nested


def loaded(*arguments: str) -> tuple[int, list[str], str]:
    """Exit status of a command in a fresh process, the heavy packages it imported, and its standard error."""
    code = (
        "import sys\n"
        "from fedDP.cli import main\n"
        "try:\n"
        f"    status = main({list(arguments)!r})\n"
        "except SystemExit as end:\n"
        "    status = end.code\n"
        f"print('LOADED', status or 0, *[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    _, status, *names = done.stdout.splitlines()[-1].split()
    return int(status), names, done.stderr


def feddp(*arguments: str, cwd: Path, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fedDP", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_every_command_has_help_and_stands_in_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text()
    found = list(commands(_parser()))
    budget = {f"feddp budget {name}" for name in ("show", "verify", "export", "acknowledge", "enrol", "reset-anchor")}
    assert {name for name, _, runs in found if runs} >= {"feddp plan", "feddp run", *budget}
    for name, line, runs in found:
        assert line, name
        if runs:
            assert f"`{name} " in readme, name
        with pytest.raises(SystemExit) as end:
            main([*name.split()[1:], "--help"])
        assert end.value.code == 0
        assert f"usage: {name}" in capsys.readouterr().out


def test_every_option_has_help() -> None:
    def check(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    check(sub)
            else:
                assert action.help, (parser.prog, action.dest)

    check(_parser())


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("run", "--help"), ("budget", "show", "--help"), ("budget", "export", "--help"), ("--version",)],
)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert loaded(*arguments)[:2] == (0, [])


@pytest.mark.e2e
def test_a_bad_scenario_names_every_fault_before_anything_heavy_is_imported() -> None:
    status, names, errors = loaded(
        "run",
        "hospital",
        *("--set", "server.rouns=3", "--set", "privacy.delta=2", "--set", "budget.year=-1", "--set", "nonsense"),
        *("--set", "model.name=forest"),
    )
    assert status == 2
    assert not {"torch", "ray", "flwr"} & set(names)
    for part in ("server.rouns", "server.rounds", "privacy.delta=2", "budget.year=-1", "'nonsense'", "model.name"):
        assert part in errors, part
    assert "5 faults" in errors


@pytest.mark.e2e
def test_a_ledger_is_shown_without_torch(tmp_path: Path) -> None:
    assert main(["run", "hospital", *SHORT, "--quiet", "--out", str(tmp_path / "run")]) == 0
    status, names, _ = loaded("budget", "show", str(tmp_path / "run"))
    assert status == 0
    assert not {"torch", "ray", "flwr"} & set(names)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["plan"],
        ["budget"],
        ["budget", "burn", "x"],
        ["plan", "hospital", "--no-such-option"],
        ["run", "hospital", "--set"],
    ],
)
def test_bad_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "usage: feddp" in streams.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["plan", "nowhere.toml"], "there is no file"),
        (["plan", "hospitl"], "Nearest: hospital"),
        (["plan", "hospital", "--set", "garbage"], "expected section.key=value"),
        (["plan", "hospital", "--set", "server.rounds=[1"], "server.rounds='[1'"),
        (["plan", "hospital", "--set", "=3"], "expected section.key=value"),
        (["plan", "hospital", "--set", "privacy.noise_multiplier=nan"], "privacy.noise_multiplier"),
        (["plan", "hospital", "--set", "privacy.clip_norm=inf"], "privacy.clip_norm"),
        (["plan", "hospital", "--set", "privacy.delta=true"], "privacy.delta"),
        (["plan", "hospital", "--set", "privacy.mechanism=tree"], "tree"),
    ],
)
def test_bad_scenarios_end_with_2(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert part in streams.err
    assert "Traceback" not in streams.err


def test_all_bad_overrides_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hospital", "--set", "one", "--set", "two", "--set", "server.rouns=1"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("hospital: 3 faults")
    assert "'one'" in errors
    assert "'two'" in errors


def test_a_scenario_that_its_data_does_not_fit_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_table(tmp_path)
    (tmp_path / "table.csv").write_text("patient,hospital,age,dose,sick\np1,h1,nan,0,1\n")
    assert main(["plan", str(tmp_path / "own.toml")]) == 2
    assert "row 1 (not counting the header), column 'age'" in capsys.readouterr().err
    assert main(["plan", "hospital", *LOCAL, "--set", "server.rounds=1000000"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_out_that_cannot_be_a_run_directory_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for out in ("file", "file/deep", "."):
        assert main(["run", "hospital", *SHORT, "--quiet", "--out", str(tmp_path / out)]) == 1
        streams = capsys.readouterr()
        assert streams.out == ""
        assert "Traceback" not in streams.err
        assert len(streams.err.splitlines()) == 1


def test_plan_prints_a_page_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hospital", *SHORT]) == 0
    assert capsys.readouterr().out.startswith("Plan of hospital\n")
    assert main(["plan", "hospital", *SHORT, "--json"]) == 0
    streams = capsys.readouterr()
    assert strict(streams.out)["rounds"]["requested"] == 2
    assert streams.err == ""


def test_run_and_show_print_json_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "with space" / "run"
    assert main(["run", "hospital", *SHORT, "--json", "--out", str(out)]) == 0
    streams = capsys.readouterr()
    assert strict(streams.out) == read_summary(out)
    assert "round 2/2" in streams.err
    assert main(["budget", "show", str(out), "--json"]) == 0
    page = strict(capsys.readouterr().out)
    assert set(page) >= {"ledger", "unit", "mode", "delta", "clock", "windows", "head"}
    assert set(page["head"]) == {"seq", "hash"}
    assert [window["window"] for window in page["windows"]] == ["week", "year", "trailing", "lifetime"]
    for window in page["windows"]:
        assert set(window) >= {
            "window", "key", "allowance_epsilon", "spent_epsilon", "spent_fraction", "charges",
        }  # fmt: skip
        assert window["charges"] == 2


def test_a_ledger_can_be_named_in_three_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["run", "hospital", *SHORT, "--quiet", "--out", str(out)]) == 0
    capsys.readouterr()
    shown = set()
    for ledger in (str(out), str(out / "ledger.db"), f"sqlite:///{out}/ledger.db"):
        assert main(["budget", "show", ledger]) == 0
        shown.add(capsys.readouterr().out)
    (text,) = shown
    assert "2026-W01" in text
    assert "lifetime" in text


def test_a_ledger_of_releases_without_real_noise_is_strict_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_window = ["--set", "budget.year=", "--set", "budget.week=", "--set", "privacy.noise_multiplier=1e-160"]
    assert main(["run", "hospital", *SHORT, *no_window, "--json", "--out", str(tmp_path / "run")]) == 0
    assert strict(capsys.readouterr().out)["privacy"][-1]["epsilon"] == "inf"
    assert main(["budget", "show", str(tmp_path / "run"), "--json"]) == 0
    assert strict(capsys.readouterr().out)["windows"][-1]["spent_epsilon"] == "inf"


def test_ledgers_that_are_none_end_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "noise.db").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "empty.db").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name in ("absent.db", "noise.db", "empty.db", "folder"):
        assert main(["budget", "show", str(tmp_path / name)]) == 1
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.startswith("LedgerError: ")
    assert not (tmp_path / "absent.db").exists()
    assert main(["budget", "show", "mysql://host/ledger"]) == 2
    assert "a ledger in mysql is not available" in capsys.readouterr().err


def test_an_altered_ledger_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3
    from contextlib import closing

    out = tmp_path / "run"
    assert main(["run", "hospital", *SHORT, "--quiet", "--out", str(out)]) == 0
    with closing(sqlite3.connect(out / "ledger.db")) as connection, connection:
        connection.execute("update entries set clip_norm = 9 where seq = 1")
    capsys.readouterr()
    assert main(["budget", "show", str(out)]) == 1
    assert "The ledger was altered: row 1" in capsys.readouterr().err


def test_a_run_that_its_budget_stops_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*LOCAL, "--set", "privacy.noise_multiplier=8", "--set", "budget.week=0.15", "--set", "budget.year="]
    arguments += ["--set", "server.rounds=4", "--set", "server.rounds_per_week=4", "--out", str(tmp_path / "run")]
    assert main(["run", "hospital", *arguments]) == 0
    assert "stopped by its budget after" in capsys.readouterr().out
    assert read_summary(tmp_path / "run")["status"] == "stopped-by-budget"


def test_a_finished_directory_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "hospital", *SHORT, "--quiet", "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    capsys.readouterr()
    assert main(arguments) == 1
    assert "not written to again" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_an_unexpected_error_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("fedDP.simulation.plan.load_data", fail)
    assert main(["plan", "hospital"]) == 1
    assert "the disk is on fire" in capsys.readouterr().err


@pytest.mark.e2e
def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    code = f"{sys.executable} -m fedDP plan hospital | true"
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.e2e
def test_what_fails_at_a_client_is_said_on_the_standard_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import torch\n\n\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, num_features, num_outputs):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(num_features, num_outputs)\n\n"
        "    def forward(self, features):\n"
        "        return self.layer(features)\n"
    )
    arguments = ["run", "hospital", *SHORT, "--set", "model.name=broken:Net", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "fedDP", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "round 2/2" in done.stdout


def _wait_for_round(process: subprocess.Popen[str], round: int) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.split()[:1] == ["round"] and line.split()[1].startswith(f"{round}/"):
            return lines
    raise AssertionError(f"there was no round {round}: {lines[-3:]}")


def _interrupt(cwd: Path, arguments: list[str], round: int) -> tuple[int, str, float]:
    """Starts a run, presses Ctrl-C after a round; returns status, standard error and the seconds it took to end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedDP", "run", "hospital", *arguments, "--out", "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    _wait_for_round(process, round)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors, time.monotonic() - began


# A week has room for the charges that an interruption wastes, and rounds last long enough to be interrupted.
ROOMY = ["--set", "privacy.noise_multiplier=8", "--set", "budget.week=2", "--set", "budget.year=", "--set"]
ROOMY += ["server.rounds_per_week=1000", "--set", "server.rounds=300", "--set", "scenario.seed=3"]


@pytest.mark.e2e
def test_ctrl_c_leaves_a_directory_that_goes_on(tmp_path: Path) -> None:
    status, errors, seconds = _interrupt(tmp_path, [*LOCAL, *ROOMY], 3)
    assert status == 130
    assert seconds < 10
    assert "Traceback" not in errors
    assert "go on with:\n  feddp run hospital --out run --set " in errors
    assert len(read_rounds(tmp_path / "run")) >= 3
    assert not (tmp_path / "run" / "summary.json").exists()
    # The line that is printed for the user is one that a shell runs.
    command = next(line.strip() for line in errors.splitlines() if line.startswith("  feddp run"))
    line = command.replace("feddp", f"{sys.executable} -m fedDP", 1)
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "Going on with round" in done.stdout
    assert [row["round"] for row in read_rounds(tmp_path / "run")] == list(range(1, 301))


def _children_of_ray(folder: str) -> list[int]:
    """The processes that were started in a folder, Ray's among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == folder:
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.e2e
def test_ctrl_c_leaves_no_ray_process(tmp_path: Path) -> None:
    status, errors, seconds = _interrupt(tmp_path, ["--set", "resources.nodes=2", *ROOMY], 2)
    assert status == 130
    assert seconds < 20
    assert "Traceback" not in errors
    assert len(read_rounds(tmp_path / "run")) >= 2
    deadline = time.monotonic() + 10
    while _children_of_ray(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _children_of_ray(str(tmp_path)) == []


@pytest.mark.e2e
def test_the_script_and_the_module_are_one_command(tmp_path: Path) -> None:
    done = feddp("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "fedDP 0.1.0\n")
    script = shutil.which("feddp", path=str(Path(sys.executable).parent))
    if script is None:
        pytest.skip("feddp is not installed here as a script")
    assert subprocess.run([script, "--version"], capture_output=True, text=True).stdout == "fedDP 0.1.0\n"


@pytest.mark.e2e
def test_a_relative_data_path_is_the_scenario_s(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    write_table(tmp_path / "study")
    own_table(tmp_path / "study")
    done = feddp("run", "study/own.toml", "--json", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "completed"
    assert load_scenario(tmp_path / "out" / "scenario.toml").data.path == str(tmp_path / "study" / "table.csv")
    assert (tmp_path / "study" / "county.patient.ledger.db").exists()


def test_the_ledger_of_a_run_directory_is_found_beside_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_table(tmp_path)
    assert main(["run", str(tmp_path / "own.toml"), "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "ledger.db").exists()
    capsys.readouterr()
    assert main(["budget", "show", str(tmp_path / "run"), "--json"]) == 0
    assert strict(capsys.readouterr().out)["population"] == "county"


@pytest.mark.e2e
def test_a_model_in_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "mymodels.py").write_text(
        "from torch import nn\n"
        "def net(num_features, num_outputs, *, width=4):\n"
        "    return nn.Sequential(nn.Linear(num_features, width), nn.Tanh(), nn.Linear(width, num_outputs))\n"
    )
    command = ["run", "hospital", "--set", "model.name=mymodels:net", "--set", "model.width=3", "--out", "run"]
    command += ["--set", "server.rounds=1", "--set", "resources.nodes=1", "--quiet"]
    # As the console script starts: without the working directory on the path.
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if p]; from fedDP.cli import main; sys.exit(main({command!r}))"
    )
    started = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0, started.stderr
