"""What a model must be before a block of clients can train it under the guarantee."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from fedDP.errors import ModelError
from fedDP.training.task import Task

_RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU)
_RANDOM = (
    "draws random numbers from a generator that all clients share, so a client's update would depend on the others. "
    "Remove it, or set its dropout (p) to 0."
)

# torch.func.vmap lays the clients' tables end to end, so an index outside one client's reads and trains another's.
_EMBEDDING = (
    "looks up rows by index, and in a block an index outside its table reads another client's. It is not available "
    "yet: use categories, which become one input each, and torch.nn.Linear."
)


class _NoEmbedding(TorchFunctionMode):
    """Refuses look-ups that are written as functions."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.embedding, functional.embedding, functional.embedding_bag, torch.embedding_bag):
            raise ModelError(f"The model's torch.nn.functional.embedding {_EMBEDDING}")
        return func(*args, **(kwargs or {}))


def check_model(model: nn.Module, task: Task, *, num_features: int) -> None:
    """Refuses models whose clients' updates could depend on each other, or that a block cannot train.

    Raises:
        ModelError: naming the layer and the remedy.
    """
    for name, layer in model.named_modules():
        label = _label(name, layer)
        if isinstance(layer, _BatchNorm):
            raise ModelError(
                f"{label} mixes the records of a batch and keeps statistics that would leave without noise. "
                "Use torch.nn.GroupNorm, or torch.nn.LayerNorm for tables."
            )
        if getattr(layer, "track_running_stats", False):
            raise ModelError(f"{label} keeps running statistics. Set track_running_stats=False.")
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise ModelError(f"{label} {_EMBEDDING}")
        if isinstance(layer, nn.RReLU) or (isinstance(layer, _RANDOM_LAYERS) and getattr(layer, "p", 0.0) > 0.0):
            raise ModelError(f"{label} {_RANDOM}")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ModelError(f"Parameter {name!r} is lazy: give its layer its input size.")
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not trainable:
        raise ModelError("The model has no trainable parameter.")
    for name, parameter in trainable.items():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ModelError(f"Parameter {name!r} is {parameter.dtype}; only float32 and float64 can be trained.")
    _probe(model, task, num_features=num_features)


def _label(name: str, layer: nn.Module) -> str:
    return f"Layer {name or '(the model itself)'!r} ({type(layer).__name__})"


def _probe(model: nn.Module, task: Task, *, num_features: int) -> None:
    """Trains two clients for one step on constants, to find what torch.func cannot trace."""
    running: list[str] = []  # the layers that were entered and not left, the innermost last
    hooks: list[RemovableHandle] = []
    labels = {layer: _label(name, layer) for name, layer in model.named_modules()}
    for layer in labels:
        hooks.append(layer.register_forward_pre_hook(lambda entered, _: running.append(labels[entered])))
        hooks.append(layer.register_forward_hook(lambda _left, _in, _out: running.pop() and None))
    modes = {layer: layer.training for layer in labels}
    model.train()  # as the trainer does; a dropout that is off in evaluation must be found
    parameters = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    records, clients = 2, 2
    # One half is 0 where a model reads its inputs as indices, and hides no factor where it does not.
    features = torch.full((clients, records, num_features), 0.5, dtype=next(iter(parameters.values())).dtype)
    targets = torch.zeros(clients, records, dtype=torch.int64 if task.num_outputs > 1 else features.dtype)
    buffers = {name: (value, value.clone()) for name, value in model.named_buffers()}

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        outputs = functional_call(model, values, (x,))
        if not isinstance(outputs, torch.Tensor) or outputs.shape != (records, task.num_outputs):
            shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            raise ModelError(
                f"The model maps ({records}, {num_features}) to {shape}; "
                f"the task needs ({records}, {task.num_outputs})."
            )
        return task.losses(outputs, y).mean()

    stacked = {name: value.expand(clients, *value.shape).clone() for name, value in parameters.items()}
    try:
        with _NoEmbedding():
            gradients = vmap(grad(loss))(stacked, features, targets)
        again = vmap(grad(loss))(stacked, features, targets)
    except ModelError:
        raise
    except Exception as error:
        where = running[-1] if running else "The gradient"
        if "random operation" in str(error):
            raise ModelError(f"{where} {_RANDOM}") from error
        raise ModelError(
            f"The vectorised trainer cannot train this model: {where} failed under torch.func.vmap ({error}). "
            "Data-dependent control flow, .item() and in-place updates of buffers cannot be vectorised."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        for layer, training in modes.items():
            layer.training = training
    # torch's own random numbers fail above. Those of others show in a repetition; to watch their generators instead
    # would blame the model for what another thread draws.
    if any(not torch.equal(value, again[name]) and value.isfinite().all() for name, value in gradients.items()):
        raise ModelError(f"{_label('', model)} {_RANDOM}")
    for name, value in gradients.items():
        if value.shape[1:] != parameters[name].shape:
            raise ModelError(f"Parameter {name!r} cannot be vectorised: its gradient has shape {tuple(value.shape)}.")
    after = dict(model.named_buffers())
    for name, (value, copy) in buffers.items():
        if after.get(name) is not value or not torch.equal(copy, value):
            raise ModelError(f"Buffer {name!r} changes while the model runs; its state would leave without noise.")
