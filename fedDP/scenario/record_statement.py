"""The privacy statement at the level of records: beside that of clients, never added to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedDP.accounting import FullParticipation, TrustModel
from fedDP.budget import PersonAccount, RecordLedgers
from fedDP.budget.policy import WindowName
from fedDP.budget.record_ledgers import UNIT
from fedDP.privacy.keys import RngKind

ADVERSARY = "everyone who sees all models and updates, the server and other sites included; not a record's own site"
PARTICIPATION = (
    "participation in every round: every record counts as part of every charged round, sampled client or not"
)
NOT_COVERED = (
    "sizes: how many clients and records a site has is public",
    "who takes part in a round, and the timing of rounds and replies",
    "the floating-point noise of local training",
    "whatever else is computed from the records: metrics, statistics, preprocessing, other models",
    "hyper-parameters tuned on the same records",
    "a private initial model",
    "records that a site has charged elsewhere, or that moved from one site to another",
)

_WINDOWS: tuple[WindowName, ...] = ("week", "year", "lifetime")


def record_statements(
    ledgers: RecordLedgers,
    *,
    rng: RngKind,
    scope: str,
    persons: Sequence[PersonAccount] = (),
) -> list[dict[str, Any]]:
    """One record-level statement for each kind of window: the worst week, the worst year, and the lifetime.

    The epsilon of a statement is that of a record at one site, the largest of the sites; a person with records at
    several stands beside it in the lifetime's.

    Args:
        ledgers: what was charged.
        rng: whether the sites' noise can be repeated.
        scope: which runs the ledgers count.
        persons: accounts of `RecordLedgers.person`.
    """
    not_covered = [
        *NOT_COVERED,
        "a person with several records: see persons, or a record's epsilon protects each alone",
    ]
    if rng == "seeded":
        not_covered.append("seeded randomness: every epsilon is nominal, whoever knows the seed can remove the noise")
    found = []
    for window in _WINDOWS:
        account = ledgers.account(window)
        if window != "lifetime" and not any(site.charges for site in account.sites):
            continue
        statement: dict[str, Any] = {
            "level": "record",
            "unit": UNIT,
            "neighboring_relation": ledgers.neighboring_relation,
            "trust_model": f"{TrustModel.RECORD_LEVEL_LOCAL}: {TrustModel.RECORD_LEVEL_LOCAL.trusted}",
            "adversary": ADVERSARY,
            "sampling": _sampling(ledgers),
            "assumption": PARTICIPATION,
            "accountant": ", ".join(sorted({site.accountant for site in account.sites})),
            "delta": account.delta,
            "clock": ledgers.clock_kind,
            "scope": scope,
            "mode": ", ".join(sorted({site.mode for site in account.sites})),
            "rng": rng,
            "not_covered": not_covered,
            "holds_for": "a record of one site; the largest of the sites, where nobody has records at two",
            "window": window,
            "epsilon": _number(account.epsilon),
            "epsilon_certified": _number(account.epsilon_certified),
            "charges": max(site.charges for site in account.sites),
            "sites": [
                {name: _number(value) for name, value in asdict(site).items() if name != "window"}
                for site in account.sites
            ],
        }
        if window == "lifetime":
            statement["persons"] = [_person(person) for person in persons]
        found.append(statement)
    return found


def _sampling(ledgers: RecordLedgers) -> dict[str, Any]:
    """How records enter the steps, of everything that was charged."""
    samplings = {event.sampling for site in ledgers.sites for event in ledgers.ledger(site).events()}
    rates = [sampling.rate for sampling in samplings]
    kinds = {"all" if sampling.rate == 1.0 else str(sampling.to_dict()["type"]) for sampling in samplings} or {"all"}
    return {
        "kind": kinds.pop() if len(kinds) == 1 else "mixed",
        "rate": max(rates, default=FullParticipation().rate),
        "assumption": "records are drawn anew for every local step; who was drawn stays at the site; the largest rate",
    }


def _person(person: PersonAccount) -> dict[str, Any]:
    certified = person.certified
    return {
        "sites": list(person.sites),
        "records": list(person.records),
        "epsilon": _number(person.epsilon),
        "delta": person.delta,
        "epsilon_certified": "inf" if certified is None else certified.epsilon,
        "delta_certified": person.delta if certified is None else certified.delta,
    }


def _number(value: Any) -> Any:
    """JSON has no infinity."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value
