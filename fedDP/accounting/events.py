"""What was released: the immutable events that accountants add up.

An event says how a noised sum was made, never what it contained. Its noise multiplier is always the
standard deviation of the noise on the **sum** divided by the clip norm (times the weight cap); it does not
change with the neighbouring relation, so that no accountant has to guess which convention a caller used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.privacy.limits import COUNT, NOISE_MULTIPLIER, SAMPLING_RATE

NeighboringRelation: TypeAlias = Literal["zero_out", "add_remove", "replace_one"]
"""Which change of the data is hidden: one client's data absent, one client absent, or one client's data swapped."""

NEIGHBORING_RELATIONS: tuple[NeighboringRelation, ...] = get_args(NeighboringRelation)


@dataclass(frozen=True)
class Poisson:
    """Every enrolled client takes part independently with probability `rate`.

    Args:
        rate: the probability, in (0, 1]. At 1 it is full participation.

    Raises:
        InvalidValueError: for anything but a finite number in the range.
    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", SAMPLING_RATE.check("rate", self.rate))

    def to_dict(self) -> dict[str, Any]:
        """The sampler as JSON-ready values."""
        return {"type": "poisson", "rate": self.rate}


@dataclass(frozen=True)
class FullParticipation:
    """Every enrolled client takes part in every round."""

    def to_dict(self) -> dict[str, Any]:
        """The sampler as JSON-ready values."""
        return {"type": "full_participation"}


@dataclass(frozen=True)
class FixedSize:
    """A cohort of fixed size, drawn without replacement. Recorded, but no accountant accepts it yet.

    Args:
        cohort_size: clients a round, at most `population`.
        population: enrolled clients.

    Raises:
        InvalidValueError: for anything but whole numbers with 1 <= cohort_size <= population.
    """

    cohort_size: int
    population: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "population", int(COUNT.check("population", self.population)))
        object.__setattr__(self, "cohort_size", int(COUNT.check("cohort_size", self.cohort_size)))
        if self.cohort_size > self.population:
            raise InvalidValueError("cohort_size", self.cohort_size, f"at most population={self.population}")

    def to_dict(self) -> dict[str, Any]:
        """The sampler as JSON-ready values."""
        return {"type": "fixed_size", "cohort_size": self.cohort_size, "population": self.population}


Sampling: TypeAlias = Poisson | FullParticipation | FixedSize


@dataclass(frozen=True)
class Gaussian:
    """`count` releases of a clipped sum plus Gaussian noise.

    Args:
        noise_multiplier: standard deviation of the noise on the sum, divided by the clip norm (times the
            weight cap); in (0, 1e5], under every neighbouring relation.
        sampling: how the clients of each release are drawn, anew for every release.
        count: how many such releases.

    Raises:
        InvalidValueError: for a boolean, NaN, an infinity, a non-number or a number outside its range.

    >>> Gaussian(1, sampling=Poisson(0.01), count=100)
    Gaussian(noise_multiplier=1.0, sampling=Poisson(rate=0.01), count=100)
    >>> Gaussian(float("nan"))
    Traceback (most recent call last):
    fedDP.errors.InvalidValueError: noise_multiplier=nan: expected a number in (0, 100000].
    """

    noise_multiplier: float
    _: KW_ONLY
    sampling: Sampling = field(default_factory=FullParticipation)
    count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", NOISE_MULTIPLIER.check("noise_multiplier", self.noise_multiplier))
        object.__setattr__(self, "count", int(COUNT.check("count", self.count)))
        if type(self.sampling) not in (Poisson, FullParticipation, FixedSize):
            raise InvalidValueError("sampling", self.sampling, "Poisson, FullParticipation or FixedSize")

    @property
    def is_full(self) -> bool:
        """Whether every client takes part for sure, so that sampling amplifies nothing."""
        return isinstance(self.sampling, FullParticipation) or (
            isinstance(self.sampling, Poisson) and self.sampling.rate == 1.0
        )

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-ready values; floats survive `json` exactly, since it writes their shortest repr.

        >>> event = Gaussian(0.1 + 0.2, sampling=Poisson(1 / 3))
        >>> event_from_dict(event.to_dict()) == event
        True
        """
        return {
            "type": "gaussian",
            "noise_multiplier": self.noise_multiplier,
            "sampling": self.sampling.to_dict(),
            "count": self.count,
        }


def event_from_dict(values: Mapping[str, Any]) -> Gaussian:
    """Reads what `Gaussian.to_dict` wrote; refuses everything else.

    Raises:
        UnsupportedError: for an unknown type, or missing or unknown keys.
        InvalidValueError: for a value outside its range.
    """
    _expect(values, "event", {"gaussian": {"noise_multiplier", "sampling", "count"}})
    return Gaussian(values["noise_multiplier"], sampling=sampling_from_dict(values["sampling"]), count=values["count"])


def sampling_from_dict(values: Mapping[str, Any]) -> Sampling:
    """Reads what a sampler's ``to_dict`` wrote; refuses everything else.

    Raises:
        UnsupportedError: for an unknown type, or missing or unknown keys.
        InvalidValueError: for a value outside its range.
    """
    keys = {"poisson": {"rate"}, "full_participation": set(), "fixed_size": {"cohort_size", "population"}}
    kind = _expect(values, "sampling", keys)
    if kind == "poisson":
        return Poisson(values["rate"])
    if kind == "full_participation":
        return FullParticipation()
    return FixedSize(values["cohort_size"], values["population"])


def events_all_full(events: Iterable[Gaussian]) -> bool:
    """Whether no event is amplified by sampling (true for no events).

    Raises:
        UnsupportedError: for an event of another type, or one with a fixed-size cohort.

    >>> events_all_full([Gaussian(1.0), Gaussian(2.0, sampling=Poisson(1.0))])
    True
    """
    checked = [check_event(event) for event in events]  # every one of them, also behind a sampled one
    return all(event.is_full for event in checked)


def check_event(event: Gaussian) -> Gaussian:
    """Returns `event` if accountants can charge it.

    Raises:
        UnsupportedError: for an event of another type, or one with a fixed-size cohort.
    """
    if type(event) is not Gaussian:
        raise UnsupportedError(f"event={event!r}: accountants charge Gaussian events only.")
    if isinstance(event.sampling, FixedSize):
        raise UnsupportedError(
            f"sampling={event.sampling!r}: accounting for fixed-size cohorts arrives in a later version; "
            "the Poisson formula does not cover them. Use Poisson or FullParticipation."
        )
    return event


def sensitivity(neighboring_relation: NeighboringRelation) -> float:
    """How far one client can move the sum, in clip norms.

    Raises:
        InvalidValueError: for an unknown relation.

    >>> sensitivity("zero_out"), sensitivity("replace_one")
    (1.0, 2.0)
    """
    if neighboring_relation not in NEIGHBORING_RELATIONS:
        allowed = f"one of {', '.join(NEIGHBORING_RELATIONS)}"
        raise InvalidValueError("neighboring_relation", neighboring_relation, allowed)
    return 2.0 if neighboring_relation == "replace_one" else 1.0


def _expect(values: Mapping[str, Any], what: str, keys: Mapping[str, set[str]]) -> str:
    kind = values.get("type") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in keys:
        raise UnsupportedError(f"{what}={values!r}: expected a mapping whose type is one of {', '.join(keys)}.")
    found, expected = set(values), keys[kind] | {"type"}
    if found != expected:
        raise UnsupportedError(
            f"{what} of type {kind!r}: expected the keys {sorted(expected)}, found {sorted(map(str, found))}."
        )
    return kind
