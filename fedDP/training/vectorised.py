"""The vectorised trainer: a whole block of clients as one batched computation (torch.func)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedDP.privacy.keys import KEY_BYTES
from fedDP.privacy.streams import KeyedStream
from fedDP.training.gradients import BlockGradient
from fedDP.training.parameters import ParameterLayout, trainable_arrays
from fedDP.training.task import Task
from fedDP.training.trainer import Block, LocalTraining

# On a CPU the last elements of a tensor, those that do not fill vector registers, go through scalar code that may round
# otherwise. With a multiple of 32 clients (two AVX-512 registers of float32) no client is ever among them.
_LANES = 32


class VectorisedTrainer:
    """Local SGD of K clients at once.

    Every client holds its own copy of the parameters (`fedDP.training.gradients`). Padding has weight
    zero and steps past a client's own records change nothing, so a client's result equals that of a plain loop over
    its own batches (up to the order of sums inside a batched product). Blocks are filled up to a multiple of 32
    clients, so a block size that is one wastes nothing. Bits are the same everywhere if torch runs on one thread.

    Args:
        model: checked with `fedDP.training.checks.check_model`.
        task: the loss.
        device: where blocks are trained.
    """

    def __init__(self, model: nn.Module, task: Task, *, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._model = model.to(self._device).train()
        self._task = task
        self._layout = ParameterLayout.of_arrays(trainable_arrays(model))
        # A server's optimiser may hand out float64; a client trains in the model's own precision.
        self._dtypes = {name: value.dtype for name, value in model.named_parameters() if value.requires_grad}
        # Weights are 1/n for a batch of n records and 0 for padding: their sum is the batch's mean loss.
        self._gradient = BlockGradient(self._loss)

    def _loss(self, parameters: dict[str, Tensor], features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        outputs = functional_call(self._model, parameters, (features,))
        return (self._task.losses(outputs, targets) * weights).sum()

    def train(
        self,
        block: Block,
        parameters: Mapping[str, npt.NDArray[np.floating]],
        config: LocalTraining,
        keys: Sequence[bytes],
    ) -> npt.NDArray[np.floating]:
        """See `fedDP.training.trainer.Trainer.train`."""
        clients = len(block.num_records)
        block, keys = _filled(block, keys)
        start = {
            name: torch.tensor(parameters[name], device=self._device, dtype=own) for name, own in self._dtypes.items()
        }
        local = {name: value.repeat(len(keys), *([1] * value.dim())) for name, value in start.items()}
        velocity = {name: torch.zeros_like(value) for name, value in local.items()} if config.momentum else {}
        dtype = next(iter(self._dtypes.values()))
        features = torch.tensor(block.features, device=self._device, dtype=dtype)
        targets = torch.tensor(block.targets, device=self._device)
        if targets.is_floating_point():
            targets = targets.to(dtype)
        weights, active = self._schedule(block, dtype)
        rows = torch.arange(len(keys), device=self._device)[:, None]
        for order in self._orders(block, config, keys):
            if order is None:
                epoch_features, epoch_targets = features, targets
            else:
                epoch_features, epoch_targets = features[rows, order], targets[rows, order]
            for step in range(block.shape.steps):
                batch = slice(step * block.shape.batch, (step + 1) * block.shape.batch)
                gradients = self._gradient(local, epoch_features[:, batch], epoch_targets[:, batch], weights[:, batch])
                _sgd_step(local, velocity, gradients, start, config, active[step])
        update = torch.cat(
            [(local[name][:clients] - start[name]).reshape(clients, -1) for name in self._layout.names], dim=1
        )
        # An empty client never moved; a product with zero padding may still have made it NaN.
        update[torch.tensor(block.num_records[:clients] == 0, device=self._device)] = 0.0
        return update.cpu().numpy()

    def _schedule(self, block: Block, dtype: torch.dtype) -> tuple[Tensor, list[Tensor | None]]:
        """Weights (K, L) of the records in step order, and who is active in each step (None: everybody)."""
        steps, batch = block.shape.steps, block.shape.batch
        position = np.arange(steps * batch)
        real = position[None, :] < block.num_records[:, None]
        counts = real.reshape(-1, steps, batch).sum(axis=2)
        weights = real.reshape(-1, steps, batch) / np.maximum(counts, 1)[:, :, None]
        empty = block.num_records == 0  # may do as they please: their update is set to zero
        active: list[Tensor | None] = []
        for step in range(steps):
            trains = (counts[:, step] > 0) | empty
            active.append(None if trains.all() else torch.tensor(trains, device=self._device))
        tensor = torch.tensor(weights.reshape(-1, steps * batch), device=self._device, dtype=dtype)
        return tensor, active

    def _orders(self, block: Block, config: LocalTraining, keys: Sequence[bytes]) -> list[Tensor | None]:
        """For every epoch the records' order (K, L): a client's own shuffle, then its padding."""
        if block.shape.steps == 1:
            return [None] * config.epochs  # one full batch: its order does not matter
        streams = [KeyedStream(key) for key in keys]
        length = block.shape.records
        orders: list[Tensor | None] = []
        for _ in range(config.epochs):
            order = np.tile(np.arange(length), (len(keys), 1))
            for row, (stream, count) in enumerate(zip(streams, block.num_records, strict=True)):
                order[row, :count] = stream.permutation(int(count))
            orders.append(torch.tensor(order, device=self._device))
        return orders


def _sgd_step(
    local: dict[str, Tensor],
    velocity: dict[str, Tensor],
    gradients: dict[str, Tensor],
    start: dict[str, Tensor],
    config: LocalTraining,
    active: Tensor | None,
) -> None:
    """One step of SGD for every client whose `active` is set (None: all); the others keep parameters and velocity.

    Only `local` is written in place: gradients may share their memory with each other.
    """
    for name, value in local.items():
        direction = gradients[name]
        if config.weight_decay:
            direction = direction.add(value, alpha=config.weight_decay)
        if config.proximal_mu:
            direction = direction.add(value - start[name], alpha=config.proximal_mu)
        column = None if active is None else active.reshape(-1, *([1] * (value.dim() - 1)))
        if config.momentum:
            past = velocity[name]
            direction = direction.add(past, alpha=config.momentum)
            velocity[name] = direction if column is None else torch.where(column, direction, past)
        if column is not None:
            direction = torch.where(column, direction, 0.0)
        value.sub_(direction, alpha=config.learning_rate)


def _filled(block: Block, keys: Sequence[bytes]) -> tuple[Block, Sequence[bytes]]:
    """The block with empty clients appended, up to a multiple of `_LANES`."""
    missing = -len(keys) % _LANES
    if missing == 0:
        return block, keys
    filled = Block(
        features=np.concatenate([block.features, np.zeros((missing, *block.features.shape[1:]), block.features.dtype)]),
        targets=np.concatenate([block.targets, np.zeros((missing, *block.targets.shape[1:]), block.targets.dtype)]),
        num_records=np.concatenate([block.num_records, np.zeros(missing, block.num_records.dtype)]),
        shape=block.shape,
    )
    return filled, [*keys, *[bytes(KEY_BYTES)] * missing]
