"""Clocks that a ledger can run on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

from fedDP.budget.weeks import IsoWeek, weeks_in_iso_year
from fedDP.ranges import Range

ClockKind = Literal["system", "simulated"]

_ROUNDS_PER_WEEK = Range(low=1, high=1e6, integer=True)


class Clock(Protocol):
    """What time it is when a round is authorised."""

    @property
    def kind(self) -> ClockKind:
        """Fixed for the life of a ledger: a simulated clock may not charge a ledger of real weeks."""
        ...

    def now(self, round: int) -> datetime:
        """The time, in UTC, at which `round` is authorised."""
        ...


class SystemClock:
    """The machine's clock."""

    kind: ClockKind = "system"

    def now(self, round: int) -> datetime:
        return datetime.now(UTC)


class SimulatedClock:
    """A clock that moves with the rounds: `rounds_per_week` rounds fall into every ISO week.

    Args:
        rounds_per_week: rounds a week, at least 1.
        start: the ISO week of round 1.

    Example:
        >>> clock = SimulatedClock(rounds_per_week=2, start="2026-W53")
        >>> [IsoWeek.of(clock.now(round)).key for round in (1, 2, 3)]
        ['2026-W53', '2026-W53', '2027-W01']
    """

    kind: ClockKind = "simulated"

    def __init__(self, *, rounds_per_week: int, start: str = "2026-W01") -> None:
        self.rounds_per_week = int(_ROUNDS_PER_WEEK.check("rounds_per_week", rounds_per_week))
        self.start = IsoWeek.parse(start)
        self._delay_weeks = 0

    def begin(self, round: int, *, after: datetime) -> None:
        """Delays `round` and those after it so that it falls into the week after `after`, where it would come before
        it: the weeks that another run has charged on a shared ledger are over.

        A delay moves no round into a later year than it was planned for, since a new year renews the budget; rounds
        that no longer fit pile up in the year's last week, where the ledger refuses them.
        """
        if self.now(round) < after:
            self._delay_weeks += IsoWeek.of(after).index - self.week_of(round).index + 1

    def now(self, round: int) -> datetime:
        week, index = divmod(round - 1, self.rounds_per_week)
        # Rounds are spread over their week. Truncation keeps the last one inside it.
        seconds = index * (7 * 24 * 3600) // self.rounds_per_week
        return self._delayed(self.start.plus(week)).monday + timedelta(seconds=seconds)

    def week_of(self, round: int) -> IsoWeek:
        """The week that `round` falls into."""
        return IsoWeek.of(self.now(round))

    def _delayed(self, planned: IsoWeek) -> IsoWeek:
        later = planned.plus(self._delay_weeks)
        return later if later.year == planned.year else IsoWeek(planned.year, weeks_in_iso_year(planned.year))
