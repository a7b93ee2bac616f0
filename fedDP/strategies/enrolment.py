"""The enrolment: the public list of clients, learned from the nodes before the first round."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedDP.errors import DataError
from fedDP.strategies.messages import DESCRIBE, make_message
from fedDP.training.blocks import BlockPlan, cut_blocks

_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Enrolment:
    """Who is enrolled, and which node serves whom; fixed for the whole run.

    Clients are numbered by site (sorted by name), then by their place in it, so that numbers do not depend on nodes.

    Attributes:
        sites: site names, sorted.
        records: for each site the record count of each of its clients.
        nodes: for each site the nodes that can train its clients.
        num_features, num_classes: the shape of a record, the same at every site.
    """

    sites: tuple[str, ...] = ()
    records: tuple[npt.NDArray[np.int64], ...] = ()
    nodes: tuple[tuple[int, ...], ...] = ()
    num_features: int = 0
    num_classes: int = 0

    @property
    def num_clients(self) -> int:
        """N."""
        return sum(len(counts) for counts in self.records)

    @classmethod
    def from_replies(cls, replies: Iterable[Message]) -> Enrolment:
        """Builds it from the nodes' descriptions.

        Raises:
            DataError: when a node fails, or two nodes disagree about a site.
        """
        records: dict[str, npt.NDArray[np.int64]] = {}
        nodes: dict[str, list[int]] = {}
        shapes: dict[tuple[int, int], str] = {}
        replicas: dict[str, bool] = {}
        for reply in sorted(replies, key=lambda message: message.metadata.src_node_id):
            node_id = reply.metadata.src_node_id
            if reply.has_error():
                raise DataError(f"Node {node_id} could not describe its data: {reply.error.reason}")
            try:
                description: dict[str, Any] = dict(reply.content.config_records["sites"])
                described = [
                    (site, np.frombuffer(packed, dtype="<i8").astype(np.int64))
                    for site, packed in zip(description["names"], description["records"], strict=True)
                ]
                replica = bool(description["replica"])
                shape = (int(description["num-features"]), int(description["num-classes"]))
            except (KeyError, ValueError, TypeError) as error:
                raise DataError(
                    f"Node {node_id} described its data in a form that cannot be read ({error!r}). "
                    "Run the same fedDP version on every node."
                ) from error
            for site, counts in described:
                if site in records and not (replica and replicas[site] and np.array_equal(records[site], counts)):
                    raise DataError(
                        f"Two nodes describe a site {site!r}. Give every site its own name (the node's "
                        "configuration 'site', or data.site_column)."
                    )
                replicas[site] = replica
                records[site] = counts
                nodes.setdefault(site, []).append(node_id)
                shapes.setdefault(shape, site)
        if len(shapes) > 1:
            (first, one), (second, other) = list(shapes.items())[:2]
            raise DataError(
                f"Sites disagree about the shape of a record: {one!r} has {first[0]} features and {first[1]} classes, "
                f"{other!r} has {second[0]} and {second[1]}. Give all of them the same scenario."
            )
        sites = tuple(sorted(records))
        num_features, num_classes = next(iter(shapes), (0, 0))
        return cls(
            sites=sites,
            records=tuple(records[site] for site in sites),
            nodes=tuple(tuple(nodes[site]) for site in sites),
            num_features=num_features,
            num_classes=num_classes,
        )

    def sha256(self) -> str:
        """A fingerprint of what is fixed for a run: the enrolment list and the shape of a record."""
        return hashlib.sha256(repr((self.list_sha256(), self.num_features, self.num_classes)).encode()).hexdigest()

    def list_sha256(self) -> str:
        """A fingerprint of the enrolment list: sites and record counts; not the nodes that serve them."""
        digest = hashlib.sha256(repr(self.sites).encode())
        for counts in self.records:
            digest.update(np.asarray(counts, dtype="<i8").tobytes())
        return digest.hexdigest()

    def blocks(self, cohort: npt.NDArray[np.int64], *, batch_size: int, block_size: int) -> dict[int, list[BlockPlan]]:
        """Cuts a cohort into blocks and shares them out: each to the least loaded node that serves its site.

        Args:
            cohort: client numbers, ascending.
            batch_size, block_size: decide the blocks' shapes.

        Returns:
            Blocks by node id.
        """
        load: dict[int, int] = {}
        shares: dict[int, list[BlockPlan]] = {}
        first = 0
        for site, records, nodes in zip(self.sites, self.records, self.nodes, strict=True):
            local = cohort[(cohort >= first) & (cohort < first + len(records))] - first
            first += len(records)
            for plan in cut_blocks(site, local.tolist(), records, batch_size=batch_size, block_size=block_size):
                node = min(nodes, key=lambda node_id: (load.get(node_id, 0), node_id))
                load[node] = load.get(node, 0) + plan.cost
                shares.setdefault(node, []).append(plan)
        return shares

    def serving(self, site: str) -> tuple[int, ...]:
        """The nodes that can train clients of `site`."""
        return self.nodes[self.sites.index(site)]


def pack_sites(
    sites: Sequence[str],
    records: Sequence[npt.NDArray[np.int64]],
    *,
    num_features: int,
    num_classes: int,
    replica: bool,
) -> RecordDict:
    """A node's description of its sites; all of it is public.

    Args:
        replica: whether other nodes may hold the very same data, as in a simulation.
    """
    return RecordDict(
        {
            "sites": ConfigRecord(
                {
                    "names": list(sites),
                    "records": [np.asarray(counts, dtype="<i8").tobytes() for counts in records],
                    "num-features": num_features,
                    "num-classes": num_classes,
                    "replica": replica,
                }
            )
        }
    )


def enrol(grid: Grid, *, min_clients: int = 1, timeout_seconds: float = 120.0) -> Enrolment:
    """Asks every node for its sites, until at least `min_clients` clients are enrolled.

    Raises:
        DataError: when too few are enrolled after `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    enrolment = Enrolment()
    while True:
        nodes = sorted(grid.get_node_ids())
        if nodes:
            messages = [make_describe(node_id) for node_id in nodes]
            replies = list(grid.send_and_receive(messages, timeout=max(1.0, deadline - time.monotonic())))
            enrolment = Enrolment.from_replies(replies)
        if enrolment.num_clients >= max(1, min_clients):
            return enrolment
        if time.monotonic() > deadline:
            raise DataError(
                f"Only {enrolment.num_clients} clients on {len(nodes)} nodes are enrolled after {timeout_seconds:g} s; "
                f"expected at least {max(1, min_clients)}. Start the nodes, or lower server.min_enrolled."
            )
        time.sleep(_POLL_SECONDS)


def make_describe(node_id: int) -> Message:
    """The question for a node's sites."""
    return make_message(RecordDict(), node_id=node_id, message_type=DESCRIBE, group_id="describe")
