"""The windows of a ledger: what each has spent, and whether it can take a release."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from fedDP.accounting import Gaussian, epsilon, events_all_full
from fedDP.accounting.rdp import rdp_at
from fedDP.budget.definition import LedgerDefinition
from fedDP.budget.policy import WindowName, WindowRule
from fedDP.budget.refusal import BudgetExceeded
from fedDP.budget.state import LedgerState
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import UnsupportedError

_RESUME_HORIZON_WEEKS = 110  # two ISO years: by then every window that renews has renewed


@dataclass(frozen=True, kw_only=True)
class WindowStatus:
    """What one window has spent.

    Attributes:
        key: "2026-W09", "2026", or "lifetime".
        allowance_epsilon: the epsilon it certifies; None without an allowance.
        spent_epsilon: epsilon of what was charged; not additive over windows.
        spent_fraction: the share of the allowance that is used up, in the additive domain; None without one.
        charges: number of charged releases.
    """

    window: WindowName
    key: str
    allowance_epsilon: float | None
    spent_epsilon: float
    spent_fraction: float | None
    charges: int


@dataclass(frozen=True)
class Windows:
    """The allowances of a ledger against the sums over its rows."""

    definition: LedgerDefinition
    state: LedgerState

    def costs(self, event: Gaussian) -> dict[WindowName, int]:
        """What `event` costs in every window that has an allowance, in units, rounded up.

        Raises:
            UnsupportedError: when the ledger's mode has no sound cost for the event.
            InvalidValueError: for noise so small that its cost overflows.
        """
        relation = self.definition.neighboring_relation
        if self.definition.mode == "gaussian" and not events_all_full([event]):
            raise UnsupportedError("A ledger in gaussian mode cannot account for sampled rounds; use renyi mode.")
        if self.definition.mode == "renyi":
            rdp_at(event, 2, relation)  # refuses what has no sound cost, also where no window would ask for one
        return {name: rule.cost(event, relation) for name, rule in self.definition.rules.items()}

    def check(self, event: Gaussian, costs: dict[WindowName, int], week: IsoWeek) -> None:
        """Passes if every window can take `costs` in `week`.

        Raises:
            BudgetExceeded: when one cannot.
        """
        for name, rule in self.definition.rules.items():
            if self._fits(name, rule, costs, week):
                continue
            relation, delta = self.definition.neighboring_relation, self.definition.budget.delta
            status = self.status(name, week)
            raise BudgetExceeded(
                window=name,
                key=status.key,
                spent=status.spent_epsilon,
                asked=epsilon([*self.state.spent_events(name, week), event], delta, neighboring_relation=relation),
                allowance=rule.limit_epsilon(week, delta),
                resumes=self._resumes(costs, week),
                spent_fraction=status.spent_fraction or 0.0,
                asked_fraction=costs[name] / max(1, rule.limit(week)),
            )

    def status(self, window: WindowName, week: IsoWeek) -> WindowStatus:
        """What `window` has spent as of `week`."""
        rule = self.definition.rules.get(window)
        delta = self.definition.budget.delta
        events = self.state.spent_events(window, week)
        keys = {"week": week.key, "year": f"{week.year:04d}", "trailing": week.key, "lifetime": "lifetime"}
        limit = rule.limit(week) if rule else None
        return WindowStatus(
            window=window,
            key=keys[window],
            allowance_epsilon=rule.limit_epsilon(week, delta) if rule else None,
            spent_epsilon=epsilon(events, delta, neighboring_relation=self.definition.neighboring_relation),
            spent_fraction=self.state.spent_units(window, week) / limit if limit else None,
            charges=sum(event.count for event in events),
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

    def would_grant(self, event: Gaussian, weeks: Sequence[IsoWeek]) -> int:
        """How many releases like `event`, one in each of `weeks` in turn, would be granted from here on."""
        costs = self.costs(event)
        week_units = {week: defaultdict(int, units) for week, units in self.state.week_units.items()}
        trial = Windows(self.definition, LedgerState(week_units=week_units))
        for done, week in enumerate(weeks):
            if not all(trial._fits(name, rule, costs, week) for name, rule in self.definition.rules.items()):
                return done
            units = week_units.setdefault(week, defaultdict(int))
            for name, cost in costs.items():
                units[name] += cost
        return len(weeks)

    def _fits(self, name: WindowName, rule: WindowRule, costs: dict[WindowName, int], week: IsoWeek) -> bool:
        return self.state.spent_units(name, week) + costs[name] <= rule.limit(week)

    def _resumes(self, costs: dict[WindowName, int], week: IsoWeek) -> date | None:
        for ahead in range(1, _RESUME_HORIZON_WEEKS):
            later = week.plus(ahead)
            if all(self._fits(name, rule, costs, later) for name, rule in self.definition.rules.items()):
                return later.monday.date()
        return None
