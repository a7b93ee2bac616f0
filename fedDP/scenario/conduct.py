"""One run of a scenario over any grid: what simulations and deployments have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from fedDP.budget import BudgetExceeded, EnrolmentTerms, Ledger
from fedDP.budget.policy import WINDOW_NAMES
from fedDP.errors import DataError
from fedDP.privacy.keys import RngKind, RootKey
from fedDP.scenario.build import block_size, build_model_and_task, local_training, server_optimizer
from fedDP.scenario.federated_data import FederatedData
from fedDP.scenario.privacy_plan import PrivacyPlan, plan_privacy
from fedDP.scenario.run_directory import Checkpoint, RunDirectory
from fedDP.scenario.run_ledger import open_ledger
from fedDP.scenario.schema import Scenario
from fedDP.scenario.statement import statements
from fedDP.strategies.client_level_dp import ClientLevelDP, RoundResult
from fedDP.strategies.enrolment import Enrolment, enrol
from fedDP.strategies.messages import from_array_record, to_array_record
from fedDP.strategies.parts import FlatClipping, GaussianNoise
from fedDP.training.checks import check_model
from fedDP.training.metrics import evaluate
from fedDP.training.parameters import Arrays, ParameterLayout, trainable_arrays

Metrics = dict[str, dict[str, Any]]
"""``{name: {"value", "status"}}``; the status is "simulation" for exact numbers about public data."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: "completed" or "stopped-by-budget".
        stop: the refusal, or None.
        metrics: of the final model; empty for data that is not public.
        seconds: of training, over all sittings of a run that was resumed.
    """

    status: str
    stop: BudgetExceeded | None
    rounds_completed: int
    metrics: Metrics
    privacy: list[dict[str, Any]]
    arrays: Arrays
    plan: PrivacyPlan
    enrolment: Enrolment
    seconds: float
    rng: RngKind


def conduct(
    scenario: Scenario,
    grid: Grid,
    directory: RunDirectory,
    *,
    test: FederatedData | None = None,
    one_row_per_client: bool = False,
    on_start: Callable[[PrivacyPlan, int], None] | None = None,
    on_round: Callable[[dict[str, Any], float], None] | None = None,
) -> Outcome:
    """Enrols, opens the ledger, trains all rounds that the budget grants, and writes the model and its history.

    Args:
        scenario: the study.
        grid: reaches its nodes.
        directory: where results go; an unfinished run in it is gone on with.
        test: held-out records; used only when the scenario declares its data public.
        one_row_per_client: for the statement.
        on_start: called with the plan and the first round before training.
        on_round: called with each line of ``rounds.jsonl`` and the round's seconds.

    Raises:
        FedDPError: before anything is charged, when the run cannot start.
    """
    enrolment = enrol(grid, min_clients=scenario.server.min_enrolled)
    model, task = build_model_and_task(scenario, num_features=enrolment.num_features, num_classes=enrolment.num_classes)
    check_model(model, task, num_features=enrolment.num_features)
    plan = plan_privacy(scenario, enrolment.num_clients)
    root = RootKey.create(scenario.scenario.seed)
    checkpoint = directory.load_checkpoint()
    if checkpoint and checkpoint.enrolment_sha256 != enrolment.sha256():
        raise DataError(
            f"The data is not what the run in {directory.path} began with: sites, clients, record counts or columns "
            "have changed, and with them what its charges mean. Put the old data back, or choose another --out."
        )
    run_id = checkpoint.run_id if checkpoint else f"{scenario.scenario.name}-{secrets.token_hex(6)}"
    start_round = checkpoint.round + 1 if checkpoint else 1
    ledger, scope = open_ledger(
        plan,
        directory,
        rng=root.rng,
        run_id=run_id,
        start_round=start_round,
        enrolment=EnrolmentTerms(num_clients=enrolment.num_clients, sha256=enrolment.list_sha256()),
        anchors=[checkpoint.ledger_anchor] if checkpoint and checkpoint.ledger_anchor else [],
    )
    num_parameters = ParameterLayout.of_arrays(trainable_arrays(model)).size
    strategy = make_strategy(plan, ledger, root, run_id, num_parameters)
    strategy.enrol(grid, enrolment)
    arrays = checkpoint.arrays if checkpoint else trainable_arrays(model)
    rows = list(checkpoint.rounds) if checkpoint else []
    earlier_seconds = checkpoint.seconds if checkpoint else 0.0
    directory.write_rounds(rows)
    public_test = test if scenario.data.public and test is not None and test.num_records else None
    every, last = scenario.server.evaluate_every, scenario.server.rounds

    def measure(arrays: Arrays) -> Metrics:
        if public_test is None:
            return {}
        values = evaluate(model, task, arrays, public_test.features, public_test.targets)
        return {name: {"value": value, "status": "simulation"} for name, value in values.items()}

    def evaluate_fn(server_round: int, record: ArrayRecord) -> MetricRecord | None:
        due = server_round == last or (every > 0 and server_round % every == 0)
        if server_round == 0 or not due or public_test is None:
            return None
        return MetricRecord({name: metric["value"] for name, metric in measure(from_array_record(record)).items()})

    began = time.monotonic()

    def save(result: RoundResult) -> None:
        rows.append(round_row(plan, ledger, result))
        directory.save_checkpoint(
            Checkpoint(
                round=result.round,
                run_id=run_id,
                arrays=result.arrays,
                inner_state=result.inner_state,
                rounds=rows,
                enrolment_sha256=enrolment.sha256(),
                seconds=earlier_seconds + time.monotonic() - began,
                ledger_anchor=ledger.anchor if ledger else None,
            )
        )

    def record(result: RoundResult) -> None:
        directory.append_round(rows[-1])
        directory.append_times(result.round, result.seconds)
        if on_round:
            on_round(rows[-1], result.seconds)

    if on_start:
        on_start(plan, start_round)
    result = strategy.start(
        grid,
        to_array_record(arrays),
        num_rounds=last,
        timeout=scenario.resources.timeout_seconds,
        evaluate_fn=evaluate_fn,
        start_round=start_round,
        inner_state=checkpoint.inner_state if checkpoint else None,
        checkpoint=save,
        on_round=record,
    )
    arrays = from_array_record(result.arrays)
    directory.save_model(model, arrays)
    return Outcome(
        status="stopped-by-budget" if strategy.stopped else "completed",
        stop=strategy.stopped,
        rounds_completed=len(rows),
        metrics=measure(arrays),
        privacy=statements(plan, ledger, rng=root.rng, one_row_per_client=one_row_per_client, scope=scope),
        arrays=arrays,
        plan=plan,
        enrolment=enrolment,
        seconds=earlier_seconds + time.monotonic() - began,
        rng=root.rng,
    )


def make_strategy(
    plan: PrivacyPlan, ledger: Ledger | None, root: RootKey, run_id: str, num_parameters: int
) -> ClientLevelDP:
    """The strategy of a resolved scenario."""
    scenario = plan.scenario
    return ClientLevelDP(
        server_optimizer(scenario),
        clipping=FlatClipping(scenario.privacy.clip_norm),
        noise=GaussianNoise(plan.noise_multiplier),
        sampling=plan.sampling,
        ledger=ledger,
        training=local_training(scenario),
        root_key=root,
        run_id=run_id,
        block_size=block_size(scenario, num_parameters=num_parameters),
        min_enrolled=scenario.server.min_enrolled,
    )


def without_privacy(scenario: Scenario) -> Scenario:
    """The same study without noise, clipping or ledger: what privacy is compared with.

    Only for data that is declared public: the exact model of a run without noise says anything about its data.
    """
    privacy = replace(
        scenario.privacy, noise_multiplier=0.0, clip_norm=max(1e3, scenario.privacy.clip_norm), target_epsilon=None
    )
    budget = replace(scenario.budget, week=None, year=None, trailing=None, lifetime=None, ledger=None)
    return replace(scenario, privacy=privacy, budget=budget)


def round_row(plan: PrivacyPlan, ledger: Ledger | None, result: RoundResult) -> dict[str, Any]:
    """A line of ``rounds.jsonl``."""
    week = result.grant.week if ledger else plan.weeks[result.round - 1]
    metrics = dict(result.metrics or {})
    if ledger is None:
        epsilons: dict[str, float] = dict.fromkeys(("round", "week", "year", "total"), float("inf"))
        fractions: dict[str, float | None] = {}
    else:
        windows = {name: ledger.status(name, week) for name in WINDOW_NAMES}
        epsilons = {
            "round": plan.epsilon(1),
            "week": windows["week"].spent_epsilon,
            "year": windows["year"].spent_epsilon,
            "total": windows["lifetime"].spent_epsilon,
        }
        fractions = {name: status.spent_fraction for name, status in windows.items()}
    return {
        "round": result.round,
        "week": week.key,
        "year": str(week.year),
        "noise_multiplier": result.grant.noise_multiplier,
        "clip_norm": result.grant.clip_norm,
        "noise_std": result.grant.noise_multiplier * result.grant.clip_norm / result.grant.denominator,
        "denominator": result.grant.denominator,
        "epsilon": epsilons,
        "spent_fraction": fractions,
        "metrics": {name: {"value": value, "status": "simulation"} for name, value in metrics.items()},
    }
