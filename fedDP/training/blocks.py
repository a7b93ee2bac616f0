"""Blocks: fixed-shape groups of clients that are trained together.

A client's result may depend in its last bits on the shape of the computation it is part of. So a block's shape is
decided by public numbers alone (block size, batch size, and the size bucket of its clients), and a block that is not
full is filled up with empty clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class BlockShape:
    """The shape of the local training of every client in a block.

    Attributes:
        steps: optimiser steps an epoch.
        batch: records a step.
    """

    steps: int
    batch: int

    @property
    def records(self) -> int:
        """Records a client is padded to."""
        return self.steps * self.batch


def block_shape(num_records: int, batch_size: int) -> BlockShape:
    """The size bucket of a client, from its own public record count.

    Up to one batch, sizes are rounded up to a power of two (at most `batch_size`); beyond it, the number of steps is
    rounded up so that at most a quarter of them is padding.

    Example:
        >>> block_shape(60, 10), block_shape(3, 16)
        (BlockShape(steps=6, batch=10), BlockShape(steps=1, batch=4))
    """
    if num_records <= batch_size:
        return BlockShape(1, min(batch_size, 1 << max(0, num_records - 1).bit_length()))
    steps = -(-num_records // batch_size)
    quantum = max(1, (1 << (steps.bit_length() - 1)) // 4)
    return BlockShape(-(-steps // quantum) * quantum, batch_size)


@dataclass(frozen=True)
class BlockPlan:
    """One block of a round: which clients of which site, in enrolment order.

    Attributes:
        site: the site's name.
        shape: its clients' common shape.
        clients: their numbers within the site, at most `block_size`; the rest of the block is empty clients.
    """

    site: str
    shape: BlockShape
    clients: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Records to train, for sharing blocks out over nodes."""
        return self.shape.records

    def alone(self, client: int) -> BlockPlan:
        """The same block with `client` as its only one; its place is then always the first."""
        return BlockPlan(self.site, self.shape, (client,))


def cut_blocks(
    site: str, clients: Sequence[int], records: npt.NDArray[np.integer], *, batch_size: int, block_size: int
) -> list[BlockPlan]:
    """Cuts a site's share of a cohort into blocks.

    Args:
        site: the site's name.
        clients: the cohort's clients of the site, ascending.
        records: record count of every client of the site, shape (clients of the site,).
        batch_size, block_size: from the scenario.

    Returns:
        Blocks ordered by shape, then by enrolment. Clients without records are left out: their update is zero.
    """
    by_shape: dict[BlockShape, list[int]] = {}
    for client in clients:
        if records[client] > 0:
            by_shape.setdefault(block_shape(int(records[client]), batch_size), []).append(client)
    return [
        BlockPlan(site, shape, tuple(members[start : start + block_size]))
        for shape, members in sorted(by_shape.items(), key=lambda item: (item[0].steps, item[0].batch))
        for start in range(0, len(members), block_size)
    ]
