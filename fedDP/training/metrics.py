"""Metrics of a model on held-out records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call

from fedDP.training.parameters import Arrays
from fedDP.training.task import Task

_CHUNK_RECORDS = 8192


def auc(scores: npt.NDArray[np.floating], targets: npt.NDArray[np.generic]) -> float:
    """Area under the ROC curve by ranks, ties counted half; NaN when only one class is there.

    Example:
        >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
        0.75
    """
    positive = targets == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if num_positive == 0 or num_negative == 0 or not np.isfinite(scores).all():
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0  # the mean rank of each group of ties
    rank_sum = float(ranks[inverse][positive].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2.0) / (num_positive * num_negative)


def evaluate(
    model: nn.Module,
    task: Task,
    arrays: Arrays,
    features: npt.NDArray[np.floating],
    targets: npt.NDArray[np.generic],
) -> dict[str, float]:
    """Loss and accuracy, and the AUC of a binary task.

    These are exact numbers about the records: only for data that is public.

    Args:
        model: the architecture.
        task: the loss.
        arrays: the trainable parameters.
        features: (R, ...).
        targets: (R,).

    Returns:
        ``{"auc", "accuracy", "loss"}`` (without "auc" for several classes); empty without records.
    """
    if len(features) == 0:
        return {}
    parameters = {name: torch.tensor(value) for name, value in arrays.items()}
    dtype = next(iter(parameters.values())).dtype
    losses, scores = [], []
    model.eval()
    with torch.no_grad():
        for start in range(0, len(features), _CHUNK_RECORDS):
            chunk = slice(start, start + _CHUNK_RECORDS)
            outputs = functional_call(model, parameters, (torch.tensor(features[chunk], dtype=dtype),))
            truth = torch.tensor(targets[chunk])
            losses.append(task.losses(outputs, truth.to(dtype) if truth.is_floating_point() else truth).numpy())
            scores.append(task.scores(outputs).numpy())
    score, loss = np.concatenate(scores), float(np.concatenate(losses).mean())
    if score.ndim == 1:
        accuracy = float(((score > 0.5) == (targets == 1)).mean())
        return {"auc": auc(score, targets), "accuracy": accuracy, "loss": loss}
    return {"accuracy": float((score.argmax(axis=1) == targets).mean()), "loss": loss}
