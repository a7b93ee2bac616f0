"""A node's share of a round: train blocks, clip every client, return one integer sum."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedDP.privacy.clipping import clip
from fedDP.privacy.keys import KEY_BYTES, derive_key
from fedDP.training.blocks import BlockPlan
from fedDP.training.trainer import Block, LocalTraining, Trainer

log = logging.getLogger("fedDP.node")

_CLIP_ELEMENTS = 1 << 21


class ClientRecords(Protocol):
    """Clients' records as flat arrays with offsets, so that a block is gathered in one indexing operation."""

    @property
    def features(self) -> npt.NDArray[np.float32]: ...  # (R, F)
    @property
    def targets(self) -> npt.NDArray[np.generic]: ...  # (R,)
    @property
    def offsets(self) -> npt.NDArray[np.int64]: ...  # (N+1,)
    @property
    def sites(self) -> tuple[str, ...]: ...
    @property
    def site_offsets(self) -> npt.NDArray[np.int64]: ...  # (S+1,)


@dataclass(frozen=True, kw_only=True)
class RoundOrder:
    """What a node is asked to do in a round.

    Attributes:
        round: its number.
        blocks: the blocks to train; the clients in them were sampled, which is secret.
        block_size: K, the same for every block.
        clip_norm: C.
        config: local training.
        key: the round's training key; a client's own key is derived from it.
    """

    round: int
    blocks: Sequence[BlockPlan]
    block_size: int
    clip_norm: float
    config: LocalTraining
    key: bytes


def gather_block(data: ClientRecords, plan: BlockPlan, block_size: int) -> Block:
    """Gathers the records of a block.

    Args:
        data: the records of (at least) the block's site.
        plan: which clients.
        block_size: K.

    Returns:
        A block of exactly K clients; those beyond the plan's are empty.
    """
    first = data.site_offsets[data.sites.index(plan.site)]
    clients = first + np.asarray(plan.clients, dtype=np.int64)
    starts = data.offsets[clients]
    counts = np.zeros(block_size, dtype=np.int64)
    counts[: len(clients)] = data.offsets[clients + 1] - starts
    position = np.arange(plan.shape.records)
    # Padding repeats the client's own first record: a NaN elsewhere cannot reach it through a product with zero.
    rows = starts[:, None] + np.where(position[None, :] < counts[: len(clients), None], position[None, :], 0)
    features = np.zeros((block_size, plan.shape.records, *data.features.shape[1:]), dtype=data.features.dtype)
    targets = np.zeros((block_size, plan.shape.records), dtype=data.targets.dtype)
    features[: len(clients)] = data.features[rows]
    targets[: len(clients)] = data.targets[rows]
    return Block(features=features, targets=targets, num_records=counts, shape=plan.shape)


def train_blocks(
    data: ClientRecords, order: RoundOrder, parameters: Mapping[str, npt.NDArray[np.floating]], trainer: Trainer
) -> npt.NDArray[np.int64]:
    """Trains a node's blocks and sums their clients' clipped grid vectors.

    Guarantees:
        1. Every client adds a vector of norm at most C to the sum; nothing else of it is kept.
        2. A client whose training raises adds the zero vector and takes nobody along: its block is trained again one
           client at a time in the same shape, and only the client that fails alone is lost.
        3. The sum does not depend on how clients are shared out over nodes.

    Args:
        data: the node's records.
        order: the round's.
        parameters: the global model.
        trainer: trains one block.

    Returns:
        int64 sum in grid steps, shape (P,).
    """
    total = np.zeros(sum(int(np.prod(value.shape)) for value in parameters.values()), dtype=np.int64)
    for plan in order.blocks:
        try:
            total += _train_block(data, plan, order, parameters, trainer, total.size)
        except Exception:
            if len(plan.clients) == 1:
                _report(plan, order.round)
                continue
            for client in plan.clients:
                alone = plan.alone(client)
                try:
                    total += _train_block(data, alone, order, parameters, trainer, total.size)
                except Exception:
                    _report(alone, order.round)
    return total


def _train_block(
    data: ClientRecords,
    plan: BlockPlan,
    order: RoundOrder,
    parameters: Mapping[str, npt.NDArray[np.floating]],
    trainer: Trainer,
    size: int,
) -> npt.NDArray[np.int64]:
    block = gather_block(data, plan, order.block_size)
    keys = [derive_key(order.key, plan.site, client) for client in plan.clients]
    keys += [bytes(KEY_BYTES)] * (order.block_size - len(keys))
    updates = trainer.train(block, parameters, order.config, keys)
    if updates.shape != (order.block_size, size):
        raise ValueError(f"The trainer returned shape {updates.shape}; expected ({order.block_size}, {size}).")
    total = np.zeros(size, dtype=np.int64)
    # A few clients at a time: a large model's block in float64 and int64 would outweigh everything else.
    at_once = max(1, _CLIP_ELEMENTS // max(1, size))
    for begin in range(0, len(plan.clients), at_once):
        total += clip(updates[begin : min(begin + at_once, len(plan.clients))], order.clip_norm).sum(axis=0)
    return total


def _report(plan: BlockPlan, round: int) -> None:
    log.error(
        "Round %d: client %d of site %s failed and counts as zero. The run goes on.",
        round,
        plan.clients[0],
        plan.site,
        exc_info=True,
    )
