"""A client's update is a function of its own data and key, bit for bit, wherever it stands."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from fedDP.privacy.keys import derive_key
from fedDP.training.blocks import BlockPlan, block_shape, cut_blocks
from fedDP.training.local_round import RoundOrder, train_blocks
from fedDP.training.parameters import trainable_arrays
from fedDP.training.trainer import LocalTraining
from fedDP.training.vectorised import VectorisedTrainer
from tests.training.cases import CASES, Case, Client, Records, make_block

CONFIG = LocalTraining(epochs=2, batch_size=7, learning_rate=0.3, momentum=0.9, weight_decay=0.01, proximal_mu=0.1)
KEY = bytes([9]) * 32


def mates(case: Case, kind: str, seed: int, amount: int, longest: int) -> list[Client]:
    rng = np.random.default_rng(seed)
    clients = []
    for _ in range(amount):
        features, targets = case.client(rng, 0 if kind == "empty" else int(rng.integers(1, longest + 1)))
        if kind == "nan":
            features[:] = np.nan
        elif kind == "huge":
            features *= np.float32(1e30)
        clients.append((features, targets))
    return clients


SMALL = ["logistic13", "logistic22", "mlp", "cnn"]


@pytest.mark.parametrize(
    ("name", "block_size"),
    [*itertools.product(CASES, [7, 33]), *itertools.product(SMALL, [8, 32])],
)
def test_neither_place_nor_mates_matter(name: str, block_size: int) -> None:
    """Sizes 7 and 33 leave elements over after the last full vector register, where activations round otherwise."""
    case = CASES[name]
    trainer, arrays = VectorisedTrainer(case.model(), case.task), trainable_arrays(case.model())
    for count in (3, 17):
        client, shape = case.client(np.random.default_rng(count), count), block_shape(count, 7)
        expected = None
        for place in (0, block_size // 2, block_size - 1):
            for kind in ("empty", "random", "nan", "huge"):
                others = mates(case, kind, place, block_size - 1, shape.records)
                keys = [derive_key(bytes(32), place, index) for index in range(block_size)]
                keys[place] = KEY
                block = make_block([*others[:place], client, *others[place:]], shape)
                update = trainer.train(block, arrays, CONFIG, keys)[place]
                expected = update if expected is None else expected
                assert np.isfinite(update).all()
                assert update.any()
                assert update.tobytes() == expected.tobytes(), (count, place, kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic22", "mlp", "cnn", "sigmoid"])
@pytest.mark.parametrize("block_size", [5, 32])
def test_sum_does_not_depend_on_how_work_is_shared(name: str, block_size: int) -> None:
    """Blocks over nodes, in any order, or every client in a block of its own."""
    case, rng = CASES[name], np.random.default_rng(4)
    sizes = [0, 1, 3, 7, 8, 20, 20, 20, 2, 30, 0, 13, 14, 6, 0]
    data = Records.of_sites({"a": [case.client(rng, count) for count in sizes], "b": [case.client(rng, 9)] * 12})
    trainer, arrays = VectorisedTrainer(case.model(), case.task), trainable_arrays(case.model())
    counts = np.diff(data.offsets)
    blocks = cut_blocks("a", range(15), counts[:15], batch_size=7, block_size=block_size)
    blocks += cut_blocks("b", range(12), counts[15:], batch_size=7, block_size=block_size)

    def total(*shares: list[BlockPlan]) -> npt.NDArray[np.int64]:
        sums = [
            train_blocks(
                data,
                RoundOrder(round=3, blocks=share, block_size=block_size, clip_norm=0.5, config=CONFIG, key=KEY),
                arrays,
                trainer,
            )
            for share in shares
        ]
        return np.asarray(np.sum(sums, axis=0, dtype=np.int64))

    whole = total([*blocks])
    assert whole.any()
    assert np.array_equal(whole, total([*reversed(blocks)]))
    assert np.array_equal(whole, total([*blocks[::3]], [*blocks[1::3]], [*blocks[2::3]], []))
    assert np.array_equal(whole, total([plan.alone(client) for plan in blocks for client in plan.clients]))


def test_two_runs_are_bit_equal() -> None:
    case, rng = CASES["cnn"], np.random.default_rng(4)
    clients = [case.client(rng, count) for count in (20, 21, 15)]
    keys = [derive_key(KEY, index) for index in range(3)]
    runs = [
        VectorisedTrainer(case.model(), case.task).train(
            make_block(clients, block_shape(21, 7)), trainable_arrays(case.model()), CONFIG, keys
        )
        for _ in range(2)
    ]
    assert runs[0].tobytes() == runs[1].tobytes()
