"""The windows of a ledger: what each has spent, and whether it can take a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from fedDP.accounting import Gaussian, epsilon, events_all_full
from fedDP.accounting.rdp import rdp_at
from fedDP.budget.committed_plan import CommittedPlan
from fedDP.budget.definition import LedgerDefinition, Rule
from fedDP.budget.policy import EVALUATION_PURPOSES, WindowName, WindowRule
from fedDP.budget.refusal import BudgetExceeded
from fedDP.budget.state import LedgerState
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import LedgerError, UnsupportedError
from fedDP.privacy.limits import COUNT

_RESUME_HORIZON_WEEKS = 110  # two ISO years: by then every window that renews has renewed
# Where allowances accumulate, a release may fit in the last week of a long year alone, and these are up to seven apart.
_ACCUMULATING_HORIZON_WEEKS = 420


@dataclass(frozen=True, kw_only=True)
class WindowStatus:
    """What one window has spent.

    Attributes:
        key: "2026-W09", "2026", or "lifetime".
        allowance_epsilon: the epsilon it certifies; None without an allowance. With a committed plan it is the epsilon
            of the window's planned releases; of a week whose allowance accumulates, that of the year's weeks so far.
        spent_epsilon: epsilon of what was charged in the window; not additive over windows.
        spent_fraction: the share of the allowance that is used up, in the additive domain (of an accumulated one, by
            the year so far); with a committed plan releases used over releases planned; None without an allowance.
        charges: number of charges, of which one may be for a release that is several steps.
        releases: number of releases, every step counted.
    """

    window: WindowName
    key: str
    allowance_epsilon: float | None
    spent_epsilon: float
    spent_fraction: float | None
    charges: int
    releases: int


@dataclass(frozen=True)
class Windows:
    """The allowances of a ledger against the sums over its rows."""

    definition: LedgerDefinition
    state: LedgerState

    def costs(self, event: Gaussian) -> dict[WindowName, int]:
        """What `event` costs in every window that has an allowance, in units, rounded up.

        Raises:
            UnsupportedError: when the ledger's mode has no sound cost for the event, as plan mode has none for several
                steps: there a count stands for so many releases of their own.
            InvalidValueError: for noise so small that its cost overflows.
        """
        relation = self.definition.neighboring_relation
        if self.definition.mode == "plan" and event.count != 1:
            raise UnsupportedError(
                f"event={event!r}: a ledger in plan mode grants its releases one by one, and this one is {event.count} "
                "steps at once. Use a ledger in renyi or gaussian mode."
            )
        if self.definition.mode == "gaussian" and not events_all_full([event]):
            raise UnsupportedError("A ledger in gaussian mode cannot account for sampled rounds; use renyi mode.")
        if self.definition.mode == "renyi":
            rdp_at(event, 2, relation)  # refuses what has no sound cost, also where no window would ask for one
        return {name: rule.cost(event, relation) for name, rule in self.definition.rules.items()}

    def check(self, event: Gaussian, costs: dict[WindowName, int], week: IsoWeek, purpose: str) -> int | None:
        """Passes if every window can take `costs` in `week`, or the committed plan has this release next.

        Returns:
            The number of the planned release that is used up; None without a committed plan.

        Raises:
            BudgetExceeded: when a window cannot, or the plan has no release left for the week.
            LedgerError: when the plan has another release in its place, or the ledger would hold more releases than an
                accountant can count.
        """
        if self._are_too_many(event):
            raise LedgerError(
                f"{event} would be more than {COUNT.high:,} releases, with the {self.state.num_releases:,} that the "
                "ledger holds; nobody could account for them together."
            )
        if self.definition.plan is not None:
            return self._planned(self.definition.plan, event, week, purpose)
        if (refusing := self._refusing(costs, week, purpose)) is not None:
            raise self._refusal(*refusing, event, costs, week, self._resumes(costs, week, purpose))
        return None

    def status(self, window: WindowName, week: IsoWeek) -> WindowStatus:
        """What `window` has spent as of `week`."""
        rule = self.definition.rules.get(window)
        delta = self.definition.budget.delta
        events = self.state.spent_events(window, week)
        limit = rule.limit(week) if rule else None
        return WindowStatus(
            window=window,
            key=_key(window, week),
            allowance_epsilon=rule.limit_epsilon(week, delta) if rule else None,
            spent_epsilon=epsilon(events, delta, neighboring_relation=self.definition.neighboring_relation),
            spent_fraction=self._spent(rule, week) / limit if rule and limit else None,
            charges=self.state.num_charges(window, week),
            releases=sum(event.count for event in events),
        )

    def charged(self, last_week: IsoWeek) -> list[WindowStatus]:
        """Every window that was charged: the weeks, the years, the trailing one as of `last_week`, and the lifetime."""
        weeks = sorted(self.state.week_units)
        years = {week.year: week for week in weeks}
        rows = [self.status("week", week) for week in weeks]
        rows += [self.status("year", week) for _, week in sorted(years.items())]
        if "trailing" in self.definition.rules:
            rows.append(self.status("trailing", last_week))
        return [*rows, self.status("lifetime", last_week)]

    def would_grant(self, event: Gaussian, weeks: Sequence[IsoWeek], purpose: str = "train") -> int:
        """How many releases like `event`, one in each of `weeks` in turn, would be granted from here on."""
        costs = self.costs(event)
        state = self.state.trial()
        trial, plan = Windows(self.definition, state), self.definition.plan
        for done, week in enumerate(weeks):
            if plan is not None:
                number = plan.find(event, purpose, week, start=state.next_planned)
                if number is None:
                    return done
                state.next_planned = number + 1
            elif trial._are_too_many(event) or trial._refusing(costs, week, purpose) is not None:
                return done
            state.add(week, event, costs, purpose)
        return len(weeks)

    def _are_too_many(self, event: Gaussian) -> bool:
        return self.state.num_releases + event.count > COUNT.high

    def _planned(self, plan: CommittedPlan, event: Gaussian, week: IsoWeek, purpose: str) -> int:
        start = self.state.next_planned
        number = plan.find(event, purpose, week, start=start)
        if number is not None:
            return number
        if (expected := plan.next_release(week, start=start)) is not None:
            raise LedgerError(
                f"The committed plan has {expected} next; {event} for {purpose!r} was asked. A plan is followed as it "
                "is or stopped; rounds that are chosen on the way need a ledger in renyi mode."
            )
        costs: dict[WindowName, int] = dict.fromkeys(self.definition.rules, 1)
        later, alike = plan.next_week(week), plan.next_week(week, (event, purpose))
        window: WindowName = "lifetime" if later is None else "week" if later.year == week.year else "year"
        raise self._refusal(window, None, event, costs, week, alike.monday.date() if alike else None)

    def _spent(self, rule: Rule, week: IsoWeek, *, training: bool = False) -> int:
        return self.state.spent_units(rule.name, week, covers=rule.covers, training=training)

    def _refusing(
        self, costs: dict[WindowName, int], week: IsoWeek, purpose: str
    ) -> tuple[WindowName, str | None] | None:
        """The first window that cannot take `costs`, and `purpose` when it is the window's reserve that refuses."""
        counted: list[str | None] = [None]
        if self.definition.budget.reserve_evaluation > 0.0 and purpose not in EVALUATION_PURPOSES:
            counted.append(purpose)
        for name, rule in self.definition.rules.items():
            for each in counted:
                spent = self._spent(rule, week, training=each is not None)
                if spent + costs[name] > rule.limit(week, each):
                    return name, each
        return None

    def _resumes(self, costs: dict[WindowName, int], week: IsoWeek, purpose: str) -> date | None:
        accumulates = self.definition.budget.carry_over == "cumulative"
        for ahead in range(1, _ACCUMULATING_HORIZON_WEEKS if accumulates else _RESUME_HORIZON_WEEKS):
            later = week.plus(ahead)
            if self._refusing(costs, later, purpose) is None:
                return later.monday.date()
        return None

    def _refusal(
        self,
        name: WindowName,
        purpose: str | None,
        event: Gaussian,
        costs: dict[WindowName, int],
        week: IsoWeek,
        resumes: date | None,
    ) -> BudgetExceeded:
        """The refusal by a window as a whole, or by what its reserve leaves to `purpose`."""
        rule, training = self.definition.rules[name], purpose is not None
        relation, delta = self.definition.neighboring_relation, self.definition.budget.delta
        events = self.state.spent_events(rule.covers, week, training=training)
        spent, limit = self._spent(rule, week, training=training), max(1, rule.limit(week, purpose))
        asked = epsilon([*events, event], delta, neighboring_relation=relation)
        if isinstance(rule, WindowRule):  # what the filter would have to certify, more than the rounds as they were
            asked = max(asked, rule.certified_epsilon(spent + costs[name], delta))
        return BudgetExceeded(
            window=name,
            key=_key(name, week),
            spent=epsilon(events, delta, neighboring_relation=relation),
            asked=asked,
            allowance=rule.limit_epsilon(week, delta, purpose),
            resumes=resumes,
            spent_fraction=spent / limit,
            asked_fraction=costs[name] / limit,
            reserve=self.definition.budget.reserve_evaluation if training else 0.0,
        )


def _key(window: WindowName, week: IsoWeek) -> str:
    return {"week": week.key, "year": f"{week.year:04d}", "trailing": week.key, "lifetime": "lifetime"}[window]
