from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from fedDP.budget import IsoWeek, SimulatedClock, SystemClock
from fedDP.budget.weeks import weeks_in_iso_year
from fedDP.errors import InvalidValueError


def test_years_of_53_weeks() -> None:
    long = [year for year in range(2020, 2050) if weeks_in_iso_year(year) == 53]
    assert long == [2020, 2026, 2032, 2037, 2043, 2048]
    assert all(weeks_in_iso_year(year) in (52, 53) for year in range(1, 9999))


@pytest.mark.parametrize(
    ("moment", "key"),
    [
        (datetime(2024, 12, 30, tzinfo=UTC), "2025-W01"),
        (datetime(2025, 12, 28, 23, 59, 59, tzinfo=UTC), "2025-W52"),
        (datetime(2025, 12, 29, tzinfo=UTC), "2026-W01"),
        (datetime(2026, 12, 31, tzinfo=UTC), "2026-W53"),
        (datetime(2027, 1, 3, 23, 59, 59, 999999, tzinfo=UTC), "2026-W53"),
        (datetime(2027, 1, 4, tzinfo=UTC), "2027-W01"),
        (datetime(2033, 1, 2, tzinfo=UTC), "2032-W53"),
        # Monday morning in Tokyo is still Sunday in UTC.
        (datetime(2027, 1, 4, 8, tzinfo=timezone(timedelta(hours=9))), "2026-W53"),
    ],
)
def test_the_week_of_a_moment(moment: datetime, key: str) -> None:
    week = IsoWeek.of(moment)
    assert week.key == key
    assert IsoWeek.parse(key) == week
    assert week.monday <= moment < week.plus(1).monday


def test_weeks_follow_each_other_across_years() -> None:
    week = IsoWeek.parse("2025-W50")
    for _ in range(300):
        following = week.plus(1)
        assert following > week
        assert following.index == week.index + 1
        assert following.monday - week.monday == timedelta(days=7)
        assert following.plus(-1) == week
        week = following


def test_the_week_after_the_53rd_is_the_first() -> None:
    assert IsoWeek.parse("2026-W53").plus(1).key == "2027-W01"
    assert IsoWeek.parse("2025-W52").plus(1).key == "2026-W01"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "2026",
        "2026-W00",
        "2026-W54",
        "2025-W53",
        "2026-W1",
        "2026W01",
        "26-W01",
        "2026-w01",
        "0000-W01",
        "x026-W01",
    ],
)
def test_what_is_no_week_is_refused(key: str) -> None:
    with pytest.raises(InvalidValueError, match="ISO week"):
        IsoWeek.parse(key)


def test_the_system_clock_is_utc() -> None:
    clock = SystemClock()
    before, now, after = datetime.now(UTC), clock.now(1), datetime.now(UTC)
    assert before <= now <= after
    assert now.utcoffset() == timedelta(0)
    assert clock.kind == "system"


@pytest.mark.parametrize("rounds_per_week", [1, 2, 3, 7, 10, 50, 10_007])
def test_simulated_rounds_fill_one_week_after_the_other(rounds_per_week: int) -> None:
    clock = SimulatedClock(rounds_per_week=rounds_per_week, start="2026-W52")
    assert clock.kind == "simulated"
    assert clock.now(1) == IsoWeek.parse("2026-W52").monday
    rounds = range(1, 3 * rounds_per_week + 1)
    weeks = [clock.week_of(round).key for round in rounds]
    assert weeks == ["2026-W52"] * rounds_per_week + ["2026-W53"] * rounds_per_week + ["2027-W01"] * rounds_per_week
    times = [clock.now(round) for round in rounds]
    assert times == sorted(times)


def test_the_simulated_start_is_the_first_week_of_2026() -> None:
    assert SimulatedClock(rounds_per_week=1).now(1).date() == date(2025, 12, 29)


@pytest.mark.parametrize("rounds_per_week", [0, -1, 1.5, True, float("nan"), "3"])
def test_rounds_a_week_are_a_whole_number(rounds_per_week: Any) -> None:
    with pytest.raises(InvalidValueError, match="rounds_per_week="):
        SimulatedClock(rounds_per_week=rounds_per_week)


def test_a_simulated_start_is_a_week() -> None:
    with pytest.raises(InvalidValueError, match="ISO week"):
        SimulatedClock(rounds_per_week=1, start="2025-W53")


def test_a_later_run_begins_after_the_weeks_that_are_over() -> None:
    clock = SimulatedClock(rounds_per_week=2)
    clock.begin(1, after=IsoWeek.parse("2026-W10").monday)
    assert clock.week_of(1).key == "2026-W11"


def test_a_run_that_goes_on_stays_in_its_week() -> None:
    clock = SimulatedClock(rounds_per_week=2)
    clock.begin(6, after=clock.now(6))
    assert clock.week_of(6).key == "2026-W03"
    clock.begin(6, after=clock.now(5))
    assert clock.week_of(6).key == "2026-W03"
