"""Defaults, ranges, values that arrive later, unknown keys, and the round trip through TOML."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedDP.errors import ScenarioError
from fedDP.scenario.dump import to_toml
from fedDP.scenario.keys import Section, keys_of
from fedDP.scenario.load import load_scenario
from fedDP.scenario.schema import SECTIONS, Scenario, known_keys, nearest_keys, scenario_from_tables
from fedDP.scenario.sections import DataSpec, ModelSpec, PrivacySpec, ScenarioSpec

MINIMAL: Mapping[str, Mapping[str, object]] = {
    "data": {"name": "heart-disease"},
    "privacy": {"target_epsilon": 1.0, "sampling_rate": 0.1},
}


def build(**changes: object) -> Scenario:
    """The minimal scenario with keys such as ``server__rounds`` changed."""
    tables: dict[str, Any] = {name: dict(table) for name, table in MINIMAL.items()}
    for name, value in changes.items():
        section, *inner, last = name.split("__")
        table = tables.setdefault(section, {})
        for part in inner:
            table = table.setdefault(part, {})
        table[last] = value
    return scenario_from_tables(tables, source="test")


def faults(**changes: object) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        build(**changes)
    return caught.value.faults


def test_defaults() -> None:
    scenario = build()
    assert (scenario.scenario.name, scenario.scenario.unit, scenario.scenario.seed) == ("unnamed", "client", None)
    assert (scenario.data.public, scenario.data.max_records, scenario.data.test_fraction) == (False, 1000, 0.25)
    assert (scenario.model.name, scenario.model.hidden) == ("logistic", ())
    assert (scenario.client.batch_size, scenario.client.block_size) == (16, None)
    assert (scenario.server.optimizer, scenario.server.rounds_per_week) == ("fedavg", None)
    assert (scenario.privacy.delta, scenario.privacy.noise_multiplier) == (1e-5, "auto")
    assert scenario.privacy.clipping.kind == "flat"
    assert (scenario.budget.clock, scenario.budget.mode, scenario.budget.trailing) == ("system", "auto", None)
    assert (scenario.resources.engine, scenario.resources.timeout_seconds) == ("ray", 600.0)
    assert build(server__rounds_per_week=3).budget.clock == "simulated"
    assert build(model__name="mlp").model.hidden == (32,)


@pytest.mark.parametrize("section", SECTIONS.values(), ids=list(SECTIONS))
def test_every_key_has_help_and_its_default_is_allowed(section: type[Section]) -> None:
    section()
    for item in dataclasses.fields(section):
        declared = keys_of(section)[item.name]
        assert declared.help.endswith("."), item.name
        assert declared.allowed()


BAD_NUMBERS = [math.nan, math.inf, -math.inf, -1, 0, True, False, "x", [], 10**400]
PRIVACY_NUMBERS = [
    *(
        f"privacy.{name}"
        for name in ["delta", "clip_norm", "noise_multiplier", "target_epsilon", "sampling_rate", "cohort_size"]
    ),
    *(f"budget.{name}" for name in ["week", "year", "trailing", "lifetime"]),
]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda value: repr(value)[:9])
@pytest.mark.parametrize("name", PRIVACY_NUMBERS)
def test_bad_privacy_numbers_are_refused_by_name_and_range(name: str, value: object) -> None:
    found = [fault for fault in faults(**{name.replace(".", "__"): value}) if fault.startswith(f"{name}=")]
    assert len(found) == 1
    assert "in [" in found[0] or "in (" in found[0] or (value == 0 and "no privacy" in found[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scenario.name", "a b"),
        ("scenario.name", ""),
        ("scenario.unit", " "),
        ("scenario.seed", -1),
        ("scenario.seed", 2**63),
        ("scenario.seed", 1.0),
        ("scenario.seed", True),
        ("data.public", 1),
        ("data.public", "yes"),
        ("data.max_records", 0),
        ("data.max_records", 1.5),
        ("data.test_fraction", 0.95),
        ("data.features", "age"),
        ("data.drop", ["a", "a"]),
        ("data.ranges", [1, 2]),
        ("data.ranges.age", [2, 1]),
        ("data.ranges.age", [0, math.inf]),
        ("data.ranges.age", [True, 2]),
        ("data.categories.cp", []),
        ("data.categories.cp", [1, 1.0]),
        ("data.categories.cp", [math.nan]),
        ("data.name", "heart-diseas"),
        ("model.name", "linear"),
        ("server.optimizer", "fedadm"),
        ("server.rounds", 0),
        ("server.rounds", "3"),
        ("server.momentum", 1.0),
        ("client.learning_rate", 0),
        ("budget.start", "2026-W54"),
        ("budget.start", "2025-W53"),
        ("budget.start", "2026-01"),
        ("budget.week", "evn"),
        ("budget.reserve_evaluation", False),
        ("privacy.clipping", "flat"),
        ("resources.nodes", 0),
        ("resources.timeout_seconds", math.inf),
    ],
)
def test_values_outside_are_refused_by_name(name: str, value: object) -> None:
    assert any(fault.startswith(f"{name}=") for fault in faults(**{name.replace(".", "__"): value}))


LATER: list[tuple[str, object]] = [
    ("data.task", "regression"),
    ("data.clients", 10),
    ("data.partition", "iid"),
    ("data.partition", "dirichlet"),
    ("data.partition", "pathological"),
    ("data.alpha", 0.5),
    ("data.preprocessing", "charged-moments"),
    ("data.preprocessing", "per-client"),
    ("data.preprocessing", "benchmark"),
    ("model.freeze", ["layer"]),
    ("model.initial", "m.safetensors"),
    ("client.trainer", "opacus"),
    ("client.optimizer", "adam"),
    ("client.optimizer", "adamw"),
    ("client.dp_sgd.noise_multiplier", 1.0),
    ("client.dp_sgd.target_epsilon", 1.0),
    ("client.dp_sgd.max_grad_norm", 1.0),
    ("client.dp_sgd.delta", 1e-5),
    ("server.strategy", "fedbuff"),
    ("privacy.sampling", "fixed"),
    ("privacy.mechanism", "tree"),
    ("privacy.mechanism", "banded"),
    ("privacy.clipping.kind", "per-layer"),
    ("privacy.clipping.kind", "adaptive"),
    ("privacy.schedule.kind", "linear"),
    ("budget.on_week_exhausted", "wait"),
    ("resources.device", "cuda"),
    ("resources.gpus_per_node", 0.5),
    ("resources.precision", "bfloat16"),
]


@pytest.mark.parametrize(("name", "value"), LATER)
def test_what_arrives_later_is_refused_by_name(name: str, value: object) -> None:
    (fault,) = faults(**{name.replace(".", "__"): value})
    assert fault.startswith(f"{name}={value!r} is not available yet: it arrives in a later version; ")


def test_later_says_what_to_use() -> None:
    assert faults(client__trainer="opacus") == (
        "client.trainer='opacus' is not available yet: it arrives in a later version; use 'vectorised'",
    )
    assert faults(model__freeze=["a"])[0].endswith("leave it out")


def test_unknown_keys_name_the_nearest() -> None:
    assert faults(privacy__rounds=3) == ("privacy.rounds: unknown key; nearest known: server.rounds",)
    assert "nearest known: privacy.noise_multiplier" in faults(privacy__noise_multiplyer=1)[0]
    assert "server.learning_rate" in faults(model__learning_rate=1)[0]
    assert faults(privacy__sigma=1)[0].startswith("privacy.sigma: unknown key; nearest known: privacy.noise_multiplier")
    assert "nearest known: client.learning_rate" in faults(client__lr=1)[0]
    assert "unknown key; nearest known: " in faults(budget__zzz=1)[0]
    assert "privacy.clipping.kind" in faults(privacy__clipping__kinds="flat")[0]
    assert faults(model__depth=3)[0].startswith("model.depth: unknown key")
    assert faults(model__options={"a": 1})[0].startswith("model.options: unknown key")
    assert nearest_keys("clip_norm") == ["privacy.clip_norm"]


def test_unknown_sections_and_stray_keys() -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_tables({**MINIMAL, "privcy": {"delta": 1}, "rounds": 3, "budget": 3}, source="test")
    text = str(caught.value)
    assert "[privcy]: unknown section; nearest known: [privacy]" in text
    assert "rounds: unknown key; nearest known: server.rounds" in text
    assert "budget=3: expected a table" in text


def test_all_faults_at_once() -> None:
    found = faults(
        privacy__delta=2.0,
        privacy__clip_norm=math.nan,
        privacy__sigma=1,
        server__rounds=0,
        client__trainer="opacus",
        data__path="a.csv",
        data__ranges={"a": [2, 1], "b": [1, math.nan]},
    )
    for part in ("privacy.delta=", "privacy.clip_norm=", "privacy.sigma:", "server.rounds=", "client.trainer="):
        assert sum(fault.startswith(part) for fault in found) == 1
    assert sum("data.ranges" in fault for fault in found) == 2
    assert sum("give one of them" in fault for fault in found) == 1
    assert sum("data.target is required" in fault for fault in found) == 1
    assert sum("data.population_id is required" in fault for fault in found) == 1
    assert len(found) == 10


def test_sections_validate_in_python_too() -> None:
    with pytest.raises(ScenarioError, match=r"privacy\.delta=2"):
        PrivacySpec(delta=2)
    with pytest.raises(ScenarioError, match=r"2 faults"):
        PrivacySpec(delta=math.nan, clip_norm=True)
    with pytest.raises(ScenarioError, match="is required"):
        Scenario()
    scenario = build()
    with pytest.raises(ScenarioError, match="not both"):
        dataclasses.replace(scenario, data=DataSpec(name="heart-disease", path="a"))
    assert DataSpec(ranges={"a": (1, 2)}).ranges == {"a": (1.0, 2.0)}
    assert type(PrivacySpec(clip_norm=2).clip_norm) is float
    assert ScenarioSpec(seed=2**63 - 1).seed == 2**63 - 1


OWN_MODEL = {"name": "my.models:Net", "depth": 3, "rate": 0.5, "bias": True, "act": "relu", "hidden": [4, [5]]}

ROUND_TRIPS: list[dict[str, object]] = [
    {},
    {"server__rounds_per_week": 2, "budget__week": "even", "budget__year": 1, "scenario__seed": 2**63 - 1},
    {"model": {"name": "mlp", "hidden": [64, 32]}, "privacy__delta": 1.5e-7, "resources__nodes": 8},
    {"model": OWN_MODEL, "server__optimizer": "my.opt:Step"},
    {"data__ranges": {"*": [0, 1], "a.b": [-1.5, 1e300]}, "data__categories": {"c d": [0, 1]}, "data__drop": ["x"]},
    {"scenario__description": 'two\nlines, "quoted" \\ ü', "data__features": ["age", "sex"]},
]


@pytest.mark.parametrize("changes", ROUND_TRIPS)
def test_round_trip(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = changes.pop("model", {})
    scenario = build(**changes, **{f"model__{name}": value for name, value in model.items()})
    path = tmp_path / "scenario.toml"
    path.write_text(to_toml(scenario), encoding="utf-8")
    loaded = load_scenario(path)
    assert loaded == scenario
    assert to_toml(loaded) == to_toml(scenario)
    assert pickle.loads(pickle.dumps(scenario)) == scenario


@pytest.mark.parametrize("name", ["hospital", "simulations/hospital-silo.toml"])
def test_shipped_files_survive_the_round_trip(tmp_path: Path, name: str) -> None:
    source = Path(__file__).parents[2] / name
    scenario = load_scenario(source if source.suffix else name)
    path = tmp_path / "scenario.toml"
    path.write_text(to_toml(scenario), encoding="utf-8")
    assert load_scenario(path) == scenario


def test_own_models_keep_their_keys() -> None:
    model = build(**{f"model__{name}": value for name, value in OWN_MODEL.items()}).model
    assert model.hidden == ()
    assert model.options == {name: value for name, value in OWN_MODEL.items() if name != "name"}
    assert faults(model__name="a.b:C", model__depth=math.nan)[0].startswith("model.depth=nan")
    assert faults(model__name="a.b:C", model__table={"x": 1})[0].startswith("model.table=")
    assert faults(model__name="a.b:C", model__freeze=["x"])[0].startswith("model.freeze=")
    with pytest.raises(ScenarioError, match="further keys"):
        Scenario(model=ModelSpec(options={"a": 1}))


def test_known_keys_hold_the_contract() -> None:
    known = set(known_keys())
    assert {"scenario.seed", "privacy.clipping.kind", "client.dp_sgd", "budget.ledger", "model.hidden"} <= known
    assert "model.options" not in known
