"""From a scenario's keys to a model, a task, local training and the server's optimiser."""

from __future__ import annotations

import importlib

from flwr.serverapp import strategy as flower
from torch import nn

from fedDP.errors import UnsupportedError
from fedDP.scenario.schema import Scenario
from fedDP.training.models import build_model
from fedDP.training.task import BinaryTask, MulticlassTask, Task
from fedDP.training.trainer import LocalTraining

_LARGE_MODEL = 200_000
"""Parameters beyond which a block of 64 clients leaves the caches anyway and only takes memory."""


def build_model_and_task(scenario: Scenario, *, num_features: int, num_classes: int) -> tuple[nn.Module, Task]:
    """The model with its public initial values, the same on the server and on every node.

    Raises:
        ModelError: when it cannot be built.
    """
    task: Task = BinaryTask() if scenario.data.task == "binary" else MulticlassTask(num_classes)
    spec = scenario.model
    options = {"hidden": spec.hidden} if spec.name == "mlp" else spec.options
    model = build_model(
        spec.name,
        num_features=num_features,
        num_outputs=task.num_outputs,
        options=options,
        seed=scenario.scenario.seed or 0,
    )
    return model, task


def local_training(scenario: Scenario) -> LocalTraining:
    """What clients do in a round."""
    client = scenario.client
    return LocalTraining(
        epochs=client.epochs,
        batch_size=client.batch_size,
        learning_rate=client.learning_rate,
        momentum=client.momentum,
        weight_decay=client.weight_decay,
        proximal_mu=client.proximal_mu,
    )


def block_size(scenario: Scenario, *, num_parameters: int) -> int:
    """K: the scenario's, or one chosen from the model's size alone, so that it is the same on every machine."""
    if scenario.client.block_size is not None:
        return scenario.client.block_size
    return 64 if num_parameters <= _LARGE_MODEL else 32


def server_optimizer(scenario: Scenario) -> flower.Strategy:
    """The inner Flower strategy.

    Raises:
        UnsupportedError: for a name that cannot be imported or is no Flower strategy.
    """
    server = scenario.server
    if server.optimizer == "fedavg":
        # FedAvgM without momentum is FedAvg with a learning rate, and exactly FedAvg at 1.
        return flower.FedAvgM(server_learning_rate=server.learning_rate, server_momentum=0.0)
    if server.optimizer == "fedavgm":
        return flower.FedAvgM(server_learning_rate=server.learning_rate, server_momentum=server.momentum)
    if server.optimizer == "fedadam":
        return flower.FedAdam(eta=server.learning_rate, beta_1=server.beta_1, beta_2=server.beta_2, tau=server.tau)
    if server.optimizer == "fedyogi":
        return flower.FedYogi(eta=server.learning_rate, beta_1=server.beta_1, beta_2=server.beta_2, tau=server.tau)
    if server.optimizer == "fedadagrad":
        return flower.FedAdagrad(eta=server.learning_rate, tau=server.tau)
    module_name, _, attribute = server.optimizer.partition(":")
    try:
        strategy = getattr(importlib.import_module(module_name), attribute)()
    except Exception as error:
        raise UnsupportedError(f"server.optimizer={server.optimizer!r} cannot be made: {error}") from error
    if not isinstance(strategy, flower.Strategy):
        raise UnsupportedError(
            f"server.optimizer={server.optimizer!r} gives a {type(strategy).__name__}; "
            "expected a flwr.serverapp.strategy.Strategy."
        )
    return strategy
