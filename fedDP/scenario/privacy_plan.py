"""What a scenario's privacy keys mean for N clients: sampling, noise, and the charges that are planned.

The noise is calibrated against the ledger's own rule, on the same integers, so that what is planned here is granted
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from fedDP.accounting import FullParticipation, Gaussian, Poisson, epsilon, smallest_noise_multiplier
from fedDP.budget import Budget, Clock, IsoWeek, SimulatedClock, SystemClock
from fedDP.budget.policy import TRAILING_WEEKS, WindowName, WindowRule, choose_mode, window_rules
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import DENOMINATOR, NOISE_MULTIPLIER, check_headroom
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
        mode: "gaussian", "renyi", or "none".
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
    mode: str
    rules: dict[WindowName, WindowRule]
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
        """The accountant of the printed epsilons: "gdp" (exact) when nothing is sampled, else "pld"."""
        chosen = self.scenario.privacy.accountant
        return chosen if chosen != "auto" else ("gdp" if self.rate == 1.0 else "pld")

    def event(self, count: int = 1) -> Gaussian:
        """So many rounds as an accounting event."""
        return Gaussian(self.noise_multiplier, sampling=self.sampling, count=count)

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
    privacy, rounds = scenario.privacy, scenario.server.rounds
    weeks = _weeks(scenario)
    if privacy.noise_multiplier == 0:
        return PrivacyPlan(
            scenario=scenario,
            num_clients=num_clients,
            sampling=sampling,
            noise_multiplier=0.0,
            budget=None,
            mode="none",
            rules={},
            weeks=weeks,
            allowed_rounds=rounds,
            stopped_by=None,
        )
    budget = _budget(scenario)

    def rules_for(noise_multiplier: float) -> tuple[str, dict[WindowName, WindowRule], Gaussian]:
        event = Gaussian(noise_multiplier, sampling=sampling)
        plan = [replace(event, count=rounds)]
        mode = choose_mode(scenario.budget.mode, plan)
        return mode, window_rules(budget, mode, plan, privacy.neighboring_relation), event

    def fits(noise_multiplier: float) -> bool:
        _, rules, event = rules_for(noise_multiplier)
        return all(
            rule.cost(event, privacy.neighboring_relation) * count <= rule.limit(week)
            for name, rule in rules.items()
            for week, count in _busiest(name, weeks)
        )

    if privacy.noise_multiplier == "auto":
        try:
            noise_multiplier = smallest_noise_multiplier(fits)
        except InvalidValueError as error:
            raise InvalidValueError(
                "privacy.noise_multiplier",
                "auto",
                f"a budget that some noise multiplier up to {NOISE_MULTIPLIER.high:g} can keep",
                "Raise the budget, or lower server.rounds or privacy.sampling_rate.",
            ) from error
    else:
        noise_multiplier = float(privacy.noise_multiplier)
    check_headroom(num_clients=num_clients, noise_multiplier=noise_multiplier)
    mode, rules, event = rules_for(noise_multiplier)
    costs = {name: rule.cost(event, privacy.neighboring_relation) for name, rule in rules.items()}
    allowed, stopped_by = _allowed_rounds(rules, costs, weeks)
    return PrivacyPlan(
        scenario=scenario,
        num_clients=num_clients,
        sampling=sampling,
        noise_multiplier=noise_multiplier,
        budget=budget,
        mode=mode,
        rules=rules,
        weeks=weeks,
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


def _busiest(name: WindowName, weeks: Sequence[IsoWeek]) -> list[tuple[IsoWeek, int]]:
    """The windows of a kind that could bind, each as one of its weeks and its number of rounds."""
    counts = Counter(weeks)
    if name == "week":
        return list(counts.items())
    if name == "year":
        return [(IsoWeek(year, 1), count) for year, count in Counter(week.year for week in weeks).items()]
    if name == "lifetime":
        return [(weeks[-1], len(weeks))]
    by_index = {week.index: count for week, count in counts.items()}
    return [(week, sum(by_index.get(week.index - back, 0) for back in range(TRAILING_WEEKS))) for week in counts]


def _allowed_rounds(
    rules: dict[WindowName, WindowRule], costs: dict[WindowName, int], weeks: Sequence[IsoWeek]
) -> tuple[int, WindowName | None]:
    """How many rounds the ledger grants before its first refusal, and the window that refuses."""
    spent: Counter[tuple[WindowName, int]] = Counter()
    for done, week in enumerate(weeks):
        keys: dict[WindowName, list[int]] = {
            "week": [week.index],
            "year": [week.year],
            "lifetime": [0],
            "trailing": list(range(week.index - TRAILING_WEEKS + 1, week.index + 1)),
        }
        for name, rule in rules.items():
            if sum(spent[name, key] for key in keys[name]) + costs[name] > rule.limit(week):
                return done, name
        for name in rules:
            spent[name, keys[name][-1]] += costs[name]
    return len(weeks), None
