"""`feddp plan`: what a scenario will cost, without training anything."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from fedDP.accounting import noise_in_words, noise_per_coordinate
from fedDP.budget import IsoWeek, Ledger, SimulatedClock
from fedDP.budget.database import Database
from fedDP.scenario.build import block_size, build_model_and_task
from fedDP.scenario.load_data import LoadedData, load_data
from fedDP.scenario.privacy_plan import PrivacyPlan, make_clock, plan_privacy
from fedDP.scenario.run_ledger import ledger_name, population_ledger, shared_ledger
from fedDP.scenario.schema import Scenario
from fedDP.scenario.statement import ADVERSARY, TRUST_MODEL, sampling_text
from fedDP.training.blocks import block_shape
from fedDP.training.checks import check_model
from fedDP.training.parameters import ParameterLayout, trainable_arrays

FEW_CLIENTS = 100
VACUOUS_EPSILON = 10.0
_NAIVE_SPLIT = 1.0 / 26.0  # an even share of a year is above a tenth of its epsilon; a division by weeks far below

# Measured on one 2.5 GHz core: starting workers, a round's messages, and a step of a block.
_RAY_START_SECONDS = 8.0
_LOCAL_START_SECONDS = 0.5
_ROUND_SECONDS = 0.02
_STEP_SECONDS = 1.0e-3
_MULTIPLICATION_SECONDS = 2.0e-10
_WORKER_BYTES = 350e6


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer of `feddp plan`.

    Attributes:
        privacy: the resolved noise, sampling and windows.
        num_parameters: P, the coordinates that noise is added to.
        held_out: clients (or, where a client is a site, records) that are kept for testing.
        warnings: ``{"code", "text"}`` each.
        seconds, memory_bytes: estimates.
    """

    privacy: PrivacyPlan
    num_parameters: int
    held_out: int
    warnings: list[dict[str, str]]
    seconds: float
    memory_bytes: float

    def to_dict(self, *, by_round: bool = True) -> dict[str, Any]:
        """The JSON of ``feddp plan --json``.

        Args:
            by_round: whether to include epsilon after every round, which takes a while for many rounds.
        """
        plan, scenario = self.privacy, self.privacy.scenario
        by_week: dict[str, int] = {}
        for week in plan.weeks[: plan.allowed_rounds]:
            by_week[week.key] = by_week.get(week.key, 0) + 1
        by_year: dict[int, int] = {}
        for week in plan.weeks[: plan.allowed_rounds]:
            by_year[week.year] = by_year.get(week.year, 0) + 1
        budget = plan.budget
        return {
            "scenario": scenario.scenario.name,
            "unit": scenario.scenario.unit,
            "population": plan.num_clients,
            "delta": scenario.privacy.delta,
            "clip_norm": scenario.privacy.clip_norm,
            "noise_multiplier": plan.noise_multiplier,
            "noise_std": plan.noise_std,
            "sampling": sampling_text(plan.sampling),
            "mode": plan.mode,
            "mode_reason": plan.mode_reason,
            "accountant": plan.accountant if plan.noise_multiplier else "none",
            "neighboring_relation": scenario.privacy.neighboring_relation,
            "trust_model": TRUST_MODEL,
            "adversary": ADVERSARY,
            "rounds": {
                "requested": scenario.server.rounds,
                "allowed": plan.allowed_rounds,
                "stopped_by": plan.stopped_by,
            },
            "epsilon": {
                "round": plan.epsilon(1),
                "by_round": [plan.epsilon(round) for round in range(1, plan.allowed_rounds + 1)] if by_round else [],
                "by_week": [{"week": key, "epsilon": plan.epsilon(count)} for key, count in by_week.items()],
                "year": plan.epsilon(max(by_year.values(), default=0)),
                "total": plan.epsilon(plan.allowed_rounds),
            },
            "allowances": {
                name: rule.limit_epsilon(plan.weeks[0], scenario.privacy.delta) for name, rule in plan.rules.items()
            },
            "held_out": self.held_out,
            "budget": {
                "week": budget.week if budget else None,
                "year": budget.year if budget else None,
                "lifetime": budget.lifetime if budget else None,
            },
            "parameters": self.num_parameters,
            "warnings": self.warnings,
            "estimate": {"seconds": self.seconds, "memory_bytes": self.memory_bytes},
        }


def plan(scenario: Scenario) -> Plan:
    """Plans a scenario: noise, epsilon by round, week and year, the rounds that fit, and what to beware of.

    Raises:
        FedDPError: when the data, the model or the budget cannot be used.
    """
    data = load_data(scenario.data)
    return plan_with_data(scenario, data)


def plan_with_data(scenario: Scenario, data: LoadedData) -> Plan:
    """`plan`, for data that is loaded already."""
    model, task = build_model_and_task(
        scenario, num_features=data.train.features.shape[1], num_classes=data.train.num_classes
    )
    check_model(model, task, num_features=data.train.features.shape[1])
    num_parameters = ParameterLayout.of_arrays(trainable_arrays(model)).size
    privacy = plan_privacy(scenario, data.train.num_clients)
    seconds, memory_bytes = _estimate(scenario, data, privacy, num_parameters)
    return Plan(
        privacy=privacy,
        num_parameters=num_parameters,
        held_out=data.test.num_records if data.site_is_client else data.test.num_clients,
        warnings=[*find_warnings(privacy, data, num_parameters), *_ledger_warnings(privacy)],
        seconds=seconds,
        memory_bytes=memory_bytes,
    )


def find_warnings(plan: PrivacyPlan, data: LoadedData, num_parameters: int) -> list[dict[str, str]]:
    """What a reader of the plan must not overlook."""
    scenario = plan.scenario
    unit, clients = scenario.scenario.unit, plan.num_clients
    found: list[tuple[str, str]] = []
    if plan.noise_multiplier == 0.0:
        found.append(("no-privacy", "noise_multiplier=0: epsilon is inf, the run promises nothing to anybody."))
    else:
        found += _noise_warnings(plan, num_parameters)
        found += _budget_warnings(plan)
        if clients < FEW_CLIENTS:
            ratio = noise_per_coordinate(plan.noise_multiplier, dimension=num_parameters, denominator=plan.denominator)
            found.append(
                (
                    "few-clients",
                    f"Only {clients} clients ({unit}): this epsilon hides that one {unit} took part at all, and says "
                    f"nothing about single people in its data. "
                    f"{noise_in_words(ratio)} "
                    "To protect people make them the clients, or protect records inside each client.",
                )
            )
        if scenario.privacy.delta * clients > 1.0:
            found.append(
                (
                    "delta-too-large",
                    f"delta={scenario.privacy.delta:g} is above 1/{clients}: it would allow publishing one client.",
                )
            )
    if scenario.scenario.seed is not None:
        found.append(("seeded", "A seed repeats the noise: every epsilon of this run is nominal."))
    if count := data.num_ids_at_several_sites:
        found.append(
            (
                "clients-at-several-sites",
                f"{count} ids are seen at more than one site. Each counts as one client per site, so such a {unit} is "
                "protected at each site by itself; for the whole, the cost grows with the number of sites.",
            )
        )
    if data.num_capped:
        found.append(
            (
                "records-left-out",
                f"{data.num_capped} clients have more than data.max_records={scenario.data.max_records} records; the "
                "first so many of each are used.",
            )
        )
    if data.unscaled:
        names = ", ".join(data.unscaled[:5]) + (", ..." if len(data.unscaled) > 5 else "")
        found.append(("unscaled-features", f"No public range for {names}: used as they are. Set data.ranges."))
    if data.one_row_per_client and scenario.data.path is not None:
        found.append(("row-is-client", f"No client column: one row = one client, so a {unit} must have only one row."))
    if scenario.data.public:
        found.append(
            (
                "uncovered-releases",
                "The data is declared public: exact test metrics, and a model without privacy, are shown uncharged.",
            )
        )
    return [{"code": code, "text": text} for code, text in found]


def _ledger_warnings(plan: PrivacyPlan) -> list[dict[str, str]]:
    """What a population's ledger has spent already: the plan's own figures are for an empty one."""
    scenario = plan.scenario
    location = None if plan.budget is None else shared_ledger(scenario)
    others = [] if scenario.data.path is None else _other_ledgers(scenario)
    found = []
    if others:
        text = (
            f"Beside the data lie ledgers of other populations or units: {', '.join(others)}. If they speak of the "
            "same people, what they spent counts too, and this one does not know it."
        )
        found.append({"code": "other-ledgers", "text": text})
    if location is None or not Database(location).exists():
        return found
    ledger = Ledger.load(location)
    clock = make_clock(scenario)
    if isinstance(clock, SimulatedClock) and ledger.last_charged is not None:
        clock.begin(1, after=ledger.last_charged)
    weeks = [IsoWeek.of(clock.now(round)) for round in range(1, scenario.server.rounds + 1)]
    year = ledger.status("year", weeks[0])
    spent = "" if year.spent_fraction is None else f" {year.spent_fraction:.0%} of its {year.key} is spent."
    granted = ledger.would_grant(plan.event(), weeks)
    text = (
        f"{ledger_name(location)} was charged before.{spent} Of these {len(weeks)} rounds it would grant {granted} "
        f"from {weeks[0].key} on; the figures above are those of an empty ledger."
    )
    return [*found, {"code": "ledger-in-use", "text": text}]


def _other_ledgers(scenario: Scenario) -> list[str]:
    own = population_ledger(scenario)
    return sorted(path.name for path in own.parent.glob("*.ledger.db") if path != own)


def _noise_warnings(plan: PrivacyPlan, num_parameters: int) -> list[tuple[str, str]]:
    found = []
    total = plan.epsilon(plan.allowed_rounds)
    if total > VACUOUS_EPSILON:
        found.append(("vacuous-epsilon", f"epsilon {total:.4g} over the run promises next to nothing; aim below 10."))
    # Rounds average their noise: what counts is the noise on the sum of all updates against the sum of full clips.
    rounds = max(1, plan.allowed_rounds)
    ratio = plan.noise_multiplier * math.sqrt(num_parameters) / (plan.denominator * math.sqrt(rounds))
    if ratio > 1.0:
        found.append(
            (
                "noise-drowns-signal",
                f"Over {rounds} rounds the noise is {ratio:.3g} times as large as the largest possible signal: expect "
                "the model to learn little. Use more clients, fewer parameters, or a larger budget.",
            )
        )
    return found


def _budget_warnings(plan: PrivacyPlan) -> list[tuple[str, str]]:
    scenario = plan.scenario
    found = []
    if plan.stopped_by is not None:
        found.append(
            (
                "rounds-do-not-fit",
                f"The {plan.stopped_by} budget stops the run after {plan.allowed_rounds} of "
                f"{scenario.server.rounds} rounds.",
            )
        )
    year = plan.rules.get("year")
    if year is not None and plan.allowed_rounds:
        cost = year.cost(plan.event(), scenario.privacy.neighboring_relation)
        in_first_year = sum(week.year == plan.weeks[0].year for week in plan.weeks[: plan.allowed_rounds])
        share = cost * in_first_year / year.limit(plan.weeks[0])
        if share < 0.9 and scenario.budget.clock == "simulated":
            found.append(
                (
                    "budget-unused",
                    f"The rounds end with {share:.0%} of the year's budget used, since no week may take more. More "
                    "rounds, or a larger week budget, would use the rest.",
                )
            )
    budget = scenario.budget
    if isinstance(budget.week, float) and budget.year is not None and budget.week < _NAIVE_SPLIT * budget.year:
        found.append(
            (
                "naive-split",
                f"budget.week={budget.week:g} looks like budget.year={budget.year:g} divided by its weeks. Epsilons do "
                'not add up that way: week = "even" divides what does, allows each week more, and keeps the year.',
            )
        )
    if plan.budget is not None and not plan.budget.is_limited:
        found.append(("no-budget", "No window has an allowance: the ledger counts, and never refuses."))
    return found


def _estimate(scenario: Scenario, data: LoadedData, plan: PrivacyPlan, num_parameters: int) -> tuple[float, float]:
    client, block = scenario.client, block_size(scenario, num_parameters=num_parameters)
    counts = data.train.records_per_client
    shapes = [block_shape(int(count), client.batch_size) for count in set(counts.tolist()) if count]
    nodes = resolve_nodes(scenario)
    blocks = sum(
        max(
            1.0,
            plan.rate * float(((counts > shape.records // 2) & (counts <= shape.records)).sum()) / block,
        )
        for shape in set(shapes)
    ) * max(1, len(data.train.sites) // 2)
    steps = max((shape.steps for shape in shapes), default=1) * client.epochs
    multiplications = 6.0 * num_parameters * block * max((shape.batch for shape in shapes), default=1)
    a_round = _ROUND_SECONDS + blocks * steps * (_STEP_SECONDS + multiplications * _MULTIPLICATION_SECONDS) / nodes
    start = _RAY_START_SECONDS if scenario.resources.engine == "ray" else _LOCAL_START_SECONDS
    runs = 2 if scenario.data.public and plan.noise_multiplier else 1
    seconds = start + runs * scenario.server.rounds * a_round
    block_bytes = 4.0 * num_parameters * block * 6
    return seconds, nodes * (_WORKER_BYTES + block_bytes) + data.train.features.nbytes


def resolve_nodes(scenario: Scenario) -> int:
    """The number of nodes; "auto" is one a CPU on Ray, and one in this process."""
    if scenario.resources.nodes != "auto":
        return scenario.resources.nodes
    return (os.cpu_count() or 1) if scenario.resources.engine == "ray" else 1
