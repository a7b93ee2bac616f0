"""The whole scenario: its sections, and the reading of tables into them with every fault at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedDP.errors import ScenarioError
from fedDP.scenario.keys import Section, keys_of, read_section
from fedDP.scenario.rules import find_faults
from fedDP.scenario.sections import (
    BudgetSpec,
    ClientSpec,
    DataSpec,
    ModelSpec,
    PrivacySpec,
    ResourcesSpec,
    ScenarioSpec,
    ServerSpec,
)
from fedDP.scenario.values import is_object_name

__all__ = [
    "SECTIONS",
    "SHARED_MODEL_KEYS",
    "BudgetSpec",
    "ClientSpec",
    "DataSpec",
    "ModelSpec",
    "PrivacySpec",
    "ResourcesSpec",
    "Scenario",
    "ScenarioSpec",
    "Sections",
    "ServerSpec",
    "known_keys",
    "nearest_keys",
    "scenario_from_tables",
    "unknown_key",
]

SECTIONS: Mapping[str, type[Section]] = {
    section.section: section
    for section in (
        ScenarioSpec,
        DataSpec,
        ModelSpec,
        ClientSpec,
        ServerSpec,
        PrivacySpec,
        BudgetSpec,
        ResourcesSpec,
    )
}
"""The sections by name, in the order in which files show them."""

SHARED_MODEL_KEYS = frozenset({"name", "freeze", "initial"})
"""The keys of ``[model]`` that every model has; the others are a model's own."""

_OTHER_WORDS = {
    "sigma": "noise_multiplier",
    "noise": "noise_multiplier",
    "epsilon": "target_epsilon",
    "max_grad_norm": "clip_norm",
    "clipping_norm": "clip_norm",
    "sample_rate": "sampling_rate",
    "lr": "learning_rate",
    "num_rounds": "rounds",
    "local_epochs": "epochs",
    "num_nodes": "nodes",
    "dataset": "name",
    "label": "target",
}
"""Words of other libraries for keys, for the hint that comes with an unknown key."""


@dataclass(frozen=True, kw_only=True)
class Sections:
    """The eight sections, each valid by itself."""

    scenario: ScenarioSpec = field(default_factory=ScenarioSpec)
    data: DataSpec = field(default_factory=DataSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    client: ClientSpec = field(default_factory=ClientSpec)
    server: ServerSpec = field(default_factory=ServerSpec)
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    budget: BudgetSpec = field(default_factory=BudgetSpec)
    resources: ResourcesSpec = field(default_factory=ResourcesSpec)


@dataclass(frozen=True, kw_only=True)
class Scenario(Sections):
    """A complete scenario, valid by itself and as a whole.

    Guarantees:
        1. Every value is in its range and every rule of `fedDP.scenario.rules` holds.
        2. ``budget.clock`` is resolved: "simulated" or "system", never empty.

    Attributes:
        source: the file or name it came from; two scenarios that differ only here are equal.

    Raises:
        ScenarioError: on construction, with every fault.
    """

    source: str = field(default="scenario", compare=False)

    def __post_init__(self) -> None:
        faults = find_faults(self)
        if faults:
            raise ScenarioError(self.source, faults)
        if not self.budget.clock:
            clock = "system" if self.server.rounds_per_week is None else "simulated"
            object.__setattr__(self, "budget", replace(self.budget, clock=clock))


def scenario_from_tables(tables: Mapping[str, object], *, source: str, faults: Sequence[str] = ()) -> Scenario:
    """Reads the tables of a scenario file.

    Args:
        tables: the sections, as TOML gives them.
        source: what to call the file in errors.
        faults: what the caller found already; reported with the rest.

    Raises:
        ScenarioError: with `faults`, unknown sections and keys, values that are not allowed, and every
            broken rule that does not depend on a value that is faulty itself.
    """
    found = list(faults)
    faulty: set[str] = set()
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in SECTIONS:
            found.append(_unknown_top(name, table))
    for name, section in SECTIONS.items():
        table = tables.get(name, {})
        if not isinstance(table, Mapping):
            found.append(f"{name}={table!r}: expected a table, [{name}].")
            faulty.update(f"{name}.{known}" for known in keys_of(section))
            continue
        if section is ModelSpec and _is_own_model(table):
            table = _with_options(table)
        else:
            found.extend(_unknown_keys(section, table))
            table = {key: value for key, value in table.items() if _is_written(section, key)}
        values, section_faults = read_section(section, table)
        found.extend(section_faults.values())
        faulty.update(section_faults)
        sections[name] = section(**values)
    found.extend(find_faults(Sections(**sections), faulty=faulty))
    if found:
        raise ScenarioError(source, found)
    return Scenario(**sections, source=source)


def known_keys() -> Iterator[str]:
    """The full names of all keys that files may hold: ``privacy.delta``, ``privacy.clipping.kind``, ..."""
    for section in SECTIONS.values():
        yield from _known_keys(section)


def _known_keys(section: type[Section]) -> Iterator[str]:
    for name, declared in keys_of(section).items():
        if isinstance(declared.default, Section):
            yield from _known_keys(type(declared.default))
        elif declared.written:
            yield f"{section.section}.{name}"


def nearest_keys(name: str) -> list[str]:
    """The known keys that a user who wrote `name` may have meant, best first, three at most.

    First the key that other libraries call so, then the same key in another section, then the closest names.
    """
    known = list(known_keys())
    section, _, last = name.rpartition(".")
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    meant = _OTHER_WORDS.get(last)
    found = [siblings[meant]] if meant in siblings else []
    found += [other for other in known if other.rpartition(".")[2] in (last, meant) and not found]
    found += difflib.get_close_matches(name, known, n=2, cutoff=0.75)
    found += [siblings[close] for close in difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)]
    if not found:
        found = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return list(dict.fromkeys(found))[:3]


def unknown_key(name: str) -> str:
    """The fault of an unknown key."""
    return f"{name}: unknown key; nearest known: {', '.join(nearest_keys(name))}"


def _unknown_top(name: str, table: object) -> str:
    if not isinstance(table, Mapping):
        return unknown_key(name)
    close = difflib.get_close_matches(name, SECTIONS, n=1, cutoff=0.0)
    return f"[{name}]: unknown section; nearest known: [{close[0]}]"


def _unknown_keys(section: type[Section], table: Mapping[str, object]) -> Iterator[str]:
    known = keys_of(section)
    for name, value in table.items():
        if not _is_written(section, name):
            yield unknown_key(f"{section.section}.{name}")
        elif isinstance(known[name].default, Section) and isinstance(value, Mapping):
            yield from _unknown_keys(type(known[name].default), value)


def _is_written(section: type[Section], name: str) -> bool:
    declared = keys_of(section).get(name)
    return declared is not None and declared.written


def _is_own_model(table: Mapping[str, object]) -> bool:
    name = table.get("name")
    return isinstance(name, str) and is_object_name(name)


def _with_options(table: Mapping[str, object]) -> dict[str, object]:
    """Moves the further keys of a model of one's own into ``options``."""
    arranged = {key: value for key, value in table.items() if key in SHARED_MODEL_KEYS}
    arranged["options"] = {key: value for key, value in table.items() if key not in SHARED_MODEL_KEYS}
    return arranged
