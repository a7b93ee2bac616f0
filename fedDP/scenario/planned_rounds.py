"""How many equal rounds a ledger's windows grant, on the ledger's own integers.

What is planned here is granted there: the same costs, rounded up, against the same allowances, rounded down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedDP.budget.policy import TRAILING_WEEKS, Coverage, WindowName, WindowRule
from fedDP.budget.weeks import IsoWeek

PURPOSE = "train"
"""What rounds are charged as; a reserve for evaluation is not theirs."""


def rounds_fit(
    rules: Mapping[WindowName, WindowRule], costs: Mapping[WindowName, int], weeks: Sequence[IsoWeek]
) -> bool:
    """Whether all rounds are granted, one in each of `weeks`; costs a round by window, in units."""
    counts = _Counts(weeks)
    return all(
        counts.covered(rule.covers, week) * costs[name] <= rule.limit(week, PURPOSE)
        for name, rule in rules.items()
        for week in counts.ends(rule.covers)
    )


def allowed_rounds(
    rules: Mapping[WindowName, WindowRule], costs: Mapping[WindowName, int], weeks: Sequence[IsoWeek]
) -> tuple[int, WindowName | None]:
    """How many rounds the ledger grants before its first refusal, and the window that refuses."""
    counts = _Counts()
    for done, week in enumerate(weeks):
        for name, rule in rules.items():
            if (counts.covered(rule.covers, week) + 1) * costs[name] > rule.limit(week, PURPOSE):
                return done, name
        counts.add(week)
    return len(weeks), None


class _Counts:
    """Rounds by week, and how many of them a window holds."""

    def __init__(self, weeks: Iterable[IsoWeek] = ()) -> None:
        self._by_week = Counter(weeks)
        self._by_index = Counter({week.index: count for week, count in self._by_week.items()})
        self._by_year: Counter[int] = Counter()
        for week, count in self._by_week.items():
            self._by_year[week.year] += count

    def add(self, week: IsoWeek) -> None:
        self._by_week[week] += 1
        self._by_index[week.index] += 1
        self._by_year[week.year] += 1

    def covered(self, covers: Coverage, week: IsoWeek) -> int:
        """The rounds in the window of `week`."""
        if covers == "week":
            return self._by_week[week]
        if covers == "year":
            return self._by_year[week.year]
        if covers == "trailing":
            last = week.index
            return sum(self._by_index[index] for index in range(last - TRAILING_WEEKS + 1, last + 1))
        if covers == "lifetime":
            return self._by_week.total()
        return sum(count for other, count in self._by_week.items() if other.year == week.year and other <= week)

    def ends(self, covers: Coverage) -> list[IsoWeek]:
        """A week in each window of the kind that could bind."""
        if covers == "lifetime":
            return [max(self._by_week)]
        return list({week.year: week for week in self._by_week}.values()) if covers == "year" else list(self._by_week)
