"""The charge comes before the work, and what a round may do comes from its grant."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Result

from fedDP.accounting import FixedSize, FullParticipation, Gaussian, Poisson
from fedDP.budget import Budget, BudgetExceeded, Grant, Ledger
from fedDP.errors import FedDPError, InvalidValueError, LedgerError, ModelError
from fedDP.privacy.keys import RootKey
from fedDP.strategies import FlatClipping, GaussianNoise, RoundResult
from fedDP.strategies.messages import from_array_record, to_array_record, unpack_order
from tests.strategies.nodes import Node, Spy, flat, make_strategy, model, open_ledger, releases, run

SITES = {"a": [3, 4, 5], "b": [2, 2]}
SHAPES = ((20, 20), (), (100,))
Z = 1.0


class SpyLedger:
    """Notes the order of charges, messages and marks."""

    def __init__(self, ledger: Ledger, grid: Spy | None = None) -> None:
        self._ledger = ledger
        self.grid = grid
        self.events: list[str] = []

    def authorise(self, event: Gaussian, **numbers: Any) -> Grant:
        self.note("authorise")
        grant = self._ledger.authorise(event, **numbers)
        self.note("authorised")
        return grant

    def mark_released(self, grant: Grant) -> None:
        self._ledger.mark_released(grant)
        self.note("marked")

    def note(self, what: str) -> None:
        self.events.append(f"{what} {len(self.grid.sent) if self.grid else 0}")


def charges(ledger: Ledger) -> list[tuple[int, int, str]]:
    """Round, attempt and status of every charge."""
    reread = Ledger.load(ledger.url)
    return [(charge.key[1], charge.attempt, charge.status) for charge in reread._state.charges.values()]


def tight_budget(rounds: int) -> Budget:
    """Room for `rounds` unsampled rounds with Z: mu squared is rounds + 1/2."""
    from fedDP.accounting.gdp import gdp_epsilon

    return Budget(delta=1e-5, lifetime=gdp_epsilon(float(np.sqrt((rounds + 0.5) / Z**2)), 1e-5))


def tight_ledger(folder: Path, rounds: int) -> Ledger:
    return open_ledger(folder, budget=tight_budget(rounds), mode="gaussian")


def test_a_round_is_charged_before_a_message_is_sent_and_marked_after_the_checkpoint(tmp_path: Path) -> None:
    grid = Spy(Node(SITES).app(), 2)
    ledger = SpyLedger(open_ledger(tmp_path), grid)
    strategy = make_strategy(noise_multiplier=Z, ledger=ledger)
    strategy.start(
        grid,
        to_array_record(model(*SHAPES)),
        num_rounds=2,
        checkpoint=lambda result: ledger.note("checkpoint"),
        on_round=lambda result: ledger.note("on_round"),
    )
    assert ledger.events == [
        *("authorise 0", "authorised 0", "checkpoint 2", "marked 2", "on_round 2"),
        *("authorise 2", "authorised 2", "checkpoint 4", "marked 4", "on_round 4"),
    ]


def test_a_round_without_a_charge_is_noticed(tmp_path: Path) -> None:
    """Whoever skips the ledger gets no grant, and nothing is released without one."""
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path))
    with pytest.raises(FedDPError, match="not configured"):
        strategy.aggregate_train(1, [])


def test_a_refused_round_asks_nobody_and_keeps_the_model(tmp_path: Path) -> None:
    ledger = tight_ledger(tmp_path, 2)
    node = Node(SITES)
    grid = Spy(node.app())
    strategy = make_strategy(noise_multiplier=Z, ledger=ledger)
    results: list[RoundResult] = []
    evaluated: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(server_round)
        return MetricRecord({"round": server_round})

    result = strategy.start(
        grid, to_array_record(model(*SHAPES)), num_rounds=5, evaluate_fn=evaluate, on_round=results.append
    )
    assert isinstance(result, Result)
    assert isinstance(strategy.stopped, BudgetExceeded)
    assert strategy.stopped.window == "lifetime"
    assert len(grid.sent) == len(node.orders) == 2
    assert [entry.round for entry in results] == [1, 2]
    assert evaluated == [0, 1, 2]
    assert np.array_equal(flat(result.arrays), flat(results[-1].arrays))
    assert charges(ledger) == [(1, 1, "released"), (2, 1, "released")]


def test_a_refusal_of_the_first_round_returns_the_initial_model(tmp_path: Path) -> None:
    ledger = tight_ledger(tmp_path, 0)
    grid = Spy(Node(SITES).app())
    strategy = make_strategy(noise_multiplier=Z, ledger=ledger)
    result = strategy.start(grid, to_array_record(model(*SHAPES, fill=2.0)), num_rounds=5)
    assert strategy.stopped is not None
    assert (flat(result.arrays) == 2.0).all()
    assert grid.sent == []
    assert charges(ledger) == []


def test_a_later_run_that_is_not_refused_clears_the_refusal(tmp_path: Path) -> None:
    strategy = make_strategy(noise_multiplier=Z, ledger=tight_ledger(tmp_path, 1))
    run(strategy, Node(SITES), model(*SHAPES), rounds=2)
    assert strategy.stopped is not None
    run(strategy, Node(SITES), model(*SHAPES), rounds=2, start_round=2)
    assert strategy.stopped is not None
    run(strategy, Node(SITES), model(*SHAPES), rounds=2, start_round=3)  # no round is left to run
    assert strategy.stopped is None


@pytest.mark.parametrize("seed", [7, None])
def test_a_crash_before_the_mark_leaves_the_charge(tmp_path: Path, seed: int | None) -> None:
    """A restart is charged as another attempt. Unseeded it draws other noise; a seeded run repeats, and is nominal."""
    simulation = seed is not None
    seen: list[RoundResult] = []

    def crash(result: RoundResult) -> None:
        seen.append(result)
        raise KeyboardInterrupt

    ledger = open_ledger(tmp_path, simulation=simulation)
    root = RootKey.create(seed)
    strategy = make_strategy(noise_multiplier=Z, ledger=ledger, root_key=root)
    with pytest.raises(KeyboardInterrupt):
        run(strategy, Node(SITES), model(*SHAPES), checkpoint=crash)
    assert charges(ledger) == [(1, 1, "charged")]
    again = open_ledger(tmp_path, simulation=simulation)
    strategy = make_strategy(noise_multiplier=Z, ledger=again, root_key=root)
    run(strategy, Node(SITES), model(*SHAPES), on_round=seen.append)
    assert charges(again) == [(1, 1, "abandoned"), (1, 2, "released")]
    assert [result.grant.attempt for result in seen] == [1, 2]
    first, second = (flat(result.arrays) for result in seen)
    if seed is None:
        assert not np.isclose(first, second, rtol=1e-9).any()
        assert abs(np.corrcoef(first, second)[0, 1]) < 5.0 / np.sqrt(first.size)
    else:
        np.testing.assert_array_equal(first, second)


def test_a_second_attempt_in_the_same_strategy_draws_other_noise(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, simulation=False)
    strategy = make_strategy(noise_multiplier=Z, ledger=ledger, seed=None)
    seen: list[RoundResult] = []

    def crash(result: RoundResult) -> None:
        seen.append(result)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(strategy, Node(SITES), model(*SHAPES), checkpoint=crash)
    assert charges(ledger) == [(1, 1, "abandoned"), (1, 2, "charged")]
    first, second = (flat(result.arrays) for result in seen)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5.0 / np.sqrt(first.size)


def test_an_unseeded_restart_samples_another_cohort_with_other_training_keys(tmp_path: Path) -> None:
    root, orders = RootKey.create(), []
    for _ in range(2):
        grid = Spy(Node({"a": [1] * 200}).app())
        ledger = open_ledger(tmp_path, simulation=False)
        strategy = make_strategy(noise_multiplier=Z, ledger=ledger, sampling=Poisson(0.5), root_key=root)
        with pytest.raises(KeyboardInterrupt):
            strategy.start(grid, to_array_record(model(*SHAPES)), num_rounds=1, checkpoint=_interrupt)
        orders.append(unpack_order(grid.sent[0].content)[0])
    assert orders[0].key != orders[1].key
    assert [plan.clients for plan in orders[0].blocks] != [plan.clients for plan in orders[1].blocks]


def _interrupt(result: RoundResult) -> None:
    raise KeyboardInterrupt


def test_a_failure_while_nodes_train_leaves_the_charge(tmp_path: Path) -> None:
    class Broken(Spy):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            sent = list(messages)
            if sent[0].metadata.message_type == "train":
                raise ConnectionError("the network is gone")
            return super().send_and_receive(sent, timeout=timeout)

    ledger = open_ledger(tmp_path)
    with pytest.raises(ConnectionError):
        make_strategy(noise_multiplier=Z, ledger=ledger).start(
            Broken(Node(SITES).app()), to_array_record(model(*SHAPES)), num_rounds=1
        )
    assert charges(ledger) == [(1, 1, "charged")]


def test_a_released_round_cannot_be_run_again(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    strategy = make_strategy(noise_multiplier=Z, ledger=ledger)
    run(strategy, Node(SITES), model(*SHAPES))
    with pytest.raises(LedgerError, match="released already"):
        run(strategy, Node(SITES), model(*SHAPES))


def test_what_a_round_may_do_comes_from_its_grant(tmp_path: Path) -> None:
    """Fields of the strategy that change after the grant change nothing."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    expected = releases(
        make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path / "a")), Node(SITES), model(*SHAPES)
    )
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path / "b"))
    grid = Spy(Node(SITES).app())
    messages = list(strategy.configure_train(1, to_array_record(model(*SHAPES)), ConfigRecord(), grid))
    strategy._noise = GaussianNoise(1e-3)
    strategy._clipping = FlatClipping(1e-6)
    strategy._sampling = Poisson(1e-3)
    strategy._enrolment = replace(strategy.enrolment, records=(np.zeros(10**6, dtype=np.int64),) * 2)
    arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert arrays is not None
    np.testing.assert_array_equal(flat(arrays), expected[0])


def test_clients_are_sent_the_clip_norm_that_was_charged(tmp_path: Path) -> None:
    grid = Spy(Node(SITES).app())
    strategy = make_strategy(clip_norm=0.75, noise_multiplier=Z, ledger=open_ledger(tmp_path))
    results: list[RoundResult] = []
    strategy.start(grid, to_array_record(model(*SHAPES)), num_rounds=1, on_round=results.append)
    order, _ = unpack_order(grid.sent[0].content)
    grant = results[0].grant
    assert order.clip_norm == grant.clip_norm == 0.75
    assert (grant.noise_multiplier, grant.denominator, grant.sampling) == (Z, 5.0, FullParticipation())


def test_no_message_carries_the_root_key_or_the_cohort_of_other_nodes(tmp_path: Path) -> None:
    root = RootKey.create(7)
    grid = Spy(Node(SITES).app(), 2)
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path), root_key=root)
    strategy.start(grid, to_array_record(model(*SHAPES)), num_rounds=1)
    for message in grid.sent:
        for record in message.content.config_records.values():
            assert root.secret not in [value for value in record.values() if isinstance(value, bytes)]
    secrets = {unpack_order(message.content)[0].key for message in grid.sent}
    assert secrets == {root.for_round("training", 1, 1)}
    asked = [
        {(plan.site, client) for plan in unpack_order(message.content)[0].blocks for client in plan.clients}
        for message in grid.sent
    ]
    assert asked[0].isdisjoint(asked[1])


@pytest.mark.parametrize("rate", [0.2, 0.9])
def test_the_denominator_depends_on_neither_cohort_nor_replies(tmp_path: Path, rate: float) -> None:
    """Forty clients who all return e_1: the mean is cohort / (rate * N), whatever the cohort is."""

    def unit(site: int, client: int, parameters: Any) -> Any:
        vector = np.zeros(501)
        vector[0] = 0.5
        return vector

    node = Node({"a": [1] * 40}, unit)
    means = releases(make_strategy(sampling=Poisson(rate)), node, model(*SHAPES), rounds=6)
    cohorts = [sum(len(clients) for clients in blocks) for _, blocks in node.orders]
    assert len(set(cohorts)) > 1
    for mean, cohort in zip(means, cohorts, strict=True):
        assert mean[0] == pytest.approx(0.5 * cohort / (rate * 40), rel=1e-9)


def test_poisson_cohorts_vary_and_have_the_right_mean() -> None:
    """60 rounds of N=100, q=0.3: the mean cohort is within 5 standard deviations (0.59), and varies."""
    node = Node({"a": [1] * 60, "b": [1] * 40})
    run(make_strategy(sampling=Poisson(0.3)), node, model(*SHAPES), rounds=60)
    sizes = np.array([sum(len(clients) for clients in blocks) for _, blocks in node.orders])
    assert abs(sizes.mean() - 30.0) < 5.0 * np.sqrt(21.0 / 60)
    assert 10.0 < sizes.var() < 40.0


@pytest.mark.parametrize("num_nodes", [2, 3])
def test_cohorts_do_not_depend_on_the_number_of_nodes(num_nodes: int) -> None:
    def cohorts(nodes: int) -> list[set[tuple[str, int]]]:
        grid = Spy(Node({"a": [1] * 60, "b": [5] * 40}).app(), nodes)
        strategy = make_strategy(sampling=Poisson(0.3), block_size=4)
        strategy.start(grid, to_array_record(model(*SHAPES)), num_rounds=3)
        found: dict[int, set[tuple[str, int]]] = {}
        for message in grid.sent:
            order, _ = unpack_order(message.content)
            members = {(plan.site, client) for plan in order.blocks for client in plan.clients}
            assert found.setdefault(order.round, set()).isdisjoint(members)
            found[order.round] |= members
        return [found[number] for number in sorted(found)]

    assert cohorts(num_nodes) == cohorts(1)
    assert len(cohorts(1)) == 3


def test_full_participation_takes_everybody_with_records() -> None:
    node = Node({"a": [1, 0, 2], "b": [3]})
    run(make_strategy(sampling=FullParticipation()), node, model(*SHAPES))
    assert sorted(client for _, blocks in node.orders for clients in blocks for client in clients) == [0, 0, 2]


def test_a_seeded_run_cannot_charge_a_real_ledger(tmp_path: Path) -> None:
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path, simulation=False))
    grid = Spy(Node(SITES).app())
    with pytest.raises(LedgerError, match="seed"):
        strategy.start(grid, to_array_record(model(*SHAPES)), num_rounds=1)
    assert grid.sent == []


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda ledger: make_strategy(noise_multiplier=0.0, ledger=ledger), "noise_multiplier"),
    (lambda ledger: make_strategy(noise_multiplier=1.0), "noise_multiplier"),
    (lambda ledger: make_strategy(noise_multiplier=float("nan"), ledger=ledger), "noise_multiplier=nan"),
    (lambda ledger: make_strategy(noise_multiplier=float("nan")), "noise_multiplier=nan"),
    (lambda ledger: make_strategy(noise_multiplier=float("inf"), ledger=ledger), "noise_multiplier=inf"),
    (lambda ledger: make_strategy(noise_multiplier=-1.0, ledger=ledger), "noise_multiplier"),
    (lambda ledger: make_strategy(noise_multiplier=True, ledger=ledger), "noise_multiplier=True"),
    (lambda ledger: make_strategy(noise_multiplier=False), "noise_multiplier=False"),
    (lambda ledger: make_strategy(clip_norm=0.0), "clip_norm"),
    (lambda ledger: make_strategy(clip_norm=float("nan")), "clip_norm=nan"),
    (lambda ledger: make_strategy(block_size=0), "block_size=0"),
    (lambda ledger: make_strategy(block_size=True), "block_size=True"),
    (lambda ledger: make_strategy(min_enrolled=0), "min_enrolled=0"),
    (lambda ledger: make_strategy(sampling=FixedSize(2, 5)), "sampling"),  # type: ignore[arg-type]
    (lambda ledger: make_strategy(sampling=0.5), "sampling=0.5"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "named"), REFUSED)
def test_wrong_numbers_are_refused_by_name_before_anything_is_charged(
    tmp_path: Path, build: Callable[[Any], Any], named: str
) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(InvalidValueError, match=named):
        build(ledger)
    assert charges(ledger) == []


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "float16", "complex128"])
def test_arrays_that_cannot_be_released_are_refused_by_name_before_anything_is_charged(
    tmp_path: Path, dtype: str
) -> None:
    ledger = open_ledger(tmp_path)
    arrays: Any = {**model((3, 4)), "norm.num_batches_tracked": np.zeros((), dtype=dtype)}
    with pytest.raises(ModelError, match=r"norm\.num_batches_tracked"):
        run(make_strategy(noise_multiplier=Z, ledger=ledger), Node(SITES), arrays)
    assert charges(ledger) == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shapes_and_dtypes_are_kept(tmp_path: Path, dtype: str) -> None:
    arrays = {**model((3, 4), (), (1,), dtype=dtype), "other": np.zeros((2, 1, 3), dtype="float32")}
    out = run(make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path)), Node(SITES), arrays, rounds=2)
    described = {name: (value.shape, value.dtype) for name, value in arrays.items()}
    assert {name: (value.shape, value.dtype) for name, value in out.items()} == described
    assert all(np.all(value != 0.0) for value in out.values())


def test_what_is_not_charged_is_not_asked_for(tmp_path: Path) -> None:
    grid = Spy(Node(SITES).app())
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path))
    record = to_array_record(model(*SHAPES))
    assert list(strategy.configure_evaluate(1, record, ConfigRecord(), grid)) == []
    assert strategy.aggregate_evaluate(1, []) is None
    assert grid.sent == []


def test_the_inner_strategy_never_evaluates(tmp_path: Path) -> None:
    strategy = make_strategy(NeverEvaluates(), noise_multiplier=Z, ledger=open_ledger(tmp_path))
    result = strategy.start(Spy(Node(SITES).app()), to_array_record(model(*SHAPES)), num_rounds=2)
    assert result.evaluate_metrics_clientapp == {}
    assert result.train_metrics_clientapp == {}


class NeverEvaluates(FedAvg):
    def configure_evaluate(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("an un-noised metric was asked for")

    def aggregate_evaluate(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("an un-noised metric was aggregated")


def test_evaluate_fn_is_called_with_every_released_model(tmp_path: Path) -> None:
    calls: list[tuple[int, float]] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        calls.append((server_round, float(np.square(flat(from_array_record(arrays))).sum())))
        return None if server_round == 2 else MetricRecord({"norm": calls[-1][1]})

    results: list[RoundResult] = []
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path))
    grid = Spy(Node(SITES).app())
    result = strategy.start(
        grid, to_array_record(model(*SHAPES)), num_rounds=3, evaluate_fn=evaluate, on_round=results.append
    )
    assert [number for number, _ in calls] == [0, 1, 2, 3]
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 3]
    assert [norm for _, norm in calls[1:]] == [float(np.square(flat(entry.arrays)).sum()) for entry in results]
    assert results[1].metrics is None
    assert results[2].metrics == result.evaluate_metrics_serverapp[3]


def test_the_summary_names_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedDP"):
        make_strategy(clip_norm=0.5, sampling=Poisson(0.25)).summary()
    assert "FedAvg" in caplog.text
    assert "clip_norm=0.5" in caplog.text
    assert "0.25" in caplog.text


def test_the_enrolment_is_not_guessed() -> None:
    with pytest.raises(FedDPError, match="enrol"):
        _ = make_strategy().enrolment
