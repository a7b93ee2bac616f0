"""Sharing a round's blocks out over nodes, and getting every client's part of the sum exactly once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message

from fedDP.privacy.clipping import is_valid_sum
from fedDP.strategies.enrolment import Enrolment
from fedDP.strategies.messages import TRAIN, make_message, pack_order, unpack_sum
from fedDP.training.blocks import BlockPlan
from fedDP.training.local_round import RoundOrder
from fedDP.training.trainer import LocalTraining

log = logging.getLogger("fedDP.node")


class Dispatch:
    """The orders of one round.

    A node that fails, hangs or sends nonsense is not allowed to take its clients along: its blocks are ordered again
    one by one, from another node where one serves the site, and a block that fails again client by client. A client
    that fails alone, and not for the first time, counts as zero. A late reply to an order that was given again is
    dropped, so nobody counts twice.

    Args:
        enrolment: who is served where.
        cohort: the round's clients; secret.
        arrays: the global model.
        size: P.
        round, block_size, clip_norm, config, key: as in `RoundOrder`.
    """

    def __init__(
        self,
        enrolment: Enrolment,
        cohort: npt.NDArray[np.int64],
        *,
        round: int,
        block_size: int,
        clip_norm: float,
        config: LocalTraining,
        key: bytes,
        arrays: ArrayRecord,
        size: int,
    ) -> None:
        self._enrolment = enrolment
        self._round = round
        self._block_size = block_size
        self._clip_norm = clip_norm
        self._config = config
        self._key = key
        self._arrays = arrays
        self._total = np.zeros(size, dtype=np.int64)
        self._open: dict[str, tuple[int, list[BlockPlan]]] = {}
        self._reasons: dict[str, str] = {}
        self._given_again: set[str] = set()
        self._count = 0
        shares = enrolment.blocks(cohort, batch_size=config.batch_size, block_size=block_size)
        for node_id, blocks in sorted(shares.items()):
            self._add(node_id, blocks)

    def messages(self) -> list[Message]:
        """The open orders, one message each: at first one a node."""
        return [
            make_message(
                pack_order(
                    RoundOrder(
                        round=self._round,
                        blocks=blocks,
                        block_size=self._block_size,
                        clip_norm=self._clip_norm,
                        config=self._config,
                        key=self._key,
                    ),
                    self._arrays,
                ),
                node_id=node_id,
                message_type=TRAIN,
                group_id=order_id,
            )
            for order_id, (node_id, blocks) in self._open.items()
        ]

    def receive(self, reply: Message) -> None:
        """Adds a reply's sum, or notes why it cannot be used."""
        order_id = reply.metadata.group_id
        if order_id not in self._open:
            return  # answered before, given again, or of another round
        _, blocks = self._open[order_id]
        try:
            total = unpack_sum(reply, size=self._total.size)
            num_clients = sum(len(plan.clients) for plan in blocks)
            if not is_valid_sum(total, num_clients=num_clients):
                raise ValueError("its sum is larger than its clients' clipped updates can be")
        except Exception as error:  # whatever a node sends, the round goes on
            self._reasons[order_id] = f"{type(error).__name__}: {error}"
            return
        self._total += total
        del self._open[order_id]

    def retry(self) -> list[Message]:
        """Gives unanswered orders again in smaller parts; empty when nothing is left to try."""
        failed, self._open = self._open, {}
        for order_id, (node_id, blocks) in failed.items():
            reason = self._reasons.get(order_id, "no reply in time")
            if len(blocks) > 1:
                parts = [[plan] for plan in blocks]
            elif len(blocks[0].clients) > 1:
                parts = [[blocks[0].alone(client)] for client in blocks[0].clients]
            elif order_id not in self._given_again:
                parts = [blocks]  # a lone client may have failed because of its node
            else:
                plan = blocks[0]
                log.error(
                    "Round %d: client %d of site %s failed (%s) and counts as zero. The run goes on.",
                    self._round,
                    plan.clients[0],
                    plan.site,
                    reason,
                )
                continue
            log.warning(
                "Round %d: node %d did not return a usable sum (%s); its %s trained again one by one.",
                self._round,
                node_id,
                reason,
                "blocks are" if len(blocks) > 1 else "clients are",
            )
            for place, part in enumerate(parts):
                self._given_again.add(self._add(self._another(part[0].site, node_id, place), part))
        return self.messages()

    def total(self) -> npt.NDArray[np.int64]:
        """The sum of everything that was returned, in grid steps. Private: it carries no noise."""
        return self._total

    def _add(self, node_id: int, blocks: Sequence[BlockPlan]) -> str:
        self._count += 1
        order_id = f"{self._round}.{self._count}"
        self._open[order_id] = (node_id, list(blocks))
        return order_id

    def _another(self, site: str, node_id: int, place: int) -> int:
        others = [other for other in self._enrolment.serving(site) if other != node_id]
        return others[place % len(others)] if others else node_id
