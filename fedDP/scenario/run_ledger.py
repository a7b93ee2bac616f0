"""Which ledger a run is charged to, and when on its clock the run goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from fedDP.budget import EnrolmentTerms, Ledger, SimulatedClock
from fedDP.errors import FedDPError, LedgerError
from fedDP.privacy.keys import RngKind
from fedDP.scenario.privacy_plan import PrivacyPlan, make_clock
from fedDP.scenario.run_directory import RunDirectory, write_atomically
from fedDP.scenario.schema import Scenario
from fedDP.strategies.client_level_dp import PURPOSE


def open_ledger(
    plan: PrivacyPlan,
    directory: RunDirectory,
    *,
    rng: RngKind,
    run_id: str,
    start_round: int,
    enrolment: EnrolmentTerms,
    anchors: Sequence[Mapping[str, Any]] = (),
) -> tuple[Ledger | None, str]:
    """The run's ledger and its scope in words; None without privacy.

    Packaged public data has a ledger a run. A user's own data has one for its population and unit, beside the data.

    Raises:
        LedgerError: when a second ledger is asked for a known population.
    """
    scenario = plan.scenario
    if plan.budget is None:
        return None, "no ledger"
    location, scope = str(directory.ledger_path.resolve()), "this run only"
    # With the checkpoints, where an old copy of the directory does not reach.
    anchor_file: Path | None = directory.checkpoint_path.with_name("ledger.anchor")
    population = scenario.data.population_id
    simulation = rng == "seeded"
    if (shared := shared_ledger(scenario)) is not None:
        location, anchor_file = shared, None
        whose = f"population {population!r} in {ledger_name(shared)}" if population else shared
        scope = f"all runs charged to {whose}"
        if scenario.data.path is not None and rng == "csprng":
            _note_location(scenario, shared)
    if anchor_file is not None:
        anchor_file.parent.mkdir(exist_ok=True)
    clock = make_clock(scenario)
    ledger = Ledger.open(
        location,
        **plan.ledger_terms(),
        clock=clock,
        simulation=simulation,
        enrolment=enrolment,
        anchors=anchors,
        anchor_file=anchor_file,
    )
    if missing := set(range(1, start_round)) - ledger.charged_rounds(run_id):
        raise LedgerError(
            f"The ledger {location} knows nothing of {len(missing)} rounds that this run has released: it is not the "
            "one they were charged to, or an old copy. Put that one back, or start again with another --out."
        )
    if start_round > 1:  # a crash may have come between the checkpoint and the mark
        ledger.mark_published(run_id=run_id, round=start_round - 1, purpose=PURPOSE)
    if isinstance(clock, SimulatedClock) and ledger.last_charged is not None:
        clock.begin(start_round, after=ledger.last_charged)
        if _lost_its_week(plan, ledger, clock, start_round):
            clock.begin(start_round, after=clock.week_of(start_round).plus(1).monday - timedelta(seconds=1))
    return ledger, scope


def _lost_its_week(plan: PrivacyPlan, ledger: Ledger, clock: SimulatedClock, start_round: int) -> bool:
    """Whether a crash has wasted a charge for which the week of `start_round` has no room left.

    A simulated clock would stand still at that week for ever; in a real one the run would go on a week later.
    """
    rule = ledger.definition.rules.get("week")
    if rule is None or ledger.num_charges(unreleased=True) == 0:
        return False
    week, last = clock.week_of(start_round), plan.scenario.server.rounds
    rounds = range(start_round, min(last, start_round + clock.rounds_per_week - 1) + 1)
    asked = sum(clock.week_of(round) == week for round in rounds)
    cost = rule.cost(plan.event(), plan.scenario.privacy.neighboring_relation)
    return (ledger.status("week", week).spent_fraction or 0.0) + asked * cost / rule.limit(week) > 1.0


def shared_ledger(scenario: Scenario) -> str | None:
    """Where the ledger that several runs of the scenario share is; None where each run has its own."""
    if scenario.data.path is not None and scenario.scenario.seed is None:
        return _population_location(scenario)
    return None if scenario.budget.ledger is None else _absolute(scenario.budget.ledger)


def population_ledger(scenario: Scenario) -> Path:
    """Where the ledger of a user's own data lives: beside it, one for a population and unit."""
    assert scenario.data.path is not None
    name = f"{scenario.data.population_id}.{scenario.scenario.unit}.ledger.db"
    # Beside the data itself, not beside a link to it. Names may hold what file names and URLs cannot; two names that
    # become one file are two populations all the same, and the ledger refuses the second.
    return Path(scenario.data.path).resolve().with_name(name.replace("/", "_"))


def _population_location(scenario: Scenario) -> str:
    """The one ledger of a user's own data; a note beside the data says so where it lives elsewhere."""
    beside = population_ledger(scenario)
    note = beside.with_suffix(".url")
    wanted = str(beside) if scenario.budget.ledger is None else _absolute(scenario.budget.ledger)
    known = note.read_text(encoding="utf-8").strip() if note.exists() else str(beside) if beside.exists() else wanted
    if wanted != known:
        raise LedgerError(
            f"Population {scenario.data.population_id!r} has a ledger already, {known}; a second one, {wanted}, would "
            "hide half of what is spent. Use the first."
        )
    return wanted


def _note_location(scenario: Scenario, location: str) -> None:
    """Leaves a note beside a user's own data where its ledger lives elsewhere."""
    beside = population_ledger(scenario)
    note = beside.with_suffix(".url")
    if location == str(beside) or note.exists():
        return
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, f"{location}\n".encode())  # half a note would refuse the population's runs for ever
    except (OSError, FedDPError) as error:
        raise LedgerError(f"{note}, which must say where the ledger is, cannot be written: {error}") from error


def ledger_name(location: str) -> str:
    """A ledger's location as reports show it: a file without its folder, a URL as it is."""
    return location if "://" in location else Path(location).name


def _absolute(location: str) -> str:
    """A ledger's location, with the path of a file made absolute: the working directory may be another one later."""
    path = location.removeprefix("sqlite:///")
    return location if "://" in path else os.path.abspath(path)
