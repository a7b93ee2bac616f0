"""fedDP: federated learning with client-level differential privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedDP.errors import (
    DataError,
    FedDPError,
    GrantError,
    InvalidValueError,
    LedgerError,
    ModelError,
    ScenarioError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from fedDP.scenario.load import load_scenario
    from fedDP.simulation.plan import plan
    from fedDP.simulation.run import run

__version__ = "0.1.0"

__all__ = [
    "DataError",
    "FedDPError",
    "GrantError",
    "InvalidValueError",
    "LedgerError",
    "ModelError",
    "ScenarioError",
    "UnsupportedError",
    "__version__",
    "load_scenario",
    "plan",
    "run",
]

# Loaded on first use, so that `import fedDP` and `feddp --help` pay for neither torch, flwr nor ray.
_LAZY = {
    "load_scenario": "fedDP.scenario.load",
    "plan": "fedDP.simulation.plan",
    "run": "fedDP.simulation.run",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        # `plan` and `run` are functions with the names of their modules: overwrite what the import bound.
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
