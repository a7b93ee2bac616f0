"""Models, clients and blocks that several tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedDP.training.blocks import BlockShape
from fedDP.training.models import build_model
from fedDP.training.task import BinaryTask, MulticlassTask, Task
from fedDP.training.trainer import Block

Floats = npt.NDArray[np.floating]
Client = tuple[npt.NDArray[np.float32], npt.NDArray[np.generic]]


class Image(nn.Module):
    """A small CNN for features of shape (R, 1, 6, 6)."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(64, num_outputs)

    def forward(self, records: Tensor) -> Tensor:
        head: Tensor = self.head(torch.relu(self.norm(self.convolution(records))).flatten(1))
        return head


class Table(nn.Module):
    """Two linear layers around any middle one."""

    def __init__(self, middle: nn.Module, num_outputs: int = 1, num_features: int = 13) -> None:
        super().__init__()
        self.first = nn.Linear(num_features, 5)
        self.middle = middle
        self.last = nn.Linear(5, num_outputs)

    def forward(self, records: Tensor) -> Tensor:
        out: Tensor = self.last(self.middle(self.first(records)))
        return out


class Scaled(nn.Module):
    """A 0-d parameter, a frozen layer and a float buffer."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(13, 6)
        self.frozen.requires_grad_(False)
        self.first = nn.Linear(13, 6)
        self.last = nn.Linear(6, 1)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, 6))

    def forward(self, records: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(records) + self.frozen(records) + self.shift)
        out: Tensor = self.last(hidden) * self.scale
        return out


class Recurrent(nn.Module):
    """A GRU over the features as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 4, batch_first=True)
        self.last = nn.Linear(4, 1)

    def forward(self, records: Tensor) -> Tensor:
        out: Tensor = self.last(self.cell(records[..., None])[0][:, -1])
        return out


class Embedded(nn.Module):
    """An embedding of features that are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.last = nn.Linear(39, 1)

    def forward(self, records: Tensor) -> Tensor:
        out: Tensor = self.last(self.embedding(records.nan_to_num().abs().clamp(max=4.0).long()).flatten(1))
        return out


@dataclass(frozen=True)
class Case:
    """A model with its task and the shape of a record."""

    build: Callable[[], nn.Module]
    task: Task
    record: tuple[int, ...]

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return self.build()

    def client(self, rng: np.random.Generator, count: int) -> Client:
        features = rng.normal(size=(count, *self.record)).astype(np.float32)
        if self.task.num_outputs > 1:
            return features, rng.integers(0, self.task.num_outputs, count)
        return features, rng.integers(0, 2, count).astype(np.float32)


def built_in(name: str, num_features: int, num_outputs: int, **options: object) -> Callable[[], nn.Module]:
    return lambda: build_model(name, num_features=num_features, num_outputs=num_outputs, options=options, seed=1)


CASES: dict[str, Case] = {
    "logistic13": Case(built_in("logistic", 13, 1), BinaryTask(), (13,)),
    "logistic22": Case(built_in("logistic", 22, 3), MulticlassTask(3), (22,)),
    "mlp": Case(built_in("mlp", 13, 1, hidden=(9,)), BinaryTask(), (13,)),
    "mlp-multiclass": Case(built_in("mlp", 22, 4, hidden=(17, 5)), MulticlassTask(4), (22,)),
    "cnn": Case(lambda: Image(3), MulticlassTask(3), (1, 6, 6)),
    "cnn-binary": Case(lambda: Image(1), BinaryTask(), (1, 6, 6)),
    "layer-norm": Case(lambda: Table(nn.Sequential(nn.LayerNorm(5), nn.Tanh())), BinaryTask(), (13,)),
    "sigmoid": Case(lambda: Table(nn.Sigmoid()), BinaryTask(), (13,)),
    "softplus": Case(lambda: Table(nn.Softplus()), BinaryTask(), (13,)),
    "scaled": Case(Scaled, BinaryTask(), (13,)),
    "gru": Case(Recurrent, BinaryTask(), (13,)),
    "embedding": Case(Embedded, BinaryTask(), (13,)),
    "float64": Case(lambda: Table(nn.GELU(), 3).double(), MulticlassTask(3), (13,)),
}


def make_block(clients: Sequence[Client], shape: BlockShape) -> Block:
    """A block as `gather_block` makes it; a client may have no records."""
    record = clients[0][0].shape[1:]
    features = np.zeros((len(clients), shape.records, *record), dtype=np.float32)
    targets = np.zeros((len(clients), shape.records), dtype=clients[0][1].dtype)
    for row, (own_features, own_targets) in enumerate(clients):
        count = len(own_targets)
        if count:
            features[row], targets[row] = own_features[0], own_targets[0]
            features[row, :count], targets[row, :count] = own_features, own_targets
    counts = np.array([len(own_targets) for _, own_targets in clients], dtype=np.int64)
    return Block(features=features, targets=targets, num_records=counts, shape=shape)


@dataclass(frozen=True)
class Records:
    """Clients' records as flat arrays; a `ClientRecords`."""

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.generic]
    offsets: npt.NDArray[np.int64]
    sites: tuple[str, ...]
    site_offsets: npt.NDArray[np.int64]

    @classmethod
    def of_sites(cls, sites: dict[str, list[Client]]) -> Records:
        clients = [client for members in sites.values() for client in members]
        counts = [len(targets) for _, targets in clients]
        return cls(
            np.concatenate([features for features, _ in clients]),
            np.concatenate([targets for _, targets in clients]),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            tuple(sites),
            np.concatenate([[0], np.cumsum([len(members) for members in sites.values()])]).astype(np.int64),
        )
