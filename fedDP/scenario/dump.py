"""Writing a scenario as TOML: the resolved file that stands in every run directory."""

from __future__ import annotations

from collections.abc import Mapping

from fedDP.scenario.keys import Section, keys_of
from fedDP.scenario.schema import SECTIONS, Scenario


def to_toml(scenario: Scenario) -> str:
    """The resolved scenario as TOML, defaults included; absent and empty values are left out.

    Guarantee: `fedDP.scenario.load.load_scenario` reads it back to an equal scenario.
    """
    import tomli_w

    return tomli_w.dumps(to_tables(scenario))


def to_tables(scenario: Scenario) -> dict[str, dict[str, object]]:
    """The sections of a scenario as the plain tables of a scenario file."""
    return {name: _table(getattr(scenario, name)) for name in SECTIONS}


def _table(section: Section) -> dict[str, object]:
    table: dict[str, object] = {}
    for name, declared in keys_of(type(section)).items():
        value = getattr(section, name)
        if value is None or value in ("", (), {}):
            continue
        if not declared.written:  # its entries stand in the section itself
            table.update(value)
        else:
            table[name] = _plain(value)
    return table


def _plain(value: object) -> object:
    if isinstance(value, Section):
        return _table(value)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return value
