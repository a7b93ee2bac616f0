"""Forgeries: ledgers that were rewritten, with all hashes right, by somebody who knows how they are computed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian, Poisson
from fedDP.budget import Budget, EnrolmentTerms, Ledger, verify
from fedDP.budget.policy import Mode
from fedDP.budget.records import COLUMNS, GENESIS_HASH, canonical_json, row_hash
from fedDP.budget.verification import _agree
from fedDP.errors import LedgerError

from .ledgers import SetClock, anchor_beside, authorise, raw, without_sync

Rows = list[dict[str, Any]]

BUDGET = Budget(delta=1e-6, week="even", year=0.5, lifetime=1.0)
ENROLMENT = EnrolmentTerms(num_clients=100, sha256="a" * 64)
EVENTS = {"gaussian": Gaussian(200.0), "renyi": Gaussian(10.0, sampling=Poisson(0.05))}
CHARGES = (1, 3, 6, 7, 9)


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


def make(path: Path, mode: Mode) -> None:
    """A ledger with rows of every kind.

    Rows: definition (0), charge (1) and its mark (2), charge (3) that a crash left open, acknowledgement (4), abandoned
    (5), charges (6, 7) in W30, another enrolment (8), charge (9).
    """
    clock, event = SetClock(kind="system"), EVENTS[mode]

    def open_ledger(enrolment: EnrolmentTerms = ENROLMENT) -> Ledger:
        # The plan gives the even week an order of its own.
        return Ledger.open(
            str(path), budget=BUDGET, unit="patient", mode=mode, plan=[event], clock=clock, enrolment=enrolment
        )

    ledger = open_ledger()
    ledger.mark_released(authorise(ledger, event, round=1))
    authorise(ledger, event, round=2)
    clock.set_week("2026-W30")
    ledger = open_ledger()
    ledger.acknowledge_clock_jump(operator="Ada", reason="summer break")
    authorise(ledger, event, round=2)
    authorise(ledger, event, round=3)
    other = EnrolmentTerms(num_clients=120, sha256="b" * 64)
    ledger.change_enrolment(other, operator="Ada", reason="twenty joined")
    authorise(ledger, event, run_id="another")
    assert [row["seq"] for row in ledger.rows() if row["kind"] == "charge"] == list(CHARGES)


@pytest.fixture(params=["gaussian", "renyi"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[Mode, Path]:
    with pytest.MonkeyPatch.context() as patch:
        without_sync(patch)
        found: dict[Mode, Path] = {mode: tmp_path_factory.mktemp(mode) / "ledger.db" for mode in ("gaussian", "renyi")}
        for mode, path in found.items():
            make(path, mode)
    return found


@pytest.fixture
def path(tmp_path: Path, mode: Mode, originals: dict[Mode, Path]) -> Path:
    original = originals[mode]
    shutil.copy(anchor_beside(original), tmp_path)
    return Path(shutil.copy(original, tmp_path))


def forge(path: Path, edit: Callable[[Rows], object]) -> None:
    """Rewrites the rows as `edit` leaves them, numbered, chained and hashed anew, and removes the operator file."""
    with raw(path) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM entries ORDER BY seq")]
        edit(rows)
        rows[:] = [dict(row) for row in rows]
        connection.execute("DELETE FROM entries")
        previous = GENESIS_HASH
        for seq, row in enumerate(rows):
            row |= {"seq": seq, "previous_hash": previous}
            previous = row["hash"] = row_hash(row)
            marks = ", ".join("?" * len(COLUMNS))
            connection.execute(f"INSERT INTO entries VALUES ({marks})", [row[name] for name in COLUMNS])
    anchor_beside(path).unlink(missing_ok=True)


def set_values(seq: int, **values: Any) -> Callable[[Rows], object]:
    return lambda rows: rows[seq].update(values)


def assert_forged(path: Path, edit: Callable[[Rows], object], message: str) -> None:
    forge(path, edit)
    with pytest.raises(LedgerError, match=message):
        verify(str(path))


def scaled(row: dict[str, Any], factor: float) -> str:
    costs = {window: str(int(int(units) * factor)) for window, units in json.loads(row["costs"]).items()}
    return canonical_json(costs)


def edit_definition(rows: Rows, edit: Callable[[dict[str, Any]], None]) -> None:
    definition = json.loads(rows[0]["definition"])
    edit(definition)
    rows[0]["definition"] = canonical_json(definition)


def test_an_honest_ledger_passes(path: Path) -> None:
    ledger = Ledger.load(str(path))
    found = verify(str(path), [ledger.anchor])
    assert (found.ledger_id, found.head, found.rows) == (ledger.definition.ledger_id, ledger.head, 10)
    assert (found.charges, found.anchors) == (5, 2)
    assert found.kinds == {"definition": 1, "charge": 5, "released": 1, "abandoned": 1, "operator": 2}


def test_a_rewriting_that_changes_nothing_passes(path: Path) -> None:
    anchor = Ledger.load(str(path)).anchor
    forge(path, lambda rows: None)
    assert verify(str(path), [anchor]).charges == 5


def test_no_ledger_is_not_verified(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="There is no ledger at"):
        verify(str(tmp_path / "ledger.db"))
    (tmp_path / "ledger.db").touch()
    with pytest.raises(LedgerError, match="holds no definition"):
        verify(str(tmp_path / "ledger.db"))


# What a charge cost


@pytest.mark.parametrize(
    ("seq", "factor"), [*((seq, 0.5) for seq in CHARGES), *((3, factor) for factor in (0.0, 1 - 1e-9, 1 + 1e-9, 2.0))]
)
def test_another_cost(path: Path, seq: int, factor: float) -> None:
    assert_forged(
        path,
        lambda rows: rows[seq].update(costs=scaled(rows[seq], factor)),
        f"row {seq} could not be granted. It charges .* units to window",
    )


def test_a_cost_less_than_nothing_is_found_at_opening_too(path: Path) -> None:
    assert_forged(path, lambda rows: rows[3].update(costs=scaled(rows[3], -1.0)), "row 3 charges less than nothing")
    with pytest.raises(LedgerError, match="row 3 charges less than nothing"):
        Ledger.load(str(path))


@pytest.mark.parametrize("window", ["week", "year", "trailing", "lifetime"])
def test_a_cost_left_out(path: Path, window: str) -> None:
    def edit(rows: Rows) -> None:
        costs = json.loads(rows[3]["costs"])
        del costs[window]
        rows[3]["costs"] = canonical_json(costs)

    assert_forged(path, edit, f"row 3 could not be granted. It charges 0 units to window '{window}'")


def test_more_noise_than_was_charged_for(path: Path) -> None:
    def edit(rows: Rows) -> None:
        event = json.loads(rows[3]["event"])
        rows[3]["event"] = canonical_json({**event, "noise_multiplier": 2 * event["noise_multiplier"]})

    assert_forged(path, edit, "row 3 could not be granted. It charges")


def test_several_steps_for_the_cost_of_one(path: Path) -> None:
    def edit(rows: Rows) -> None:
        rows[1]["event"] = rows[1]["event"].replace('"count":1', '"count":2')

    assert_forged(path, edit, r"row 1 could not be granted. It charges \d+ units to window 'lifetime', and .*count=2")


def test_the_last_bits_of_another_machine_are_no_forgery() -> None:
    cost = 10**20
    assert _agree(cost + 10**6, cost)
    assert _agree(cost - 10**6, cost)
    assert not _agree(cost - 10**8, cost)
    assert not _agree(0, 1)
    assert not _agree(1, 0)


# What a window could take


def test_a_charge_over_an_allowance(path: Path) -> None:
    """Every row is honest by itself; together they are more than the week could take when the last was made."""

    def edit(rows: Rows) -> None:
        more = [{**rows[9], "round": round} for round in range(10, 2000)]
        rows.extend(more)

    assert_forged(path, edit, r"row \d+ could not be granted. The budget of week 2026-W30 cannot take this release")


def test_a_charge_moved_into_another_week(path: Path) -> None:
    def edit(rows: Rows) -> None:
        rows[9]["iso_week"] += 1

    assert_forged(path, edit, "row 9 is put into week 2026-W31, its day .* lies in 2026-W30")


def test_a_day_moved_back(path: Path) -> None:
    """Out of a full week into an empty one before it."""
    assert_forged(
        path,
        set_values(9, time_utc="2026-03-02T00:00:00+00:00", iso_week=10),
        "row 9 is of 2026-03-02.*, before the row it follows",
    )


@pytest.mark.parametrize("time", ["2026-07-20T09:00:00+00:00", "2026-07-20T00:00:00", "2026-07-20T00:00:00+09:00"])
def test_a_time_that_is_no_day(path: Path, time: str) -> None:
    assert_forged(path, set_values(9, time_utc=time), "row 9 is of .*not a day in UTC")


def test_a_jump_that_nobody_acknowledged(path: Path) -> None:
    assert_forged(path, lambda rows: rows.pop(4), "row 5 could not be granted. It is of 2026-07-20.*nobody has ack")


def test_an_acknowledgement_of_another_week(path: Path) -> None:
    act = canonical_json({"type": "clock-jump-acknowledged", "week": "2026-W31"})
    assert_forged(path, set_values(4, act=act), "row 6 could not be granted. It is of 2026-07-20.*nobody has ack")


# What a row says of others


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda rows: rows.pop(1), "row 1 marks a charge that is not open"),
        (lambda rows: rows.pop(3), "row 4 marks a charge that is not open"),
        (lambda rows: rows.pop(5), "row 5 is attempt 2 at a release with 1 before it, the last one charged"),
        (lambda rows: rows.insert(4, rows[3] | {"attempt": 2}), "row 4 is attempt 2 at a release with 1 before it"),
        (
            lambda rows: rows.append(rows[9] | {"run_id": "run", "attempt": 2}),
            "row 10 is attempt 2 .*, the last one released",
        ),
        (lambda rows: rows.append(rows[9]), "row 10 is attempt 1 at a release with 1 before it"),
        (set_values(6, attempt=3), "row 6 is attempt 3 at a release with 1 before it"),
        (
            lambda rows: rows.append(rows[9] | {"kind": "released", "charge_seq": 1}),
            "row 10 marks a charge that is not open",
        ),
        (set_values(5, kind="refunded"), "row 5 has the unknown kind 'refunded'"),
        (lambda rows: rows.append(rows[9] | {"kind": "definition"}), "row 10 is of kind 'definition'"),
        (lambda rows: rows.pop(0), "row 0 is of kind 'charge'"),
        (lambda rows: rows.reverse(), "row 0 is of kind 'charge'"),
        (lambda rows: rows.pop(8), "row 8 is charged under enrolment 2, where 1 holds"),
        (set_values(7, enrolment=None), "row 7 is charged under enrolment None, where 1 holds"),
        (set_values(7, denominator=11.0), "row 7 breaks the terms of its run: its denominator is 10.0"),
        (set_values(9, run_id="run", round=9), "row 9 breaks the terms of its run: its enrolment is 1"),
        (set_values(8, operator=""), "row 8 cannot be read .*operator="),
        (set_values(8, reason=None), "row 8 cannot be read .*reason="),
        (set_values(8, act='{"type":"refund"}'), "row 8 cannot be read .*an operator's act"),
        (set_values(8, act='{"type":"clock-jump-acknowledged","week":"2026-W99"}'), "row 8 cannot be read"),
        (set_values(4, act='{"hash":"' + "0" * 64 + '","seq":3,"type":"anchor-reset"}'), "row 4 begins an anchor"),
        (set_values(9, event="{}"), "row 9 cannot be read"),
        (set_values(9, costs="[]"), "row 9 cannot be read"),
        (set_values(9, iso_year="2026"), "row 9"),
    ],
)
def test_rows_that_do_not_follow_are_found_at_opening_too(
    path: Path, edit: Callable[[Rows], object], message: str
) -> None:
    assert_forged(path, edit, message)
    with pytest.raises(LedgerError, match=message):
        Ledger.load(str(path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rng": "seeded"}, "Its noise is 'seeded'"),
        ({"rng": None}, "Its noise is None"),
        ({"clip_norm": -1.0}, "clip_norm="),
        ({"clip_norm": None}, "clip_norm="),
        ({"max_weight": 0.0}, "max_weight="),
        ({"run_id": "another\x00"}, "run_id="),
        ({"purpose": ""}, "purpose="),
    ],
)
def test_numbers_that_are_never_granted(path: Path, values: dict[str, Any], message: str) -> None:
    assert_forged(path, set_values(9, **values), f"row 9 could not be granted. {message}")


# What the ledger allows


@pytest.mark.parametrize(
    "edit",
    [
        lambda definition: definition["rules"]["year"].update(units=str(2 * int(definition["rules"]["year"]["units"]))),
        lambda definition: definition["rules"]["week"].update(units=str(9 * int(definition["rules"]["week"]["units"]))),
        lambda definition: definition["rules"]["week"].update(split_year=False),
        lambda definition: definition["rules"]["lifetime"].update(split_year=True),
        lambda definition: definition["rules"].pop("trailing"),
        lambda definition: definition["rules"]["year"].update(order=-5),
        lambda definition: definition["budget"].update(year=0.6),
        lambda definition: definition["budget"].update(delta=1e-5),
        lambda definition: definition["budget"].update(lifetime=None),
        lambda definition: definition["budget"].update(week=0.3),
    ],
)
def test_allowances_that_the_budget_does_not_come_to(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    assert_forged(path, lambda rows: edit_definition(rows, edit), "row 0 (allows|has windows)")


def test_another_relation_has_other_costs(path: Path, mode: Mode) -> None:
    def edit(definition: dict[str, Any]) -> None:
        definition["neighboring_relation"] = "replace_one"

    assert_forged(path, lambda rows: edit_definition(rows, edit), "row 1 could not be granted")


def test_another_mode_has_other_windows(path: Path, mode: Mode) -> None:
    def edit(definition: dict[str, Any]) -> None:
        definition["mode"] = "renyi" if mode == "gaussian" else "gaussian"

    assert_forged(path, lambda rows: edit_definition(rows, edit), "row 0 has windows that do not follow")


def test_a_consistent_forgery_contradicts_an_anchor(path: Path) -> None:
    """A budget raised with all that follows from it is another valid ledger: only what was kept outside tells."""
    anchor = Ledger.load(str(path)).anchor

    def edit(definition: dict[str, Any]) -> None:
        definition["unit"] = "visit"

    forge(path, lambda rows: edit_definition(rows, edit))
    assert verify(str(path)).charges == 5
    for check in (verify, lambda url, anchors: Ledger.load(url, anchors=anchors)):
        with pytest.raises(LedgerError, match="row 9 is not the row that an anchor has seen there"):
            check(str(path), [anchor])


def test_a_charge_that_was_cut_out_contradicts_an_anchor(path: Path) -> None:
    anchor = Ledger.load(str(path)).anchor
    forge(path, lambda rows: rows.pop(9))
    assert verify(str(path)).charges == 4
    with pytest.raises(LedgerError, match="was rolled back: row 9 is missing, and an anchor has seen row 9"):
        verify(str(path), [anchor])


def test_rows_that_were_only_edited_break_the_chain(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("UPDATE entries SET round = 7 WHERE seq = 3")
    with pytest.raises(LedgerError, match="row 3 does not continue the chain after row 2"):
        verify(str(path))
