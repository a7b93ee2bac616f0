"""Record-level ledgers, one a site: what each site's training with noise in every step has spent of its own records."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedDP.accounting import Gaussian, NeighboringRelation, TrustModel
from fedDP.budget.clock import Clock, ClockKind, SystemClock
from fedDP.budget.definition import check_text
from fedDP.budget.grant import Grant
from fedDP.budget.ledger import Ledger
from fedDP.budget.policy import Budget, WindowName
from fedDP.budget.record_account import PersonAccount, RecordAccount, person_account, site_account
from fedDP.budget.record_places import of_each, places, site_names
from fedDP.budget.refusal import BudgetExceeded, SiteBudgetExceeded
from fedDP.budget.timekeeping import Timekeeper
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import FedDPError, InvalidValueError, LedgerError
from fedDP.privacy.keys import RngKind
from fedDP.privacy.limits import CLIP_NORM, DENOMINATOR

UNIT = "record"


@dataclass(frozen=True, kw_only=True)
class RecordRelease:
    """What one site's records meet in one round.

    A site whose clients differ is charged for one that bounds them all: the highest rate, the least noise, the most
    steps. Each of its records lies in one client.

    Attributes:
        event: the noised steps: `count` of them, each on a sample of the site's records.
        clip_norm: the bound on one record's gradient, in [1e-9, 1e9].
        denominator: the fixed number that a step's sum of gradients is divided by, in [1e-6, 1e12].

    Raises:
        InvalidValueError: for anything else.
    """

    event: Gaussian
    clip_norm: float
    denominator: float

    def __post_init__(self) -> None:
        if not isinstance(self.event, Gaussian):
            raise InvalidValueError("event", self.event, "a Gaussian event whose count is the number of steps")
        object.__setattr__(self, "clip_norm", CLIP_NORM.check("clip_norm", self.clip_norm))
        object.__setattr__(self, "denominator", DENOMINATOR.check("denominator", self.denominator))


class RecordLedgers:
    """The ledgers of all sites that train together, each for its own records, for as long as the site has them.

    Guarantees:
        1. `charge_round` returns only when every site's charge is on the disk, so that whatever trains after it is paid
           for. If a site refuses, nothing was allowed to train, and what other sites were charged stays spent. A site
           that can be seen to refuse is asked first, before the others spend anything.
        2. All sites are charged in every round, whether or not one of their clients is sampled: a record-level epsilon
           assumes that its record takes part in every round, and claims nothing from the choice of clients.
        3. Each call is a charge of its own, also for a round that was charged before: noise is drawn at the site, and
           training again draws it again. So what was spent is never less than what was trained.
        4. What a site's ledger holds adds up over rounds, runs and processes. The terms are fixed when it is created.
        5. One site has one file, and no name leads out of the folder or to the file of another.

    One site's records have one ledger for ever. A second folder or database for a site that is known elsewhere begins
    with nothing spent, and hides what the first one holds: whoever names the location answers for that, and for a site
    keeping its name. Create one with `RecordLedgers.open`; threads may share it.
    """

    def __init__(self, ledgers: Mapping[str, Ledger], clock: Clock, population: str) -> None:
        self._ledgers = dict(ledgers)
        self._clock = clock
        self._lock = threading.Lock()
        self.population = population

    @classmethod
    def open(
        cls,
        location: Path | str | Mapping[str, str],
        *,
        sites: Sequence[str],
        population: str,
        budget: Budget | Mapping[str, Budget],
        neighboring_relation: NeighboringRelation = "add_remove",
        mode: str = "auto",
        plan: Mapping[str, Sequence[Gaussian]] | None = None,
        clock: Clock | None = None,
        simulation: bool = False,
        anchors: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> RecordLedgers:
        """Opens the ledgers of `sites`, and creates those that are not there.

        Args:
            location: a folder, which gets a SQLite file a site, or a path or URL for each site.
            sites: the names of all sites that train, each once.
            population: names the people; with the site's name, the population of its ledger.
            budget: the allowances and delta of every site, or of each.
            neighboring_relation: between data of one site that differ in one record.
            mode: "gaussian", "renyi" or "auto", as for `Ledger.open`; a committed plan grants no several steps at once.
            plan: for each site the releases that are expected, which must not depend on data; used at creation.
            clock, simulation: as for `Ledger.open`.
            anchors: `anchors` as they were kept elsewhere, such as in a checkpoint; a site may be missing.

        Raises:
            InvalidValueError: for no site, a name that is given twice or is not text in Unicode's composed form (NFC),
                or terms that are not those of exactly these sites.
            LedgerError: as `Ledger.open`, naming the site; sites before it may have been created.
        """
        names = site_names(sites)
        check_text("population", population)
        if mode == "plan":
            raise InvalidValueError(
                "mode", mode, '"gaussian", "renyi" or "auto"', "A committed plan grants its releases one by one."
            )
        TrustModel.RECORD_LEVEL_LOCAL.check_relation(neighboring_relation)
        where = places(location, names)
        budgets = dict.fromkeys(names, budget) if isinstance(budget, Budget) else of_each("budget", budget, names)
        if not all(isinstance(each, Budget) for each in budgets.values()):
            raise InvalidValueError("budget", budget, "a Budget, or one for each site")
        plans = {} if plan is None else of_each("plan", plan, names)
        if unknown := set(anchors or {}) - set(names):
            raise InvalidValueError("anchors", sorted(unknown), f"anchors of the sites {', '.join(names)}")
        clock = clock or SystemClock()
        ledgers = {}
        for site in names:
            with _naming(site, f"at {where[site]} cannot be opened"):
                ledgers[site] = Ledger.open(
                    where[site],
                    budget=budgets[site],
                    unit=UNIT,
                    population=f"{_escaped(population)}/{_escaped(site)}",
                    neighboring_relation=neighboring_relation,
                    mode=mode,
                    plan=plans.get(site),
                    clock=clock,
                    simulation=simulation,
                    anchors=[anchors[site]] if anchors and site in anchors else [],
                )
        return cls(ledgers, clock, population)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites' names, sorted."""
        return tuple(self._ledgers)

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """Between data of one site that differ in one record; the same for all sites, as the kind of the clock is."""
        return self._ledgers[self.sites[0]].definition.neighboring_relation

    @property
    def clock_kind(self) -> ClockKind:
        """Whether the weeks are real ones."""
        return self._clock.kind

    @property
    def anchors(self) -> dict[str, dict[str, Any]]:
        """Each ledger's anchor by site, to keep in a run's checkpoint."""
        return {site: ledger.anchor for site, ledger in self._ledgers.items()}

    @property
    def last_charged(self) -> datetime | None:
        """The latest time of a ledger that was charged; None when none was. A simulated clock begins after it."""
        return max((time for each in self._ledgers.values() if (time := each.last_charged) is not None), default=None)

    def ledger(self, site: str) -> Ledger:
        """The ledger of one site.

        Raises:
            InvalidValueError: for a site that is not among them.
        """
        if site not in self._ledgers:
            raise InvalidValueError("site", site, f"one of {', '.join(map(repr, self.sites))}")
        return self._ledgers[site]

    def charged_rounds(self, run_id: str) -> set[int]:
        """The rounds of a run that every site was charged for: a run that released others has other ledgers."""
        return set.intersection(*(ledger.charged_rounds(run_id) for ledger in self._ledgers.values()))

    def charge_round(
        self,
        releases: Mapping[str, RecordRelease],
        *,
        run_id: str,
        round: int,
        purpose: str = "train",
        rng: RngKind = "csprng",
    ) -> dict[str, Grant]:
        """Charges every site for one round, before any client trains in it.

        Args:
            releases: for every site what its records meet, also where no client of it was sampled.
            run_id, round, purpose, rng: as for `Ledger.authorise`.

        Returns:
            The sites' grants, all used: the noise is the sites' own.

        Raises:
            SiteBudgetExceeded: when a site's budget cannot take it; nothing of the round may train.
            LedgerError: when a site's ledger cannot vouch for it; the same.
            InvalidValueError: for other sites than all of them; nothing was charged.
        """
        of_each("releases", releases, self.sites)
        with self._lock:
            grants: dict[str, Grant] = {}
            for site in self._in_order(releases, round, purpose):
                charged = f"charged for it and spent: {', '.join(grants)}" if grants else "no site was charged for it"
                with _naming(site, f"refuses round {round}, of which nothing may train; {charged}", tuple(grants)):
                    grants[site] = self._authorise(site, releases[site], run_id, round, purpose, rng)
            return grants

    def charge(
        self,
        site: str,
        release: RecordRelease,
        *,
        run_id: str,
        round: int,
        purpose: str = "train",
        rng: RngKind = "csprng",
    ) -> Grant:
        """Charges one site alone, for what is no round of all: as `charge_round`."""
        self.ledger(site)
        with self._lock, _naming(site, f"refuses round {round}, of which nothing may train"):
            return self._authorise(site, release, run_id, round, purpose, rng)

    def mark_released(self, grants: Mapping[str, Grant]) -> None:
        """Notes that the round left the aggregator; after the checkpoint that holds it.

        Raises:
            LedgerError: for a grant that is not the site's, or was marked before.
        """
        for site, grant in grants.items():
            ledger = self.ledger(site)
            with _naming(site, "cannot mark the release"):
                ledger.mark_released(grant)

    def account(self, window: WindowName = "lifetime") -> RecordAccount:
        """What a record of each site has met in the worst window of a kind, and what holds for all of them."""
        return RecordAccount(
            window=window, sites=tuple(site_account(site, ledger, window) for site, ledger in self._ledgers.items())
        )

    def person(
        self, sites: Sequence[str], *, records: Sequence[int] | None = None, delta: float | None = None
    ) -> PersonAccount:
        """What a person with records in several sites has met, over the ledgers' lifetimes.

        Args:
            sites: those that hold the person, each once.
            records: how many of the person's records each holds at most; None is one each.
            delta: of the charged epsilon; None is the largest of the sites'.

        Raises:
            InvalidValueError: for an unknown site, one given twice, or as `fedDP.accounting.units.person_epsilon`.
            UnsupportedError: for several records in a site with sampled steps.
        """
        return person_account({site: self.ledger(site) for site in site_names(sites)}, sites, records, delta)

    def _authorise(
        self, site: str, release: RecordRelease, run_id: str, round: int, purpose: str, rng: RngKind
    ) -> Grant:
        if not isinstance(release, RecordRelease):
            raise InvalidValueError("release", release, "a RecordRelease")
        grant = self._ledgers[site].authorise(
            release.event,
            run_id=run_id,
            round=round,
            purpose=purpose,
            clip_norm=release.clip_norm,
            denominator=release.denominator,
            rng=rng,
        )
        # The site draws the noise, as often as it trains: without this, a second call would return the same grant.
        grant.use()
        return grant

    def _in_order(self, releases: Mapping[str, RecordRelease], round: int, purpose: str) -> list[str]:
        """The sites, with those first that would refuse as far as can be seen: the charge itself decides."""
        now = Timekeeper(self._clock).read(round)
        willing = {}
        for site, ledger in self._ledgers.items():
            with _naming(site, f"refuses round {round}, of which nothing may train; no site was charged for it"):
                week = max(IsoWeek.of(now), ledger.last_week)
                willing[site] = ledger.would_grant(releases[site].event, [week], purpose) == 1
        return sorted(willing, key=lambda site: willing[site])


@contextmanager
def _naming(site: str, what: str, charged: tuple[str, ...] = ()) -> Iterator[None]:
    """Names the site in what is refused for it."""
    try:
        yield
    except BudgetExceeded as refusal:
        raise SiteBudgetExceeded(site, refusal, what, charged) from refusal
    except FedDPError as error:
        raise LedgerError(f"Site {site!r} {what}. {error}") from error


def _escaped(name: str) -> str:
    """A name without a slash; two names stay two."""
    return name.replace("%", "%25").replace("/", "%2F")
