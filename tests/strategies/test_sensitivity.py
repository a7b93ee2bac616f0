"""What one client, or one node, can do to the sum, whatever it sends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedDP.training.local_round as local_round
from fedDP.accounting import FullParticipation
from fedDP.privacy.clipping import grid_step
from fedDP.simulation.local_grid import LocalGrid
from fedDP.strategies.messages import make_message, pack_sum, to_array_record, unpack_order
from tests.strategies.nodes import TOLERANCE, Node, Spoil, flat, make_strategy, model, open_ledger, releases
from tests.training.cases import Floats

C = 0.5
SHAPES = ((3, 4), (), (5,))
SIZE = 18
SITES = {"a": [3, 4, 5], "b": [2, 2]}
D = 5.0


def small(site: int, client: int, parameters: Mapping[str, Floats]) -> npt.ArrayLike:
    """An update of norm 0.1, of its own for every client."""
    vector = np.random.default_rng([site, client]).normal(size=SIZE)
    return 0.1 * vector / np.linalg.norm(vector)


def replaced(by: npt.ArrayLike) -> Callable[..., npt.ArrayLike]:
    """Client 1 of site a returns `by`, the others as above."""
    return lambda site, client, parameters: by if (site, client) == (0, 1) else small(site, client, parameters)


def summed(node: Node, *, num_nodes: int = 1, block_size: int = 32) -> Floats:
    """The released sum in a run without noise."""
    strategy = make_strategy(clip_norm=C, block_size=block_size)
    return releases(strategy, node, model(*SHAPES), num_nodes=num_nodes)[0] * D


def without_client() -> Floats:
    return summed(Node(SITES, replaced(np.zeros(SIZE))))


def _one_hot(value: float) -> Floats:
    vector = np.zeros(SIZE)
    vector[12] = value  # the 0-d parameter of the layout
    return vector


ADVERSARIAL: dict[str, npt.ArrayLike] = {
    "norm 1e6": np.full(SIZE, 1e6),
    "norm 1e300": np.full(SIZE, 1e300),
    "all in the 0-d parameter": _one_hot(1e6),
    "NaN in one coordinate": np.where(np.arange(SIZE) == 3, np.nan, 5.0),
    "Inf in one coordinate": np.where(np.arange(SIZE) == 3, np.inf, 5.0),
    "minus Inf in the 0-d parameter": _one_hot(-np.inf),
    "all NaN": np.full(SIZE, np.nan),
    "denormals": np.full(SIZE, 5e-324),
    "four groups of norm 10": np.full(SIZE, 10.0 / np.sqrt(SIZE / 4)),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("block_size", [1, 2, 32])
def test_one_client_moves_the_sum_by_at_most_the_clip_norm(name: str, block_size: int) -> None:
    update = np.asarray(ADVERSARIAL[name])
    moved = np.linalg.norm(summed(Node(SITES, replaced(update)), block_size=block_size) - without_client())
    assert moved <= C * (1.0 + TOLERANCE)
    if np.isfinite(update).all() and np.abs(update).max() > C:
        assert moved >= C * (1.0 - TOLERANCE)  # it is clipped, not dropped
    if not np.isfinite(update).all():
        assert moved == 0.0


def test_swapping_a_clients_data_moves_the_sum_by_at_most_twice_the_clip_norm() -> None:
    sums = [summed(Node(SITES, replaced(update))) for update in ADVERSARIAL.values()]
    opposite = summed(Node(SITES, replaced(np.full(SIZE, -1e6))))
    for one, two in combinations(sums, 2):
        assert np.linalg.norm(one - two) <= 2 * C * (1.0 + TOLERANCE)
    assert np.linalg.norm(sums[0] - opposite) == pytest.approx(2 * C, rel=TOLERANCE)


def test_each_client_is_clipped_and_not_their_mean() -> None:
    def update(site: int, client: int, parameters: Mapping[str, Floats]) -> npt.ArrayLike:
        vector = np.zeros(SIZE)
        vector[client] = 1000.0 if client == 0 else 0.1
        return vector

    node = Node({"a": [1] * 10}, update)
    mean = releases(make_strategy(clip_norm=1.0), node, model(*SHAPES))[0]
    np.testing.assert_allclose(mean[:10], [0.1] + [0.01] * 9, rtol=1e-6)


def test_the_update_is_clipped_and_not_the_weights() -> None:
    strategy = make_strategy(clip_norm=C)
    before = model(*SHAPES, fill=100.0)
    out = releases(strategy, Node(SITES, small), before)[0]
    expected = sum(np.asarray(small(site, client, {})) for site, count in enumerate((3, 2)) for client in range(count))
    np.testing.assert_allclose(out * D, expected, atol=1e-10)


def test_skipping_the_clip_at_the_node_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement above has power: without the clip a client moves the sum by more."""

    def unclipped(update: Any, clip_norm: float) -> Any:
        return np.trunc(np.asarray(update) / grid_step(clip_norm)).astype(np.int64)

    base = without_client()
    monkeypatch.setattr(local_round, "clip", unclipped)
    moved = np.linalg.norm(summed(Node(SITES, replaced(np.full(SIZE, 0.3)))) - base)
    assert moved > 1.2  # against C = 0.5; the server still refuses what five clients together could not reach


# What a node sends.


def _reply(order: Message, **records: Any) -> Message:
    return Message(RecordDict(records), reply_to=order)


def _spoilt(make: Callable[[npt.NDArray[np.int64]], dict[str, npt.NDArray[Any]]]) -> Spoil:
    def spoil(order: Message, reply: Message, node_id: int) -> Message:
        total = reply.content.array_records["sum"]["update"].numpy()
        return _reply(order, sum=ArrayRecord({name: Array(value) for name, value in make(total).items()}))

    return spoil


def _too_large(order: Message, reply: Message, node_id: int) -> Message:
    return Message(pack_sum(np.full(SIZE, 5 << 40, dtype=np.int64)), reply_to=order)


def _extreme(order: Message, reply: Message, node_id: int) -> Message:
    return Message(pack_sum(np.full(SIZE, np.iinfo(np.int64).min, dtype=np.int64)), reply_to=order)


def _error(order: Message, reply: Message, node_id: int) -> Message:
    raise RuntimeError("out of order")


def _other_round(order: Message, reply: Message, node_id: int) -> Message:
    return _with_group(reply, "2.1")


def _no_group(order: Message, reply: Message, node_id: int) -> Message:
    return _with_group(reply, "")


def _with_group(reply: Message, group: str) -> Message:
    reply.metadata.__dict__["_group_id"] = group
    return reply


NONSENSE: dict[str, tuple[Spoil, str]] = {
    "swapped keys": (lambda order, reply, node: _reply(order, update=reply.content.array_records["sum"]), "sum/update"),
    "renamed array": (_spoilt(lambda total: {"sum": total}), "sum/update"),
    "extra array": (_spoilt(lambda total: {"update": total, "more": total}), "sum/update"),
    "extra record": (
        lambda order, reply, node: _reply(
            order, sum=reply.content.array_records["sum"], more=reply.content.array_records["sum"]
        ),
        "sum/update",
    ),
    "missing array": (_spoilt(lambda total: {}), "sum/update"),
    "empty reply": (lambda order, reply, node: _reply(order), "sum/update"),
    "float64": (_spoilt(lambda total: {"update": total.astype(np.float64)}), "int64"),
    "NaN": (_spoilt(lambda total: {"update": np.full(SIZE, np.nan)}), "int64"),
    "int32": (_spoilt(lambda total: {"update": np.zeros(SIZE, dtype=np.int32)}), "int64"),
    "uint64": (_spoilt(lambda total: {"update": total.astype(np.uint64)}), "int64"),
    "big-endian": (_spoilt(lambda total: {"update": total.astype(">i8")}), "int64"),
    "shape (P, 1)": (_spoilt(lambda total: {"update": total[:, None]}), "shape"),
    "one coordinate short": (_spoilt(lambda total: {"update": total[:-1]}), "shape"),
    "too large": (_too_large, "larger"),
    "largest negative integers": (_extreme, "larger"),
    "error": (_error, "out of order"),
    "reply for another round": (_other_round, "no reply in time"),
    "reply to nothing": (_no_group, "no reply in time"),
}


def from_node_one(spoil: Spoil) -> Spoil:
    return lambda order, reply, node: spoil(order, reply, node) if node == 1 else reply


def when_client_one_of_a_is_asked(spoil: Spoil) -> Spoil:
    def only(order: Message, reply: Message, node_id: int) -> Message:
        plans = unpack_order(order.content)[0].blocks
        asked = any(plan.site == "a" and 1 in plan.clients for plan in plans)
        return spoil(order, reply, node_id) if asked else reply

    return only


@pytest.mark.parametrize("name", NONSENSE)
def test_a_node_that_sends_nonsense_is_replaced_by_another(name: str, caplog: pytest.LogCaptureFixture) -> None:
    spoil, reason = NONSENSE[name]
    expected = summed(Node(SITES, small))
    with caplog.at_level(logging.WARNING, "fedDP.node"):
        result = summed(Node(SITES, small, from_node_one(spoil)), num_nodes=3, block_size=2)
    assert np.array_equal(result, expected)
    assert "node 1 did not return a usable sum" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("name", NONSENSE)
def test_only_the_client_whose_reply_is_nonsense_is_lost(name: str, caplog: pytest.LogCaptureFixture) -> None:
    spoil, reason = NONSENSE[name]
    node = Node(SITES, small, when_client_one_of_a_is_asked(spoil))
    with caplog.at_level(logging.WARNING, "fedDP.node"):
        result = summed(node)
    assert np.array_equal(result, without_client())
    lost = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    lost = [text for text in lost if "counts as zero" in text]
    assert len(lost) == 1
    assert "client 1 of site a" in lost[0]
    assert reason in lost[0]
    # First everything, then the blocks, then the clients of the block that failed.
    sent = [clients for _, clients in node.orders]
    assert len(sent[0]) > 1
    assert sent[-1] == [(2,)] or sent[-1] == [(1,)]


@pytest.mark.parametrize("name", NONSENSE)
def test_a_federation_of_nonsense_releases_pure_noise(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    options: dict[str, Any] = {"clip_norm": C, "noise_multiplier": 2.0, "sampling": FullParticipation()}
    node = Node(SITES, small, NONSENSE[name][0])
    noise = releases(make_strategy(ledger=open_ledger(tmp_path / "a"), **options), node, model(*SHAPES))
    expected = releases(make_strategy(ledger=open_ledger(tmp_path / "b"), **options), Node(SITES), model(*SHAPES))
    assert np.array_equal(noise[0], expected[0])


def test_a_reply_that_comes_twice_counts_once() -> None:
    class Twice(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            return replies + replies

    strategy = make_strategy(clip_norm=C)
    result = strategy.start(Twice(Node(SITES, small).app(), 2), to_array_record(model(*SHAPES)), num_rounds=1)
    np.testing.assert_array_equal(flat(result.arrays) * D, summed(Node(SITES, small)))


def test_a_late_reply_to_an_order_that_was_given_again_is_dropped() -> None:
    class Late(LocalGrid):
        """Keeps the first round's replies back and delivers them with the next."""

        kept: list[Message] | None = None

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            sent = list(messages)
            replies = list(super().send_and_receive(sent, timeout=timeout))
            if sent[0].metadata.message_type != "train":
                return replies
            if self.kept is None:
                self.kept = replies
                return []
            return [*self.kept, *replies, *self.kept]

    strategy = make_strategy(clip_norm=C)
    result = strategy.start(Late(Node(SITES, small).app(), 2), to_array_record(model(*SHAPES)), num_rounds=1)
    np.testing.assert_array_equal(flat(result.arrays) * D, summed(Node(SITES, small)))


def test_nothing_in_a_reply_but_the_sum_is_read() -> None:
    def talkative(order: Message, reply: Message, node_id: int) -> Message:
        reply.content["metrics"] = MetricRecord({"num-examples": 10**9, "loss": float("nan")})
        reply.content["config"] = ConfigRecord({"clip-norm": 1e9})
        return reply

    assert np.array_equal(summed(Node(SITES, small, talkative)), summed(Node(SITES, small)))


def test_an_unknown_reply_is_ignored() -> None:
    strategy = make_strategy(clip_norm=C)
    grid = LocalGrid(Node(SITES, small).app())
    messages = list(strategy.configure_train(1, to_array_record(model(*SHAPES)), ConfigRecord(), grid))
    stranger = Message(
        pack_sum(np.full(SIZE, 1 << 40, dtype=np.int64)),
        reply_to=make_message(RecordDict(), node_id=1, message_type="train", group_id="1.99"),
    )
    arrays, metrics = strategy.aggregate_train(1, [stranger, *grid.send_and_receive(messages), stranger])
    assert arrays is not None
    assert metrics is None
    np.testing.assert_array_equal(flat(arrays) * D, summed(Node(SITES, small)))


def test_a_lone_client_of_a_node_that_is_gone_is_trained_at_another() -> None:
    """An order of one client may fail because of its node; it is lost only when another node fails with it too."""
    sites = {"a": [3], "b": [4]}

    def total(spoil: Spoil | None) -> Floats:
        strategy = make_strategy(clip_norm=C)
        return releases(strategy, Node(sites, small, spoil), model(*SHAPES), num_nodes=2)[0]

    assert np.array_equal(total(from_node_one(_error)), total(None))


def test_a_lone_client_that_fails_everywhere_is_tried_twice() -> None:
    node = Node({"a": [3]}, small, _error)
    mean = releases(make_strategy(clip_norm=C), node, model(*SHAPES), num_nodes=4)[0]
    assert not mean.any()
    assert len(node.orders) == 2
