"""A committed plan against its budget: what must fit before the ledger exists, and what its windows certify then."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fedDP.accounting import Gaussian, NeighboringRelation, epsilon
from fedDP.budget.committed_plan import CommittedPlan
from fedDP.budget.policy import CHECK_ORDER, WINDOW_NAMES, Budget, Coverage, WindowName
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import InvalidValueError


@dataclass(frozen=True, kw_only=True)
class PlanLimit:
    """What the releases of one window may cost together.

    Attributes:
        window, key: which window, such as "week" and "2026-W09".
        events: its releases.
        epsilon: what the budget allows them.
    """

    window: WindowName
    key: str
    events: tuple[Gaussian, ...]
    epsilon: float


def plan_limits(plan: CommittedPlan, budget: Budget) -> list[PlanLimit]:
    """What `budget` demands of `plan`; a window that lies within another of its kind is left out.

    A week's releases are those planned for it, also where some may be made later: what is carried over was not used.

    Raises:
        InvalidValueError: for releases without weeks under a weekly allowance, an even week whose numbers of releases
            differ by more than one, or a reserve, which a plan does without.
    """
    if budget.reserve_evaluation > 0.0:
        raise InvalidValueError(
            "reserve_evaluation",
            budget.reserve_evaluation,
            "0 with a committed plan",
            'Plan the evaluations instead, as releases with purpose="eval".',
        )
    if budget.week is not None and not plan.has_weeks:
        raise InvalidValueError(
            "plan",
            "releases without weeks",
            "a week for every release, since the budget has a weekly allowance",
            "Use PlannedRelease(event, week=...), or drop the weekly allowance.",
        )
    weeks = sorted({release.week for release in plan.releases if release.week is not None})
    if budget.week == "even":
        _check_even(plan, weeks)
    found = []
    for name in WINDOW_NAMES:
        allowed = getattr(budget, name)
        if allowed is None or allowed == "even":
            continue
        for key, events in _windows(plan, name, weeks).items():
            found.append(PlanLimit(window=name, key=key, events=tuple(events), epsilon=allowed))
    return found


def check_plan(plan: CommittedPlan, budget: Budget, relation: NeighboringRelation) -> None:
    """Passes if the plan keeps the budget in every window.

    Raises:
        InvalidValueError: for a window whose releases cost more, or as `plan_limits`.
        UnsupportedError: for releases that no accountant covers.
    """
    for limit in plan_limits(plan, budget):
        planned = epsilon(limit.events, budget.delta, neighboring_relation=relation)
        if not planned <= limit.epsilon:
            raise InvalidValueError(
                "plan",
                f"epsilon {planned:.6g} in the {limit.window} {limit.key}",
                f"at most {limit.epsilon:g} there",
                "Plan fewer releases or more noise; nothing is granted beyond a plan, so it has to fit as a whole.",
            )


@dataclass(frozen=True, kw_only=True)
class PlannedWindow:
    """One window of a committed plan: its allowance is the releases that it may hold, each of them one unit.

    What it certifies, and so the regulator's number, is the epsilon of these releases. It was within the budget's when
    the ledger was created, and is fixed since.
    """

    name: WindowName
    plan: CommittedPlan
    relation: NeighboringRelation

    @property
    def covers(self) -> Coverage:
        """The weeks whose charges count against `limit`."""
        return "year to date" if self.name == "week" and self.plan.carry_over else self.name

    def limit(self, week: IsoWeek, purpose: str | None = None) -> int:
        """How many releases are planned; of whatever purpose, since the plan says which."""
        return sum(event.count for event in self.plan.may_hold(self.name, week))

    def limit_epsilon(self, week: IsoWeek, delta: float, purpose: str | None = None) -> float:
        """The epsilon of the planned releases at `delta`."""
        return epsilon(self.plan.may_hold(self.name, week), delta, neighboring_relation=self.relation)

    def cost(self, event: Gaussian, relation: NeighboringRelation) -> int:
        """One release."""
        return 1


def planned_windows(plan: CommittedPlan, relation: NeighboringRelation) -> dict[WindowName, PlannedWindow]:
    """Every window of a committed plan: each is bounded by the plan, also one that the budget does not speak of."""
    return {name: PlannedWindow(name=name, plan=plan, relation=relation) for name in CHECK_ORDER}


def _windows(plan: CommittedPlan, name: WindowName, weeks: list[IsoWeek]) -> dict[str, list[Gaussian]]:
    """The events of every window of a kind, by its key."""
    if name == "lifetime" or not weeks:  # without weeks, everything may fall into one of them
        return {name: plan.may_hold("lifetime", IsoWeek(1, 1))}
    if name == "week":
        return {week.key: [each.event for each in plan.releases if each.week == week] for week in weeks}
    if name == "year":
        years = sorted({week.year for week in weeks})
        return {f"{year:04d}": plan.may_hold("year", IsoWeek(year, 1)) for year in years}
    # A window that ends later holds more, until releases drop out at its other end: the last before that is largest.
    largest: dict[int, tuple[str, list[Gaussian]]] = {}
    for week in weeks:
        held = plan.may_hold("trailing", week)
        dropped = sum(release.week is not None and release.week <= week for release in plan.releases) - len(held)
        largest[dropped] = week.key, held
    return dict(largest.values())


def _check_even(plan: CommittedPlan, weeks: list[IsoWeek]) -> None:
    counts: Counter[IsoWeek] = Counter()
    for release in plan.releases:
        assert release.week is not None  # a weekly allowance needs them
        counts[release.week] += release.event.count
    every = [weeks[0].plus(ahead) for ahead in range(weeks[-1].index - weeks[0].index + 1)]
    for year in {week.year for week in every}:
        of_year = [counts[week] for week in every if week.year == year]
        whole = [counts[week] for week in every if week.year == year and week != weeks[-1]]  # the last may end early
        if max(of_year) - min(whole, default=max(of_year)) > 1:
            raise InvalidValueError(
                "plan",
                f"from {min(of_year)} to {max(of_year)} releases a week in {year}",
                'numbers that differ by at most one, since the budget says week="even"',
                "Spread the releases evenly, or set an epsilon for the week.",
            )
