"""What the two Flower apps need beside a scenario: where it is, and what data their side holds."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from fedDP.scenario.federated_data import FederatedData
from fedDP.scenario.load import load_scenario, named_scenarios, parse_override
from fedDP.scenario.load_data import load_data
from fedDP.scenario.schema import Scenario

APP_ROOT = Path(__file__).resolve().parents[2]
"""The folder of the app: in a Flower app bundle the package lies beside ``clients`` and ``server``."""


def app_scenario(name: str, overrides: str) -> Scenario:
    """The scenario of a run configuration.

    Args:
        name: of a scenario that ships, or a path: absolute, or relative to the app.
        overrides: as on the command line, separated by spaces: ``"server.rounds=3 scenario.seed=7"``.

    Raises:
        ScenarioError: with every fault.
    """
    # The working directory is where the SuperLink was started, which says nothing about the app.
    source = name if name in named_scenarios() or Path(name).is_absolute() else str(APP_ROOT / name)
    return load_scenario(source, dict(parse_override(text) for text in shlex.split(overrides)))


def with_data(scenario: Scenario, path: str) -> Scenario:
    """The scenario with a deployed node's own table in place of the scenario's."""
    return replace(scenario, data=replace(scenario.data, name=None, path=path)) if path else scenario


def held_out(scenario: Scenario) -> FederatedData | None:
    """The test records, where the data is public and this machine has it."""
    if not scenario.data.public or (scenario.data.path is not None and not Path(scenario.data.path).exists()):
        return None
    return load_data(scenario.data).test
