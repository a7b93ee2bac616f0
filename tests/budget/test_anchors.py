"""Older copies, exchanged files and lost anchors: the chain alone cannot see them, and nothing is granted from them."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, Ledger, verify
from fedDP.errors import InvalidValueError, LedgerError

from .ledgers import SetClock, anchor_beside, authorise, count_rows, raw, without_sync

BUDGET = Budget(delta=1e-6, year=0.5)
EVENT = Gaussian(50.0)


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def open_ledger(path: Path, **options: Any) -> Ledger:
    return Ledger.open(str(path), budget=BUDGET, unit="patient", mode="gaussian", clock=SetClock(), **options)


def read(path: Path) -> Any:
    return json.loads(anchor_beside(path).read_text())


def assert_refused(path: Path, message: str, **options: Any) -> None:
    for open_it in (open_ledger, lambda path, **options: Ledger.load(str(path), **options)):
        with pytest.raises(LedgerError, match=message):
            open_it(path, **options)
    with pytest.raises(LedgerError, match=message):
        verify(str(path), **options)


def test_an_anchor_is_the_head_as_json(path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    seq, digest = ledger.head
    assert ledger.anchor == {"ledger_id": ledger.definition.ledger_id, "seq": seq, "hash": digest}
    assert json.loads(json.dumps(ledger.anchor)) == ledger.anchor


def test_the_file_follows_every_row(path: Path) -> None:
    ledger = open_ledger(path)
    assert read(path) == ledger.anchor
    for round in range(3):
        grant = authorise(ledger, EVENT, round=round)
        assert read(path) == ledger.anchor
        ledger.mark_released(grant)
        assert read(path) == ledger.anchor
    assert ledger.anchor["seq"] == 6
    assert {file.name for file in path.parent.iterdir()} == {"ledger.db", "ledger.db.anchor"}


def test_the_file_is_never_ahead_of_the_ledger(path: Path) -> None:
    ledger = open_ledger(path)
    before = read(path)
    with raw(path) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(LedgerError, match="disk full"):
        authorise(ledger, EVENT)
    assert read(path) == before
    with raw(path) as connection:
        connection.execute("DROP TRIGGER full")
    authorise(ledger, EVENT)
    assert read(path) == ledger.anchor


def test_a_file_that_a_crash_left_behind_is_an_anchor_still(path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    behind = anchor_beside(path).read_bytes()
    authorise(ledger, EVENT, round=2)
    anchor_beside(path).write_bytes(behind)
    reopened = open_ledger(path)
    assert reopened.head[0] == 2
    authorise(reopened, EVENT, round=3)
    assert read(path) == reopened.anchor


# Older copies


def test_an_older_copy_is_refused_by_the_file(path: Path, tmp_path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    older = shutil.copy(path, tmp_path / "older.db")
    authorise(ledger, EVENT, round=2)
    shutil.copy(older, path)
    assert_refused(path, "was rolled back: row 2 is missing, and an anchor has seen row 2")


def test_an_older_copy_with_its_file_is_refused_by_a_checkpoint(path: Path, tmp_path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    copies = [shutil.copy(file, tmp_path / f"{file.name}.old") for file in (path, anchor_beside(path))]
    for round in range(2, 6):
        authorise(ledger, EVENT, round=round)
    anchor = ledger.anchor
    open_ledger(path, anchors=[anchor])
    shutil.copy(copies[0], path)
    shutil.copy(copies[1], anchor_beside(path))
    open_ledger(path)
    assert_refused(path, "was rolled back: row 2 is missing, and an anchor has seen row 5", anchors=[anchor])


def test_an_older_copy_that_was_written_to_again_is_refused(path: Path, tmp_path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    copies = [shutil.copy(file, tmp_path / f"{file.name}.old") for file in (path, anchor_beside(path))]
    authorise(ledger, EVENT, round=2)
    anchor = ledger.anchor
    shutil.copy(copies[0], path)
    shutil.copy(copies[1], anchor_beside(path))
    again = open_ledger(path)
    for round in range(2, 9):
        authorise(again, EVENT, round=round)
    assert_refused(path, "was altered: row 2 is not the row that an anchor has seen there", anchors=[anchor])


def test_another_ledger_in_its_place_is_refused(path: Path, tmp_path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    other = open_ledger(tmp_path / "other.db")
    for round in range(5):
        authorise(other, EVENT, round=round)
    shutil.copy(tmp_path / "other.db", path)
    assert_refused(path, f"was exchanged: row 0 says that it is {other.definition.ledger_id}")


def test_a_ledger_that_is_gone_is_not_begun_anew(path: Path) -> None:
    anchor = open_ledger(path).anchor
    path.unlink()
    anchor_beside(path).unlink()
    assert_refused(path, "row 0 is missing", anchors=[anchor])
    assert not path.exists()
    path.touch()
    assert_refused(path, "row 0 is missing", anchors=[anchor])


def test_every_anchor_must_hold(path: Path) -> None:
    ledger = open_ledger(path)
    anchors = [ledger.anchor]
    for round in range(3):
        authorise(ledger, EVENT, round=round)
        anchors.append(ledger.anchor)
    open_ledger(path, anchors=anchors)
    for index in range(4):
        wrong = [*anchors[:index], {**anchors[index], "hash": "0" * 64}, *anchors[index + 1 :]]
        assert_refused(path, f"row {index} is not the row", anchors=wrong[::-1])


def test_an_older_copy_under_an_open_ledger_that_had_not_seen_the_newer_rows(path: Path, tmp_path: Path) -> None:
    """The chain goes on from what this process knows; only the file knows that others went further."""
    idle, busy = open_ledger(path), open_ledger(path)
    older = shutil.copy(path, tmp_path / "older.db")
    authorise(busy, EVENT)
    shutil.copy(older, path)
    with pytest.raises(LedgerError, match="was rolled back: row 1 is missing, and an anchor has seen row 1"):
        authorise(idle, EVENT, run_id="another")
    assert count_rows(path) == 1


@pytest.mark.parametrize(
    "change",
    [{"seq": -1}, {"seq": 1.5}, {"seq": True}, {"seq": "0"}, {"hash": "0" * 63}, {"hash": "G" * 64}, {"hash": None}],
)
def test_what_is_no_anchor_is_refused(path: Path, change: dict[str, Any]) -> None:
    anchor = open_ledger(path).anchor
    with pytest.raises(InvalidValueError, match=r"anchor\.(seq|hash)="):
        open_ledger(path, anchors=[{**anchor, **change}])
    for other in ({}, {**anchor, "more": 1}, {**anchor, "ledger_id": ""}, "anchor"):
        with pytest.raises(InvalidValueError, match="anchor"):
            open_ledger(path, anchors=[other])


# A file that is lost or cannot be written


def test_a_charged_ledger_without_its_file_is_only_looked_at(path: Path) -> None:
    authorise(open_ledger(path), EVENT)
    anchor_beside(path).unlink()
    with pytest.raises(LedgerError, match=r"anchor file .*ledger\.db\.anchor is missing"):
        open_ledger(path)
    assert Ledger.load(str(path)).num_charges() == 1
    assert verify(str(path)).anchors == 0


def test_a_ledger_without_charges_may_lack_its_file(path: Path) -> None:
    """A crash may come between the creation of a ledger and that of its file; nothing was spent by then."""
    open_ledger(path)
    anchor_beside(path).unlink()
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    assert read(path) == ledger.anchor


def test_an_operator_begins_a_new_file(path: Path) -> None:
    authorise(open_ledger(path), EVENT)
    anchor_beside(path).unlink()
    ledger = Ledger.load(str(path))
    ledger.reset_anchor(operator="Ada", reason="the disk with it was replaced")
    assert read(path) == ledger.anchor
    reopened = open_ledger(path)
    *_, last = reopened.rows()
    assert (last["kind"], last["operator"], last["reason"]) == ("operator", "Ada", "the disk with it was replaced")
    assert json.loads(last["act"]) == {"type": "anchor-reset", "seq": 1, "hash": last["previous_hash"]}
    with pytest.raises(LedgerError, match="misses no anchor file"):
        reopened.reset_anchor(operator="Ada", reason="once more")


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"ledger_id": "x", "seq": 1, "hash": "y"}', "\xff"])
def test_a_file_that_is_no_anchor_is_refused(path: Path, content: str) -> None:
    ledger = open_ledger(path)
    anchor_beside(path).write_text(content, encoding="latin-1")
    assert_refused(path, "cannot be read .*remove it and have an operator")
    with pytest.raises(LedgerError, match="cannot be read"):
        authorise(ledger, EVENT)
    assert count_rows(path) == 1


def test_nothing_is_charged_when_the_file_cannot_be_written(path: Path) -> None:
    ledger = open_ledger(path)
    obstacle = anchor_beside(path).with_name(anchor_beside(path).name + ".tmp")
    obstacle.mkdir()  # as a full or read-only folder would
    with pytest.raises(LedgerError, match=r"cannot be written .*nothing was granted"):
        authorise(ledger, EVENT)
    assert count_rows(path) == 1
    obstacle.rmdir()
    assert authorise(ledger, EVENT).attempt == 1


def test_a_charge_stands_without_a_grant_when_the_file_cannot_be_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(LedgerError, match=r"cannot be replaced \(gone\).*stays spent"):
            authorise(ledger, EVENT)
    assert count_rows(path, "charge") == 1
    assert authorise(ledger, EVENT).attempt == 2
    assert read(path) == ledger.anchor


def test_no_ledger_is_left_when_the_file_cannot_be_written(path: Path) -> None:
    anchor_beside(path).with_name(anchor_beside(path).name + ".tmp").mkdir(parents=True)
    with pytest.raises(LedgerError, match="cannot be written"):
        open_ledger(path)
    assert count_rows(path) == 0


def test_a_file_may_live_elsewhere(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "vault" / "anchor.json"
    with pytest.raises(LedgerError, match=r"folder of the anchor file .* cannot be opened"):
        open_ledger(path, anchor_file=elsewhere)
    elsewhere.parent.mkdir()
    ledger = open_ledger(path, anchor_file=elsewhere)
    authorise(ledger, EVENT)
    assert json.loads(elsewhere.read_text()) == ledger.anchor
    assert not anchor_beside(path).exists()
    assert open_ledger(path, anchor_file=str(elsewhere)).anchor == ledger.anchor


def test_two_processes_never_move_the_file_back(path: Path) -> None:
    ledgers = [open_ledger(path) for _ in range(4)]

    def charge(index: int) -> None:
        for round in range(5):
            authorise(ledgers[index], EVENT, run_id=f"run {index}", round=round)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(charge, range(4)))
    assert read(path)["seq"] == 20
    assert open_ledger(path).anchor == read(path)


def test_rows_are_read_up_to_the_head(path: Path) -> None:
    ledger = open_ledger(path)
    authorise(ledger, EVENT)
    authorise(open_ledger(path), EVENT, round=2)  # not seen by the first yet
    rows = list(ledger.rows())
    assert [row["seq"] for row in rows] == [0, 1]
    assert (rows[-1]["hash"], rows[1]["kind"], rows[1]["run_id"]) == (ledger.head[1], "charge", "run")
    assert len(list(open_ledger(path).rows())) == 3
    with raw(path) as connection:
        connection.execute("DELETE FROM entries WHERE seq > 0")
    with pytest.raises(LedgerError, match="row 1, its last one so far, is not there any more"):
        list(ledger.rows())


def test_rows_are_read_in_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedDP.budget.opening._PAGE", 3)
    ledger = open_ledger(path)
    for round in range(5):
        authorise(ledger, EVENT, round=round)
        assert [row["seq"] for row in ledger.rows()] == list(range(round + 2))
        assert verify(str(path)).rows == round + 2
