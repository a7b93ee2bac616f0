"""Charges that outlive their process: on the disk, under several processes, after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedDP.accounting import Gaussian
from fedDP.budget import Budget, BudgetExceeded, Ledger
from fedDP.errors import LedgerError

from .ledgers import authorise, count_rows, noise_for, raw

BUDGET = Budget(delta=1e-6, lifetime=0.5)

PRELUDE = """
import sys, time
from fedDP.accounting import Gaussian
from fedDP.budget import Budget, BudgetExceeded, Ledger
from fedDP.errors import LedgerError
path, noise, run_id = sys.argv[1], float(sys.argv[2]), sys.argv[3]
ledger = Ledger.open(path, budget=Budget(delta=1e-6, lifetime=0.5), unit="patient", mode="gaussian")
def charge(round):
    return ledger.authorise(
        Gaussian(noise), run_id=run_id, round=round, purpose="train", clip_norm=1.0, denominator=10.0
    )
"""

CHARGE_TWENTY = """
granted = 0
for round in range(20):
    try:
        charge(round)
        granted += 1
    except BudgetExceeded:
        pass
print(granted)
"""

CHARGE_AND_WAIT = """
grant = charge(1)
print("granted", grant.seq, grant.attempt, flush=True)
time.sleep(60)
ledger.mark_released(grant)
"""


def start(code: str, path: Path, noise: float, run_id: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, str(path), repr(noise), run_id]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_charge_is_on_the_disk_when_it_is_granted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(str(path), budget=BUDGET, unit="patient", mode="gaussian")
    for round in range(3):
        grant = authorise(ledger, Gaussian(50.0), round=round)
        with raw(path) as other:  # no lock is held, and the row is there
            row = other.execute("SELECT kind, run_id, round, attempt FROM entries WHERE seq = ?", (grant.seq,))
            assert row.fetchone() == ("charge", "run", round, 1)
        assert {name.name for name in path.parent.iterdir()} == {"ledger.db", "ledger.db.anchor"}  # no journal


def test_every_commit_is_synced(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path / "ledger.db"), budget=BUDGET, unit="patient")
    with ledger._database.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3  # EXTRA
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


@pytest.mark.e2e
def test_eight_processes_cannot_spend_a_budget_twice(tmp_path: Path) -> None:
    path, noise = tmp_path / "ledger.db", noise_for(20, BUDGET, "gaussian")
    processes = [start(CHARGE_TWENTY, path, noise, f"run {index}") for index in range(8)]
    granted = 0
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        granted += int(output)
    assert granted == count_rows(path, "charge") == 20
    ledger = Ledger.load(str(path))
    (status,) = [status for status in ledger.windows() if status.window == "lifetime"]
    assert status.charges == 20
    assert status.spent_fraction == pytest.approx(1.0, rel=1e-6)


@pytest.mark.e2e
def test_a_killed_process_has_paid_for_what_it_was_granted(tmp_path: Path) -> None:
    path, noise = tmp_path / "ledger.db", noise_for(2, BUDGET, "gaussian")
    with start(CHARGE_AND_WAIT, path, noise, "run") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "granted 1 1\n"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    ledger = Ledger.open(str(path), budget=BUDGET, unit="patient", mode="gaussian")
    assert ledger.windows()[-1].charges == 1
    retry = authorise(ledger, Gaussian(noise))
    assert retry.attempt == 2
    assert count_rows(path, "abandoned") == 1
    ledger.mark_released(retry)
    with pytest.raises(BudgetExceeded):
        authorise(ledger, Gaussian(noise), round=2)


def test_a_release_whose_process_ended_before_the_mark_is_marked_later(tmp_path: Path) -> None:
    ledger = Ledger.open(str(tmp_path / "ledger.db"), budget=BUDGET, unit="patient", mode="gaussian")
    grant = authorise(ledger, Gaussian(50.0))
    again = Ledger.open(str(tmp_path / "ledger.db"), budget=BUDGET, unit="patient", mode="gaussian")
    for _ in range(2):
        again.mark_published(run_id=grant.run_id, round=grant.round, purpose=grant.purpose)
        assert again.num_charges(unreleased=True) == 0
    assert count_rows(tmp_path / "ledger.db", "released") == 1
    with pytest.raises(LedgerError, match="was released already"):
        authorise(again, Gaussian(50.0))
    with pytest.raises(LedgerError, match="was never charged"):
        again.mark_published(run_id=grant.run_id, round=grant.round + 1, purpose=grant.purpose)
