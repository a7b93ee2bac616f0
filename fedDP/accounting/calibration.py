"""What a promise allows: the least noise, the most rounds, the highest sampling rate, the largest cohort.

Every answer was handed to the accountant, and what it returned was at most the target; what the ranges of
`fedDP.privacy.limits` do not allow is never an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Literal

from fedDP.accounting.events import FixedSize, FullParticipation, Gaussian, NeighboringRelation, Poisson, Sampling
from fedDP.accounting.promise import RELATIVE_TOLERANCE, Promise
from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.privacy.limits import COUNT, EPSILON, NOISE_MULTIPLIER, check_headroom

SMALLEST_SEARCHED = 1e-6
"""Noise multipliers below this are not searched: they protect nothing at any epsilon that can be asked for."""

SMALLEST_RATE = 1e-9
"""Sampling rates below this are not searched: no client of the largest population would be drawn."""


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
        2. The returned value exceeds the smallest such value by at most 1e-9 relative, with an accountant other than
           "gdp" and "rdp" by 1e-4 (unless that lies below 1e-6).

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
    release = Gaussian(1.0, sampling=sampling, count=count)
    return calibrate_scale(
        [([release], target_epsilon)], delta, accountant=accountant, neighboring_relation=neighboring_relation
    )


def calibrate_scale(
    windows: Iterable[tuple[Iterable[Gaussian], float]],
    delta: float,
    *,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """The smallest factor on all noise multipliers with which every window keeps its own target.

    A week's rounds and the year's are two windows, and a release that lies in both is listed in both. For the common
    noise multiplier of equal rounds, give each of them the noise multiplier 1.

    Guarantees:
        1. The same accountant gives each window's events, all their noise multipliers times the returned value, an
           epsilon of at most the window's target.
        2. The returned value exceeds the smallest such value as in `calibrate_noise_multiplier`.
        3. No noise multiplier times the returned value is above 1e5, and none is below 1e-6 unless 1e5 binds.

    Args:
        windows: (events, target_epsilon) pairs, the targets in [1e-6, 1e6].
        delta: in [1e-11, 1), the same for every window.
        accountant: as for `epsilon`; None picks one for each window.
        neighboring_relation: as for `epsilon`.

    Raises:
        InvalidValueError: for a value outside its range, no event at all, or a target that the largest allowed noise
            misses.
        UnsupportedError: for an accountant that is not sound for an event, or an event without a noise multiplier.

    >>> year = [Gaussian(1.0, count=260), Gaussian(0.5, count=260)]
    >>> round(calibrate_scale([(year, 0.5), (year[:1], 0.3)], 1e-6), 4)
    290.5216
    """
    plans = list(dict.fromkeys((tuple(events), EPSILON.check("target_epsilon", target)) for events, target in windows))
    # The window of most rounds first: it binds most often, and the others then cost one evaluation each.
    plans.sort(key=lambda plan: -sum(_scalable(event).count for event in plan[0]))
    multipliers = [event.noise_multiplier for events, _ in plans for event in events]
    if not multipliers:
        raise InvalidValueError("windows", plans, "at least one event", "Pass the planned releases.")
    high = NOISE_MULTIPLIER.high / max(multipliers)
    if high * max(multipliers) > NOISE_MULTIPLIER.high:  # the division rounded up
        high = math.nextafter(high, 0.0)
    promises = [
        Promise(partial(_scaled, events), target, delta, accountant, neighboring_relation) for events, target in plans
    ]

    def smallest(promise: Promise, wanted: float) -> float:
        found = promise.last(safe=high, wanted=wanted)
        if found is None:
            reach = f"an epsilon that a noise multiplier of at most {NOISE_MULTIPLIER.high:g} reaches"
            raise promise.refusal(reach, "fewer rounds or a lower sampling rate")
        return found

    scale = smallest(promises[0], min(SMALLEST_SEARCHED / min(multipliers), high))
    while broken := next((promise for promise in promises if not promise.fits(scale)), None):
        scale = smallest(broken, scale)
    for events, _ in plans:
        for event in _scaled(events, scale):
            if isinstance(event.sampling, FixedSize):
                check_headroom(num_clients=event.sampling.cohort_size, noise_multiplier=event.noise_multiplier)
    return scale


def calibrate_rounds(
    target_epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    sampling: Sampling = FullParticipation(),  # noqa: B008 - frozen
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> int:
    """The largest number of equal rounds that are (target_epsilon, delta)-private together.

    Guarantees:
        1. The same accountant gives that many rounds an epsilon of at most `target_epsilon`.
        2. It gives one round more a larger one, unless 1e9 is returned (with an accountant other than "gdp" and
           "rdp", above 1e5 rounds: 1e-4 more rounds).

    Args:
        target_epsilon: in [1e-6, 1e6].
        delta: in [1e-11, 1).
        noise_multiplier: of each round, in (0, 1e5].
        sampling: how clients are drawn.
        accountant: as for `epsilon`.
        neighboring_relation: as for `epsilon`.

    Raises:
        InvalidValueError: for a value outside its range, or a target that one round misses.
        UnsupportedError: for an accountant that is not sound for the sampling.

    >>> calibrate_rounds(0.5, 1e-6, noise_multiplier=58.2)
    52
    """
    release = Gaussian(noise_multiplier, sampling=sampling)
    promise = Promise(
        lambda count: (replace(release, count=int(count)),), target_epsilon, delta, accountant, neighboring_relation
    )
    found = promise.last(safe=COUNT.low, wanted=COUNT.high, whole=True)
    if found is None:
        reach = f"an epsilon that one round of noise_multiplier={noise_multiplier!r} keeps"
        raise promise.refusal(reach, "a larger noise multiplier or a lower sampling rate")
    return int(found)


def calibrate_sampling_rate(
    target_epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    count: int = 1,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """The largest rate of Poisson sampling whose rounds are (target_epsilon, delta)-private.

    Guarantees:
        1. The same accountant gives an epsilon of at most `target_epsilon` for the returned rate.
        2. The largest such rate exceeds the returned one by at most 1e-9 relative, with an accountant other than
           "rdp" by 1e-4; 1 is returned where full participation keeps the target.

    Args:
        target_epsilon: in [1e-6, 1e6].
        delta: in [1e-11, 1).
        noise_multiplier: of each round, in (0, 1e5].
        count: rounds.
        accountant: as for `epsilon`.
        neighboring_relation: as for `epsilon`.

    Returns:
        A rate in [1e-9, 1].

    Raises:
        InvalidValueError: for a value outside its range, or a target that every rate misses.
        UnsupportedError: for an accountant that is not sound for Poisson sampling.

    >>> rate = calibrate_sampling_rate(1.0, 1e-5, noise_multiplier=1.5, count=1000, accountant="rdp")
    >>> round(rate, 6)
    0.009884
    """
    release = Gaussian(noise_multiplier, count=count)
    promise = Promise(
        lambda rate: (replace(release, sampling=Poisson(rate)),),
        target_epsilon,
        delta,
        accountant,
        neighboring_relation,
    )
    found = promise.last(safe=SMALLEST_RATE, wanted=1.0)
    if found is None:
        reach = f"an epsilon that noise_multiplier={noise_multiplier!r} keeps at a rate of {SMALLEST_RATE:g}"
        raise promise.refusal(reach, "a larger noise multiplier or fewer rounds")
    return found


def calibrate_cohort_size(
    target_epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    population: int,
    kind: Literal["poisson", "fixed"] = "poisson",
    count: int = 1,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> int:
    """The largest cohort of a population whose rounds are (target_epsilon, delta)-private.

    Guarantees:
        1. The same accountant gives an epsilon of at most `target_epsilon` for the returned size.
        2. It gives one client more a larger one, unless the whole population is returned (with an accountant other
           than "gdp" and "rdp", above 1e5 clients: 1e-4 more clients).

    Args:
        target_epsilon: in [1e-6, 1e6].
        delta: in [1e-11, 1).
        noise_multiplier: of each round, in (0, 1e5].
        population: enrolled clients.
        kind: "poisson" draws every client with probability cohort / population, so that the size is what is expected;
            "fixed" draws exactly so many without replacement, which accountants charge under replace-one only.
        count: rounds.
        accountant: as for `epsilon`.
        neighboring_relation: as for `epsilon`.

    Raises:
        InvalidValueError: for a value outside its range, a target that a cohort of one misses, or a cohort whose sum
            does not fit the integer grid.
        UnsupportedError: for an accountant that is not sound for the sampling.

    >>> calibrate_cohort_size(1.0, 1e-5, noise_multiplier=1.5, population=1000, count=1000, accountant="rdp")
    9
    """
    if kind not in ("poisson", "fixed"):
        raise InvalidValueError("kind", kind, "'poisson' or 'fixed'")
    population = int(COUNT.check("population", population))
    release = Gaussian(noise_multiplier, count=count)

    def cohort(size: float) -> tuple[Gaussian]:
        sampling = Poisson(size / population) if kind == "poisson" else FixedSize(int(size), population)
        return (replace(release, sampling=sampling),)

    promise = Promise(cohort, target_epsilon, delta, accountant, neighboring_relation)
    found = promise.last(safe=1.0, wanted=population, whole=True)
    if found is None:
        reach = f"an epsilon that noise_multiplier={noise_multiplier!r} keeps with one client of {population}"
        raise promise.refusal(reach, "a larger noise multiplier or fewer rounds")
    # A Poisson cohort may turn out to be everybody.
    check_headroom(num_clients=population if kind == "poisson" else int(found), noise_multiplier=noise_multiplier)
    return int(found)


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
    while high > low * (1.0 + RELATIVE_TOLERANCE):
        middle = math.sqrt(low) * math.sqrt(high)
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def _scalable(event: Gaussian) -> Gaussian:
    if type(event) is not Gaussian:
        raise UnsupportedError(f"event={event!r}: only the noise of Gaussian events can be scaled.")
    return event


def _scaled(events: tuple[Gaussian, ...], scale: float) -> tuple[Gaussian, ...]:
    return tuple(replace(event, noise_multiplier=event.noise_multiplier * scale) for event in events)
