"""A node: the process at which sites' clients train."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedDP.errors import DataError
from fedDP.scenario.build import build_model_and_task
from fedDP.scenario.federated_data import FederatedData
from fedDP.scenario.schema import Scenario
from fedDP.strategies.enrolment import pack_sites
from fedDP.strategies.messages import pack_sum, unpack_order
from fedDP.training.local_round import train_blocks
from fedDP.training.trainer import Trainer
from fedDP.training.vectorised import VectorisedTrainer


class Node:
    """Serves sites: describes them, and trains their clients when asked.

    Args:
        scenario: the study.
        data: the training records of its sites.
        sites: which of them it serves; all by default.
        replica: whether other nodes hold the very same data, as in a simulation; a deployed node's is its own.
    """

    def __init__(
        self, scenario: Scenario, data: FederatedData, sites: Sequence[str] | None = None, *, replica: bool = True
    ) -> None:
        self._replica = replica
        self._scenario = scenario
        self._data = data
        self._sites = tuple(sites) if sites is not None else data.sites
        if unknown := sorted(set(self._sites) - set(data.sites)):
            raise DataError(f"site={', '.join(unknown)}: expected one of {', '.join(data.sites)}.")

    def describe(self) -> RecordDict:
        """The public enrolment of its sites: names and record counts."""
        counts = self._data.records_per_client
        bounds = self._data.site_offsets
        places = [self._data.sites.index(site) for site in self._sites]
        return pack_sites(
            self._sites,
            [np.asarray(counts[bounds[place] : bounds[place + 1]]) for place in places],
            num_features=self._data.features.shape[1],
            num_classes=self._data.num_classes,
            replica=self._replica,
        )

    def train(self, content: RecordDict) -> RecordDict:
        """Trains the clients that the server sampled and returns the integer sum of their clipped updates."""
        # A block's bits may depend on how many threads share it, so that is fixed by the scenario.
        torch.set_num_threads(self._scenario.resources.threads)
        order, parameters = unpack_order(content)
        return pack_sum(train_blocks(self._data, order, parameters, self._trainer))

    @cached_property
    def _trainer(self) -> Trainer:
        model, task = build_model_and_task(
            self._scenario, num_features=self._data.features.shape[1], num_classes=self._data.num_classes
        )
        return VectorisedTrainer(model, task)

    def __getstate__(self) -> dict[str, object]:
        # A copy in another process builds its own model.
        return {name: value for name, value in self.__dict__.items() if name != "_trainer"}


def make_client_app(node: Node) -> ClientApp:
    """The ClientApp of a node that lives in this process; ``clients/app.py`` is the one that Flower starts."""
    app = ClientApp()

    @app.query("describe")
    def describe(message: Message, context: Context) -> Message:
        return Message(node.describe(), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(node.train(message.content), reply_to=message)

    return app
