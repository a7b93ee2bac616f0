"""ISO weeks and ISO years, the calendar of every allowance.

A budget year is an ISO year: weeks nest in it. It has 52 or 53 weeks (2026 and 2032 have 53), and 29-31 December
can belong to week 1 of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from fedDP.errors import InvalidValueError


def weeks_in_iso_year(year: int) -> int:
    """52 or 53: 28 December always lies in the last ISO week of its year.

    Example:
        >>> weeks_in_iso_year(2025), weeks_in_iso_year(2026)
        (52, 53)
    """
    return date(year, 12, 28).isocalendar().week


@lru_cache(maxsize=4096)  # a trailing window asks for every charged week
def _index(year: int, week: int) -> int:
    return date.fromisocalendar(year, week, 1).toordinal() // 7


@dataclass(frozen=True, order=True)
class IsoWeek:
    """One ISO week.

    Example:
        >>> IsoWeek.of(datetime(2027, 1, 1, tzinfo=UTC)).key
        '2026-W53'
    """

    year: int
    week: int

    @classmethod
    def of(cls, moment: datetime) -> IsoWeek:
        """The week of a moment, in UTC; weeks start on Monday 00:00:00."""
        calendar = moment.astimezone(UTC).isocalendar()
        return cls(calendar.year, calendar.week)

    @classmethod
    def parse(cls, key: str) -> IsoWeek:
        """Reads ``2026-W01``.

        Raises:
            InvalidValueError: for anything else, or a week that its year does not have.
        """
        year, separator, week = key.partition("-W")
        if separator and year.isascii() and year.isdigit() and week.isascii() and week.isdigit() and len(key) == 8:
            parsed = cls(int(year), int(week))
            if date.min.year < parsed.year < date.max.year and 1 <= parsed.week <= weeks_in_iso_year(parsed.year):
                return parsed
        raise InvalidValueError("week", key, 'an ISO week such as "2026-W01"')

    @property
    def key(self) -> str:
        """``2026-W01``."""
        return f"{self.year:04d}-W{self.week:02d}"

    @property
    def monday(self) -> datetime:
        """The moment the week starts."""
        day = date.fromisocalendar(self.year, self.week, 1)
        return datetime(day.year, day.month, day.day, tzinfo=UTC)

    @property
    def index(self) -> int:
        """A number that grows by one a week, across years."""
        return _index(self.year, self.week)

    def plus(self, weeks: int) -> IsoWeek:
        """The week so many weeks later."""
        return IsoWeek.of(self.monday + timedelta(weeks=weeks))
