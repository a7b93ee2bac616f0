"""The ledger's rule for a scenario's rounds, as a function of their noise: the least noise, and what it grants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedDP.accounting import FullParticipation, Gaussian, Poisson, calibrate_scale, smallest_noise_multiplier
from fedDP.budget import Budget, IsoWeek, PlannedRelease
from fedDP.budget.committed_plan import CommittedPlan
from fedDP.budget.definition import Rule
from fedDP.budget.mode import explain_mode
from fedDP.budget.plan_limits import check_plan, plan_limits, planned_windows
from fedDP.budget.policy import Mode, WindowName, WindowRule, window_rules
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import NOISE_MULTIPLIER
from fedDP.scenario.planned_rounds import PURPOSE, allowed_rounds, rounds_fit
from fedDP.scenario.schema import Scenario


def planned_releases(scenario: Scenario, event: Gaussian, weeks: Sequence[IsoWeek]) -> list[PlannedRelease]:
    """The rounds as the ledger is told of them; a system clock does not know beforehand in which weeks they will be."""
    if scenario.budget.clock == "system":
        return [PlannedRelease(replace(event, count=len(weeks)), purpose=PURPOSE)]
    counts = Counter(weeks)
    return [PlannedRelease(replace(event, count=counts[week]), week, PURPOSE) for week in sorted(counts)]


@dataclass(frozen=True)
class RoundPlanner:
    """The ledger's rule for the scenario's rounds, as a function of their noise."""

    scenario: Scenario
    sampling: Poisson | FullParticipation
    weeks: tuple[IsoWeek, ...]
    budget: Budget

    def releases(self, noise_multiplier: float) -> list[PlannedRelease]:
        return planned_releases(self.scenario, self.event(noise_multiplier), self.weeks)

    def event(self, noise_multiplier: float) -> Gaussian:
        return Gaussian(noise_multiplier, sampling=self.sampling)

    @cached_property
    def mode(self) -> tuple[Mode, str]:
        """The mode, and why; it does not depend on how much noise there is.

        "auto" never commits to a plan: a charge that a crash wastes would cost a planned round.
        """
        return explain_mode(self.scenario.budget.mode, self.releases(NOISE_MULTIPLIER.high), budget=self.budget)

    def noise_multiplier(self) -> float:
        """The scenario's, or the smallest with which all rounds are granted."""
        asked = self.scenario.privacy.noise_multiplier
        if asked != "auto":
            return float(asked)
        try:
            if self.mode[0] == "plan":
                return self._smallest_planned()
            return smallest_noise_multiplier(lambda noise: rounds_fit(*self._filter(noise), self.weeks))
        except InvalidValueError as error:
            if error.name == "plan":
                raise
            raise InvalidValueError(
                "privacy.noise_multiplier",
                "auto",
                f"a budget that some noise multiplier up to {NOISE_MULTIPLIER.high:g} can keep",
                "Raise the budget, or lower server.rounds or privacy.sampling_rate.",
            ) from error

    def granted(self, noise_multiplier: float) -> tuple[Mapping[WindowName, Rule], int, WindowName | None]:
        """The windows' allowances, how many rounds they grant, and the window that refuses the next.

        Raises:
            InvalidValueError: for a plan to commit to that exceeds the budget.
        """
        relation = self.scenario.privacy.neighboring_relation
        if self.mode[0] == "plan":
            committed = self._committed(noise_multiplier)
            check_plan(committed, self.budget, relation)
            return planned_windows(committed, relation), len(self.weeks), None
        rules, costs = self._filter(noise_multiplier)
        return rules, *allowed_rounds(rules, costs, self.weeks)

    def _committed(self, noise_multiplier: float) -> CommittedPlan:
        return CommittedPlan.of(self.releases(noise_multiplier), carry_over=self.budget.carry_over == "cumulative")

    def _filter(self, noise_multiplier: float) -> tuple[dict[WindowName, WindowRule], dict[WindowName, int]]:
        """The allowances, and what a round costs in each window."""
        relation = self.scenario.privacy.neighboring_relation
        event = self.event(noise_multiplier)
        plan = [replace(event, count=len(self.weeks))]
        rules = window_rules(self.budget, self.mode[0], plan, relation, created=self.weeks[0])
        return rules, {name: rule.cost(event, relation) for name, rule in rules.items()}

    def _smallest_planned(self) -> float:
        """The smallest noise that keeps every window of the committed plan; rounds are alike, so only counts matter."""
        privacy = self.scenario.privacy
        committed = self._committed(NOISE_MULTIPLIER.high)
        most: Counter[float] = Counter()
        for limit in plan_limits(committed, self.budget):
            most[limit.epsilon] = max(most[limit.epsilon], sum(event.count for event in limit.events))
        one = self.event(1.0)
        windows = [([replace(one, count=count)], allowed) for allowed, count in most.items()]
        return calibrate_scale(windows, privacy.delta, neighboring_relation=privacy.neighboring_relation)
