"""The refusals of a release: its budget does not cover it, or the clock cannot be believed."""

from __future__ import annotations

from datetime import date

from fedDP.errors import FedDPError, LedgerError


class BudgetExceeded(FedDPError):
    """A window cannot take the release; nothing was granted and nothing may be trained for it.

    The decision depends on the ledger and on configured numbers alone, so a refusal reveals nothing about the data.

    Attributes:
        window: "week", "year", "trailing" or "lifetime".
        key: which one, such as "2026-W09".
        spent: epsilon of the window so far; of a week whose allowance accumulates: of the year so far.
        asked: epsilon that the window would have to certify with the release.
        allowance: epsilon that the window may have.
        resumes: the ISO date from which the same release would fit, or None when it never will.
        reserve: the share of the window that is kept for evaluation, when it is this reserve that refuses; `spent`,
            `asked` and `allowance` then speak of training alone. Else 0.
    """

    def __init__(
        self,
        *,
        window: str,
        key: str,
        spent: float,
        asked: float,
        allowance: float,
        resumes: date | None,
        spent_fraction: float,
        asked_fraction: float,
        reserve: float = 0.0,
    ) -> None:
        self.window = window
        self.key = key
        self.spent = spent
        self.asked = asked
        self.allowance = allowance
        self.resumes = resumes.isoformat() if resumes else None
        self.reserve = reserve
        span = "the ledger's lifetime" if window == "lifetime" else f"{window} {key}"
        when = f"It would fit from {self.resumes} on." if resumes else "It will never fit this budget."
        kept = f" for training, without the {reserve:.4g} of it that is reserved for evaluation," if reserve else ""
        super().__init__(
            f"The budget of {span}{kept} cannot take this release: {spent_fraction:.1%} is spent and the release needs "
            f"{asked_fraction:.1%} more (epsilon spent {spent:.4g}, with the release {asked:.4g}, "
            f"allowance {allowance:.4g}). {when}"
        )


class SiteBudgetExceeded(BudgetExceeded):
    """The budget of one site's records cannot take its part of a round, so that nothing of the round may train.

    Attributes:
        site: the one that refuses.
        charged: the sites that were charged for the round before; what they spent stays spent.
    """

    def __init__(self, site: str, refusal: BudgetExceeded, what: str, charged: tuple[str, ...]) -> None:
        self.__dict__.update(vars(refusal))
        self.site = site
        self.charged = charged
        Exception.__init__(self, f"Site {site!r} {what}. {refusal}")


class ClockJumped(LedgerError):
    """The clock is further ahead of the last charge than anyone has acknowledged; nothing was granted.

    Attributes:
        last: the ISO date of the last charge.
        now: the ISO date that the clock says.
        week: the ISO week of `now`, in which an operator's acknowledgement would count.
    """

    def __init__(self, *, last: date, now: date, week: str) -> None:
        self.last = last.isoformat()
        self.now = now.isoformat()
        self.week = week
        super().__init__(
            f"The clock jumped: it says {self.now}, {(now - last).days} days after the last charge of {self.last}, and "
            "more than 31 need a person's word, since a wrong clock would open budget of weeks that have not come. "
            "Nothing was granted. Set the clock right or, if it is, have an operator say so within its week "
            f"({week}): Ledger.load(url).acknowledge_clock_jump(operator=..., reason=...)."
        )
