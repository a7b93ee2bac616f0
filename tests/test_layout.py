"""The rooms of the house: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "fedDP"

BELOW: dict[str, set[str]] = {
    "privacy": set(),
    "accounting": {"privacy"},
    "budget": {"accounting", "privacy"},
    "training": {"budget", "accounting", "privacy"},
    "strategies": {"training", "budget", "accounting", "privacy"},
    "scenario": {"strategies", "training", "budget", "accounting", "privacy"},
    "reporting": {"scenario", "strategies", "training", "budget", "accounting", "privacy"},
    "simulation": {"scenario", "strategies", "training", "budget", "accounting", "privacy"},
}
"""Each room and the rooms that it may import; files beside the rooms (`errors`, `ranges`) are open to all."""

EVERYWHERE = {"fedDP.errors", "fedDP.ranges", "fedDP"}

FOREIGN: dict[str, set[str]] = {
    "privacy": {"torch", "flwr", "ray", "scipy", "sqlalchemy"},
    "accounting": {"torch", "flwr", "ray", "sqlalchemy"},
    "budget": {"torch", "flwr", "ray"},
    "training": {"flwr", "ray"},
    "strategies": {"ray"},
    "scenario": {"ray"},
    "reporting": {"torch", "flwr", "ray"},
    "simulation": set(),
}
"""What each room must not import from outside."""


def modules(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Every file below a folder with the full names that it imports, inside functions too."""
    for path in sorted(folder.rglob("*.py")):
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                found.add(node.module or "")
                if node.module == "fedDP":
                    found |= {f"fedDP.{alias.name}" for alias in node.names}
        yield path, found


def test_every_folder_is_a_known_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(BELOW) == set(FOREIGN)


@pytest.mark.parametrize("room", BELOW)
def test_arrows_point_down(room: str) -> None:
    allowed = BELOW[room] | {room}
    for path, imported in modules(PACKAGE / room):
        for name in imported:
            if name.startswith("fedDP") and name not in EVERYWHERE:
                top = name.split(".")[1]
                assert top in allowed or not (PACKAGE / top).is_dir(), f"{path.name} of {room} imports {name}"
                assert top != "cli", f"{path.name} of {room} imports the command line"


@pytest.mark.parametrize("room", FOREIGN)
def test_heavy_packages_stay_in_their_rooms(room: str) -> None:
    for path, imported in modules(PACKAGE / room):
        tops = {name.split(".")[0] for name in imported}
        assert not tops & FOREIGN[room], f"{path.name} of {room}"


def test_the_library_knows_neither_apps_nor_studies_nor_tests() -> None:
    for path, imported in modules(PACKAGE):
        tops = {name.split(".")[0] for name in imported}
        assert not tops & {"clients", "server", "simulations", "tests", "benchmarks", "scripts"}, path.name


def test_the_apps_need_no_simulation() -> None:
    for app in ("clients", "server"):
        for path, imported in modules(PACKAGE.parent / app):
            assert not {name for name in imported if name.startswith(("fedDP.simulation", "ray"))}, path


def test_files_are_named_after_what_they_hold() -> None:
    names = {path.name for path in PACKAGE.rglob("*.py")}
    assert not names & {"utils.py", "helpers.py", "common.py", "misc.py"}


@pytest.mark.parametrize("room", BELOW)
def test_every_room_and_file_says_what_it_is_for(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not text or ast.get_docstring(ast.parse(text)), path


def test_the_reference_of_scenario_keys_is_up_to_date() -> None:
    script = Path(__file__).resolve().parents[1] / "scripts" / "scenario_reference.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0
