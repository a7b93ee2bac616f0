"""The protocol of trainers: from a block of clients to one update each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedDP.ranges import Range
from fedDP.training.blocks import BlockShape


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains: what the server sends beside the model.

    Attributes:
        epochs: passes over the client's records.
        batch_size: records a step.
        learning_rate, momentum, weight_decay: of SGD, as in `torch.optim.SGD`.
        proximal_mu: weight of FedProx's proximal term (Li et al. 2020, arXiv:1812.06127).

    Raises:
        InvalidValueError: for a number outside its range.
    """

    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            object.__setattr__(self, name, allowed.check(name, getattr(self, name)))


_RANGES = {
    "epochs": Range(low=1, high=1000, integer=True),
    "batch_size": Range(low=1, high=100_000, integer=True),
    "learning_rate": Range(low=0.0, high=1e6),
    "momentum": Range(low=0.0, high=1.0, high_open=True),
    "weight_decay": Range(low=0.0, high=1e3),
    "proximal_mu": Range(low=0.0, high=1e6),
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """The data of a block of K clients, each padded to L = ``shape.records`` records.

    Attributes:
        features: (K, L, ...) floats; a client's padding repeats its own first record, an empty client is zeros.
        targets: (K, L).
        num_records: (K,) real records of each client; 0 for an empty one.
        shape: what the clients are padded to.
    """

    features: npt.NDArray[np.floating]
    targets: npt.NDArray[np.generic]
    num_records: npt.NDArray[np.int64]
    shape: BlockShape


class Trainer(Protocol):
    """Trains a block.

    Guarantees that an implementation gives:
        1. Row k of the result is a function of the parameters, the configuration, client k's own records and key:
           bit-equal wherever k stands in a block of this shape and whoever its block-mates are.
        2. An empty client's row is zero.
    """

    def train(
        self,
        block: Block,
        parameters: Mapping[str, npt.NDArray[np.floating]],
        config: LocalTraining,
        keys: Sequence[bytes],
    ) -> npt.NDArray[np.floating]:
        """Trains every client of `block` from `parameters`.

        Args:
            block: K clients.
            parameters: the global model's trainable arrays, by name.
            config: local training.
            keys: K keys of 32 bytes, one a client, for its own randomness.

        Returns:
            (K, P) updates, local minus global, in the order of `ParameterLayout`.
        """
        ...
