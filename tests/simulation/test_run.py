"""A run from its scenario to its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file

from fedDP.budget import Ledger
from fedDP.errors import DataError, FedDPError, LedgerError
from fedDP.scenario.build import build_model_and_task
from fedDP.scenario.load import load_scenario
from fedDP.scenario.load_data import load_data
from fedDP.scenario.run_directory import RunDirectory
from fedDP.scenario.run_ledger import population_ledger
from fedDP.scenario.schema import Scenario
from fedDP.simulation.run import RunResult, run
from fedDP.strategies.client_level_dp import ClientLevelDP
from fedDP.training.parameters import model_sha256
from tests.scenario.runs import Interrupting, hospital, own_table, read_rounds, read_summary, strict

PUBLISHED = {"ledger.db", "model.safetensors", "rounds.jsonl", "scenario.toml", "summary.json"}

ROW_KEYS = {
    "round", "week", "year", "noise_multiplier", "clip_norm", "noise_std", "denominator", "epsilon", "metrics",
}  # fmt: skip

SUMMARY_KEYS = {
    "status", "stop", "rounds_completed", "metrics", "baseline", "privacy", "warnings", "model_sha256", "enrolled",
    "expected_cohort", "nodes", "seconds", "clients_per_second",
}  # fmt: skip

STOP_KEYS = {"window", "spent", "asked", "allowance", "resumes"}

SEED: dict[str, object] = {"scenario.seed": 5}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Four rounds of the scenario that ships, unseeded."""
    return run(hospital(4), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Ten seeded rounds without a break, and with a server optimiser that remembers."""
    return run(seeded(), tmp_path_factory.mktemp("straight") / "run")


OVERRIDES: dict[str, object] = {
    "scenario.seed": 5,
    "server.optimizer": "fedadam",
    "server.learning_rate": 0.1,
}


def seeded() -> Scenario:
    return hospital(10, OVERRIDES)


def test_the_files_are_those_of_the_contract(finished: RunResult) -> None:
    folder = finished.directory
    assert {path.name for path in folder.iterdir()} == PUBLISHED
    assert {path.name for path in folder.parent.iterdir()} == {"run", "run.private"}
    private = folder.with_name("run.private")
    assert private.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in private.iterdir()} <= {"checkpoint", "lock", "times.jsonl", "failures.log"}


def test_rows_have_the_keys_of_the_contract(finished: RunResult) -> None:
    rows = read_rounds(finished.directory)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert [row["week"] for row in rows] == ["2026-W01", "2026-W01", "2026-W02", "2026-W02"]
    for row in rows:
        assert set(row) >= ROW_KEYS
        assert row["year"] == "2026"
        assert set(row["epsilon"]) == {"round", "week", "year", "total"}
        assert row["noise_std"] == pytest.approx(row["noise_multiplier"] * row["clip_norm"] / row["denominator"])
        assert set(row["metrics"]) == {"auc", "accuracy", "loss"}
        assert all(set(metric) == {"value", "status"} for metric in row["metrics"].values())
        assert {metric["status"] for metric in row["metrics"].values()} == {"simulation"}
    totals = [row["epsilon"]["total"] for row in rows]
    assert totals == sorted(totals)
    assert [row["epsilon"]["week"] for row in rows[:2]] == [row["epsilon"]["week"] for row in rows[2:]]


def test_the_summary_has_the_keys_of_the_contract(finished: RunResult) -> None:
    summary = read_summary(finished.directory)
    assert set(summary) >= SUMMARY_KEYS
    assert summary == strict(json.dumps(finished.summary))
    assert (summary["status"], summary["stop"], summary["rounds_completed"]) == ("completed", None, 4)
    assert summary["enrolled"] == 694
    assert summary["expected_cohort"] == pytest.approx(0.2 * 694)
    assert summary["clients_per_second"] == pytest.approx(summary["expected_cohort"] * 4 / summary["seconds"])
    assert {metric["status"] for metric in summary["metrics"].values()} == {"simulation"}
    assert {metric["status"] for metric in summary["baseline"]["metrics"].values()} == {"simulation"}
    assert all(set(warning) == {"code", "text"} for warning in summary["warnings"])
    assert summary["metrics"] == read_rounds(finished.directory)[-1]["metrics"]


def test_the_ledger_agrees_with_rows_and_statements(finished: RunResult) -> None:
    ledger = Ledger.load(str(finished.directory / "ledger.db"))
    assert ledger.head[0] == 8  # four charges, four marks
    lifetime = ledger.windows()[-1]
    last = read_rounds(finished.directory)[-1]
    by_window = {statement["window"]: statement for statement in read_summary(finished.directory)["privacy"]}
    assert lifetime.charges == by_window["lifetime"]["charges"] == 4
    assert lifetime.spent_epsilon == last["epsilon"]["total"] == by_window["lifetime"]["epsilon"]
    assert by_window["year"]["epsilon"] == last["epsilon"]["year"]


def test_the_model_file_loads_strict_and_has_the_hash(finished: RunResult) -> None:
    scenario = load_scenario(finished.directory / "scenario.toml")
    train = load_data(scenario.data).train
    model, _ = build_model_and_task(scenario, num_features=train.features.shape[1], num_classes=train.num_classes)
    path = finished.directory / "model.safetensors"
    model.load_state_dict(load_file(path), strict=True)
    assert model_sha256(load_arrays(path)) == finished.summary["model_sha256"] == model_sha256(finished.arrays)


def test_the_resolved_scenario_loads_equal(finished: RunResult) -> None:
    assert load_scenario(finished.directory / "scenario.toml") == hospital(4)


def test_nothing_private_is_published(tmp_path: Path) -> None:
    scenario = own_table(tmp_path)
    result = run(scenario, tmp_path / "run")
    texts = {path.name: path.read_bytes() for path in result.directory.iterdir()}
    texts["ledger"] = population_ledger(scenario).read_bytes()
    for name, data in texts.items():
        for secret in (b"p000", b"p017", b"Traceback", b'"cohort"', str(Path.home()).encode() + b"/."):
            assert secret not in data, (name, secret)
    for row in read_rounds(result.directory):
        assert not {key for key in row if "second" in key or "cohort" in key or "client" in key}


def test_without_a_declaration_nothing_exact_is_measured(tmp_path: Path) -> None:
    result = run(own_table(tmp_path), tmp_path / "run")
    summary = read_summary(result.directory)
    assert (result.metrics, summary["metrics"], summary["baseline"]) == ({}, {}, None)
    assert [row["metrics"] for row in read_rounds(result.directory)] == [{}, {}]
    assert {path.name for path in result.directory.iterdir()} == PUBLISHED - {"ledger.db"}
    assert "simulation" not in {warning["code"].split("-")[0] for warning in summary["warnings"]}


def test_runs_on_one_population_share_a_ledger_beside_the_data(tmp_path: Path) -> None:
    scenario = own_table(tmp_path)
    assert population_ledger(scenario) == tmp_path / "county.patient.ledger.db"
    first, second = (run(scenario, tmp_path / name) for name in ("one", "two"))
    assert [row["week"] for row in read_rounds(first.directory)] == ["2026-W01"] * 2
    # The weeks that the first run has used up are over.
    assert [row["week"] for row in read_rounds(second.directory)] == ["2026-W02"] * 2
    totals = [row["epsilon"]["total"] for each in (first, second) for row in read_rounds(each.directory)]
    assert totals == sorted(set(totals))
    lifetime = second.privacy[-1]
    assert (lifetime["window"], lifetime["charges"]) == ("lifetime", 4)
    assert lifetime["scope"] == "all runs charged to population 'county' in county.patient.ledger.db"
    assert Ledger.load(str(population_ledger(scenario))).definition.population == "county"


def test_a_second_ledger_for_a_population_is_refused(tmp_path: Path) -> None:
    run(own_table(tmp_path), tmp_path / "one")
    other = own_table(tmp_path, {"budget.ledger": f"sqlite:///{tmp_path}/other.db"})
    with pytest.raises(LedgerError, match="has a ledger already"):
        run(other, tmp_path / "two")
    assert not (tmp_path / "other.db").exists()


def test_a_ledger_elsewhere_is_the_population_s_only_one(tmp_path: Path) -> None:
    elsewhere = own_table(tmp_path, {"budget.ledger": f"sqlite:///{tmp_path}/vault/ledger.db"})
    run(elsewhere, tmp_path / "one")
    assert run(elsewhere, tmp_path / "two").privacy[-1]["charges"] == 4
    for overrides in ({}, {"budget.ledger": f"sqlite:///{tmp_path}/third.db"}):
        with pytest.raises(LedgerError, match="has a ledger already"):
            run(own_table(tmp_path, overrides), tmp_path / f"three {len(overrides)}")
    assert not population_ledger(elsewhere).exists()


def test_a_link_to_the_data_is_the_same_data(tmp_path: Path) -> None:
    scenario = own_table(tmp_path)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "table.csv").symlink_to(tmp_path / "table.csv")
    assert population_ledger(own_table(tmp_path / "links")) == population_ledger(scenario)


def test_odd_names_of_populations_are_file_names(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {"data.population_id": "../county?", "scenario.unit": "bank/customer"})
    path = population_ledger(scenario)
    assert path == tmp_path / ".._county?.bank_customer.ledger.db"
    run(scenario, tmp_path / "run")
    assert path.exists()


@pytest.mark.parametrize("name", ["what?", "50%20off", "with space"])
def test_a_run_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    run(hospital(1), tmp_path / name)
    assert (tmp_path / name / "ledger.db").exists()


def test_a_seeded_run_of_public_data_keeps_its_own_ledger(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {**SEED, "data.public": True})
    result = run(scenario, tmp_path / "run")
    assert not population_ledger(scenario).exists()
    assert (tmp_path / "run" / "ledger.db").exists()
    assert {statement["rng"] for statement in result.privacy} == {"seeded"}
    assert {statement["scope"] for statement in result.privacy} == {"this run only"}
    assert Ledger.load(str(tmp_path / "run" / "ledger.db")).definition.simulation


def test_the_same_seed_gives_the_same_run_in_one_process(tmp_path: Path, straight: RunResult) -> None:
    again = run(seeded(), tmp_path / "again")
    assert again.summary["model_sha256"] == straight.summary["model_sha256"]
    assert read_rounds(again.directory) == read_rounds(straight.directory)


def test_without_a_seed_runs_differ(tmp_path: Path, finished: RunResult) -> None:
    again = run(hospital(4), tmp_path / "again")
    assert again.summary["model_sha256"] != finished.summary["model_sha256"]


@pytest.mark.parametrize("after", [1, 5, 10])
def test_an_interrupted_seeded_run_goes_on_as_if_nothing_had_been(
    tmp_path: Path, straight: RunResult, after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(seeded(), tmp_path / "run", observer=Interrupting(after))
    assert not (tmp_path / "run" / "summary.json").exists()
    assert len(read_rounds(tmp_path / "run")) == after
    resumed = run(seeded(), tmp_path / "run")
    assert resumed.summary["model_sha256"] == straight.summary["model_sha256"]
    rows, unbroken = ((result.directory / "rounds.jsonl").read_bytes() for result in (resumed, straight))
    assert rows == unbroken
    assert resumed.privacy == straight.privacy
    assert resumed.metrics == straight.metrics


def test_an_interrupted_unseeded_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(hospital(4), tmp_path / "run", observer=Interrupting(2))
    before = read_rounds(tmp_path / "run")
    resumed = run(hospital(4), tmp_path / "run")
    rows = read_rounds(resumed.directory)
    assert rows[:2] == before
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert resumed.privacy[-1]["charges"] == 4


def test_a_run_does_not_go_on_without_the_ledger_it_was_charged_to(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(hospital(4), tmp_path / "run", observer=Interrupting(2))
    (tmp_path / "run" / "ledger.db").unlink()
    with pytest.raises(LedgerError, match="was rolled back: row 0 is missing"):
        run(hospital(4), tmp_path / "run")
    (tmp_path / "run.private" / "checkpoint" / "ledger.anchor").unlink()
    with pytest.raises(LedgerError, match="was rolled back: row 0 is missing, and an anchor has seen row 3"):
        run(hospital(4), tmp_path / "run")


def test_a_run_interrupted_on_a_population_s_ledger_keeps_its_weeks(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {"server.rounds": 4})
    with pytest.raises(KeyboardInterrupt):
        run(scenario, tmp_path / "run", observer=Interrupting(3))
    resumed = run(scenario, tmp_path / "run")
    weeks = [row["week"] for row in read_rounds(resumed.directory)]
    assert weeks == ["2026-W01", "2026-W01", "2026-W02", "2026-W02"]
    assert resumed.privacy[-1]["charges"] == 4


@pytest.mark.parametrize("cut", [1, 4])
def test_a_charge_that_an_interruption_wastes_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    collect = ClientLevelDP._collect

    def interrupted(self: ClientLevelDP, *arguments: Any) -> None:
        assert self._grant is not None
        if self._grant.round == cut:
            raise KeyboardInterrupt
        collect(self, *arguments)

    monkeypatch.setattr(ClientLevelDP, "_collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(hospital(6), tmp_path / "run")
    monkeypatch.undo()
    resumed = run(hospital(6), tmp_path / "run")
    # The week is full with the charge that was wasted: the run goes on in the next one, and keeps to its budget.
    assert (resumed.status, resumed.rounds_completed) == ("completed", 6)
    assert resumed.privacy[-1]["charges"] == 7
    assert resumed.privacy[0]["charges"] == 2
    weeks = [int(row["week"][-2:]) for row in read_rounds(tmp_path / "run")]
    kept = (cut - 1) // 2 + 1
    assert weeks[: cut - 1] == [(round + 1) // 2 for round in range(1, cut)]
    assert weeks[cut - 1] == kept + 1
    assert weeks == sorted(weeks)


def test_a_resumed_run_does_not_slip_past_a_week_that_it_spent_itself(tmp_path: Path) -> None:
    overrides = {"privacy.noise_multiplier": 8.0, "budget.year": None, "budget.week": 0.2}
    scenario = hospital(9, {**overrides, "server.rounds_per_week": 9})
    straight = run(scenario, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        run(scenario, tmp_path / "run", observer=Interrupting(1))
    resumed = run(scenario, tmp_path / "run")
    assert resumed.status == straight.status == "stopped-by-budget"
    assert resumed.rounds_completed == straight.rounds_completed > 1


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_budget_that_ends_stops_the_run_and_keeps_what_it_has(tmp_path: Path, rounds: int) -> None:
    noise = 8.0 if rounds else 0.5
    scenario = hospital(
        8, {"privacy.noise_multiplier": noise, "budget.year": None, "budget.week": None, "budget.lifetime": 0.16}
    )
    result = run(scenario, tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    assert (result.status, summary["status"]) == ("stopped-by-budget", "stopped-by-budget")
    assert result.rounds_completed == summary["rounds_completed"] == len(read_rounds(tmp_path / "run")) == rounds
    stop = summary["stop"]
    assert set(stop) >= STOP_KEYS
    assert (stop["window"], stop["resumes"]) == ("lifetime", None)
    assert stop["spent"] <= stop["allowance"] < stop["asked"]
    assert "The budget of the ledger's lifetime cannot take this release" in stop["text"]
    assert {path.name for path in (tmp_path / "run").iterdir()} == PUBLISHED
    assert model_sha256(load_arrays(tmp_path / "run" / "model.safetensors")) == summary["model_sha256"]
    assert set(summary["metrics"]) == {"auc", "accuracy", "loss"}
    assert summary["privacy"][-1]["charges"] == rounds
    assert summary["privacy"][-1]["epsilon"] <= 0.16


def test_a_full_week_says_when_it_goes_on(tmp_path: Path) -> None:
    scenario = hospital(
        4, {"privacy.noise_multiplier": 8.0, "budget.year": None, "budget.week": 0.15, "server.rounds_per_week": 4}
    )
    stop = run(scenario, tmp_path / "run").summary["stop"]
    assert (stop["window"], stop["key"], stop["resumes"]) == ("week", "2026-W01", "2026-01-05")
    assert stop["text"].endswith("It would fit from 2026-01-05 on.")


def test_without_noise_there_is_no_ledger_and_no_promise(tmp_path: Path) -> None:
    scenario = hospital(2, {"privacy.noise_multiplier": 0, "budget.year": None, "budget.week": None})
    result = run(scenario, tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == PUBLISHED - {"ledger.db"}
    (statement,) = summary["privacy"]
    assert (statement["epsilon"], statement["epsilon_certified"], statement["accountant"]) == ("inf", "inf", "none")
    assert statement["scope"] == "no ledger"
    assert set(read_rounds(result.directory)[0]["epsilon"].values()) == {"inf"}
    assert "no-privacy" in {warning["code"] for warning in summary["warnings"]}
    assert summary["baseline"] is None


@pytest.mark.parametrize(
    "overrides",
    [
        {"data.test_fraction": 0.0},
        {"server.evaluate_every": 0},
        {"client.block_size": 1},
        {"resources.nodes": 3},
        {"client.learning_rate": 1e6},
    ],
)
def test_limits_run(tmp_path: Path, overrides: dict[str, object]) -> None:
    result = run(hospital(2, overrides), tmp_path / "run")
    assert result.rounds_completed == 2
    held_out = overrides.get("data.test_fraction") != 0.0
    assert bool(result.metrics) == held_out
    rows = read_rounds(tmp_path / "run")
    assert [bool(row["metrics"]) for row in rows] == [held_out and "server.evaluate_every" not in overrides, held_out]


TABLES = {
    "one row": ["p1,h1,30,1,1"],
    "one client": [f"p1,h1,{30 + row},1,{row % 2}" for row in range(9)],
    "one class": [f"p{row},h1,{30 + row},1,1" for row in range(40)],
    "everything missing": [f"p{row},h1,,,{row % 2}" for row in range(40)],
    "a constant column": [f"p{row},h1,{30 + row},0.5,{row % 2}" for row in range(40)],
    "one id at two sites": [f"p{row // 2},h{row % 2},{30 + row},0.5,{row % 2}" for row in range(40)],
}


@pytest.mark.parametrize("rows", TABLES.values(), ids=TABLES)
def test_odd_tables_run(tmp_path: Path, rows: list[str]) -> None:
    (tmp_path / "table.csv").write_text("\n".join(["patient,hospital,age,dose,sick", *rows]) + "\n")
    scenario = own_table(tmp_path, {**SEED, "data.public": True, "privacy.delta": 1e-2})
    result = run(scenario, tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    assert summary["enrolled"] == len({tuple(row.split(",")[:2]) for row in rows}) - _held_out_clients(scenario)
    assert result.rounds_completed == 2


def _held_out_clients(scenario: Scenario) -> int:
    return load_data(scenario.data).test.num_clients


def test_one_class_has_no_auc(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("\n".join(["patient,hospital,age,dose,sick", *TABLES["one class"]]) + "\n")
    run(own_table(tmp_path, {**SEED, "data.public": True}), tmp_path / "run")
    assert read_summary(tmp_path / "run")["metrics"]["auc"] == {"value": None, "status": "simulation"}
    assert read_rounds(tmp_path / "run")[0]["metrics"]["auc"]["value"] is None


@pytest.mark.slow
def test_patients_of_four_hospitals_lose_next_to_nothing(tmp_path: Path) -> None:
    scenario = load_scenario("hospital", {"scenario.seed": 1, "resources.engine": "local"})
    result = run(scenario, tmp_path / "run")
    baseline: Any = result.summary["baseline"]
    assert result.rounds_completed == scenario.server.rounds
    assert result.privacy[-1]["epsilon"] <= 1.0
    assert result.metrics["auc"]["value"] > baseline["metrics"]["auc"]["value"] - 0.02
    assert baseline["metrics"]["auc"]["value"] > 0.85


def test_hospitals_as_clients_run_and_are_warned_about(tmp_path: Path) -> None:
    silo = Path(__file__).resolve().parents[2] / "simulations" / "hospital-silo.toml"
    result = run(load_scenario(silo, {"resources.engine": "local", "server.rounds": 2}), tmp_path / "run")
    assert result.summary["enrolled"] == 4
    codes = {warning["code"] for warning in result.summary["warnings"]}
    assert {"few-clients", "noise-drowns-signal"} <= codes
    assert {statement["unit"] for statement in result.privacy} == {"hospital"}
    assert {statement["sampling"]["kind"] for statement in result.privacy} == {"all"}
    assert {statement["accountant"] for statement in result.privacy} == {"gdp"}


def test_the_label_is_of_the_accountant_that_gave_the_number(tmp_path: Path) -> None:
    scenario = hospital(2, {"privacy.sampling": "all", "privacy.sampling_rate": None, "privacy.accountant": "rdp"})
    result = run(scenario, tmp_path / "run")
    assert {statement["accountant"] for statement in result.privacy} == {"gdp"}
    assert result.summary["epsilon_accountant"] == "rdp"  # of the epsilon of a round


def test_a_later_run_never_opens_the_next_simulated_year(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {"server.rounds": 106})
    assert run(scenario, tmp_path / "first").status == "completed"
    later = run(scenario, tmp_path / "later")
    assert (later.status, later.rounds_completed) == ("stopped-by-budget", 0)
    assert later.summary["stop"]["resumes"] == "2027-01-04"
    noise = later.summary["noise_multiplier"]  # what 106 rounds ask for; one round alone would ask for less
    changes = {"server.rounds": 1, "budget.start": "2027-W01", "privacy.noise_multiplier": noise}
    opened = run(own_table(tmp_path, changes), tmp_path / "opened")
    assert [row["week"] for row in read_rounds(opened.directory)] == ["2027-W01"]


def test_the_baseline_has_as_many_rounds_as_were_granted(tmp_path: Path) -> None:
    fixed = {"privacy.noise_multiplier": 2.0, "budget.week": 1.0, "server.rounds_per_week": 50}
    result = run(hospital(20, fixed), tmp_path / "run")
    assert 0 < result.rounds_completed < 20
    assert result.summary["baseline"]["rounds_completed"] == result.rounds_completed
    assert run(hospital(20, {**fixed, "budget.week": 0.5}), tmp_path / "none").summary["baseline"] is None


def test_an_unfinished_directory_names_the_keys_that_differ(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", hospital(2))
    with pytest.raises(FedDPError, match=r"client\.epochs, server\.rounds differ"):
        RunDirectory(tmp_path / "run", hospital(3, {"client.epochs": 2}))


@pytest.mark.e2e
def test_two_processes_cannot_run_in_one_directory(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", hospital(2))
    code = (
        "import sys; from fedDP.scenario.load import load_scenario; from pathlib import Path\n"
        "from fedDP.scenario.run_directory import RunDirectory\n"
        "RunDirectory(Path(sys.argv[1]), load_scenario(Path(sys.argv[1]) / 'scenario.toml'))"
    )
    command = [sys.executable, "-c", code, str(directory.path)]
    assert (
        "Another process is running in" in subprocess.run(command, capture_output=True, text=True, check=False).stderr
    )


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {"server.rounds": 6})
    with pytest.raises(KeyboardInterrupt):
        run(scenario, tmp_path / "run", observer=Interrupting(2))
    table = tmp_path / "table.csv"
    table.write_text(
        "".join(line for line in table.read_text().splitlines(keepends=True) if not line.startswith("p005"))
    )
    with pytest.raises(DataError, match="not what the run in"):
        run(scenario, tmp_path / "run")


def test_a_run_does_not_go_on_with_an_old_copy_of_its_ledger(tmp_path: Path) -> None:
    scenario = own_table(tmp_path, {"server.rounds": 6})
    with pytest.raises(KeyboardInterrupt):
        run(scenario, tmp_path / "run", observer=Interrupting(2))
    ledger = population_ledger(scenario)
    old = ledger.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(scenario, tmp_path / "run", observer=Interrupting(4))
    ledger.write_bytes(old)
    with pytest.raises(LedgerError, match="was rolled back: row 5 is missing"):
        run(scenario, tmp_path / "run")


def test_a_statement_speaks_of_all_that_its_ledger_was_charged(tmp_path: Path) -> None:
    run(own_table(tmp_path, {"privacy.noise_multiplier": 30.0}), tmp_path / "sampled")
    changes = {"privacy.noise_multiplier": 300.0, "privacy.sampling": "all", "privacy.sampling_rate": None}
    result = run(own_table(tmp_path, changes), tmp_path / "full")
    for statement in result.privacy:
        assert statement["mode"] == "renyi"
        assert statement["accountant"] == "pld"
        assert statement["sampling"]["kind"] == "mixed"
