"""A target that releases depending on one number have to keep, and the last number with which they do.

A search starts where the central limit of many small releases puts the answer, so that a handful of evaluations is
enough and none of them is far from the target (an accountant may be slow, and slower, where epsilon is large).

Reference:
    Bu, Dong, Long, Su (2020), arXiv:1911.11607, Sec. 2 (the central limit: a starting point, never a bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from fedDP.accounting.accountants import accountant_name, epsilon
from fedDP.accounting.boundary import last_within
from fedDP.accounting.events import FixedSize, Gaussian, NeighboringRelation, Poisson, Sampling, sensitivity
from fedDP.accounting.gdp import gdp_squared_budget
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import EPSILON

RELATIVE_TOLERANCE = 1e-10
GRID_TOLERANCE = 1e-5
"""Of accountants on a grid, whose epsilons are good to about as much."""


class Promise:
    """One target for events that depend on one number; no number is handed to the accountant twice."""

    def __init__(
        self,
        events_at: Callable[[float], tuple[Gaussian, ...]],
        target_epsilon: float,
        delta: float,
        accountant: str | None,
        neighboring_relation: NeighboringRelation,
    ) -> None:
        self.target = EPSILON.check("target_epsilon", target_epsilon)
        self._squared_budget = gdp_squared_budget(self.target, delta)
        self._distance = sensitivity(neighboring_relation)
        self._events_at, self._delta = events_at, delta
        self._accountant, self._relation = accountant, neighboring_relation
        self._excess = cache(self._evaluate)

    def fits(self, value: float) -> bool:
        """Whether the accountant's epsilon is at most the target."""
        return self._excess(value) <= 0.0

    def last(self, *, safe: float, wanted: float, whole: bool = False) -> float | None:
        """The value nearest to `wanted` that fits; None if even `safe` does not."""
        name = self._accountant or accountant_name(self._events_at(safe))
        search = partial(
            last_within,
            safe=safe,
            wanted=wanted,
            tolerance=RELATIVE_TOLERANCE if name in ("gdp", "rdp") else GRID_TOLERANCE,
            whole=whole,
        )
        # Exact at full participation, whose account may be tighter than that of rates just below: a search could stop
        # there, so that the wanted end comes first. Where the limit excludes it, it would cost much and fail.
        if self._limit(wanted) <= GRID_TOLERANCE and self.fits(wanted):
            return wanted
        start = search(self._limit, start=math.sqrt(safe) * math.sqrt(wanted))
        return search(self._excess, start=safe if start is None else start)

    def refusal(self, reach: str, remedy: str) -> InvalidValueError:
        """The error for a target that no value keeps."""
        return InvalidValueError(
            "target_epsilon",
            self.target,
            f"{reach} at delta={self._delta!r}",
            f"Choose a larger target_epsilon or delta, {remedy}.",
        )

    def _evaluate(self, value: float) -> float:
        found = epsilon(self._events_at(value), self._delta, self._accountant, self._relation)
        return _excess(found, self.target)

    def _limit(self, value: float) -> float:
        """Excess over the target in the central limit, a guess that costs nothing."""
        squares = 0.0
        for event in self._events_at(value):
            ratio = self._distance / event.noise_multiplier
            square = ratio * ratio
            if not event.is_full:
                square = _rate(event.sampling) ** 2 * math.expm1(min(square, 700.0))  # e**710 overflows
            squares += event.count * square
        return _excess(squares, self._squared_budget)


def _excess(value: float, target: float) -> float:
    """The logarithm of value / target, at most 0 exactly when value <= target; infinite for NaN."""
    above = (value - target) / target  # the subtraction has the sign of the exact difference
    if not above < math.inf:
        return math.inf
    return math.log1p(above) if above > -1.0 else -math.inf


def _rate(sampling: Sampling) -> float:
    if isinstance(sampling, FixedSize):
        return sampling.cohort_size / sampling.population
    return sampling.rate if isinstance(sampling, Poisson) else 1.0
