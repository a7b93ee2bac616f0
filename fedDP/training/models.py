"""The built-in models, and models of the user's own by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedDP.errors import ModelError


def logistic(num_features: int, num_outputs: int) -> nn.Module:
    """Logistic regression, starting from zero."""
    model = nn.Linear(num_features, num_outputs)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def mlp(num_features: int, num_outputs: int, *, hidden: Sequence[int] = (32,)) -> nn.Module:
    """A multi-layer perceptron with ReLU between its layers."""
    layers: list[nn.Module] = []
    width = num_features
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, num_outputs))


_BUILT_IN = {"logistic": logistic, "mlp": mlp}


def build_model(name: str, *, num_features: int, num_outputs: int, options: Mapping[str, Any], seed: int) -> nn.Module:
    """Builds a model; equal arguments give equal initial values, on the server and on every node.

    Args:
        name: "logistic", "mlp", or "package.module:attribute", a class or function that returns an `nn.Module`. It is
            called with the scenario's own keys, and with `num_features` and `num_outputs` where it takes them.
        num_features: width of a record.
        num_outputs: what the task needs.
        options: the model's own keys.
        seed: decides the initial values, which are public.

    Raises:
        ModelError: when it cannot be found or built.
    """
    factory = _BUILT_IN.get(name) or _load(name)
    arguments = dict(options)
    try:
        accepted = inspect.signature(factory).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
        for key, value in (("num_features", num_features), ("num_outputs", num_outputs)):
            if key in accepted or takes_all:
                arguments.setdefault(key, value)
        # A fork keeps the caller's generators as they were.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # not the global function: it would seed every CUDA device too
            model = factory(**arguments)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"model.name={name!r} cannot be built with {arguments}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"model.name={name!r} gave a {type(model).__name__}; expected a torch.nn.Module.")
    return model


def _load(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(
            f"model.name={name!r} cannot be loaded ({error}); "
            'expected "logistic", "mlp" or an importable "package.module:attribute".'
        ) from error
