"""Units of privacy side by side: what an account of one unit says about another.

A record in one silo, a person with records in several, a group, a silo: each is a unit of its own with its own
(epsilon, delta). Statements about different units stand beside each other; they are never added or averaged.
Which rule joins the accounts of several silos depends on who can appear in them:

============================================  ===================================================================
a unit                                        costs
============================================  ===================================================================
a record of one silo, no record in two        the largest of the silos' guarantees (`parallel_guarantee`)
a person with records in several silos        all their releases together (`person_epsilon`), or, as the rule
                                              that always holds, the sums (`sequential_guarantee`)
r records of one silo                         r times the distance (`group_epsilon`, `group_guarantee`)
a person in k silos, the noise placed once,   k times the distance, not sqrt(k) times: all k updates of a sum
on the sum of all silos                       change at once (`group_epsilon` with size k)
============================================  ===================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fedDP.accounting.accountants import epsilon
from fedDP.accounting.events import Gaussian, NeighboringRelation
from fedDP.accounting.gdp import EPSILON_QUERY
from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.privacy.limits import COUNT, DENOMINATOR, NOISE_MULTIPLIER
from fedDP.ranges import Range

RATIO = Range(low=0.0, high=math.inf, high_open=True)
GUARANTEE_DELTA = Range(
    low=0.0, high=1.0, high_open=True, remedy="At 1 nothing is promised: account each part at a smaller delta."
)


@dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) pair that holds for some unit.

    Args:
        epsilon: in [0, 1e12].
        delta: in [0, 1).

    Raises:
        InvalidValueError: for a boolean, NaN, an infinity, a non-number or a number outside its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", EPSILON_QUERY.check("epsilon", self.epsilon))
        object.__setattr__(self, "delta", GUARANTEE_DELTA.check("delta", self.delta))


def parallel_guarantee(silos: Iterable[Guarantee]) -> Guarantee:
    """What holds for every record when no record, and nobody's records, lie in two silos: the largest of each.

    Guarantee: every record of every silo has the returned pair, also when a silo's later rounds depend on what
    others released, as long as each silo's own parameters were fixed in advance.

    Args:
        silos: each silo's guarantee for one of its records, over all its releases.

    Raises:
        InvalidValueError: without silos.

    Reference: McSherry (2009), SIGMOD, Thm. 4 (parallel composition).

    >>> parallel_guarantee([Guarantee(0.5, 1e-6), Guarantee(0.25, 1e-5)])
    Guarantee(epsilon=0.5, delta=1e-05)
    """
    parts = _parts(silos)
    return Guarantee(max(part.epsilon for part in parts), max(part.delta for part in parts))


def sequential_guarantee(silos: Iterable[Guarantee]) -> Guarantee:
    """What holds for a person with a record in each of the silos, whatever mechanisms they run: the sums, rounded up.

    `person_epsilon` is tighter where the releases themselves are known. A person with several records in a silo
    enters with that silo's `group_guarantee`.

    Args:
        silos: the guarantees of the silos that hold the person.

    Raises:
        InvalidValueError: without silos, or where the deltas add up to 1 or more.

    Reference: Dwork, Roth (2014), Found. Trends Theor. Comput. Sci. 9(3-4), Thm. 3.16 and App. B.

    >>> sequential_guarantee([Guarantee(0.5, 1e-6), Guarantee(0.25, 1e-6)])
    Guarantee(epsilon=0.75, delta=2e-06)
    """
    parts = _parts(silos)
    return Guarantee(
        _round_up(sum((Fraction(part.epsilon) for part in parts), Fraction(0))),
        _round_up(sum((Fraction(part.delta) for part in parts), Fraction(0))),
    )


def group_guarantee(unit: Guarantee, size: int) -> Guarantee:
    """What holds for `size` units that change together, whatever the mechanism; rounded up.

    The pair is (size * epsilon, delta * (1 + e**epsilon + ... + e**((size - 1) * epsilon))).

    Args:
        unit: the guarantee of one unit.
        size: how many units change together, such as a person's records in one silo.

    Raises:
        InvalidValueError: for a size that is not whole or outside [1, 1e9], or where the delta reaches 1.

    Reference: Vadhan (2017), "The Complexity of Differential Privacy", Lemma 2.2 (its proof has this sum).

    >>> pair = group_guarantee(Guarantee(1.0, 1e-6), 3)
    >>> pair.epsilon, round(pair.delta, 9)
    (3.0, 1.1107e-05)
    """
    size = int(COUNT.check("size", size))
    if size == 1:
        return unit
    return Guarantee(_round_up(size * Fraction(unit.epsilon)), min(_geometric_sum(unit, size), 1.0))


def person_epsilon(
    silos: Sequence[Iterable[Gaussian]],
    delta: float,
    *,
    records: Sequence[int] | None = None,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """Epsilon of a person with records in several silos, each of which noises its own releases.

    The person meets all the silos' releases, one after another, so that they are accounted together: Gaussian
    distances as the root of the sum of squares, ``mu = sqrt(sum (r_i mu_i)**2)``, Rényi costs as their sum.

    Guarantees:
        1. Never below the exact value, as `epsilon`.
        2. Never above the sum of the silos' own epsilons at shares of `delta`, with an exact accountant.

    Args:
        silos: for each silo that holds the person, all its releases (of one of its records).
        delta: in [1e-11, 1).
        records: how many of the person's records each silo holds at most; None is one each. More than one multiplies
            the distance of unsampled Gaussian releases.
        accountant: as for `epsilon`.
        neighboring_relation: between data of one silo that differ in one record; as for `epsilon`.

    Raises:
        InvalidValueError: for a value outside its range, no silo, or another number of records than of silos.
        UnsupportedError: for sampled releases of a silo with several records, or an accountant that is not sound.

    Reference: Dong, Roth, Su (2022), arXiv:1905.02383, Cor. 3.3; Mironov (2017), arXiv:1702.07476, Prop. 1.

    >>> [round(person_epsilon([[Gaussian(2.0)]] * silos, 1e-5), 3) for silos in (1, 2, 3, 5)]
    [1.993, 2.943, 3.709, 4.983]
    """
    if not silos:
        raise InvalidValueError("silos", silos, "at least one silo")
    counts = [1] * len(silos) if records is None else list(records)
    if len(counts) != len(silos):
        raise InvalidValueError("records", records, f"one number for each of the {len(silos)} silos")
    charged = [event for silo, size in zip(silos, counts, strict=True) for event in _grouped(silo, size, "records")]
    return epsilon(charged, delta, accountant, neighboring_relation)


def group_epsilon(
    events: Iterable[Gaussian],
    delta: float,
    *,
    size: int,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """Epsilon of `size` units that change together in unsampled Gaussian releases: ``mu -> size * mu``.

    Such units are a person's records in one silo. They are also the k silos of one person where the noise is placed
    once, on the sum of all silos' updates: each of the k clipped updates may change by the whole clip norm.

    Guarantee: never below the exact value; exact for the accountant "gdp".

    Args:
        events: all releases.
        delta: in [1e-11, 1).
        size: how many units change together.
        accountant: as for `epsilon`.
        neighboring_relation: between data that differ in one unit; as for `epsilon`.

    Raises:
        InvalidValueError: for a value outside its range.
        UnsupportedError: for sampled releases of more than one unit, or an accountant that is not sound.

    Reference: Dong, Roth, Su (2022), arXiv:1905.02383, Thm. 2.14 (groups).

    >>> round(group_epsilon([Gaussian(2.0)], 1e-5, size=3), 4)
    7.0514
    """
    return epsilon(_grouped(events, size, "size"), delta, accountant, neighboring_relation)


def noise_per_coordinate(noise_multiplier: float, *, dimension: int, denominator: float) -> float:
    """The noise on the averaged update beside the longest update of one client: z * sqrt(d) / n.

    It is the norm of the noise in clip norms. No average of clipped updates is longer than one clip norm, so that it is
    also the least ratio of noise to signal, both as root mean squares over the coordinates.

    Args:
        noise_multiplier: z of a round, in (0, 1e5].
        dimension: d, trainable parameters.
        denominator: n, what the noised sum is divided by: the (expected) number of clients in a round.

    Raises:
        InvalidValueError: for a value outside its range.

    >>> round(noise_per_coordinate(26.38, dimension=10_000, denominator=5))
    528
    """
    noise = NOISE_MULTIPLIER.check("noise_multiplier", noise_multiplier)
    return noise * math.sqrt(COUNT.check("dimension", dimension)) / DENOMINATOR.check("denominator", denominator)


def noise_in_words(ratio: float) -> str:
    """What a `noise_per_coordinate` means, in a sentence.

    Raises:
        InvalidValueError: for a boolean, NaN, an infinity, a non-number or a number below 0.

    >>> noise_in_words(0.026)
    "Noise on a round's average update: 0.026 times as long as the longest average that clipping allows."
    """
    ratio = RATIO.check("ratio", ratio)
    times = f"{ratio:,.0f}" if ratio >= 100.0 else f"{ratio:.3g}"
    sentence = f"Noise on a round's average update: {times} times as long as the longest average that clipping allows"
    if ratio < 1.0:
        return f"{sentence}."
    return f"{sentence}; each coordinate is more noise than signal, and only many rounds together can teach anything."


def _parts(silos: Iterable[Guarantee]) -> tuple[Guarantee, ...]:
    parts = tuple(silos)
    if not parts:
        raise InvalidValueError("silos", parts, "at least one silo")
    return parts


def _grouped(events: Iterable[Gaussian], size: int, name: str) -> list[Gaussian]:
    """The releases as one group of `size` units meets them: with so many times the distance."""
    size = int(COUNT.check(name, size))
    charged = list(events)
    if size == 1:
        return charged
    for event in charged:
        if type(event) is not Gaussian or not event.is_full:
            raise UnsupportedError(
                f"{name}={size} with event={event!r}: only the distance of unsampled Gaussian releases grows with the "
                "group. Use group_guarantee on the (epsilon, delta) of one unit."
            )
    return [replace(event, noise_multiplier=event.noise_multiplier / size) for event in charged]


def _geometric_sum(unit: Guarantee, size: int) -> float:
    """delta * (1 + e**epsilon + ... + e**((size - 1) * epsilon)), rounded up; at least 1 where that overflows."""
    if unit.epsilon == 0.0 or unit.delta == 0.0:
        return _round_up(size * Fraction(unit.delta))
    steps = (size - 1) * unit.epsilon
    if steps > 700.0:
        return 1.0
    total = math.exp(steps) * (math.expm1(-size * unit.epsilon) / math.expm1(-unit.epsilon))
    return unit.delta * total * (1.0 + 2.0**-42)  # exp of a rounded 700 errs by up to 700 * 2**-53


def _round_up(exact: Fraction) -> float:
    """The smallest float that is not below."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)
