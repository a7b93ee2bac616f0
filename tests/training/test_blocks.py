from __future__ import annotations

import numpy as np
import pytest

from fedDP.training.blocks import BlockPlan, BlockShape, block_shape, cut_blocks


@pytest.mark.parametrize("batch_size", [1, 7, 10, 16, 64])
def test_padding_is_bounded(batch_size: int) -> None:
    """Up to a batch: the next power of two, at most a batch. Beyond: at most a quarter of the steps."""
    for records in range(1, 40 * batch_size):
        shape = block_shape(records, batch_size)
        assert shape.records >= records
        if records <= batch_size:
            assert shape.steps == 1
            assert shape.batch == batch_size or (shape.batch & (shape.batch - 1) == 0 and shape.batch < 2 * records)
        else:
            needed = -(-records // batch_size)
            assert shape.batch == batch_size
            assert shape.steps - needed <= shape.steps / 4
            assert needed > 8 or shape.steps == needed


def test_few_shapes_for_many_sizes() -> None:
    """Buckets are few, or blocks would be empty: four for each doubling."""
    assert len({block_shape(records, 10) for records in range(1, 10001)}) <= 4 * 10 + 5
    shapes = [block_shape(records, 10) for records in range(1, 2000)]
    assert [shape.records for shape in shapes] == sorted(shape.records for shape in shapes)


def test_known_shapes() -> None:
    expected = {1: (1, 1), 2: (1, 2), 3: (1, 4), 9: (1, 10), 10: (1, 10), 11: (2, 10), 81: (10, 10), 170: (20, 10)}
    for records, (steps, batch) in expected.items():
        assert block_shape(records, 10) == BlockShape(steps, batch)


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_every_client_with_records_once(block_size: int) -> None:
    rng = np.random.default_rng(3)
    records = rng.integers(0, 90, 200)
    cohort = sorted(rng.choice(200, 120, replace=False).tolist())
    plans = cut_blocks("a", cohort, records, batch_size=8, block_size=block_size)
    trained = [client for plan in plans for client in plan.clients]
    assert sorted(trained) == [client for client in cohort if records[client] > 0]
    for plan in plans:
        assert plan.site == "a"
        assert 1 <= len(plan.clients) <= block_size
        assert list(plan.clients) == sorted(plan.clients)
        assert {block_shape(int(records[client]), 8) for client in plan.clients} == {plan.shape}
        assert plan.cost == plan.shape.records
    keys = [(plan.shape.steps, plan.shape.batch, plan.clients[0]) for plan in plans]
    assert keys == sorted(keys)
    partial = [plan for plan in plans if len(plan.clients) < block_size]
    assert len(partial) <= len({plan.shape for plan in plans})


def test_shape_depends_on_nobody_else() -> None:
    records = np.array([5, 60, 7, 61, 5])
    shapes = {
        client: plan.shape
        for plan in cut_blocks("a", range(5), records, batch_size=8, block_size=2)
        for client in plan.clients
    }
    for client in range(5):
        (plan,) = cut_blocks("a", [client], records, batch_size=8, block_size=2)
        assert plan == BlockPlan("a", shapes[client], (client,))


def test_nobody() -> None:
    assert cut_blocks("a", [], np.array([3]), batch_size=8, block_size=2) == []
    assert cut_blocks("a", [0], np.array([0]), batch_size=8, block_size=2) == []


def test_alone() -> None:
    plan = BlockPlan("a", BlockShape(2, 8), (3, 5, 9))
    assert plan.alone(5) == BlockPlan("a", BlockShape(2, 8), (5,))
