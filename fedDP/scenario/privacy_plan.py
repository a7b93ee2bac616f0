"""What a scenario's privacy keys mean for N clients: sampling, noise, and the charges that are planned.

The noise is calibrated against the ledger's own rule, so that what is planned here is granted there: on the same
integers where a filter admits rounds one by one, by the same accountant where the ledger commits to the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from fedDP.accounting import FullParticipation, Gaussian, Poisson, accountant_name, epsilon
from fedDP.budget import Budget, Clock, IsoWeek, SimulatedClock, SystemClock
from fedDP.budget.definition import Rule
from fedDP.budget.policy import Mode, WindowName
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import DENOMINATOR, check_headroom
from fedDP.scenario.round_planner import RoundPlanner, planned_releases
from fedDP.scenario.schema import Scenario

_LAST_YEAR = 9990  # calendars end in 9999, and a refusal looks two years ahead


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The resolved privacy of a run.

    Attributes:
        num_clients: N.
        sampling: with the rate resolved.
        noise_multiplier: z; 0 without privacy.
        budget: None without privacy.
        mode: "gaussian", "renyi", "plan", or "none".
        mode_reason: why, in words.
        rules: the windows' allowances.
        weeks: the ISO week of each planned round; on a system clock all fall into the present one, the worst case.
        allowed_rounds: how many of them the budget grants.
        stopped_by: the window that refuses the next, or None.
    """

    scenario: Scenario
    num_clients: int
    sampling: Poisson | FullParticipation
    noise_multiplier: float
    budget: Budget | None
    mode: Mode | Literal["none"]
    mode_reason: str
    rules: Mapping[WindowName, Rule]
    weeks: tuple[IsoWeek, ...]
    allowed_rounds: int
    stopped_by: WindowName | None

    @property
    def rate(self) -> float:
        """The sampling rate q; 1 when everybody takes part."""
        return self.sampling.rate if isinstance(self.sampling, Poisson) else 1.0

    @property
    def denominator(self) -> float:
        """D: the expected cohort."""
        return self.rate * self.num_clients

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the released mean, per coordinate."""
        return self.noise_multiplier * self.scenario.privacy.clip_norm / self.denominator

    @property
    def accountant(self) -> str:
        """The accountant of the printed epsilons: "gdp" (exact) when nothing is sampled, else "pld" unless chosen."""
        chosen = self.scenario.privacy.accountant
        return chosen if chosen != "auto" else accountant_name([self.event()])

    def event(self, count: int = 1) -> Gaussian:
        """So many rounds as an accounting event."""
        return Gaussian(self.noise_multiplier, sampling=self.sampling, count=count)

    def ledger_terms(self) -> dict[str, Any]:
        """What `Ledger.open` is asked for: the terms under which what is planned here is granted."""
        return {
            "budget": self.budget,
            "unit": self.scenario.scenario.unit,
            "population": self.scenario.data.population_id,
            "neighboring_relation": self.scenario.privacy.neighboring_relation,
            "mode": self.scenario.budget.mode,
            "plan": planned_releases(self.scenario, self.event(), self.weeks),
        }

    def epsilon(self, rounds: int) -> float:
        """Epsilon of so many rounds; infinite without noise."""
        if rounds == 0:
            return 0.0
        if self.noise_multiplier == 0.0:
            return float("inf")
        privacy = self.scenario.privacy
        return epsilon(
            [self.event(rounds)],
            privacy.delta,
            None if privacy.accountant == "auto" else privacy.accountant,
            privacy.neighboring_relation,
        )


def plan_privacy(scenario: Scenario, num_clients: int) -> PrivacyPlan:
    """Resolves sampling and noise for `num_clients` clients.

    Raises:
        InvalidValueError: when no allowed noise fits the budget, or the numbers are outside their ranges.
        UnsupportedError: when the accountant is not sound for the sampling.
    """
    sampling = _sampling(scenario, num_clients)
    weeks = _weeks(scenario)
    fixed: dict[str, Any] = {"scenario": scenario, "num_clients": num_clients, "sampling": sampling, "weeks": weeks}
    if scenario.privacy.noise_multiplier == 0:
        return PrivacyPlan(
            **fixed,
            noise_multiplier=0.0,
            budget=None,
            mode="none",
            mode_reason="no privacy, no ledger",
            rules={},
            allowed_rounds=len(weeks),
            stopped_by=None,
        )
    planner = RoundPlanner(scenario, sampling, weeks, _budget(scenario))
    noise_multiplier = planner.noise_multiplier()
    check_headroom(num_clients=num_clients, noise_multiplier=noise_multiplier)
    mode, reason = planner.mode
    rules, allowed, stopped_by = planner.granted(noise_multiplier)
    return PrivacyPlan(
        **fixed,
        noise_multiplier=noise_multiplier,
        budget=planner.budget,
        mode=mode,
        mode_reason=reason,
        rules=rules,
        allowed_rounds=allowed,
        stopped_by=stopped_by,
    )


def make_clock(scenario: Scenario) -> Clock:
    """The clock that the scenario's ledger runs on."""
    if scenario.budget.clock == "simulated":
        assert scenario.server.rounds_per_week is not None  # a rule of the schema
        return SimulatedClock(rounds_per_week=scenario.server.rounds_per_week, start=scenario.budget.start)
    return SystemClock()


def _sampling(scenario: Scenario, num_clients: int) -> Poisson | FullParticipation:
    privacy = scenario.privacy
    if num_clients < 1:
        raise InvalidValueError("enrolled clients", num_clients, "at least 1")
    if privacy.sampling_rate is not None:
        DENOMINATOR.check("privacy.sampling_rate * clients", privacy.sampling_rate * num_clients)
    if privacy.sampling == "all":
        return FullParticipation()
    if privacy.sampling_rate is not None:
        return Poisson(privacy.sampling_rate)
    if privacy.cohort_size is None or privacy.cohort_size > num_clients:
        raise InvalidValueError(
            "privacy.cohort_size",
            privacy.cohort_size,
            f"a whole number in [1, {num_clients}], since so many clients are enrolled",
        )
    return Poisson(privacy.cohort_size / num_clients)


def _budget(scenario: Scenario) -> Budget:
    budget, privacy = scenario.budget, scenario.privacy
    lifetimes = [value for value in (budget.lifetime, privacy.target_epsilon) if value is not None]
    return Budget(
        delta=privacy.delta,
        year=budget.year,
        week=budget.week,
        trailing=budget.trailing,
        lifetime=min(lifetimes, default=None),
        carry_over=budget.carry_over,
        reserve_evaluation=budget.reserve_evaluation,
    )


def _weeks(scenario: Scenario) -> tuple[IsoWeek, ...]:
    if scenario.budget.clock == "simulated":
        clock, rounds = make_clock(scenario), scenario.server.rounds
        try:
            ends = IsoWeek.of(clock.now(rounds)).year <= _LAST_YEAR
        except OverflowError:
            ends = False
        if not ends:
            raise InvalidValueError(
                "server.rounds",
                rounds,
                f"rounds that end by the year {_LAST_YEAR}",
                "Lower it, or raise server.rounds_per_week.",
            )
        return tuple(IsoWeek.of(clock.now(round)) for round in range(1, rounds + 1))
    return (IsoWeek.of(datetime.now(UTC)),) * scenario.server.rounds
