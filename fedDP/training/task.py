"""Tasks: what a model is trained for, as a loss that a block of clients can be trained on at once."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Task(Protocol):
    """A loss, defined record by record so that padding can be given weight zero."""

    @property
    def num_outputs(self) -> int:
        """How many outputs the model must have."""
        ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record: outputs (B, num_outputs), targets (B,) -> (B,)."""
        ...

    def scores(self, outputs: Tensor) -> Tensor:
        """Outputs as probabilities: (B,) of the positive class, or (B, num_outputs)."""
        ...


class BinaryTask:
    """Classification into 0 and 1 with one logit."""

    num_outputs = 1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs[..., 0], targets, reduction="none")

    def scores(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs[..., 0])


class MulticlassTask:
    """Classification into `num_classes` classes with one logit each."""

    def __init__(self, num_classes: int) -> None:
        self.num_outputs = num_classes

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=-1)
