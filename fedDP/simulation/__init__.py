"""Simulating a scenario on one machine or a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedDP.simulation.local_grid import LocalGrid
    from fedDP.simulation.ray_grid import RayGrid

__all__ = ["LocalGrid", "RayGrid"]

_LAZY = {"LocalGrid": "fedDP.simulation.local_grid", "RayGrid": "fedDP.simulation.ray_grid"}


def __getattr__(name: str) -> Any:
    # Ray takes a second to import and is not needed for local runs.
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
