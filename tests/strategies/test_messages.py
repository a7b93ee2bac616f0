"""What travels between server and nodes, and the parts of Flower's inside that it rests on."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedDP.strategies.enrolment import make_describe
from fedDP.strategies.messages import (
    assign_message_id,
    from_array_record,
    make_message,
    pack_order,
    pack_sum,
    to_array_record,
    unpack_order,
    unpack_sum,
)
from fedDP.training.blocks import BlockPlan, BlockShape
from fedDP.training.local_round import RoundOrder
from fedDP.training.trainer import LocalTraining


def test_outside_a_flower_process_there_is_no_identity() -> None:
    assert TaskIdentity._run_id is None


def test_a_message_needs_no_identity_and_its_reply_carries_the_group() -> None:
    message = make_message(RecordDict(), node_id=5, message_type="train", group_id="3.7")
    assert assign_message_id(message) == message.metadata.message_id
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.group_id == "3.7"
    assert reply.metadata.src_node_id == 5
    assert reply.metadata.dst_node_id == message.metadata.src_node_id
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert reply.metadata.message_type == "train"
    assert reply.metadata.ttl > 0
    assert not reply.has_error()


def test_inside_a_flower_process_its_identity_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_run_id": 41, "_node_id": 42, "_task_id": 43}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    message = make_message(RecordDict(), node_id=5, message_type="train", group_id="3.7")
    assert message.metadata.run_id == 41
    assert message.metadata.dst_node_id == 5
    assert message.metadata.group_id == "3.7"


def test_message_ids_are_given_once() -> None:
    one, two = (make_message(RecordDict(), node_id=1, message_type="train") for _ in range(2))
    first = assign_message_id(one)
    assert first
    assert assign_message_id(one) == first
    assert assign_message_id(two) != first


def test_the_question_for_sites_goes_to_its_node() -> None:
    message = make_describe(9)
    assert message.metadata.dst_node_id == 9
    assert message.metadata.message_type == "query.describe"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_arrays_survive_the_trip(dtype: str) -> None:
    arrays = {
        "scalar": np.asarray(1.5, dtype=dtype),
        "matrix": np.arange(6, dtype=dtype).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype=dtype).reshape(2, 3)),
        "empty": np.zeros((0, 3), dtype=dtype),
        "extreme": np.array([np.inf, -np.inf, np.nan, -0.0], dtype=dtype),
    }
    back = from_array_record(to_array_record(arrays))
    assert list(back) == list(arrays)
    for name, value in arrays.items():
        assert back[name].dtype == value.dtype
        np.testing.assert_array_equal(back[name], value)
    np.testing.assert_array_equal(np.signbit(back["extreme"]), np.signbit(arrays["extreme"]))


def test_a_numpy_scalar_becomes_an_array() -> None:
    back = from_array_record(to_array_record({"scalar": np.float64(1.5)}))  # type: ignore[dict-item]
    assert back["scalar"].shape == ()


ORDERS = [
    RoundOrder(
        round=12,
        blocks=[
            BlockPlan("b", BlockShape(3, 8), (0, 4, 1 << 40)),
            BlockPlan("a", BlockShape(1, 2), (7,)),
            BlockPlan("ü, with a comma", BlockShape(1, 1), (0,)),
        ],
        block_size=32,
        clip_norm=0.1 + 0.2,
        config=LocalTraining(
            epochs=3, batch_size=8, learning_rate=1 / 3, momentum=0.9, weight_decay=1e-4, proximal_mu=0.01
        ),
        key=bytes(range(32)),
    ),
    RoundOrder(round=1, blocks=[], block_size=1, clip_norm=1.0, config=LocalTraining(), key=bytes(32)),
]


@pytest.mark.parametrize("order", ORDERS)
def test_orders_survive_the_trip(order: RoundOrder) -> None:
    arrays = {"w": np.arange(3.0), "a": np.asarray(2.0)}
    back, model = unpack_order(pack_order(order, to_array_record(arrays)))
    assert back == order
    for name, value in arrays.items():
        np.testing.assert_array_equal(model[name], value)


def test_sums_survive_the_trip() -> None:
    total = np.array([0, -1, (1 << 62) - 1, -(1 << 62)], dtype=np.int64)
    message = make_message(RecordDict(), node_id=1, message_type="train")
    back = unpack_sum(Message(pack_sum(total), reply_to=message), size=4)
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, total)


def test_a_reply_holds_the_sum_and_nothing_else() -> None:
    content = pack_sum(np.zeros(3, dtype=np.int64))
    assert list(content) == ["sum"]
    assert list(content.array_records["sum"]) == ["update"]
