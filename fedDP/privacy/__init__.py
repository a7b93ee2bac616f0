"""The privacy core: clipping, the integer grid, noise, keys and sampling. NumPy and cryptography only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedDP.privacy.clipping import clip, grid_step, is_valid_sum
    from fedDP.privacy.keys import RootKey, derive_key
    from fedDP.privacy.noise import gaussian_noise
    from fedDP.privacy.sampling import poisson_sample
    from fedDP.privacy.streams import KeyedStream

__all__ = [
    "KeyedStream",
    "RootKey",
    "clip",
    "derive_key",
    "gaussian_noise",
    "grid_step",
    "is_valid_sum",
    "poisson_sample",
]

# Loaded on first use, so that `fedDP.privacy.limits`, which a scenario needs, does not pay for NumPy.
_LAZY = {
    "KeyedStream": "streams",
    "RootKey": "keys",
    "clip": "clipping",
    "derive_key": "keys",
    "gaussian_noise": "noise",
    "grid_step": "clipping",
    "is_valid_sum": "clipping",
    "poisson_sample": "sampling",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
