from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from fedDP.errors import ModelError
from fedDP.privacy.keys import derive_key
from fedDP.training.blocks import BlockShape
from fedDP.training.models import build_model
from fedDP.training.parameters import model_sha256, trainable_arrays
from fedDP.training.trainer import LocalTraining
from fedDP.training.vectorised import VectorisedTrainer
from tests.training.cases import CASES, Floats, make_block


def mlp(seed: int) -> nn.Module:
    return build_model("mlp", num_features=5, num_outputs=2, options={"hidden": [4, 3]}, seed=seed)


def global_states() -> tuple[object, ...]:
    _, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return random.getstate(), np.asarray(words).tobytes(), rest, torch.random.get_rng_state().numpy().tobytes()


def trained() -> Floats:
    case, rng = CASES["cnn"], np.random.default_rng(4)
    clients = [case.client(rng, count) for count in (9, 10, 4)]
    keys = [derive_key(bytes(32), index) for index in range(3)]
    config = LocalTraining(epochs=2, batch_size=4, momentum=0.9)
    model = case.model()
    return VectorisedTrainer(model, case.task).train(
        make_block(clients, BlockShape(3, 4)), trainable_arrays(model), config, keys
    )


def test_logistic_starts_from_zero() -> None:
    model = build_model("logistic", num_features=5, num_outputs=1, options={}, seed=1)
    assert [tuple(value.shape) for value in model.parameters()] == [(1, 5), (1,)]
    assert all(not value.any() for value in model.parameters())


def test_mlp_layers() -> None:
    shapes = [tuple(value.shape) for value in mlp(1).parameters()]
    assert shapes == [(4, 5), (4,), (3, 4), (3,), (2, 3), (2,)]
    assert isinstance(build_model("mlp", num_features=5, num_outputs=2, options={"hidden": []}, seed=1), nn.Sequential)


def test_seed_decides_the_initial_values() -> None:
    assert model_sha256(trainable_arrays(mlp(1))) == model_sha256(trainable_arrays(mlp(1)))
    assert model_sha256(trainable_arrays(mlp(1))) != model_sha256(trainable_arrays(mlp(2)))


def test_global_generators_are_neither_used_nor_moved() -> None:
    before = global_states()
    first = model_sha256(trainable_arrays(mlp(1))), trained().tobytes()
    assert global_states() == before
    for seed in (0, 5):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            assert (model_sha256(trainable_arrays(mlp(1))), trained().tobytes()) == first


def test_models_by_name() -> None:
    model = build_model(
        "torch.nn:Linear", num_features=9, num_outputs=9, options={"in_features": 3, "out_features": 2}, seed=1
    )
    assert isinstance(model, nn.Linear)
    table = build_model(
        "tests.training.cases:Table", num_features=6, num_outputs=4, options={"middle": nn.ReLU()}, seed=1
    )
    assert table(torch.zeros(2, 6)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("forest", {}, "'forest' cannot be loaded"),
        ("", {}, "cannot be loaded"),
        ("torch.nn:Nothing", {}, "'torch.nn:Nothing' cannot be loaded"),
        ("no_such_package:Model", {}, "cannot be loaded"),
        ("mlp", {"depth": 3}, "cannot be built with .*depth"),
        ("mlp", {"hidden": ["wide"]}, "cannot be built"),
        ("builtins:dict", {}, "gave a dict|cannot be built"),
    ],
)
def test_models_that_cannot_be_had(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model(name, num_features=5, num_outputs=1, options=options, seed=1)
