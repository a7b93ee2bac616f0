"""Without noise and with a clip that nobody reaches, the strategy is plain federated averaging."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedDP.privacy.keys import RootKey, derive_key
from fedDP.privacy.streams import KeyedStream
from fedDP.simulation.local_grid import LocalGrid
from fedDP.strategies.enrolment import pack_sites
from fedDP.strategies.messages import from_array_record, pack_sum, to_array_record, unpack_order
from fedDP.training.local_round import train_blocks
from fedDP.training.parameters import Arrays, trainable_arrays
from fedDP.training.trainer import LocalTraining
from fedDP.training.vectorised import VectorisedTrainer
from tests.strategies.nodes import make_strategy
from tests.training.cases import CASES, Case, Client, Records

SIZES = {"a": (5, 12, 3), "b": (8, 1, 20, 7)}
CONFIG = LocalTraining(epochs=2, batch_size=4, learning_rate=0.2, momentum=0.5, weight_decay=0.01)


def population(case: Case) -> dict[str, list[Client]]:
    rng = np.random.default_rng(4)
    return {site: [case.client(rng, count) for count in counts] for site, counts in SIZES.items()}


def app_of(case: Case, sites: dict[str, list[Client]]) -> ClientApp:
    app = ClientApp()
    records = Records.of_sites(sites)
    trainer = VectorisedTrainer(case.model(), case.task)

    @app.query("describe")
    def describe(message: Message, context: Context) -> Message:
        counts = [np.array([len(targets) for _, targets in members]) for members in sites.values()]
        return Message(pack_sites(list(sites), counts, num_features=13, num_classes=2, replica=True), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        order, parameters = unpack_order(message.content)
        return Message(pack_sum(train_blocks(records, order, parameters, trainer)), reply_to=message)

    return app


def by_plain_loops(case: Case, sites: dict[str, list[Client]], arrays: Arrays, root: RootKey, rounds: int) -> Arrays:
    """FedAvg with equal weights, a client at a time with `torch.optim.SGD`."""
    for number in range(1, rounds + 1):
        key = root.for_round("training", number, 1)
        totals = {name: np.zeros(value.shape) for name, value in arrays.items()}
        for site, members in sites.items():
            for place, client in enumerate(members):
                for name, value in one_client(case, client, arrays, derive_key(key, site, place)).items():
                    totals[name] += value - arrays[name]
        count = sum(len(members) for members in sites.values())
        arrays = {name: (value + totals[name] / count).astype(value.dtype) for name, value in arrays.items()}
    return arrays


def one_client(case: Case, client: Client, arrays: Arrays, key: bytes) -> Arrays:
    features, targets = torch.tensor(client[0]), torch.tensor(client[1])
    model, stream = case.model(), KeyedStream(key)
    model.load_state_dict({name: torch.tensor(value) for name, value in arrays.items()}, strict=False)
    optimizer = torch.optim.SGD(
        [value for value in model.parameters() if value.requires_grad],
        lr=CONFIG.learning_rate,
        momentum=CONFIG.momentum,
        weight_decay=CONFIG.weight_decay,
    )
    for _ in range(CONFIG.epochs):
        order = torch.arange(len(targets))
        if len(targets) > CONFIG.batch_size:
            order = torch.tensor(stream.permutation(len(targets)))
        for begin in range(0, len(order), CONFIG.batch_size):
            batch = order[begin : begin + CONFIG.batch_size]
            optimizer.zero_grad()
            case.task.losses(model(features[batch]), targets[batch]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return trainable_arrays(model)


@pytest.mark.parametrize("name", ["logistic13", "mlp", "scaled"])
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_it_equals_plain_loops(name: str, num_nodes: int) -> None:
    case, root = CASES[name], RootKey.create(5)
    sites, arrays = population(case), trainable_arrays(case.model())
    strategy = make_strategy(clip_norm=1000.0, root_key=root, training=CONFIG, block_size=2)
    result = strategy.start(LocalGrid(app_of(case, sites), num_nodes), to_array_record(arrays), num_rounds=3)
    expected = by_plain_loops(case, sites, arrays, root, 3)
    moved = from_array_record(result.arrays)
    assert set(moved) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(moved[key], value, rtol=0.0, atol=1e-5)
        assert np.abs(moved[key] - arrays[key]).max() > 1e-3
