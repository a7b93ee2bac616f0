"""The vectorised trainer against a plain loop with `torch.optim.SGD`."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from fedDP.privacy.keys import derive_key
from fedDP.privacy.streams import KeyedStream
from fedDP.training.blocks import BlockShape, block_shape
from fedDP.training.parameters import ParameterLayout, trainable_arrays
from fedDP.training.trainer import LocalTraining
from fedDP.training.vectorised import VectorisedTrainer
from tests.training.cases import CASES, Case, Client, Floats, make_block

PLAIN = LocalTraining(epochs=1, batch_size=4, learning_rate=0.2)
FULL = LocalTraining(epochs=3, batch_size=4, learning_rate=0.1, momentum=0.9, weight_decay=0.05, proximal_mu=0.3)
KEY = bytes(range(32))


def plain_loop(case: Case, client: Client, config: LocalTraining, key: bytes) -> Floats:
    """One client, one optimiser over all epochs, its own batches only."""
    model = case.model().train()
    start = copy.deepcopy(model)
    trainable = [value for value in model.parameters() if value.requires_grad]
    anchors = [anchor for anchor in start.parameters() if anchor.requires_grad]
    optimizer = torch.optim.SGD(
        trainable, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
    )
    features, targets = torch.tensor(client[0], dtype=trainable[0].dtype), torch.tensor(client[1])
    if targets.is_floating_point():
        targets = targets.to(trainable[0].dtype)
    stream = KeyedStream(key)
    for _ in range(config.epochs):
        order = stream.permutation(len(targets)) if len(targets) > config.batch_size else np.arange(len(targets))
        for first in range(0, len(targets), config.batch_size):
            batch = torch.from_numpy(order[first : first + config.batch_size])
            optimizer.zero_grad()
            loss = case.task.losses(model(features[batch]), targets[batch]).mean()
            for value, anchor in zip(trainable, anchors, strict=True):
                loss = loss + config.proximal_mu / 2 * ((value - anchor.detach()) ** 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    layout = ParameterLayout.of_arrays(trainable_arrays(model))
    return layout.flatten(trainable_arrays(model)) - layout.flatten(trainable_arrays(start))


def train(case: Case, clients: list[Client], shape: BlockShape, config: LocalTraining, keys: list[bytes]) -> Floats:
    model = case.model()
    return VectorisedTrainer(model, case.task).train(make_block(clients, shape), trainable_arrays(model), config, keys)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("config", [PLAIN, FULL], ids=["plain", "full"])
def test_equals_a_plain_loop(name: str, config: LocalTraining) -> None:
    """Ragged sizes: one record, a partial batch, whole batches, and none at all."""
    case, rng = CASES[name], np.random.default_rng(5)
    clients = [case.client(rng, count) for count in (1, 3, 4, 5, 8, 9, 0, 17, 20)]
    keys = [derive_key(KEY, index) for index in range(len(clients))]
    updates = train(case, clients, BlockShape(5, 4), config, keys)
    assert not updates[6].any()
    for client, key, update in zip(clients, keys, updates, strict=True):
        expected = plain_loop(case, client, config, key)
        np.testing.assert_allclose(update, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_one_batch_buckets_equal_a_plain_loop(count: int) -> None:
    case, rng = CASES["mlp"], np.random.default_rng(count)
    config = LocalTraining(epochs=4, batch_size=8, learning_rate=0.2, momentum=0.8)
    client = case.client(rng, count)
    update = train(case, [client], block_shape(count, 8), config, [KEY])[0]
    np.testing.assert_allclose(update, plain_loop(case, client, config, KEY), rtol=0, atol=1e-6)


def test_velocity_survives_idle_steps() -> None:
    """A client of 5 records among clients of 20 idles for 3 of 5 steps in every epoch, and must not notice."""
    case, rng = CASES["logistic13"], np.random.default_rng(2)
    config = LocalTraining(epochs=4, batch_size=4, learning_rate=0.3, momentum=0.95)
    small, mates = case.client(rng, 5), [case.client(rng, 20) for _ in range(3)]
    keys = [derive_key(KEY, index) for index in range(4)]
    idle = train(case, [small, *mates], BlockShape(5, 4), config, keys)[0]
    busy = train(case, [small], BlockShape(2, 4), config, keys[:1])[0]
    expected = plain_loop(case, small, config, keys[0])
    np.testing.assert_allclose(idle, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(busy, expected, rtol=0, atol=1e-6)
    # The check can tell a velocity that is lost between epochs.
    assert (
        np.abs(plain_loop(case, small, LocalTraining(**{**vars(config), "epochs": 1}), keys[0]) - expected).max() > 0.01
    )
    without = LocalTraining(**{**vars(config), "momentum": 0.0})
    assert np.abs(plain_loop(case, small, without, keys[0]) - expected).max() > 0.01


def test_gradients_that_share_memory_are_not_mixed_up() -> None:
    """Two biases that are added get one and the same gradient tensor."""

    class Twin(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(13, 1)
            self.one = torch.nn.Parameter(torch.tensor([0.5]))
            self.two = torch.nn.Parameter(torch.tensor([-2.0]))

        def forward(self, records: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.line(records) + (self.one + self.two)
            return out

    case = Case(Twin, CASES["logistic13"].task, (13,))
    client = case.client(np.random.default_rng(1), 9)
    update = train(case, [client], BlockShape(3, 4), FULL, [KEY])[0]
    np.testing.assert_allclose(update, plain_loop(case, client, FULL, KEY), rtol=0, atol=1e-6)


def test_trains_in_the_precision_of_the_model() -> None:
    """A server may hand out float64 arrays; frozen layers and buffers stay float32."""
    case = CASES["scaled"]
    model = case.model()
    client = case.client(np.random.default_rng(1), 9)
    trainer, arrays = VectorisedTrainer(model, case.task), trainable_arrays(model)
    double = {name: value.astype(np.float64) for name, value in arrays.items()}
    block = make_block([client], BlockShape(3, 4))
    single_update, double_update = (trainer.train(block, given, FULL, [KEY]) for given in (arrays, double))
    assert double_update.dtype == np.float32
    assert np.array_equal(single_update, double_update)


def test_leaves_the_model_and_its_inputs_alone() -> None:
    case = CASES["scaled"]
    model = case.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    arrays = trainable_arrays(model)
    given = {name: value.copy() for name, value in arrays.items()}
    block = make_block([case.client(np.random.default_rng(1), 9)], BlockShape(3, 4))
    features = block.features.copy()
    VectorisedTrainer(model, case.task).train(block, arrays, FULL, [KEY])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(np.array_equal(value, given[name]) for name, value in arrays.items())
    assert np.array_equal(block.features, features)
