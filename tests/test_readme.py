"""The README: its code runs, its commands exist, its layout is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedDP.cli import _parser
from fedDP.scenario.load import load_scenario
from fedDP.simulation.plan import plan

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_there_are_blocks_of_every_kind() -> None:
    assert len(blocks("python")) == 2
    assert len(blocks("toml")) == 1
    assert len(blocks("sh")) == 2


@pytest.mark.parametrize("block", blocks("python"), ids=["scenario", "ledger"])
def test_python_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    if "result" in names:
        assert (tmp_path / "first-run" / "summary.json").exists()
        printed = capsys.readouterr().out.splitlines()
        assert printed[-4].startswith("completed ")
        assert [line.split()[0] for line in printed[-3:]] == ["week", "year", "lifetime"]
    else:
        assert (tmp_path / "ledger.db").exists()


def test_the_scenario_loads_and_plans(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "mine.toml").write_text(block)
    rows = ["patient_id,hospital,age,bmi,smoker,readmitted"]
    rows += [
        f"p{number},h{number % 3},{20 + number % 70},{18 + number % 20},{number % 2},{number % 3 // 2}"
        for number in range(2000)
    ]
    (tmp_path / "patients.csv").write_text("\n".join(rows) + "\n")
    scenario = load_scenario(tmp_path / "mine.toml")
    found = plan(scenario)
    assert found.privacy.allowed_rounds == scenario.server.rounds
    assert {warning["code"] for warning in found.warnings} == set()


def test_commands_exist() -> None:
    shown = re.findall(r"^\| `(feddp [^`]*)` \|", TEXT, flags=re.MULTILINE)
    assert len(shown) >= 3
    for command in shown:
        words = command.replace("DIR", "d").replace("SCENARIO", "hospital").replace("LEDGER", "ledger.db").split()
        assert _parser().parse_args(words[1:]).command


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", "\n".join(blocks("sh")), flags=re.MULTILINE):
        assert re.search(rf"^{target}:.*##", makefile, flags=re.MULTILINE), target


def test_the_layout_is_the_repository_s() -> None:
    layout = next(block for block in blocks("text") if block.startswith("fedDP/"))
    places = [(line.startswith("  "), line.split()[0]) for line in layout.splitlines()]
    for inside, name in places:
        assert ((ROOT / "fedDP" / name) if inside else ROOT / name).exists(), name
    rooms = {path.name + "/" for path in (ROOT / "fedDP").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == {name for inside, name in places if inside}


def test_links_point_at_files() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"`((?:fedDP|clients|server|simulations)/[\w./-]+\.\w+)`", TEXT):
        assert (ROOT / name).exists(), name


def test_the_license_is_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"]["file"] == "LICENSE"
    assert (ROOT / "LICENSE").exists()


@pytest.mark.e2e
def test_the_python_of_the_readme_needs_no_checkout_as_working_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4].startswith("completed ")
