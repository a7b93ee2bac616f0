"""When a charge is made: the rules that a clock must keep before a ledger believes it.

A ledger keeps days alone, so rules that must be the same for whoever reads it later are rules about days.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fedDP.budget.clock import Clock
from fedDP.budget.refusal import ClockJumped
from fedDP.budget.state import LedgerState
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import LedgerError

SKEW = timedelta(minutes=5)
"""How far a clock may be behind what the ledger has seen: clocks of two machines, or one that was set right."""

MAX_JUMP = timedelta(days=31)
"""How far a charge may be after the one before it without a person's word.

A clock that is ahead opens the windows of weeks that have not come, and a year ahead a whole budget. Studies pause for
a month; for longer, a person says that the clock is right. The first charge of a ledger has no charge before it and
nothing spent that a jump could renew.
"""

_FIRST_YEAR, _LAST_YEAR = 1970, 9000  # before, no clock is set; after, weeks ahead would leave the calendar


class Timekeeper:
    """A clock, and what this process has seen of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest: datetime | None = None

    def read(self, round: int) -> datetime:
        """What the clock says, in UTC.

        Raises:
            LedgerError: when it fails, or says what no ledger can be kept by.
        """
        try:
            said = self._clock.now(round)
            if not isinstance(said, datetime) or said.utcoffset() is None:
                raise TypeError(f"it says {said!r}, which is not a datetime with a time zone")
            utc = said.astimezone(UTC)
            now = datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, UTC)
            if not _FIRST_YEAR <= now.year <= _LAST_YEAR:
                raise ValueError(f"it says {now.isoformat()}, outside the years {_FIRST_YEAR} to {_LAST_YEAR}")
        except Exception as error:  # whatever a clock raises, nothing is granted by it
            raise LedgerError(f"The clock cannot be used ({error}); nothing was written. Set it right.") from error
        return now

    def time_of_charge(self, round: int, state: LedgerState) -> datetime:
        """The time to which a charge belongs: the clock's, and never before the ledger's last row.

        Raises:
            LedgerError: when the clock cannot be used, or went back.
            ClockJumped: when it is ahead of the last charge by more than `MAX_JUMP` and nobody has acknowledged it.
        """
        now, last = self.read(round), last_time(state)
        # Simulated rounds of two runs may share a week, in any order.
        simulated = self._clock.kind == "simulated"
        seen = last if simulated or self._latest is None else max(last, self._latest)
        if IsoWeek.of(now) < IsoWeek.of(last) if simulated else now < seen - SKEW:
            raise LedgerError(
                f"The clock went back: it says {now.isoformat()}, and it was {seen.isoformat()} before. Set the clock "
                "right; nothing was granted."
            )
        time = max(now, last)
        if not simulated and has_jumped(state, time):
            assert state.last_charge is not None
            raise ClockJumped(last=state.last_charge.date(), now=time.date(), week=IsoWeek.of(time).key)
        self._latest = max(seen, now)
        return time

    def time_of_note(self, state: LedgerState, *, round: int | None = None) -> datetime:
        """The time of a row that charges nothing: the clock's where it can be believed, else that of the last row.

        A mark must not fail for a wrong clock, and must not carry the ledger into a time that nobody has acknowledged.

        Args:
            state: the ledger so far.
            round: the round that the row is about; simulated time stands still without one.
        """
        last, simulated = last_time(state), self._clock.kind == "simulated"
        if simulated and round is None:
            return last
        try:
            now = self.read(round or 0)
        except LedgerError:
            return last
        return now if last < now and (simulated or now <= last + MAX_JUMP) else last


def has_jumped(state: LedgerState, time: datetime) -> bool:
    """Whether a charge at `time` is too far after the one before it, and nobody has acknowledged that."""
    last = state.last_charge
    if last is None or time.date() - last.date() <= MAX_JUMP:
        return False
    return state.acknowledged_week != IsoWeek.of(time)


def last_time(state: LedgerState) -> datetime:
    """The time of the last row."""
    assert state.last_time is not None  # row 0 has a time
    return state.last_time
