"""Any Flower strategy as the server's optimiser: what it is given, what it may not be, and that it is never touched."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity

from fedDP.accounting import Poisson
from fedDP.errors import UnsupportedError
from fedDP.strategies import InnerStrategy, RoundResult
from fedDP.strategies.inner import _quiet_flower, _StubGrid, _task_identity
from fedDP.strategies.messages import from_array_record, make_message, to_array_record, unpack_order
from fedDP.training.trainer import LocalTraining
from tests.strategies.nodes import TOLERANCE, Arrays, Node, Spy, flat, make_strategy, model, open_ledger, run
from tests.training.cases import Floats

SHAPES = ((3, 4), (), (5,))
SIZE = 18
SITES = {"a": [3, 4, 5], "b": [2, 2]}

USABLE: dict[str, Callable[[], flower.Strategy]] = {
    "FedAvg": flower.FedAvg,
    "FedAvgM": lambda: flower.FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
    "FedAvgM without momentum": lambda: flower.FedAvgM(server_learning_rate=0.7),
    "FedAvgM as FedAvg": flower.FedAvgM,
    "FedAdam": lambda: flower.FedAdam(eta=0.05, tau=1e-2),
    "FedYogi": lambda: flower.FedYogi(eta=0.05, tau=1e-2),
    "FedAdagrad": lambda: flower.FedAdagrad(eta=0.05, tau=1e-2),
    "FedProx": lambda: flower.FedProx(proximal_mu=0.25),
    "FedAvg with other keys": lambda: flower.FedAvg(
        arrayrecord_key="weights", weighted_by_key="rows", configrecord_key="settings"
    ),
}


def updates(site: int, client: int, parameters: Any) -> Floats:
    vector: Floats = np.random.default_rng([site, client]).normal(size=SIZE) * 0.05
    return vector + 0.01 * np.concatenate([np.ravel(parameters[name]) for name in sorted(parameters)])


def initial(dtype: str = "float32") -> Arrays:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=value.shape).astype(dtype) for name, value in model(*SHAPES).items()}


def by_flower_alone(strategy: flower.Strategy, arrays: Arrays, means: list[Arrays]) -> Arrays:
    """What Flower makes of one reply a round, called as Flower calls it but for the messages."""
    strategy = copy.deepcopy(strategy)
    strategy.min_available_nodes = strategy.min_train_nodes = 1  # type: ignore[attr-defined]
    for number, mean in enumerate(means, 1):
        with _task_identity(), _quiet_flower():
            list(strategy.configure_train(number, to_array_record(arrays), ConfigRecord(), _StubGrid()))
        local = {name: (value + mean[name]).astype(value.dtype) for name, value in arrays.items()}
        content = RecordDict(
            {
                strategy.arrayrecord_key: to_array_record(local),  # type: ignore[attr-defined]
                "metrics": MetricRecord({strategy.weighted_by_key: 10}),  # type: ignore[attr-defined]
            }
        )
        with _quiet_flower():
            record, _ = strategy.aggregate_train(number, [make_message(content, node_id=1, message_type="train")])
        assert record is not None
        arrays = {name: value.astype(arrays[name].dtype) for name, value in from_array_record(record).items()}
    return arrays


def recorded_means(monkeypatch: pytest.MonkeyPatch) -> list[Arrays]:
    means: list[Arrays] = []
    step = InnerStrategy.step

    def spying(self: InnerStrategy, server_round: int, arrays: Arrays, mean_update: Any) -> Arrays:
        if any(np.any(value) for value in mean_update.values()):  # the probe's is zero
            means.append(dict(mean_update))
        return step(self, server_round, arrays, mean_update)

    monkeypatch.setattr(InnerStrategy, "step", spying)
    return means


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", USABLE)
def test_the_result_is_flowers_own_aggregation_of_one_reply(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = recorded_means(monkeypatch)
    result = run(make_strategy(USABLE[name]()), Node(SITES, updates), initial(dtype), rounds=3)
    assert len(means) == 3
    expected = by_flower_alone(USABLE[name](), initial(dtype), means)
    assert {key: value.dtype for key, value in result.items()} == {key: np.dtype(dtype) for key in initial()}
    for key, value in expected.items():
        np.testing.assert_allclose(result[key], value, rtol=1e-6, atol=1e-7)
    assert not np.allclose(flat(result), flat(initial()))


@pytest.mark.parametrize("name", USABLE)
def test_the_users_object_is_untouched_and_a_start_begins_afresh(name: str) -> None:
    inner = USABLE[name]()
    before = copy.deepcopy(vars(inner))
    strategy = make_strategy(inner)
    first = run(strategy, Node(SITES, updates), initial(), rounds=3)
    assert vars(inner) == before
    second = run(strategy, Node(SITES, updates), initial(), rounds=3)
    third = run(make_strategy(inner), Node(SITES, updates), initial(), rounds=3)
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])
        np.testing.assert_array_equal(first[key], third[key])


@pytest.mark.parametrize("name", USABLE)
def test_one_client_moves_the_mean_that_the_inner_strategy_gets_by_at_most_its_share(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrapped the other way round, one client moved Flower's FedAdam model by 7 and FedAdagrad's by 76 times C/n."""
    clip_norm, denominator = 0.25, 5.0
    means = recorded_means(monkeypatch)
    for size in (0.0, 1e6):
        rogue = size

        def update(site: int, client: int, parameters: Any, rogue: float = rogue) -> Floats:
            return np.full(SIZE, rogue) if (site, client) == (1, 0) else updates(site, client, parameters)

        run(make_strategy(USABLE[name](), clip_norm=clip_norm), Node(SITES, update), initial("float64"))
    moved = np.linalg.norm(flat(means[0]) - flat(means[1]))
    assert moved <= clip_norm / denominator * (1 + TOLERANCE)
    assert moved == pytest.approx(clip_norm / denominator, rel=TOLERANCE)


@pytest.mark.parametrize("name", USABLE)
def test_a_run_that_goes_on_from_a_checkpoint_equals_a_straight_one(name: str) -> None:
    def start(arrays: Arrays, rounds: int, **options: Any) -> Arrays:
        strategy = make_strategy(USABLE[name](), sampling=Poisson(0.6))
        return run(strategy, Node(SITES, updates), arrays, rounds=rounds, **options)

    saved: list[RoundResult] = []
    straight = start(initial(), 10)
    start(initial(), 5, checkpoint=saved.append)
    resumed = start(saved[-1].arrays, 10, start_round=6, inner_state=saved[-1].inner_state)
    for key, value in straight.items():
        np.testing.assert_array_equal(resumed[key], value)


def test_a_charged_run_that_goes_on_after_a_crash_equals_a_straight_one(tmp_path: Path) -> None:
    for folder in ("straight", "resumed"):
        (tmp_path / folder).mkdir()

    def start(folder: str, arrays: Arrays, rounds: int, **options: Any) -> Arrays:
        ledger = open_ledger(tmp_path / folder)
        strategy = make_strategy(flower.FedAdam(eta=0.05), noise_multiplier=0.5, ledger=ledger)
        return run(strategy, Node(SITES, updates), arrays, rounds=rounds, **options)

    saved: list[RoundResult] = []
    straight = start("straight", initial(), 4)
    start("resumed", initial(), 2, checkpoint=saved.append)
    resumed = start("resumed", saved[-1].arrays, 4, start_round=3, inner_state=saved[-1].inner_state)
    for key, value in straight.items():
        np.testing.assert_array_equal(resumed[key], value)


def test_proximal_mu_reaches_the_clients() -> None:
    def sent(inner: flower.Strategy, training: LocalTraining | None = None) -> float:
        grid = Spy(Node(SITES).app())
        make_strategy(inner, training=training).start(grid, to_array_record(initial()), num_rounds=1)
        return unpack_order(grid.sent[0].content)[0].config.proximal_mu

    assert sent(flower.FedProx(proximal_mu=0.25)) == 0.25
    assert sent(flower.FedAvg()) == 0.0
    assert sent(flower.FedAvg(), LocalTraining(proximal_mu=0.5)) == 0.5
    assert sent(flower.FedProx(proximal_mu=0.25), LocalTraining(proximal_mu=0.5)) == 0.25


def _wrapper(name: str) -> flower.Strategy:
    if "Adaptive" in name:
        made = getattr(flower, name)(flower.FedAvg(), noise_multiplier=1.0, num_sampled_clients=20)
    else:
        made = getattr(flower, name)(flower.FedAvg(), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=20)
    assert isinstance(made, flower.Strategy)
    return made


REFUSED: dict[str, tuple[Callable[[], flower.Strategy], str]] = {
    "Bulyan": (lambda: flower.Bulyan(num_malicious_nodes=0), "robustness"),
    "Krum": (lambda: flower.Krum(num_malicious_nodes=0), "robustness"),
    "MultiKrum": (lambda: flower.MultiKrum(num_malicious_nodes=0, num_nodes_to_select=1), "robustness"),
    "FedMedian": (flower.FedMedian, "robustness"),
    "FedTrimmedAvg": (flower.FedTrimmedAvg, "robustness"),
    "QFedAvg": (lambda: flower.QFedAvg(client_learning_rate=0.1), "private"),
    "FedXgbBagging": (flower.FedXgbBagging, "trees"),
    "FedXgbCyclic": (flower.FedXgbCyclic, "trees"),
    **{
        name: (partial(_wrapper, name), "added twice")
        for name in (
            "DifferentialPrivacyClientSideAdaptiveClipping",
            "DifferentialPrivacyClientSideFixedClipping",
            "DifferentialPrivacyServerSideAdaptiveClipping",
            "DifferentialPrivacyServerSideFixedClipping",
        )
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_strategies_that_need_more_than_one_mean_are_refused_by_name(name: str) -> None:
    build, reason = REFUSED[name]
    with pytest.raises(UnsupportedError, match=f"{name} is refused: .*{reason}"):
        make_strategy(build())


def test_subclasses_of_refused_strategies_are_refused() -> None:
    class MyMedian(flower.FedMedian):
        pass

    with pytest.raises(UnsupportedError, match=r"MyMedian is refused: .*robustness"):
        make_strategy(MyMedian())


def test_every_strategy_that_flower_exports_is_used_or_refused_here() -> None:
    """A new one in Flower must be looked at before it is accepted by default."""
    known = set(REFUSED) | {"FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "FedProx", "Strategy", "Result"}
    assert set(flower.__all__) == known


class Own(flower.Strategy):
    """A whole strategy of a user's: builds its messages itself and moves twice as far as the mean."""

    def __init__(self) -> None:
        self.before: ArrayRecord | None = None
        self.configured: list[int] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.before = arrays
        self.configured.append(server_round)
        record = RecordDict({"arrays": arrays, "config": ConfigRecord({"proximal-mu": 0.125})})
        return [Message(record, node_id, "train") for node_id in grid.get_node_ids()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        (reply,) = replies
        (record,) = reply.content.array_records.values()
        assert self.before is not None
        old, new = from_array_record(self.before), from_array_record(record)
        return to_array_record({name: 2.0 * new[name] - old[name] for name in old}), None

    def configure_evaluate(self, *arguments: Any, **options: Any) -> Iterable[Message]:
        raise AssertionError("never called")

    def aggregate_evaluate(self, *arguments: Any, **options: Any) -> MetricRecord | None:
        raise AssertionError("never called")

    def summary(self) -> None: ...


def test_a_users_own_strategy_that_builds_messages_works() -> None:
    grid = Spy(Node(SITES, updates).app())
    plain = run(make_strategy(), Node(SITES, updates), initial("float64"))
    own = make_strategy(Own()).start(grid, to_array_record(initial("float64")), num_rounds=1)
    start = flat(initial("float64"))
    np.testing.assert_allclose(flat(own.arrays) - start, 2.0 * (flat(plain) - start), rtol=1e-9)
    assert unpack_order(grid.sent[0].content)[0].config.proximal_mu == 0.125
    assert len(grid.sent) == 1  # its own messages went nowhere


class Nothing(Own):
    def aggregate_train(self, *arguments: Any, **options: Any) -> tuple[None, None]:
        return None, None


class Renamed(Own):
    def aggregate_train(self, *arguments: Any, **options: Any) -> tuple[ArrayRecord, None]:
        return to_array_record({"other": np.zeros(3)}), None


class Reshaped(Own):
    def aggregate_train(self, *arguments: Any, **options: Any) -> tuple[ArrayRecord, None]:
        return to_array_record({name: np.zeros(2) for name in initial()}), None


class NeedsTwo(Own):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        _first, second = replies
        return second.content.array_records["arrays"], None


class Sends(Own):
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return list(grid.send_and_receive([]))


class Unsaved(Own):
    def __init__(self) -> None:
        super().__init__()
        self.rule = lambda value: value


UNUSABLE: list[tuple[type[Own], str]] = [
    (Nothing, "no arrays"),
    (Renamed, "other names or shapes"),
    (Reshaped, "other names or shapes"),
    (NeedsTwo, "one synthetic reply gave ValueError"),
    (Sends, "cannot send messages"),
    (Unsaved, "cannot be saved"),
]


@pytest.mark.parametrize(("kind", "reason"), UNUSABLE)
def test_a_strategy_that_cannot_be_used_is_refused_before_anything_is_charged(
    tmp_path: Path, kind: type[Own], reason: str
) -> None:
    ledger = open_ledger(tmp_path)
    grid = Spy(Node(SITES, updates).app())
    strategy = make_strategy(kind(), noise_multiplier=1.0, ledger=ledger)
    with pytest.raises(UnsupportedError, match=rf"{kind.__name__} cannot be used: .*{reason}"):
        strategy.start(grid, to_array_record(initial()), num_rounds=2)
    assert ledger.last_charged is None
    assert grid.sent == []


def test_the_probe_leaves_no_trace() -> None:
    inner = InnerStrategy(flower.FedAdam(eta=0.1))
    before = inner.state()
    inner.probe(initial())
    assert inner.state() == before


def test_flower_is_quiet_and_gets_its_level_and_identity_back(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("flwr")
    level = logger.level
    names = ("_run_id", "_node_id", "_task_id")
    identity = [getattr(TaskIdentity, name) for name in names]
    with caplog.at_level(logging.DEBUG):
        logger.setLevel(level)
        run(make_strategy(flower.FedAdam(eta=0.1)), Node(SITES, updates), initial(), rounds=2)
    assert [record for record in caplog.records if record.name == "flwr"] == []
    assert logger.level == level
    assert [getattr(TaskIdentity, name) for name in names] == identity


def test_the_inner_strategy_sees_one_reply_without_counts_or_metrics() -> None:
    seen: list[tuple[dict[str, Any], list[int]]] = []

    class Curious(flower.FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            replies = list(replies)
            for reply in replies:
                (metrics,) = reply.content.metric_records.values()
                seen.append((dict(metrics), [reply.metadata.src_node_id, reply.metadata.dst_node_id, len(replies)]))
            return super().aggregate_train(server_round, replies)

    inner = InnerStrategy(Curious())
    inner.configure(1, initial())
    inner.step(1, initial(), initial())
    assert seen == [({"num-examples": 1}, [1, 1, 1])]
