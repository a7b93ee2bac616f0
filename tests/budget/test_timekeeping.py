"""What a ledger believes of a clock: it may not go back, not leap ahead, and not say what is no time."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, ClockJumped, IsoWeek, Ledger, SimulatedClock, verify
from fedDP.budget.timekeeping import MAX_JUMP
from fedDP.errors import InvalidValueError, LedgerError

from .ledgers import START, SetClock, authorise, count_rows, without_sync

BUDGET = Budget(delta=1e-6, week=0.5)
EVENT = Gaussian(50.0)


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def clock() -> SetClock:
    return SetClock(kind="system")


def open_ledger(path: Path, clock: Any) -> Ledger:
    return Ledger.open(str(path), budget=BUDGET, unit="patient", mode="gaussian", clock=clock)


# Back


def test_small_steps_back_do_not_move_a_charge_to_another_week(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    clock.set_week("2026-W11")
    authorise(ledger, EVENT, round=1)
    clock.time -= timedelta(minutes=5)
    assert authorise(ledger, EVENT, round=2).week.key == "2026-W11"
    assert authorise(open_ledger(path, clock), EVENT, round=3).week.key == "2026-W11"


def test_a_clock_that_went_back_a_day_is_refused_by_every_process(path: Path, clock: SetClock) -> None:
    authorise(open_ledger(path, clock), EVENT)
    clock.time = START - timedelta(minutes=5, seconds=1)
    with pytest.raises(LedgerError, match="The clock went back"):
        authorise(open_ledger(path, clock), EVENT, round=2)
    assert count_rows(path) == 2


def test_a_clock_that_went_back_within_the_day_is_refused_by_the_process_that_saw_it(
    path: Path, clock: SetClock
) -> None:
    """The ledger keeps days, since how long a round took depends on its cohort; a process remembers more."""
    ledger = open_ledger(path, clock)
    clock.time = START + timedelta(hours=9)
    authorise(ledger, EVENT, round=1)
    clock.time -= timedelta(minutes=5)
    authorise(ledger, EVENT, round=2)
    clock.time -= timedelta(seconds=1)  # from the latest that was seen, not from the last
    with pytest.raises(LedgerError, match=r"The clock went back: it says 2026-03-02T08:54:59.*2026-03-02T09:00:00"):
        authorise(ledger, EVENT, round=3)
    authorise(open_ledger(path, clock), EVENT, round=3)
    assert "09:00" not in str(list(ledger.rows()))


def test_no_charge_falls_into_a_year_that_is_over(path: Path, clock: SetClock) -> None:
    clock.set_week("2027-W01")
    ledger = open_ledger(path, clock)
    authorise(ledger, EVENT, round=1)
    clock.time -= timedelta(minutes=1)  # 2026-W53
    assert authorise(ledger, EVENT, round=2).week.key == "2027-W01"
    clock.time -= timedelta(days=1)
    with pytest.raises(LedgerError, match="The clock went back"):
        authorise(ledger, EVENT, round=3)


# Ahead


def test_a_month_is_no_jump_and_a_day_more_is_one(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    authorise(ledger, EVENT, round=1)
    clock.time += MAX_JUMP + timedelta(hours=23)  # days count, as whoever reads the ledger will count them
    authorise(ledger, EVENT, round=2)
    clock.time = START + 2 * MAX_JUMP + timedelta(days=1)
    for each in (ledger, open_ledger(path, clock)):
        with pytest.raises(ClockJumped) as caught:
            authorise(each, EVENT, round=3)
        assert (caught.value.last, caught.value.now) == ("2026-04-02", "2026-05-04")
        assert caught.value.week == "2026-W19"
        assert "32 days after the last charge of 2026-04-02" in str(caught.value)
    assert count_rows(path) == 3
    assert pickle.loads(pickle.dumps(caught.value)).week == "2026-W19"


def test_the_first_charge_may_come_late(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    clock.set_week("2030-W01")
    assert authorise(ledger, EVENT).week.key == "2030-W01"
    assert verify(str(path)).charges == 1


def test_marks_do_not_carry_a_ledger_over_a_jump(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    grant = authorise(ledger, EVENT, round=1)
    clock.time += timedelta(days=400)
    ledger.mark_released(grant)
    with pytest.raises(ClockJumped):
        authorise(ledger, EVENT, round=2)
    clock.time = START + timedelta(days=1)
    authorise(ledger, EVENT, round=2)


def test_an_operator_acknowledges_a_jump(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    authorise(ledger, EVENT, round=1)
    clock.set_week("2026-W30")
    with pytest.raises(ClockJumped):
        authorise(ledger, EVENT, round=2)
    ledger.acknowledge_clock_jump(operator="Ada Lovelace", reason="summer break")
    assert authorise(open_ledger(path, clock), EVENT, round=2).week.key == "2026-W30"
    authorise(ledger, EVENT, round=3)
    row = list(ledger.rows())[2]
    assert (row["kind"], row["operator"], row["reason"]) == ("operator", "Ada Lovelace", "summer break")
    assert json.loads(row["act"]) == {"type": "clock-jump-acknowledged", "week": "2026-W30"}
    assert verify(str(path)).kinds == {"definition": 1, "charge": 3, "operator": 1}


def test_an_acknowledgement_is_for_its_week_and_its_jump(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    authorise(ledger, EVENT, round=1)
    clock.set_week("2026-W30")
    ledger.acknowledge_clock_jump(operator="Ada", reason="summer break")
    clock.set_week("2026-W31")
    with pytest.raises(ClockJumped):
        authorise(ledger, EVENT, round=2)
    ledger.acknowledge_clock_jump(operator="Ada", reason="a week later")
    authorise(ledger, EVENT, round=2)
    clock.set_week("2026-W40")
    with pytest.raises(ClockJumped):
        authorise(ledger, EVENT, round=3)


def test_a_wrong_acknowledgement_does_no_harm(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    authorise(ledger, EVENT, round=1)
    clock.set_week("2036-W30")
    ledger.acknowledge_clock_jump(operator="Ada", reason="did not look at the year")
    clock.set_week("2026-W11")
    assert authorise(ledger, EVENT, round=2).week.key == "2026-W11"
    clock.set_week("2036-W30")  # the acknowledgement was of the jump before that charge
    with pytest.raises(ClockJumped):
        authorise(ledger, EVENT, round=3)


def test_there_must_be_a_jump_to_acknowledge(path: Path, clock: SetClock) -> None:
    ledger = open_ledger(path, clock)
    for _ in range(2):
        with pytest.raises(LedgerError, match="has not jumped"):
            ledger.acknowledge_clock_jump(operator="Ada", reason="in advance")
        authorise(ledger, EVENT, round=1)
    clock.set_week("2026-W30")
    ledger.acknowledge_clock_jump(operator="Ada", reason="once")
    with pytest.raises(LedgerError, match="has not jumped"):
        ledger.acknowledge_clock_jump(operator="Ada", reason="twice")


def test_a_loaded_ledger_is_acknowledged_by_the_machines_clock(path: Path) -> None:
    long_ago = SetClock(datetime(2020, 1, 6, tzinfo=UTC), kind="system")
    authorise(open_ledger(path, long_ago), EVENT)
    Ledger.load(str(path)).acknowledge_clock_jump(operator="Ada", reason="five years later")
    act = json.loads(list(Ledger.load(str(path)).rows())[-1]["act"])
    assert act["week"] == IsoWeek.of(datetime.now(UTC)).key


@pytest.mark.parametrize("field", ["operator", "reason"])
@pytest.mark.parametrize("value", ["", "a\nb", "\x00", None, 5, "x" * 1001])
def test_an_operator_says_who_and_why(path: Path, clock: SetClock, field: str, value: Any) -> None:
    ledger = open_ledger(path, clock)
    authorise(ledger, EVENT)
    clock.set_week("2026-W30")
    with pytest.raises(InvalidValueError, match=f"{field}="):
        ledger.acknowledge_clock_jump(**{"operator": "Ada", "reason": "break", field: value})
    assert count_rows(path) == 2


def test_simulated_weeks_may_leap(path: Path) -> None:
    clock = SimulatedClock(rounds_per_week=1)
    ledger = open_ledger(path, clock)
    authorise(ledger, EVENT, round=1)
    authorise(ledger, EVENT, round=50)
    with pytest.raises(LedgerError, match="has not jumped"):
        ledger.acknowledge_clock_jump(operator="Ada", reason="a year")
    assert verify(str(path)).charges == 2


# What is no time


class Broken:
    kind = "system"

    def __init__(self, said: Any) -> None:
        self.said = said

    def now(self, round: int) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class NotATime(datetime):
    """Like the missing value of a table library: a datetime whose numbers are none."""

    def astimezone(self, tz: Any = None) -> Any:
        return float("nan")


@pytest.mark.parametrize(
    "said",
    [
        datetime(2026, 3, 2),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime(9001, 1, 1, tzinfo=UTC),
        NotATime(2026, 3, 2, tzinfo=UTC),
        START.date(),
        START.timestamp(),
        "2026-03-02",
        None,
        OSError("no clock"),
        OverflowError("round"),
    ],
    ids=repr,
)
def test_a_clock_that_cannot_be_used_is_refused(path: Path, clock: SetClock, said: Any) -> None:
    with pytest.raises(LedgerError, match="The clock cannot be used"):
        open_ledger(path, Broken(said))
    assert not path.exists()
    grant = authorise(open_ledger(path, clock), EVENT)
    ledger = open_ledger(path, Broken(said))
    with pytest.raises(LedgerError, match="The clock cannot be used"):
        authorise(ledger, EVENT, round=2)
    assert count_rows(path) == 2
    ledger.mark_released(grant)  # charges nothing, and loses nothing by standing still
    assert list(ledger.rows())[-1]["time_utc"] == START.isoformat()


def test_a_time_elsewhere_is_a_time_in_utc(path: Path, clock: SetClock) -> None:
    clock.time = datetime(2027, 1, 4, 8, tzinfo=timezone(timedelta(hours=9)))
    assert authorise(open_ledger(path, clock), EVENT).week.key == "2026-W53"


def test_a_round_beyond_the_simulated_calendar_is_refused(path: Path) -> None:
    ledger = open_ledger(path, SimulatedClock(rounds_per_week=1))
    with pytest.raises(LedgerError, match="The clock cannot be used"):
        authorise(ledger, EVENT, round=10**9)
    assert count_rows(path) == 1
