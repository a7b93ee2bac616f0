"""The smallest noise that keeps a promise."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedDP.accounting.accountants import epsilon
from fedDP.accounting.events import FullParticipation, Gaussian, NeighboringRelation, Sampling
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import EPSILON, NOISE_MULTIPLIER

SMALLEST_SEARCHED = 1e-6
"""Noise multipliers below this are not searched: they protect nothing at any epsilon that can be asked for."""

_RELATIVE_TOLERANCE = 1e-10


def calibrate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    *,
    sampling: Sampling = FullParticipation(),  # noqa: B008 - frozen
    count: int = 1,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """The smallest noise multiplier whose rounds are (target_epsilon, delta)-private.

    Guarantees:
        1. The same accountant gives an epsilon of at most `target_epsilon` for the returned value.
        2. The returned value exceeds the smallest such value by at most 1e-9 relative.

    Args:
        target_epsilon: in [1e-6, 1e6].
        delta: in [1e-11, 1).
        sampling: how clients are drawn.
        count: rounds.
        accountant: as for `epsilon`.
        neighboring_relation: as for `epsilon`.

    Raises:
        InvalidValueError: for a value outside its range, or a target that the largest allowed noise misses.
        UnsupportedError: for an accountant that is not sound for the sampling.

    >>> round(calibrate_noise_multiplier(0.5, 1e-6, count=52), 4)
    58.1043
    """
    target = EPSILON.check("target_epsilon", target_epsilon)

    def fits(noise_multiplier: float) -> bool:
        event = Gaussian(noise_multiplier, sampling=sampling, count=count)
        return epsilon([event], delta, accountant, neighboring_relation) <= target

    if not fits(NOISE_MULTIPLIER.high):
        raise InvalidValueError(
            "target_epsilon",
            target_epsilon,
            f"an epsilon that a noise multiplier of at most {NOISE_MULTIPLIER.high:g} reaches at delta={delta!r}",
            "Choose a larger target_epsilon or delta, fewer rounds or a lower sampling rate.",
        )
    return smallest_noise_multiplier(fits)


def smallest_noise_multiplier(fits: Callable[[float], bool]) -> float:
    """The smallest noise multiplier that `fits`, by bisection of its logarithm over [1e-6, 1e5].

    Guarantee: the returned value fits, and for monotone `fits` no value smaller by 1e-9 relative does
    (unless it lies below the searched range).

    Args:
        fits: whether a noise multiplier is large enough; once true, true for every larger one.

    Raises:
        InvalidValueError: when the largest allowed noise multiplier does not fit.

    >>> round(smallest_noise_multiplier(lambda z: z * z >= 2.0), 8)
    1.41421356
    """
    low, high = SMALLEST_SEARCHED, NOISE_MULTIPLIER.high
    if not fits(high):
        raise InvalidValueError(
            "noise_multiplier",
            high,
            "a value large enough for the budget",
            "Choose a larger budget, fewer rounds or a lower sampling rate.",
        )
    if fits(low):
        return low
    while high > low * (1.0 + _RELATIVE_TOLERANCE):
        middle = math.sqrt(low) * math.sqrt(high)
        if fits(middle):
            high = middle
        else:
            low = middle
    return high
