from __future__ import annotations

import pytest
import torch
from torch import nn

from fedDP.training.task import BinaryTask, MulticlassTask, Task


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_binary_losses() -> None:
    outputs = 3 * torch.randn(20, 1, generator=generator())
    targets = torch.randint(0, 2, (20,), generator=generator()).float()
    losses = BinaryTask().losses(outputs, targets)
    assert losses.shape == (20,)
    torch.testing.assert_close(losses, nn.BCEWithLogitsLoss(reduction="none")(outputs[:, 0], targets))
    by_hand = -torch.where(targets == 1, torch.sigmoid(outputs[:, 0]), 1 - torch.sigmoid(outputs[:, 0])).log()
    torch.testing.assert_close(losses, by_hand)


def test_multiclass_losses() -> None:
    outputs = 3 * torch.randn(20, 4, generator=generator())
    targets = torch.randint(0, 4, (20,), generator=generator())
    losses = MulticlassTask(4).losses(outputs, targets)
    assert losses.shape == (20,)
    torch.testing.assert_close(losses.mean(), nn.CrossEntropyLoss()(outputs, targets))
    torch.testing.assert_close(losses, -outputs.log_softmax(dim=1)[torch.arange(20), targets])


@pytest.mark.parametrize("task", [BinaryTask(), MulticlassTask(3)])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e30])
def test_scores_are_probabilities(task: Task, scale: float) -> None:
    outputs = scale * torch.randn(50, task.num_outputs, generator=generator())
    scores = task.scores(outputs)
    assert ((scores >= 0) & (scores <= 1)).all()
    if task.num_outputs > 1:
        torch.testing.assert_close(scores.sum(dim=1), torch.ones(50))
        assert torch.equal(scores.argmax(dim=1), outputs.argmax(dim=1))
    else:
        assert scores.shape == (50,)


def test_losses_of_sure_outputs_are_finite() -> None:
    assert torch.isfinite(BinaryTask().losses(torch.tensor([[1e30], [-1e30]]), torch.tensor([0.0, 1.0]))).all()
