"""Which models are refused, with the layer's name and a remedy, and which are not."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedDP.errors import ModelError
from fedDP.training.checks import check_model
from fedDP.training.task import BinaryTask, MulticlassTask
from tests.training.cases import CASES, Embedded, Image, Recurrent, Scaled, Table

F = 13


class Then(nn.Module):
    """A linear layer and any code after it."""

    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.line = nn.Linear(F, 1)
        self.code = code

    def forward(self, records: Tensor) -> Tensor:
        return self.code(self.line(records))


class Attention(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(1, 4), layer, nn.Linear(4, 1)

    def forward(self, records: Tensor) -> Tensor:
        tokens = self.first(records[..., None])
        if isinstance(self.layer, nn.MultiheadAttention):
            tokens = self.layer(tokens, tokens, tokens, need_weights=False)[0]
        else:
            tokens = self.layer(tokens)
        out: Tensor = self.last((tokens[0] if isinstance(tokens, tuple) else tokens).mean(1))
        return out


class Counting(nn.Module):
    """Buffers that change: in place, or by assignment."""

    seen: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.line, self.how = nn.Linear(F, 1), how
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, records: Tensor) -> Tensor:
        if self.how == "in place":
            self.seen += 1
        elif self.how == "data":
            self.seen.data.add_(1)
        else:
            self.seen = 0.9 * self.seen + records.mean()
        out: Tensor = self.line(records)
        return out


def with_parameter(value: Tensor, *, trainable: bool = True) -> nn.Module:
    model = nn.Linear(F, 1)
    model.register_parameter("extra", nn.Parameter(value, requires_grad=trainable))
    return model


def refused(model: nn.Module) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch.func on layers without a batching rule
        with pytest.raises(ModelError) as error:
            check_model(model, BinaryTask(), num_features=F)
    return str(error.value)


def test_models_that_are_fine() -> None:
    for name, case in CASES.items():
        if name == "embedding":
            continue  # refused, below
        features = 36 if case.record != (F,) and len(case.record) > 1 else case.record[0]
        model = nn.Sequential(nn.Unflatten(1, case.record), case.model()) if len(case.record) > 1 else case.model()
        check_model(model, case.task, num_features=features)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(
    "model",
    [
        Table(nn.Dropout(0.0)),
        Table(nn.Sequential(nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1), nn.Flatten())),
        Recurrent(),
        Scaled(),
        Attention(nn.LSTM(4, 4, batch_first=True)),
        Attention(nn.MultiheadAttention(4, 2, batch_first=True)),
        Attention(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)),
        with_parameter(torch.zeros(2, dtype=torch.int64), trainable=False),
        with_parameter(torch.tensor(1.0, dtype=torch.float64)),
        nn.Sequential(
            nn.Unflatten(1, (1, 1, F)), nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(52, 1)
        ),
    ],
)
def test_layers_that_are_fine(model: nn.Module) -> None:
    check_model(model, BinaryTask(), num_features=F)


@pytest.mark.parametrize(
    ("layer", "parts"),
    [
        (nn.BatchNorm1d(5), ["BatchNorm1d", "GroupNorm", "LayerNorm"]),
        (nn.BatchNorm2d(5), ["BatchNorm2d", "GroupNorm"]),
        (nn.SyncBatchNorm(5), ["SyncBatchNorm", "GroupNorm"]),
        (nn.BatchNorm1d(5, track_running_stats=False), ["BatchNorm1d"]),
        (nn.InstanceNorm1d(5, track_running_stats=True), ["InstanceNorm1d", "track_running_stats=False"]),
        (nn.Dropout(0.2), ["Dropout", "set its dropout (p) to 0"]),
        (nn.AlphaDropout(0.2), ["AlphaDropout"]),
        (nn.Dropout2d(0.2), ["Dropout2d"]),
        (nn.RReLU(), ["RReLU", "Remove it"]),
    ],
)
def test_refused_layers(layer: nn.Module, parts: list[str]) -> None:
    message = refused(Table(layer))
    assert "'middle'" in message
    assert all(part in message for part in parts)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True),
        nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True),
        nn.GRU(4, 4, 2, dropout=0.5, batch_first=True),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_dropout_inside_a_layer(layer: nn.Module, training: bool) -> None:
    """Found in evaluation mode as well: the trainer trains."""
    model = Attention(layer).train(training)
    message = refused(model)
    assert f"'layer' ({type(layer).__name__}) draws random numbers" in message
    assert "dropout" in message
    assert all(module.training is training for module in model.modules())


def test_default_transformer_layer_is_refused() -> None:
    assert "'layer.dropout' (Dropout)" in refused(Attention(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)))


@pytest.mark.parametrize(
    "code",
    [
        lambda out: functional.dropout(out, 0.5),
        lambda out: out + torch.rand(1),
        lambda out: out + torch.randn_like(out),
        lambda out: out[torch.randperm(2)],
        lambda out: out + np.random.random(),  # noqa: NPY002
        lambda out: out + random.random(),
    ],
)
def test_random_numbers_in_forward(code: Callable[[Tensor], Tensor]) -> None:
    message = refused(nn.Sequential(Then(code)))
    assert "draws random numbers" in message
    assert "Layer '0' (Then)" in message or "Layer '(the model itself)'" in message


@pytest.mark.parametrize(
    "code",
    [lambda out: out if out.sum() > 0 else -out, lambda out: out * out.sum().item(), lambda out: out[out > 0]],
)
def test_control_flow_names_the_layer_that_failed(code: Callable[[Tensor], Tensor]) -> None:
    message = refused(nn.Sequential(Then(code), nn.Identity()))
    assert "Layer '0' (Then) failed under torch.func.vmap" in message
    assert "Data-dependent control flow" in message


@pytest.mark.parametrize("how", ["in place", "data", "assignment"])
def test_changing_buffers(how: str) -> None:
    message = refused(Counting(how))
    assert "uffer" in message
    assert "Counting" in message or "'seen'" in message


@pytest.mark.parametrize("lazy", [nn.LazyLinear(1), nn.Sequential(nn.LazyConv1d(2, 1), nn.Flatten())])
def test_lazy_layers(lazy: nn.Module) -> None:
    message = refused(lazy)
    assert "is lazy" in message
    assert "input size" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_other_precisions(dtype: torch.dtype) -> None:
    message = refused(with_parameter(torch.zeros(2, dtype=dtype)))
    assert "'extra'" in message
    assert str(dtype) in message


def test_nothing_to_train() -> None:
    assert "no trainable parameter" in refused(nn.Linear(F, 1).requires_grad_(False))
    assert "no trainable parameter" in refused(nn.Identity())


def test_output_of_the_wrong_shape() -> None:
    assert "to (2, 3); the task needs (2, 1)" in refused(nn.Linear(F, 3))
    assert "to (2,); " in refused(Then(lambda out: out[:, 0]))
    assert "tuple" in refused(Then(lambda out: (out, out)))  # type: ignore[arg-type, return-value]
    with pytest.raises(ModelError, match=r"needs \(2, 4\)"):
        check_model(nn.Linear(F, 3), MulticlassTask(4), num_features=F)


def test_input_of_the_wrong_width_names_the_layer() -> None:
    assert "Layer 'first' (Linear) failed" in refused(Table(nn.Identity(), num_features=4))
    assert "Layer 'convolution' (Conv2d) failed" in refused(Image(1))


def test_check_leaves_no_trace() -> None:
    model = Scaled().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch_state = torch.random.get_rng_state()
    check_model(model, BinaryTask(), num_features=F)
    assert torch.equal(torch_state, torch.random.get_rng_state())
    assert not any(layer.training for layer in model.modules())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


def test_another_thread_that_draws_random_numbers_is_not_held_against_the_model() -> None:
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            random.random()
            np.random.rand()  # noqa: NPY002 - the global generator is the point
            torch.rand(1)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(20):
            check_model(nn.Linear(3, 1), BinaryTask(), num_features=3)
    finally:
        stop.set()
        thread.join()


class LooksUp(nn.Module):
    """Reads its inputs as indices, by a function."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(5, 1))
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs.long(), self.table).sum(dim=1)


@pytest.mark.parametrize(
    "model",
    [
        Embedded(),
        LooksUp(functional.embedding),
        LooksUp(lambda indices, table: torch.embedding(table, indices)),
        LooksUp(lambda indices, table: functional.embedding_bag(indices, table)[:, None]),
    ],
)
def test_embeddings_are_refused(model: nn.Module) -> None:
    """An index outside a client's table reads, and trains, its neighbour's: their updates would depend on it."""
    with pytest.raises(ModelError, match="looks up rows by index"):
        check_model(model, BinaryTask(), num_features=F)
