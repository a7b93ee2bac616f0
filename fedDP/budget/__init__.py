"""Budgets, windows and the ledger. SQLAlchemy and the accountants; neither torch, flwr nor ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedDP.budget.clock import Clock, SimulatedClock, SystemClock
    from fedDP.budget.committed_plan import PlannedRelease
    from fedDP.budget.enrolment_terms import EnrolmentTerms
    from fedDP.budget.grant import Grant
    from fedDP.budget.ledger import Ledger
    from fedDP.budget.policy import Budget
    from fedDP.budget.record_account import PersonAccount, RecordAccount, SiteAccount
    from fedDP.budget.record_ledgers import RecordLedgers, RecordRelease
    from fedDP.budget.refusal import BudgetExceeded, ClockJumped, SiteBudgetExceeded
    from fedDP.budget.verification import Verification, verify
    from fedDP.budget.weeks import IsoWeek
    from fedDP.budget.windows import WindowStatus

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Clock",
    "ClockJumped",
    "EnrolmentTerms",
    "Grant",
    "IsoWeek",
    "Ledger",
    "PersonAccount",
    "PlannedRelease",
    "RecordAccount",
    "RecordLedgers",
    "RecordRelease",
    "SimulatedClock",
    "SiteAccount",
    "SiteBudgetExceeded",
    "SystemClock",
    "Verification",
    "WindowStatus",
    "verify",
]

# Loaded on first use: a plan needs budgets and weeks, and only a ledger pays for SQLAlchemy.
_LAZY = {
    "Budget": "policy",
    "BudgetExceeded": "refusal",
    "Clock": "clock",
    "ClockJumped": "refusal",
    "EnrolmentTerms": "enrolment_terms",
    "Grant": "grant",
    "IsoWeek": "weeks",
    "Ledger": "ledger",
    "PersonAccount": "record_account",
    "PlannedRelease": "committed_plan",
    "RecordAccount": "record_account",
    "RecordLedgers": "record_ledgers",
    "RecordRelease": "record_ledgers",
    "SimulatedClock": "clock",
    "SiteAccount": "record_account",
    "SiteBudgetExceeded": "refusal",
    "SystemClock": "clock",
    "Verification": "verification",
    "WindowStatus": "windows",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
