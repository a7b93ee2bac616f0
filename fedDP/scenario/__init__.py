"""The scenario file, the scenarios that ship with the package, and the data they name.

Names load on first use: reading a scenario needs neither the data's libraries nor the model's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedDP.scenario.dump import to_toml
    from fedDP.scenario.load import load_scenario, named_scenarios, parse_override
    from fedDP.scenario.schema import Scenario

__all__ = ["Scenario", "load_scenario", "named_scenarios", "parse_override", "to_toml"]

_LAZY = {
    "Scenario": "fedDP.scenario.schema",
    "load_scenario": "fedDP.scenario.load",
    "named_scenarios": "fedDP.scenario.load",
    "parse_override": "fedDP.scenario.load",
    "to_toml": "fedDP.scenario.dump",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
