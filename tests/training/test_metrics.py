"""Metrics against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedDP.scenario.strict_json import strict_json
from fedDP.training.metrics import auc, evaluate
from fedDP.training.parameters import trainable_arrays
from fedDP.training.task import BinaryTask, MulticlassTask


def auc_by_pairs(scores: list[float], targets: list[int]) -> float:
    """The probability that a positive scores above a negative, ties counted half."""
    positive = [score for score, target in zip(scores, targets, strict=True) if target == 1]
    negative = [score for score, target in zip(scores, targets, strict=True) if target != 1]
    wins = sum(1.0 if one > other else 0.5 if one == other else 0.0 for one in positive for other in negative)
    return wins / (len(positive) * len(negative))


@pytest.mark.parametrize("levels", [2, 3, 10, 1000])
def test_auc_is_the_share_of_pairs_in_order(levels: int) -> None:
    rng = np.random.default_rng(levels)
    for size in (2, 3, 7, 50):
        targets = rng.integers(0, 2, size)
        targets[:2] = 0, 1
        scores = rng.integers(0, levels, size) / levels
        assert auc(scores, targets) == pytest.approx(auc_by_pairs(scores.tolist(), targets.tolist()), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "expected"), [([0.1, 0.9], 1.0), ([0.9, 0.1], 0.0), ([0.5, 0.5], 0.5), ([-1e300, 1e300], 1.0)]
)
def test_auc_of_one_pair(scores: list[float], expected: float) -> None:
    assert auc(np.array(scores), np.array([0, 1])) == expected


@pytest.mark.parametrize("targets", [[0, 0], [1, 1]])
def test_one_class_has_no_auc(targets: list[int]) -> None:
    value = auc(np.array([0.1, 0.2]), np.array(targets))
    assert math.isnan(value)
    assert strict_json({"auc": value}) == '{"auc": null}'


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_have_no_auc(bad: float) -> None:
    assert math.isnan(auc(np.array([bad, 0.2]), np.array([0, 1])))


def linear(weights: list[list[float]]) -> nn.Linear:
    model = nn.Linear(len(weights[0]), len(weights), bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weights))
    return model


def test_a_binary_task_is_measured() -> None:
    model = linear([[2.0]])
    features = np.array([[-1.0], [1.0], [2.0], [-0.5]], dtype=np.float32)
    targets = np.array([0.0, 1.0, 0.0, 1.0], dtype=np.float32)
    found = evaluate(model, BinaryTask(), trainable_arrays(model), features, targets)
    logits = 2.0 * features[:, 0].astype(float)
    losses = np.log1p(np.exp(-logits)) * targets + np.log1p(np.exp(logits)) * (1 - targets)
    assert set(found) == {"auc", "accuracy", "loss"}
    assert found["accuracy"] == 0.5
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["auc"] == auc_by_pairs(logits.tolist(), targets.astype(int).tolist()) == 0.5


def test_several_classes_are_measured() -> None:
    model = linear([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    features = np.array([[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0], [2.0, 0.0]], dtype=np.float32)
    targets = np.array([0, 1, 2, 1], dtype=np.int64)
    found = evaluate(model, MulticlassTask(3), trainable_arrays(model), features, targets)
    logits = features.astype(float) @ model.weight.detach().numpy().T.astype(float)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), targets]
    assert set(found) == {"accuracy", "loss"}
    assert found["accuracy"] == 0.75
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)


def test_the_arrays_are_measured_and_not_the_model_s_own() -> None:
    model = linear([[2.0]])
    flipped = {"weight": np.array([[-2.0]], dtype=np.float32)}
    features = np.array([[-1.0], [1.0]], dtype=np.float32)
    targets = np.array([0.0, 1.0], dtype=np.float32)
    assert evaluate(model, BinaryTask(), flipped, features, targets)["auc"] == 0.0
    assert float(model.weight.detach()) == 2.0


def test_many_records_are_measured_in_parts() -> None:
    model = linear([[1.0]])
    features = np.random.default_rng(1).normal(size=(20_000, 1)).astype(np.float32)
    targets = (features[:, 0] > 0).astype(np.float32)
    found = evaluate(model, BinaryTask(), trainable_arrays(model), features, targets)
    assert (found["auc"], found["accuracy"]) == (1.0, 1.0)


def test_no_records_have_no_metrics() -> None:
    model = linear([[1.0]])
    nothing = np.zeros((0, 1), dtype=np.float32)
    assert evaluate(model, BinaryTask(), trainable_arrays(model), nothing, nothing[:, 0]) == {}
