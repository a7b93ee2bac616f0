"""`feddp run`: simulates a scenario from its data to its summary."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from fedDP.scenario.conduct import Metrics, conduct, without_privacy
from fedDP.scenario.load_data import LoadedData, load_data
from fedDP.scenario.node import Node, make_client_app
from fedDP.scenario.run_directory import RunDirectory
from fedDP.scenario.schema import Scenario
from fedDP.scenario.summary import make_summary
from fedDP.simulation.base_grid import SimulationGrid
from fedDP.simulation.plan import Plan, plan_with_data, resolve_nodes
from fedDP.training.parameters import Arrays


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run gave.

    Attributes:
        status: "completed" or "stopped-by-budget".
        metrics: ``{name: {"value", "status"}}`` of the final model.
        privacy: the statements.
        arrays: the trained parameters, by name.
        summary: all of ``summary.json``.
        directory: where the files are.
    """

    status: str
    rounds_completed: int
    metrics: Metrics
    privacy: list[dict[str, Any]]
    arrays: Arrays
    summary: dict[str, Any]
    directory: Path


class Observer(Protocol):
    """Who is told how a run goes; a person's screen, or nobody."""

    def planned(self, plan: Plan, directory: Path) -> None: ...
    def started(self, first_round: int, nodes: int) -> None: ...
    def round_finished(self, row: dict[str, Any], seconds: float) -> None: ...
    def baseline_started(self) -> None: ...


class Silent:
    """Tells nobody."""

    def planned(self, plan: Plan, directory: Path) -> None:
        pass

    def started(self, first_round: int, nodes: int) -> None:
        pass

    def round_finished(self, row: dict[str, Any], seconds: float) -> None:
        pass

    def baseline_started(self) -> None:
        pass


def run(scenario: Scenario, out: str | Path | None = None, *, observer: Observer | None = None) -> RunResult:
    """Runs a scenario, or goes on with the unfinished run in `out`.

    Args:
        scenario: the study.
        out: the run directory; ``runs/<name>-<UTC time>`` by default.
        observer: is told how it goes.

    Raises:
        FedDPError: when it cannot start. A refusal by the budget is no error: the result says so.
    """
    observer = observer or Silent()
    data = load_data(scenario.data)
    plan = plan_with_data(scenario, data)
    directory = RunDirectory(Path(out) if out is not None else RunDirectory.default_path(scenario), scenario)
    observer.planned(plan, directory.path)
    nodes = resolve_nodes(scenario)
    began = time.monotonic()
    with _failures_logged(directory), _torch_threads(scenario), make_grid(scenario, data, nodes) as grid:
        outcome = conduct(
            scenario,
            grid,
            directory,
            test=data.test,
            one_row_per_client=data.one_row_per_client,
            on_start=lambda _plan, first_round: observer.started(first_round, nodes),
            on_round=observer.round_finished,
        )
        baseline = None
        if scenario.data.public and outcome.plan.noise_multiplier > 0.0 and outcome.rounds_completed:
            observer.baseline_started()
            baseline = _baseline(scenario, grid, directory, data, rounds=outcome.rounds_completed)
    summary = make_summary(outcome, nodes=nodes, warnings=plan.warnings, baseline=baseline)
    summary["total_seconds"] = time.monotonic() - began
    directory.write_summary(summary)
    return RunResult(
        status=outcome.status,
        rounds_completed=outcome.rounds_completed,
        metrics=outcome.metrics,
        privacy=outcome.privacy,
        arrays=outcome.arrays,
        summary=summary,
        directory=directory.path,
    )


def make_grid(scenario: Scenario, data: LoadedData, nodes: int) -> SimulationGrid:
    """The grid of the scenario's engine, every node of which serves all sites."""
    app = make_client_app(Node(scenario, data.train))
    if scenario.resources.engine == "local":
        from fedDP.simulation.local_grid import LocalGrid

        return LocalGrid(app, nodes)
    from fedDP.simulation.ray_grid import RayGrid

    return RayGrid(app, nodes, address=scenario.resources.ray_address, threads=scenario.resources.threads)


def _baseline(
    scenario: Scenario, grid: SimulationGrid, directory: RunDirectory, data: LoadedData, *, rounds: int
) -> dict[str, Any]:
    """As many rounds of the same training without privacy; simulation only, so its model is not kept."""
    folder = directory.private / "baseline"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed here
    try:
        plain = without_privacy(replace(scenario, server=replace(scenario.server, rounds=rounds)))
        outcome = conduct(plain, grid, RunDirectory(folder / "run", plain), test=data.test)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "description": "the same federated training without clipping and noise",
        "metrics": outcome.metrics,
        "rounds_completed": outcome.rounds_completed,
        "seconds": outcome.seconds,
    }


@contextmanager
def _torch_threads(scenario: Scenario) -> Iterator[None]:
    """Local nodes compute in this process, and a block's bits may depend on its threads: fixed here, then restored."""
    threads = torch.get_num_threads()
    torch.set_num_threads(scenario.resources.threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _failures_logged(directory: RunDirectory) -> Iterator[None]:
    """Keeps every failure, with its client and traceback, in the private folder."""
    handler = logging.FileHandler(directory.failures_path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("fedDP.node")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
