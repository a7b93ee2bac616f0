"""Nodes whose clients return the updates that a test chooses, through the path that real clients take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from fedDP.accounting import FullParticipation, Poisson
from fedDP.budget import Budget, Ledger
from fedDP.privacy.keys import RootKey
from fedDP.simulation.local_grid import LocalGrid
from fedDP.strategies import ClientLevelDP, FlatClipping, GaussianNoise, RoundResult
from fedDP.strategies.enrolment import pack_sites
from fedDP.strategies.messages import from_array_record, pack_sum, to_array_record, unpack_order
from fedDP.training.local_round import train_blocks
from fedDP.training.trainer import Block, LocalTraining
from tests.training.cases import Client, Floats, Records

Arrays = dict[str, npt.NDArray[np.floating]]
Update = Callable[[int, int, Mapping[str, Floats]], npt.ArrayLike]
Spoil = Callable[[Message, Message, int], Message]

TOLERANCE = 1e-6  # the grid and its margin take at most 1e-7 of a clipped update


def nothing(site: int, client: int, parameters: Mapping[str, Floats]) -> npt.ArrayLike:
    """Everybody's update is zero."""
    return np.zeros(sum(value.size for value in parameters.values()))


@dataclass
class Chosen:
    """A trainer that returns `update(site, client, parameters)`; a client's records say who it is."""

    update: Update

    def train(
        self, block: Block, parameters: Mapping[str, Floats], config: LocalTraining, keys: Sequence[bytes]
    ) -> Floats:
        rows = np.zeros((len(block.num_records), sum(value.size for value in parameters.values())))
        for row, count in enumerate(block.num_records):
            if count:
                site, client = block.features[row, 0].astype(int)
                rows[row] = self.update(int(site), int(client), parameters)
        return rows


@dataclass
class Node:
    """Serves sites of clients with `sites[name]` record counts; `orders` are those that it was sent.

    Attributes:
        sites: record counts by site.
        update: what a client returns.
        spoil: alters a reply, given the order, the honest reply and the node; may raise.
        orders: (node, clients by block) of every order, for nodes in this process.
    """

    sites: Mapping[str, Sequence[int]]
    update: Update = nothing
    spoil: Spoil | None = None
    num_features: int = 2
    orders: list[tuple[int, list[tuple[int, ...]]]] = field(default_factory=list)

    def app(self) -> ClientApp:
        app = ClientApp()

        @app.query("describe")
        def describe(message: Message, context: Context) -> Message:
            counts = [np.array(records, dtype=np.int64) for records in self.sites.values()]
            content = pack_sites(list(self.sites), counts, num_features=self.num_features, num_classes=2, replica=True)
            return Message(content, reply_to=message)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            order, parameters = unpack_order(message.content)
            self.orders.append((context.node_id, [plan.clients for plan in order.blocks]))
            total = train_blocks(self.records(), order, parameters, Chosen(self.update))
            reply = Message(pack_sum(total), reply_to=message)
            return self.spoil(message, reply, context.node_id) if self.spoil else reply

        return app

    def records(self) -> Records:
        members: dict[str, list[Client]] = {
            name: [
                (np.full((count, 2), (site, client), dtype=np.float32), np.zeros(count, dtype=np.float32))
                for client, count in enumerate(counts)
            ]
            for site, (name, counts) in enumerate(self.sites.items())
        }
        return Records.of_sites(members)


class Spy(LocalGrid):
    """A grid that notes the train messages that were sent over it."""

    def __init__(self, app: ClientApp, num_nodes: int = 1) -> None:
        super().__init__(app, num_nodes)
        self.sent: list[Message] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        self.sent += [message for message in sent if message.metadata.message_type == "train"]
        return super().send_and_receive(sent, timeout=timeout)


def model(*shapes: tuple[int, ...], dtype: str = "float64", fill: float = 0.0) -> Arrays:
    """Named arrays, whose names are not in the order of definition."""
    return {f"{'zyxwvut'[place]}.weight": np.full(shape, fill, dtype=dtype) for place, shape in enumerate(shapes)}


def open_ledger(folder: Path, *, simulation: bool = True, **options: Any) -> Ledger:
    options.setdefault("budget", Budget(delta=1e-5, lifetime=1e5))
    return Ledger.open(f"sqlite:///{folder}/ledger.db", unit="client", simulation=simulation, **options)


def make_strategy(
    inner: Strategy | None = None,
    *,
    clip_norm: float = 1.0,
    noise_multiplier: float = 0.0,
    sampling: Poisson | FullParticipation | None = None,
    seed: int | None = 7,
    **options: Any,
) -> ClientLevelDP:
    options.setdefault("root_key", RootKey.create(seed))
    return ClientLevelDP(
        inner,
        clipping=FlatClipping(clip_norm),
        noise=GaussianNoise(noise_multiplier),
        sampling=sampling or FullParticipation(),
        **options,
    )


def run(
    strategy: ClientLevelDP, node: Node, arrays: Arrays, *, rounds: int = 1, num_nodes: int = 1, **options: Any
) -> Arrays:
    """Runs rounds on a grid of its own; returns the last model."""
    result = strategy.start(LocalGrid(node.app(), num_nodes), to_array_record(arrays), num_rounds=rounds, **options)
    return from_array_record(result.arrays)


def releases(
    strategy: ClientLevelDP, node: Node, arrays: Arrays, *, rounds: int = 1, num_nodes: int = 1, **options: Any
) -> list[Floats]:
    """The flat mean update of every round, in the order of names, under FedAvg."""
    models = [arrays]

    def note(result: RoundResult) -> None:
        models.append(result.arrays)

    run(strategy, node, arrays, rounds=rounds, num_nodes=num_nodes, on_round=note, **options)
    return [flat(after) - flat(before) for before, after in pairwise(models)]


def flat(arrays: Arrays | ArrayRecord) -> Floats:
    named = from_array_record(arrays) if isinstance(arrays, ArrayRecord) else arrays
    return np.concatenate([np.asarray(named[name], dtype=np.float64).reshape(-1) for name in sorted(named)])
