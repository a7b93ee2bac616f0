"""A schedule that a ledger commits to before the first release: nothing else is granted from it.

A numerical accountant is no filter: it may not decide round by round whether adaptively chosen noise still fits
(arXiv:2602.06756, arXiv:2602.15815). It does account for releases that were all fixed beforehand, and tighter than any
filter. So the releases are fixed here, hashed into the ledger's first row, and used up one by one.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

from fedDP.accounting import Gaussian
from fedDP.budget.policy import TRAILING_WEEKS, WindowName
from fedDP.budget.records import canonical_json, charged_event
from fedDP.budget.weeks import IsoWeek, weeks_in_iso_year
from fedDP.errors import InvalidValueError


@dataclass(frozen=True)
class PlannedRelease:
    """`event.count` alike releases of a plan.

    Args:
        event: what each release is.
        week: the ISO week in which they will be authorised; None where no window asks for it.
        purpose: as they will be authorised.

    Raises:
        InvalidValueError: for a week that is none.
    """

    event: Gaussian
    week: IsoWeek | None = None
    purpose: str = "train"

    def __post_init__(self) -> None:
        if self.week is not None:
            if not isinstance(self.week, IsoWeek):
                raise InvalidValueError("week", self.week, 'an IsoWeek such as IsoWeek.parse("2026-W01"), or None')
            IsoWeek.parse(self.week.key)

    @classmethod
    def of(cls, planned: Gaussian | PlannedRelease) -> PlannedRelease:
        """A release as it is; an event alone is one without a week, for training."""
        return planned if isinstance(planned, PlannedRelease) else cls(planned)

    def is_like(self, event: Gaussian, purpose: str) -> bool:
        """Whether one release of `event` for `purpose` is one of these."""
        return self.purpose == purpose and replace(self.event, count=1) == event

    def to_dict(self) -> dict[str, Any]:
        """The release as JSON-ready values."""
        week = None if self.week is None else self.week.key
        return {"event": self.event.to_dict(), "week": week, "purpose": self.purpose}


@dataclass(frozen=True)
class CommittedPlan:
    """The releases of a ledger in plan mode, in their order.

    Guarantees:
        1. `find` gives every planned release out at most once, in order, to exactly its event and purpose, in its week.
           Stopping early, or missing releases, is post-processing: a release that was not made reveals nothing. So
           whatever is granted is a part of the plan, and the plan's epsilon covers it.
        2. A release whose week is over is lost; with `carry_over` it may still be used until its ISO year ends.
        3. `may_hold` is every release that can be granted within a window, so that its epsilon, fixed before anything
           was released, is what the window certifies.

    Args:
        releases: all with a week, in the order of their weeks, or all without.
        carry_over: whether releases of weeks that are over may still be used.

    Raises:
        InvalidValueError: for no release at all, weeks out of order, or missing from a part of the releases.
    """

    releases: tuple[PlannedRelease, ...]
    carry_over: bool = False

    def __post_init__(self) -> None:
        if not self.releases:
            raise InvalidValueError("plan", [], "at least one release")
        weeks = [release.week for release in self.releases if release.week is not None]
        if weeks and len(weeks) != len(self.releases):
            raise InvalidValueError("plan", "releases with and without a week", "a week for all of them, or for none")
        if weeks != sorted(weeks):
            raise InvalidValueError("plan", [week.key for week in weeks], "releases in the order of their weeks")

    @classmethod
    def of(cls, plan: Sequence[Gaussian | PlannedRelease], *, carry_over: bool = False) -> CommittedPlan:
        """The plan, with alike neighbours written as one, so that one schedule has one hash."""
        merged = []
        for alike, group in groupby(
            map(PlannedRelease.of, plan), key=lambda each: replace(each, event=replace(each.event, count=1))
        ):
            count = sum(each.event.count for each in group)
            merged.append(replace(alike, event=replace(alike.event, count=count)))
        return cls(tuple(merged), carry_over)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, carry_over: bool) -> CommittedPlan:
        """Reads what `to_dict` wrote.

        Raises:
            ValueError: when the releases are not those that were hashed.
        """
        plan = cls(
            tuple(
                PlannedRelease(
                    charged_event(each["event"]),
                    None if each["week"] is None else IsoWeek.parse(each["week"]),
                    each["purpose"],
                )
                for each in values["releases"]
            ),
            carry_over,
        )
        if values["sha256"] != plan.sha256:
            raise ValueError("the plan is not the one that was committed to")
        return plan

    def to_dict(self) -> dict[str, Any]:
        """The plan and its hash as JSON-ready values."""
        return {"sha256": self.sha256, "releases": [release.to_dict() for release in self.releases]}

    @cached_property
    def sha256(self) -> str:
        """The hash of the releases."""
        return hashlib.sha256(canonical_json([release.to_dict() for release in self.releases]).encode()).hexdigest()

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(release.event.count for release in self.releases))

    @property
    def has_weeks(self) -> bool:
        """Whether the releases have their weeks."""
        return self.releases[0].week is not None

    def find(self, event: Gaussian, purpose: str, week: IsoWeek, *, start: int) -> int | None:
        """The number of the planned release that this one would be, counted from 0; None if there is none.

        Args:
            event, purpose: the release.
            week: the week it would be authorised in.
            start: the first number that is not used up.
        """
        for index in range(bisect_right(self._ends, start), len(self.releases)):
            release = self.releases[index]
            over = release.week is not None and release.week < week
            if over and not self._is_usable(release, week, week):
                continue
            if release.week is not None and release.week > week:
                return None
            if release.is_like(event, purpose):
                return max(start, self._ends[index] - release.event.count)
            if not over:
                return None
        return None

    def next_release(self, week: IsoWeek, *, start: int) -> PlannedRelease | None:
        """The release that has to be the next in `week`, apart from those of weeks that are over."""
        for release in self.releases[bisect_right(self._ends, start) :]:
            if release.week is None or release.week >= week:
                return release if release.week in (None, week) else None
        return None

    def next_week(self, after: IsoWeek, like: tuple[Gaussian, str] | None = None) -> IsoWeek | None:
        """The first week after `after` with a planned release, `like` an event and a purpose if given."""
        for release in self.releases:
            if release.week is not None and release.week > after and (like is None or release.is_like(*like)):
                return release.week
        return None

    def may_hold(self, window: WindowName, week: IsoWeek) -> list[Gaussian]:
        """Every release that may be granted in the window that `window` is in `week`; all of them without weeks."""
        first, last = week, week
        if window == "lifetime":
            return [release.event for release in self.releases]
        if window == "year":
            first, last = IsoWeek(week.year, 1), IsoWeek(week.year, weeks_in_iso_year(week.year))
        elif window == "trailing":
            first = week.plus(1 - TRAILING_WEEKS)
        return [release.event for release in self.releases if self._is_usable(release, first, last)]

    def _is_usable(self, release: PlannedRelease, first: IsoWeek, last: IsoWeek) -> bool:
        """Whether `release` may be granted in one of the weeks from `first` to `last`."""
        if release.week is None:
            return True
        end = IsoWeek(release.week.year, weeks_in_iso_year(release.week.year)) if self.carry_over else release.week
        return release.week <= last and end >= first
