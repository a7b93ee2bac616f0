"""Client-level differential privacy around any Flower strategy."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedDP.accounting import FullParticipation, Gaussian, Poisson
from fedDP.budget import BudgetExceeded, Grant, IsoWeek, Ledger
from fedDP.errors import FedDPError, InvalidValueError, ModelError
from fedDP.privacy.keys import RootKey
from fedDP.privacy.limits import COUNT, check_headroom
from fedDP.privacy.sampling import poisson_sample
from fedDP.strategies.dispatch import Dispatch
from fedDP.strategies.enrolment import Enrolment, enrol
from fedDP.strategies.inner import InnerStrategy
from fedDP.strategies.messages import from_array_record, to_array_record
from fedDP.strategies.parts import FlatClipping, GaussianNoise
from fedDP.strategies.release import privatise
from fedDP.training.parameters import Arrays, ParameterLayout
from fedDP.training.trainer import LocalTraining

log = logging.getLogger("fedDP")

PURPOSE = "train"


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """A released round.

    Attributes:
        grant: what was charged; in a run without a ledger it has ``seq=0`` and no noise.
        arrays: the new global model.
        inner_state: the inner strategy with its momenta, for a checkpoint.
        metrics: what `evaluate_fn` returned for the new model.
        seconds: wall time; private, since it depends on the cohort.
    """

    round: int
    grant: Grant
    arrays: Arrays
    inner_state: bytes
    metrics: MetricRecord | None
    seconds: float


class ClientLevelDP(Strategy):
    """Clips every client, adds the noise that was charged, and hands the mean to an inner strategy.

    Guarantees:
        1. The ledger's charge is durable before any node is asked to train for a round; a refused round asks nobody.
        2. The noise, the clip norm and the denominator are the grant's. Dropouts, failures, an empty cohort or missing
           replies change neither noise nor charge, nor whether the round is released.
        3. One client moves the mean by at most ``C / D``, whatever it sends.
        4. The server's model after any number of rounds is post-processing of the charged releases.

    Args:
        inner: the server's optimiser; a copy is used. FedAvg by default.
        clipping: the bound on a client's update.
        noise: z; 0 only without a ledger.
        sampling: ``Poisson(rate)`` or ``FullParticipation()``.
        ledger: where releases are charged; None only without noise.
        training: what clients do.
        root_key: the run's key; from the operating system by default. Strategies that share an unseeded one draw
            different cohorts and noise all the same.
        run_id: names the run in the ledger.
        block_size: clients trained together on a node.
        min_enrolled: fewer clients than this are refused at the start.

    Raises:
        UnsupportedError: for an inner strategy that cannot be driven with one privatised mean.
        InvalidValueError: for noise without a ledger, a ledger without noise, or a number outside its range.
    """

    def __init__(
        self,
        inner: Strategy | None = None,
        *,
        clipping: FlatClipping,
        noise: GaussianNoise,
        sampling: Poisson | FullParticipation,
        ledger: Ledger | None = None,
        training: LocalTraining | None = None,
        root_key: RootKey | None = None,
        run_id: str = "run",
        block_size: int = 64,
        min_enrolled: int = 1,
    ) -> None:
        noise.require_ledger(has_ledger=ledger is not None)
        if type(sampling) not in (Poisson, FullParticipation):
            raise InvalidValueError("sampling", sampling, "Poisson(rate) or FullParticipation()")
        self.stopped: BudgetExceeded | None = None
        self._inner = InnerStrategy(inner if inner is not None else FedAvg())
        self._clipping = clipping
        self._noise = noise
        self._sampling = sampling
        self._ledger = ledger
        self._training = training or LocalTraining()
        self._root = _own_root(root_key or RootKey.create())
        self._run_id = run_id
        self._block_size = int(COUNT.check("block_size", block_size))
        self._min_enrolled = int(COUNT.check("min_enrolled", min_enrolled))
        self._enrolment: Enrolment | None = None
        self._layout: ParameterLayout | None = None
        self._arrays: Arrays = {}
        self._grant: Grant | None = None
        self._dispatch: Dispatch | None = None

    @property
    def enrolment(self) -> Enrolment:
        """The enrolment, fixed by `enrol`.

        Raises:
            FedDPError: before it.
        """
        if self._enrolment is None:
            raise FedDPError("The enrolment is not known yet: call enrol(grid) or start(...) first.")
        return self._enrolment

    @property
    def denominator(self) -> float:
        """D: the expected cohort, fixed and public."""
        rate = self._sampling.rate if isinstance(self._sampling, Poisson) else 1.0
        return rate * self.enrolment.num_clients

    def enrol(self, grid: Grid, enrolment: Enrolment | None = None) -> Enrolment:
        """Learns the enrolment from the nodes, or takes the one given.

        Raises:
            DataError: when too few clients are enrolled.
            InvalidValueError: when so many are that sums could overflow.
        """
        self._enrolment = enrolment or enrol(grid, min_clients=self._min_enrolled)
        check_headroom(
            num_clients=self._enrolment.num_clients, noise_multiplier=max(self._noise.noise_multiplier, 1e-6)
        )
        return self._enrolment

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Charges the round, samples a cohort, and orders its blocks from the nodes.

        Raises:
            BudgetExceeded: when the ledger refuses; nobody was asked to train.
        """
        if self._enrolment is None:
            self.enrol(grid)
        self._dispatch = None
        self._grant = self._authorise(server_round)
        self._arrays = from_array_record(arrays)
        self._layout = ParameterLayout.of_arrays(self._arrays)
        inner_config = self._inner.configure(server_round, self._arrays)
        attempt = self._grant.attempt
        cohort = self._sample(self._root.for_round("sampling", server_round, attempt))
        self._dispatch = Dispatch(
            self.enrolment,
            cohort,
            round=server_round,
            block_size=self._block_size,
            clip_norm=self._grant.clip_norm,
            config=_with_proximal_term(self._training, inner_config),
            key=self._root.for_round("training", server_round, attempt),
            arrays=arrays,
            size=self._layout.size,
        )
        return self._dispatch.messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sums the replies, adds the charged noise, and steps the inner strategy.

        Raises:
            GrantError: on a second call for one grant.
        """
        if self._grant is not None and self._grant.round == server_round and self._grant.used:
            self._grant.use()  # raises
        if self._grant is None or self._dispatch is None or self._layout is None or self._grant.round != server_round:
            raise FedDPError(f"Round {server_round} was not configured: nothing was charged, so nothing is released.")
        for reply in replies:
            self._dispatch.receive(reply)
        mean = privatise(self._dispatch.total(), self._grant, self._root)
        self._dispatch = None
        self._arrays = self._inner.step(server_round, self._arrays, self._layout.unflatten(mean))
        return to_array_record(self._arrays), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks for nothing: what clients measure on their data would be an uncharged release."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Releases nothing."""
        return None

    def summary(self) -> None:
        """Logs the settings."""
        log.info(
            "ClientLevelDP(inner=%s, clip_norm=%g, noise_multiplier=%g, sampling=%s)",
            self._inner.name,
            self._clipping.clip_norm,
            self._noise.noise_multiplier,
            self._sampling,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        start_round: int = 1,
        inner_state: bytes | None = None,
        checkpoint: Callable[[RoundResult], None] | None = None,
        on_round: Callable[[RoundResult], None] | None = None,
    ) -> Result:
        """Runs rounds `start_round` to `num_rounds`, or until the budget refuses one.

        Args:
            grid: reaches the nodes.
            initial_arrays: the model to go on from.
            num_rounds: the number of the last round.
            timeout: seconds that nodes may take for their share of a round.
            train_config, evaluate_config: unused; what clients do is `training`.
            evaluate_fn: called with the round and the released model; what it returns must be public.
            start_round: the first round; above 1 when a run goes on.
            inner_state: `RoundResult.inner_state` of the round before, when a run goes on. A run from round 1 without
                it starts with a fresh inner strategy.
            checkpoint: called with every released round before the ledger's mark, so that a crash in between finds a
                model for every marked release.
            on_round: called after the mark.

        Returns:
            Flower's result. After a refusal it holds the last released model, and `stopped` says why.

        Raises:
            DataError, ModelError, UnsupportedError, InvalidValueError: before anything is charged.
        """
        self.stopped = None
        if self._enrolment is None:
            self.enrol(grid)
        arrays = from_array_record(initial_arrays)
        _check_precision(arrays)
        if inner_state is not None:
            self._inner.restore(inner_state)
        elif start_round == 1:
            self._inner.reset()
        self._inner.probe(arrays)
        record = to_array_record(arrays)
        result = Result(arrays=record)
        if evaluate_fn and start_round == 1 and (metrics := evaluate_fn(0, record)) is not None:
            result.evaluate_metrics_serverapp[0] = metrics
        for server_round in range(start_round, num_rounds + 1):
            began = time.perf_counter()
            try:
                messages = list(self.configure_train(server_round, record, ConfigRecord(), grid))
            except BudgetExceeded as refusal:
                self.stopped = refusal
                break
            self._collect(grid, messages, timeout)
            aggregated, _ = self.aggregate_train(server_round, [])
            assert aggregated is not None  # an inner strategy that returns nothing raised
            record = result.arrays = aggregated
            metrics = evaluate_fn(server_round, record) if evaluate_fn else None
            if metrics is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
            assert self._grant is not None
            finished = RoundResult(
                round=server_round,
                grant=self._grant,
                arrays=self._arrays,
                inner_state=self._inner.state(),
                metrics=metrics,
                seconds=time.perf_counter() - began,
            )
            if checkpoint:
                checkpoint(finished)
            if self._ledger:
                self._ledger.mark_released(self._grant)
            if on_round:
                on_round(finished)
        return result

    def _collect(self, grid: Grid, messages: list[Message], timeout: float) -> None:
        """Sends the round's orders; what comes back unusable is ordered again in ever smaller parts."""
        assert self._dispatch is not None
        while messages:
            for reply in grid.send_and_receive(messages, timeout=timeout):
                self._dispatch.receive(reply)
            messages = self._dispatch.retry()

    def _authorise(self, server_round: int) -> Grant:
        clip_norm, denominator = self._clipping.clip_norm, self.denominator
        if self._ledger is None:
            return Grant(
                seq=0,
                run_id=self._run_id,
                round=server_round,
                purpose=PURPOSE,
                attempt=1,
                event=None,
                noise_multiplier=0.0,
                clip_norm=clip_norm,
                denominator=denominator,
                max_weight=1.0,
                sampling=self._sampling,
                week=IsoWeek(2026, 1),
            )
        return self._ledger.authorise(
            Gaussian(self._noise.noise_multiplier, sampling=self._sampling),
            run_id=self._run_id,
            round=server_round,
            purpose=PURPOSE,
            clip_norm=clip_norm,
            denominator=denominator,
            rng=self._root.rng,
        )

    def _sample(self, key: bytes) -> npt.NDArray[np.int64]:
        assert self._grant is not None
        sampling = self._grant.sampling
        if isinstance(sampling, Poisson):
            return poisson_sample(self.enrolment.num_clients, rate=sampling.rate, key=key)
        if isinstance(sampling, FullParticipation):
            return np.arange(self.enrolment.num_clients, dtype=np.int64)
        raise InvalidValueError("sampling", sampling, "Poisson(rate) or FullParticipation()")


def _own_root(root: RootKey) -> RootKey:
    """A key of this strategy alone: the difference of two releases with one noise would cancel it.

    Only seeded runs are meant to repeat.
    """
    if root.rng == "seeded":
        return root
    return RootKey(root.derive("strategy", secrets.token_hex(32)), root.rng)


def _check_precision(arrays: Arrays) -> None:
    ParameterLayout.of_arrays(arrays)
    for name, value in arrays.items():
        if value.dtype.itemsize < 4:
            raise ModelError(
                f"Parameter {name!r} is {value.dtype}: released updates would be rounded away. "
                "Keep the global model in float32."
            )


def _with_proximal_term(training: LocalTraining, inner_config: ConfigRecord) -> LocalTraining:
    """FedProx asks its clients for a proximal term through the configuration it sends."""
    value: Any = inner_config.get("proximal-mu")
    return training if value is None else replace(training, proximal_mu=float(value))
