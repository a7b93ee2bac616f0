"""A node's round: what fails, who notices, and what is left in the sum."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedDP.privacy.clipping import clip
from fedDP.privacy.keys import derive_key
from fedDP.training.blocks import BlockPlan, BlockShape, cut_blocks
from fedDP.training.local_round import RoundOrder, gather_block, train_blocks
from fedDP.training.parameters import trainable_arrays
from fedDP.training.trainer import Block, LocalTraining, Trainer
from fedDP.training.vectorised import VectorisedTrainer
from tests.training.cases import CASES, Case, Client, Floats, Records

CASE = CASES["mlp-multiclass"]
CONFIG = LocalTraining(epochs=2, batch_size=4, learning_rate=0.3, momentum=0.5)
SIZES = (5, 6, 3, 7, 8, 0, 5, 1)


def clients(case: Case = CASE) -> list[Client]:
    rng = np.random.default_rng(8)
    return [case.client(rng, count) for count in SIZES]


def run(
    members: list[Client], trainer: Trainer, *, skip: int | None = None, case: Case = CASE
) -> npt.NDArray[np.int64]:
    """A round over all clients, or all but one."""
    data = Records.of_sites({"a": members})
    chosen = [client for client in range(len(members)) if client != skip]
    blocks = cut_blocks("a", chosen, np.diff(data.offsets), batch_size=4, block_size=4)
    order = RoundOrder(round=7, blocks=blocks, block_size=4, clip_norm=0.5, config=CONFIG, key=bytes(32))
    return train_blocks(data, order, trainable_arrays(case.model()), trainer)


def vectorised(case: Case = CASE) -> VectorisedTrainer:
    return VectorisedTrainer(case.model(), case.task)


@dataclass
class Plugin:
    """A trainer that spoils what the real one returns."""

    spoil: Any
    calls: list[Block] = field(default_factory=list)

    def train(
        self, block: Block, parameters: Mapping[str, Floats], config: LocalTraining, keys: Sequence[bytes]
    ) -> Floats:
        self.calls.append(block)
        updates = vectorised().train(block, parameters, config, keys)
        spoilt: Floats = self.spoil(block, updates)
        return spoilt


def test_sum_is_that_of_clipped_clients() -> None:
    """Each client's grid vector, from a block of its own, adds up to the round's sum."""
    data = Records.of_sites({"a": clients()})
    arrays, total = trainable_arrays(CASE.model()), np.zeros(0, dtype=np.int64)
    for plan in cut_blocks("a", range(len(SIZES)), np.diff(data.offsets), batch_size=4, block_size=4):
        for client in plan.clients:
            key = derive_key(bytes(32), "a", client)
            block = gather_block(data, plan.alone(client), 4)
            vector = clip(vectorised().train(block, arrays, CONFIG, [key, *[bytes(32)] * 3])[0], 0.5)
            assert 0 < np.linalg.norm(vector.astype(np.float64)) <= 2.0**40
            total = vector if not total.size else total + vector
    assert np.array_equal(run(clients(), vectorised()), total)


def test_second_site_has_its_own_records_and_keys() -> None:
    members = clients()
    data = Records.of_sites({"a": members[:3], "b": members[3:]})
    block = gather_block(data, BlockPlan("b", BlockShape(2, 4), (0, 3)), 5)
    assert block.num_records.tolist() == [7, 5, 0, 0, 0]
    assert np.array_equal(block.features[0, :7], members[3][0])
    assert np.array_equal(block.features[0, 7], members[3][0][0])
    assert np.array_equal(block.features[1, :5], members[6][0])
    assert (block.features[1, 5:] == members[6][0][0]).all()
    assert not block.features[2:].any()


@pytest.mark.parametrize("victim", [0, 3, 7])
def test_client_that_raises_takes_nobody_along(victim: int, caplog: pytest.LogCaptureFixture) -> None:
    marker = clients()[victim][0][0]

    def spoil(block: Block, updates: Floats) -> Floats:
        if (block.features == marker).all(axis=-1).any():
            raise RuntimeError("a bad record")
        return updates

    with caplog.at_level(logging.ERROR, logger="fedDP.node"):
        total = run(clients(), Plugin(spoil))
    assert np.array_equal(total, run(clients(), vectorised(), skip=victim))
    (record,) = caplog.records
    assert record.name == "fedDP.node"
    assert f"client {victim} of site a" in record.getMessage()
    assert record.exc_info is not None
    assert "a bad record" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("target", [99, -1])
def test_target_outside_the_classes_takes_nobody_along(target: int, caplog: pytest.LogCaptureFixture) -> None:
    """The loss itself raises for the whole block."""
    members = clients()
    members[1][1][2] = target
    assert np.array_equal(run(members, vectorised()), run(clients(), vectorised(), skip=1))
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("record", [0, 2, 4])
def test_not_finite_data_counts_zero(value: float, record: int) -> None:
    members = clients()
    members[0][0][record, 1] = value
    assert np.array_equal(run(members, vectorised()), run(clients(), vectorised(), skip=0))


def test_not_finite_update_of_a_plugin_counts_zero() -> None:
    def spoil(block: Block, updates: Floats) -> Floats:
        updates[block.num_records == 7] = np.inf
        return updates

    assert np.array_equal(run(clients(), Plugin(spoil)), run(clients(), vectorised(), skip=3))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _, updates: updates[:, :-1],
        lambda _, updates: updates[:-1],
        lambda _, updates: updates[0],
        lambda _, updates: updates.tolist(),
        lambda _, updates: updates.astype(np.complex128),
        lambda _, updates: updates.astype(object),
        lambda _, updates: None,
    ],
    ids=["narrow", "short", "vector", "list", "complex", "object", "none"],
)
def test_nonsense_from_a_plugin_counts_zero(spoil: object, caplog: pytest.LogCaptureFixture) -> None:
    total = run(clients(), Plugin(spoil))
    assert total.dtype == np.int64
    assert total.shape == run(clients(), vectorised()).shape
    assert not total.any()
    assert len(caplog.records) == 7


def test_retries_keep_the_shape_of_the_block() -> None:
    def spoil(block: Block, updates: Floats) -> Floats:
        if (block.num_records > 0).sum() > 1:
            raise RuntimeError("too many")
        return updates

    plugin = Plugin(spoil)
    assert np.array_equal(run(clients(), plugin), run(clients(), vectorised()))
    assert {len(block.num_records) for block in plugin.calls} == {4}


def test_unknown_site_and_no_blocks() -> None:
    data = Records.of_sites({"a": clients()})
    arrays = trainable_arrays(CASE.model())
    plan = BlockPlan("elsewhere", BlockShape(1, 4), (0,))
    for blocks in ([plan], []):
        order = RoundOrder(round=1, blocks=blocks, block_size=4, clip_norm=1.0, config=CONFIG, key=bytes(32))
        total = train_blocks(data, order, arrays, vectorised())
        assert total.dtype == np.int64
        assert not total.any()
