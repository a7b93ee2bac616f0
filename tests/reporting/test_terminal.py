"""What a person reads."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from fedDP.budget import Ledger
from fedDP.reporting.budget_page import budget_page
from fedDP.reporting.budget_text import budget_text
from fedDP.reporting.terminal import (
    Terminal,
    main_metric,
    number,
    plan_text,
    seconds_text,
    summary_text,
    table,
)
from fedDP.simulation.plan import plan
from fedDP.simulation.run import RunResult, run
from tests.scenario.runs import hospital, own_table


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, str]:
    """Ten rounds, and everything that was shown of them."""
    stream = io.StringIO()
    folder = tmp_path_factory.mktemp("watched") / "run"
    result = run(hospital(10), folder, observer=Terminal(stream))
    return result, stream.getvalue() + summary_text(result.summary, result.directory)


def test_ten_rounds_fit_on_a_page(watched: tuple[RunResult, str]) -> None:
    _, text = watched
    assert len(text.splitlines()) < 60
    assert sum(line.startswith("round ") for line in text.splitlines()) == 10
    assert "round 10/10  auc " in text


def test_simulation_only_numbers_are_labelled_wherever_they_stand(watched: tuple[RunResult, str]) -> None:
    _, text = watched
    for line in text.splitlines():
        if line.strip().startswith("auc") or " auc " in line:
            assert "simulation" in line


def test_epsilon_comes_with_everything_that_it_depends_on(watched: tuple[RunResult, str]) -> None:
    result, _ = watched
    text = summary_text(result.summary, result.directory)
    assert "epsilon, worst week" in text
    assert "epsilon, year" in text
    for part in ("patient", "zero_out", "delta 1e-05", "poisson sampling", "accountant pld", "this run only"):
        assert part in text, part
    assert str(result.directory) in text
    assert "nominal" not in text


def test_no_client_is_on_the_screen(tmp_path: Path) -> None:
    stream = io.StringIO()
    result = run(own_table(tmp_path), tmp_path / "run", observer=Terminal(stream))
    text = stream.getvalue() + summary_text(result.summary, result.directory)
    assert "p0" not in text
    assert "metrics" in text
    assert "none: no held-out records of data that is declared public" in text
    assert "uncovered-releases" not in text
    assert "auc" not in text


def test_a_seeded_run_calls_its_epsilon_nominal(tmp_path: Path) -> None:
    result = run(hospital(1, {"scenario.seed": 3}), tmp_path / "run")
    assert "every epsilon above is nominal" in summary_text(result.summary, result.directory)


def test_a_stop_by_the_budget_is_a_sentence(tmp_path: Path) -> None:
    overrides: dict[str, object] = {"privacy.noise_multiplier": 8.0, "budget.year": None, "budget.week": 0.15}
    result = run(hospital(4, {**overrides, "server.rounds_per_week": 4}), tmp_path / "run")
    text = summary_text(result.summary, result.directory)
    assert f"stopped by its budget after {result.rounds_completed} of 4 rounds. The budget of week 2026-W01" in text
    assert "It would fit from 2026-01-05 on." in text


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"privacy.noise_multiplier": 0, "budget.year": None, "budget.week": None},
        {"privacy.noise_multiplier": 0.5, "budget.year": 0.5},
        {"privacy.target_epsilon": 2.0, "budget.year": None, "budget.week": None},
        {"server.rounds_per_week": None},
    ],
)
def test_every_plan_and_run_can_be_shown(tmp_path: Path, overrides: dict[str, object]) -> None:
    scenario = hospital(3, overrides)
    text = plan_text(plan(scenario).to_dict())
    assert text.startswith("Plan of hospital\n")
    assert "None" not in text
    result = run(scenario, tmp_path / "run")
    assert "None" not in summary_text(result.summary, result.directory)
    if (tmp_path / "run" / "ledger.db").exists():
        shown = budget_text(budget_page(Ledger.load(str(tmp_path / "run" / "ledger.db"))))
        assert "None" not in shown
        assert "lifetime" in shown


def test_quiet_says_nothing_on_the_way(tmp_path: Path) -> None:
    stream = io.StringIO()
    terminal = Terminal(stream, quiet=True)
    run(hospital(1), tmp_path / "run", observer=terminal)
    assert stream.getvalue() == ""
    assert terminal.directory == tmp_path / "run"


def test_a_run_that_goes_on_says_so() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.started(1, 1)
    terminal.started(4, 2)
    assert stream.getvalue() == "Training on 1 node.\nGoing on with round 4 on 2 nodes.\n"


def test_tables_are_aligned() -> None:
    assert table([("a", "bb"), ("ccc", "d")], indent="") == "a    bb\nccc  d"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), ("inf", "inf"), (math.inf, "inf"), (0.123456, "0.1235"), (1e-5, "1e-05"), (7, "7"), ("even", "even")],
)
def test_numbers(value: object, expected: str) -> None:
    assert number(value) == expected


def test_durations() -> None:
    assert (seconds_text(0.123), seconds_text(12.3)) == ("0.12 s", "12 s")


def test_the_metric_that_stands_for_a_run() -> None:
    metric = {"value": 1.0, "status": "simulation"}
    assert main_metric({"loss": metric, "auc": metric}) == "auc"
    assert main_metric({"loss": metric, "accuracy": metric}) == "accuracy"
    assert main_metric({}) is None
