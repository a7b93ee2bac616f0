"""Finding files, `extends`, overrides, and how light loading is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedDP.errors import ScenarioError
from fedDP.scenario.load import DEFAULT, load_scenario, named_scenarios, parse_override

ROOT = Path(__file__).parents[2]
SHIPPED = [*named_scenarios(), *sorted(ROOT.glob("simulations/**/*.toml"))]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("source", SHIPPED, ids=str)
def test_shipped_files_load(source: str | Path) -> None:
    assert load_scenario(source).scenario.name != "unnamed"


def test_hospital_fills_the_weeks_of_its_year() -> None:
    scenario = load_scenario("hospital")
    assert scenario.server.rounds == 53 * (scenario.server.rounds_per_week or 0)
    assert (scenario.budget.year, scenario.budget.week, scenario.budget.clock) == (1.0, "even", "simulated")
    assert scenario.data.ranges["age"] == (45.0, 65.0)
    assert scenario.data.categories["cp"] == (1.0, 2.0, 3.0, 4.0)


def test_silo_makes_hospitals_the_clients() -> None:
    scenario = load_scenario(ROOT / "simulations" / "hospital-silo.toml")
    assert scenario.scenario.unit == "hospital"
    assert scenario.data.client_column == scenario.data.site_column == "site"
    assert (scenario.privacy.sampling, scenario.privacy.sampling_rate) == ("all", None)


def test_extends_chain_merges_key_by_key(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'extends = "hospital"\n[server]\nrounds = 8\n[data.ranges]\nage = [40, 70]')
    top = write(tmp_path / "sub" / "top.toml", 'extends = "../base.toml"\n[server]\nlearning_rate = 0.5')
    scenario = load_scenario(top)
    assert (scenario.server.rounds, scenario.server.learning_rate, scenario.server.rounds_per_week) == (8, 0.5, 2)
    assert scenario.data.ranges["age"] == (40.0, 70.0)
    assert scenario.data.ranges["chol"] == (170.0, 290.0)
    assert scenario.source == str(top)


def test_cycles_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'extends = "b.toml"')
    write(tmp_path / "b.toml", 'extends = "a.toml"')
    with pytest.raises(ScenarioError, match=r"a\.toml -> b\.toml -> a\.toml is a cycle"):
        load_scenario(tmp_path / "a.toml")
    own = write(tmp_path / "own.toml", 'extends = "own.toml"')
    with pytest.raises(ScenarioError, match=r"own\.toml -> own\.toml is a cycle"):
        load_scenario(own)


def test_a_name_is_not_shadowed_by_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospital").mkdir()
    assert load_scenario("hospital").scenario.name == "hospital"
    with pytest.raises(ScenarioError, match="is a directory"):
        load_scenario("./hospital")


def test_a_missing_file_lists_the_names(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"these ship: .*hospital.* Nearest: hospital\."):
        load_scenario("hospitl")
    with pytest.raises(ScenarioError, match="there is no file"):
        load_scenario(tmp_path / "none.toml")
    orphan = write(tmp_path / "orphan.toml", 'extends = "nowhere.toml"')
    with pytest.raises(ScenarioError, match=r"nowhere\.toml"):
        load_scenario(orphan)


@pytest.mark.parametrize(
    "content", [b"[server\n", b"a = 1\na = 2", b"\xff\xfe", b"a = " + b"9" * 5000, b"extends = 3", b'extends = ""']
)
def test_unreadable_files_are_scenario_errors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=r"bad\.toml"):
        load_scenario(path)


def test_data_path_is_relative_to_the_file_that_sets_it(tmp_path: Path) -> None:
    text = 'extends = "hospital"\n[data]\npath = "my.csv"\ntarget = "y"\npopulation_id = "p"'
    write(tmp_path / "base" / "base.toml", text)
    top = write(tmp_path / "top.toml", 'extends = "base/base.toml"')
    assert load_scenario(top).data.path == str(tmp_path / "base" / "my.csv")
    own = {"data.path": "other.csv", "data.target": "y", "data.population_id": "p"}
    assert load_scenario(top, own).data.path == str(Path.cwd() / "other.csv")


def test_other_data_inherit_no_description(tmp_path: Path) -> None:
    """`public = true` of packaged data must never reach a user's own."""
    own = {"data.path": "my.csv", "data.target": "y", "data.population_id": "p"}
    data = load_scenario("hospital", own).data
    assert not data.public
    assert (data.name, data.site_column, data.ranges, data.categories) == (None, None, {}, {})
    assert load_scenario("hospital", {"data.name": "heart-disease"}).data.public


def test_another_model_and_another_sampling_drop_what_belonged_to_the_first(tmp_path: Path) -> None:
    base = write(tmp_path / "base.toml", 'extends = "hospital"\n[model]\nname = "mlp"\nhidden = [8]')
    assert load_scenario(base).model.hidden == (8,)
    assert load_scenario(base, {"model.name": "logistic"}).model.hidden == ()
    assert load_scenario(base, {"privacy.cohort_size": 50}).privacy.sampling_rate is None
    assert load_scenario(base, {"privacy.sampling": "poisson"}).privacy.sampling_rate == 0.2
    data = load_scenario(base, {"data.ranges.cp": [1, 4], "data.categories.ca": [0, 1, 2, 3]}).data
    assert "cp" in data.ranges
    assert "cp" not in data.categories
    assert "ca" not in data.ranges


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server.rounds=80", ("server.rounds", 80)),
        ("scenario.seed=7", ("scenario.seed", 7)),
        ("data.ranges.age=[1,2]", ("data.ranges.age", [1, 2])),
        ("data.public = true", ("data.public", True)),
        ("model.name=mlp", ("model.name", "mlp")),
        ("budget.start=2026-W09", ("budget.start", "2026-W09")),
        ('scenario.description="a = b"', ("scenario.description", "a = b")),
        ("budget.ledger=sqlite:///a.db?x=1", ("budget.ledger", "sqlite:///a.db?x=1")),
        ("server.rounds=1\nb=2", ("server.rounds", "1\nb=2")),
        ("budget.year=", ("budget.year", DEFAULT)),
    ],
)
def test_parse_override(text: str, expected: tuple[str, object]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["server.rounds", "rounds=3", "=3", ""])
def test_malformed_overrides(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"section\.key=value"):
        parse_override(text)


def test_overrides_set_and_reset_keys() -> None:
    changed = load_scenario("hospital", {"server.rounds": 3, "data.ranges.age": [1, 2], "scenario.seed": 7})
    assert (changed.server.rounds, changed.scenario.seed) == (3, 7)
    assert changed.data.ranges["age"] == (1.0, 2.0)
    reset = load_scenario("hospital", {"server.rounds": DEFAULT, "budget.week": None, "data.ranges.age": DEFAULT})
    assert (reset.server.rounds, reset.budget.week) == (10, None)
    assert "age" not in reset.data.ranges


def test_faulty_overrides_are_reported_together() -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario("hospital", {"privacy.sigma": DEFAULT, "rounds": 3, "server.rounds": 0, "server.round": 1})
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize("heavy", [("torch", "flwr", "ray", "scipy", "sqlalchemy", "tomli_w"), ("numpy",)])
def test_loading_is_light(heavy: tuple[str, ...]) -> None:
    code = (
        "import sys, fedDP.scenario.load as load; load.load_scenario('hospital'); "
        f"found = set({heavy!r}) & set(sys.modules); sys.exit(f'loaded: {{found}}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
