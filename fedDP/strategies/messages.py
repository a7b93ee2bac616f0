"""Flower messages made outside a Flower process, and how fedDP fills them.

Flower fills a message's metadata from the identity of the running task, which exists only inside its own runtime. In
a simulation of ours there is none, so the metadata is given. Both are internal to Flower; a test pins them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.supercore.task_identity import TaskIdentity

from fedDP.training.blocks import BlockPlan, BlockShape
from fedDP.training.local_round import RoundOrder
from fedDP.training.trainer import LocalTraining

DESCRIBE = "query.describe"
TRAIN = "train"

_TTL_SECONDS = 12 * 3600.0
_message_ids = itertools.count(1)


def make_message(content: RecordDict, *, node_id: int, message_type: str, group_id: str = "") -> Message:
    """A message to a node; its reply carries the same `group_id`."""
    if TaskIdentity._run_id is not None:  # inside Flower's own runtime
        return Message(content, node_id, message_type, group_id=group_id)
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=node_id,
        reply_to_message_id="",
        group_id=group_id,
        created_at=time.time(),
        ttl=_TTL_SECONDS,
        message_type=message_type,
    )
    return with_metadata(content, metadata)


def with_metadata(content: RecordDict, metadata: Metadata) -> Message:
    """A message with the metadata of another; the constructor's stubs do not show the argument."""
    return Message(content, metadata=metadata)  # type: ignore[call-overload, no-any-return]


def assign_message_id(message: Message) -> str:
    """Gives a message an id, as Flower's SuperLink does, and returns it."""
    message_id = message.metadata.message_id or f"feddp-{next(_message_ids)}"
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


def to_array_record(arrays: Mapping[str, npt.NDArray[np.generic]]) -> ArrayRecord:
    """Named arrays as Flower sends them; 0-d results are arrays again."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def from_array_record(record: ArrayRecord) -> dict[str, npt.NDArray[np.floating]]:
    """The inverse of `to_array_record`."""
    return {name: array.numpy() for name, array in record.items()}


def pack_order(order: RoundOrder, model: ArrayRecord) -> RecordDict:
    """A round's order to a node, with the global model."""
    config = order.config
    return RecordDict(
        {
            "model": model,
            "order": ConfigRecord(
                {
                    "round": order.round,
                    "block-size": order.block_size,
                    "clip-norm": order.clip_norm,
                    "key": order.key,
                    "sites": [plan.site for plan in order.blocks],
                    "steps": [plan.shape.steps for plan in order.blocks],
                    "batches": [plan.shape.batch for plan in order.blocks],
                    "clients": [np.asarray(plan.clients, dtype="<i8").tobytes() for plan in order.blocks],
                }
            ),
            "training": ConfigRecord(
                {
                    "epochs": config.epochs,
                    "batch-size": config.batch_size,
                    "learning-rate": config.learning_rate,
                    "momentum": config.momentum,
                    "weight-decay": config.weight_decay,
                    "proximal-mu": config.proximal_mu,
                }
            ),
        }
    )


def unpack_order(content: RecordDict) -> tuple[RoundOrder, dict[str, npt.NDArray[np.floating]]]:
    """The inverse of `pack_order`: the order and the global model."""
    order: dict[str, Any] = dict(content.config_records["order"])
    training: dict[str, Any] = dict(content.config_records["training"])
    columns = (order["sites"], order["steps"], order["batches"], order["clients"])
    return (
        RoundOrder(
            round=order["round"],
            blocks=[
                BlockPlan(site, BlockShape(steps, batch), tuple(np.frombuffer(clients, dtype="<i8").tolist()))
                for site, steps, batch, clients in zip(*columns, strict=True)
            ],
            block_size=order["block-size"],
            clip_norm=order["clip-norm"],
            config=LocalTraining(**{name.replace("-", "_"): value for name, value in training.items()}),
            key=order["key"],
        ),
        from_array_record(content.array_records["model"]),
    )


def pack_sum(total: npt.NDArray[np.int64]) -> RecordDict:
    """A node's reply: the integer sum of its clients' clipped updates, and nothing else."""
    return RecordDict({"sum": ArrayRecord({"update": Array(total)})})


def unpack_sum(reply: Message, *, size: int) -> npt.NDArray[np.int64]:
    """Reads a node's reply.

    Raises:
        ValueError: saying what is wrong with it; a reply that is not exactly a sum is never used.
    """
    if reply.has_error():
        raise ValueError(reply.error.reason or "the node failed")
    records = reply.content.array_records
    if set(records) != {"sum"} or set(records["sum"]) != {"update"}:
        raise ValueError(f"expected one array sum/update, received {sorted(records)}")
    total = records["sum"]["update"].numpy()
    if total.dtype != np.int64 or total.shape != (size,):
        raise ValueError(f"expected int64 of shape ({size},), received {total.dtype} of shape {total.shape}")
    return total
