from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedDP.errors import ModelError
from fedDP.training.parameters import Arrays, ParameterLayout, model_sha256, trainable_arrays
from tests.training.cases import Scaled


def arrays() -> Arrays:
    return {
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(7.0, dtype=np.float32),
        "c": np.array([8.0, 9.0], dtype=np.float64),
    }


def test_order_is_by_name() -> None:
    layout = ParameterLayout.of_arrays(arrays())
    assert layout.names == ("a", "b.weight", "c")
    assert layout.shapes == ((), (2, 3), (2,))
    assert layout.sizes == [1, 6, 2]
    assert layout.size == 9
    assert layout == ParameterLayout.of_arrays(dict(reversed(arrays().items())))
    assert layout.flatten(arrays()).tolist() == [7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 9.0]


def test_round_trip() -> None:
    layout = ParameterLayout.of_arrays(arrays())
    vector = layout.flatten(arrays())
    assert vector.dtype == np.float64
    back = layout.unflatten(vector)
    assert list(back) == ["a", "b.weight", "c"]
    assert back["a"].shape == ()
    for name, value in arrays().items():
        assert np.array_equal(back[name], value)
    assert np.array_equal(layout.flatten(back), vector)


def test_one_scalar_is_a_model() -> None:
    layout = ParameterLayout.of_arrays({"w": np.array(2.0)})
    assert layout.flatten({"w": np.array(2.0)}).tolist() == [2.0]
    assert layout.unflatten(np.array([3.0]))["w"].shape == ()


def test_arrays_are_taken_by_name() -> None:
    """Equal shapes that arrive in another order stay with their names."""
    layout = ParameterLayout.of_arrays({"x": np.zeros(2), "y": np.zeros(2)})
    assert layout.flatten({"y": np.array([3.0, 4.0]), "x": np.array([1.0, 2.0])}).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_other_names_and_shapes_are_refused() -> None:
    layout = ParameterLayout.of_arrays(arrays())
    with pytest.raises(ModelError, match="'extra'"):
        layout.flatten({**arrays(), "extra": np.zeros(1)})
    missing = arrays()
    del missing["c"]
    with pytest.raises(ModelError, match="'c'"):
        layout.flatten(missing)
    with pytest.raises(ModelError, match=r"'b.weight' has shape \(3, 2\)"):
        layout.flatten({**arrays(), "b.weight": np.zeros((3, 2))})
    with pytest.raises(ModelError, match=r"'a' has shape \(1,\)"):
        layout.flatten({**arrays(), "a": np.zeros(1)})
    for size in (8, 10):
        with pytest.raises(ValueError):
            layout.unflatten(np.zeros(size))


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.complex64])
def test_other_types_are_refused(dtype: type) -> None:
    with pytest.raises(ModelError, match="'w'"):
        ParameterLayout.of_arrays({"w": np.zeros(2, dtype=dtype)})


def test_only_trainable_parameters_and_copies() -> None:
    model = Scaled()
    given = trainable_arrays(model)
    assert sorted(given) == ["first.bias", "first.weight", "last.bias", "last.weight", "scale"]
    assert given["scale"].shape == ()
    given["scale"][...] = 5.0
    assert model.scale.item() == pytest.approx(0.7)


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

    assert list(trainable_arrays(Tied())) == ["one.weight"]


def test_hash_is_fixed() -> None:
    known = "1ba82fd7379a21db28822eed2f5eb4e954a1297e8bbb53533660b25f59d6dbb7"
    assert model_sha256(arrays()) == known
    assert model_sha256(dict(reversed(arrays().items()))) == known
    swapped = {name: value.astype(value.dtype.newbyteorder(">")) for name, value in arrays().items()}
    assert model_sha256(swapped) == known
    strided = {**arrays(), "b.weight": np.asfortranarray(arrays()["b.weight"])}
    assert model_sha256(strided) == known
    assert model_sha256({**arrays(), "a": np.array(np.nextafter(np.float32(7), np.float32(8)))}) != known


def test_hash_of_a_model_is_that_of_its_trainable_parameters() -> None:
    model = Scaled()
    before = model_sha256(trainable_arrays(model))
    with torch.no_grad():
        model.frozen.weight.add_(1.0)
        model.shift.add_(1.0)
    assert model_sha256(trainable_arrays(model)) == before
