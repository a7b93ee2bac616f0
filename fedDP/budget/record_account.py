"""What record-level ledgers of several sites say together: about a record of one site, and a person in several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedDP.accounting import Gaussian, accountant_name
from fedDP.accounting.accountants import AccountantName
from fedDP.accounting.gdp import EPSILON_QUERY
from fedDP.accounting.units import Guarantee, group_guarantee, parallel_guarantee, person_epsilon, sequential_guarantee
from fedDP.budget.policy import Mode, WindowName
from fedDP.budget.view import LedgerView


@dataclass(frozen=True, kw_only=True)
class SiteAccount:
    """What a record of one site has met in the worst window of a kind.

    Attributes:
        window, key: which window; no key where nothing was charged.
        epsilon: of what was charged, at `delta`; infinity where it is beyond 1e12.
        epsilon_certified: what the site's budget certifies of the window; infinity without an allowance.
        delta: of the site's budget.
        charges: how many rounds.
        steps: how many noised steps.
        accountant, mode: of the charged epsilon, and of the certified one.
    """

    site: str
    window: WindowName
    key: str | None
    epsilon: float
    epsilon_certified: float
    delta: float
    charges: int
    steps: int
    accountant: AccountantName
    mode: Mode


@dataclass(frozen=True, kw_only=True)
class RecordAccount:
    """The sites side by side, and what holds for a record of any of them.

    Guarantee: with no record, and nobody's records, in two sites, every record has (`epsilon`, `delta`) for what was
    charged, and (`epsilon_certified`, `delta`) for whatever its site's budget can grant in such a window; of a lifetime
    that only its year bounds, while it has seen one year.
    """

    window: WindowName
    sites: tuple[SiteAccount, ...]

    @property
    def epsilon(self) -> float:
        """The largest of the sites'."""
        return self._largest([(site.epsilon, site.delta) for site in self.sites])

    @property
    def epsilon_certified(self) -> float:
        """The largest of the sites'."""
        return self._largest([(site.epsilon_certified, site.delta) for site in self.sites])

    @property
    def delta(self) -> float:
        """The largest of the sites'."""
        return max(site.delta for site in self.sites)

    @staticmethod
    def _largest(pairs: Sequence[tuple[float, float]]) -> float:
        if any(math.isinf(epsilon) for epsilon, _ in pairs):
            return math.inf
        return parallel_guarantee([Guarantee(*pair) for pair in pairs]).epsilon


@dataclass(frozen=True, kw_only=True)
class PersonAccount:
    """What a person with records in several sites has met, over the ledgers' lifetimes.

    Attributes:
        sites, records: which sites, and how many records each holds at most.
        epsilon, delta: of everything that they were charged for, together.
        certified: what the budgets certify together, by adding up; its delta is the sum of the sites'. None when a site
            has no allowance that bounds its lifetime.
    """

    sites: tuple[str, ...]
    records: tuple[int, ...]
    epsilon: float
    delta: float
    certified: Guarantee | None


def site_account(site: str, ledger: LedgerView, window: WindowName) -> SiteAccount:
    """The account of a site in the worst window of a kind."""
    found = [status for status in ledger.windows() if status.window == window]
    worst = max(found, key=lambda status: status.spent_epsilon, default=None)
    status = worst or ledger.status(window, ledger.last_week)
    # Weeks need not have one allowance: years have 52 or 53, and unused ones may be carried over.
    bounds = [ledger.certified(each) for each in found or [status]]
    return SiteAccount(
        site=site,
        window=window,
        key=status.key if status.charges else None,
        epsilon=status.spent_epsilon if status.spent_epsilon <= EPSILON_QUERY.high else math.inf,
        epsilon_certified=max(math.inf if bound is None else bound for bound in bounds),
        delta=ledger.definition.budget.delta,
        charges=status.charges,
        steps=status.releases,
        accountant=accountant_name(ledger.events()),
        mode=ledger.definition.mode,
    )


def person_account(
    ledgers: Mapping[str, LedgerView], sites: Sequence[str], records: Sequence[int] | None, delta: float | None
) -> PersonAccount:
    """The account of a person in `sites`, the keys of `ledgers`; see `RecordLedgers.person`."""
    held = [ledgers[site] for site in sites]
    deltas = [ledger.definition.budget.delta for ledger in held]
    at = max(deltas) if delta is None else delta
    (relation,) = {ledger.definition.neighboring_relation for ledger in held}  # one for all, by RecordLedgers.open
    events: list[list[Gaussian]] = [ledger.events() for ledger in held]
    epsilon = person_epsilon(events, at, records=records, neighboring_relation=relation)
    counts = [1] * len(held) if records is None else [int(count) for count in records]
    bounds = [ledger.certified(ledger.status("lifetime", ledger.last_week)) for ledger in held]
    parts = [
        group_guarantee(Guarantee(bound, each), count)
        for bound, each, count in zip(bounds, deltas, counts, strict=True)
        if bound is not None
    ]
    return PersonAccount(
        sites=tuple(sites),
        records=tuple(counts),
        epsilon=epsilon,
        delta=float(at),
        certified=sequential_guarantee(parts) if len(parts) == len(held) else None,
    )
