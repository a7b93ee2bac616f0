"""How the clients of a release are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.privacy.limits import COUNT, SAMPLING_RATE


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

    @property
    def rate(self) -> float:
        """How likely a client is to take part: 1."""
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        """The sampler as JSON-ready values."""
        return {"type": "full_participation"}


@dataclass(frozen=True)
class FixedSize:
    """A cohort of fixed size, drawn without replacement; accounted under replace-one only.

    Args:
        cohort_size: clients a round, at most `population`. All of them is full participation.
        population: enrolled clients; public.

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

    @property
    def rate(self) -> float:
        """How likely a client is to take part."""
        return self.cohort_size / self.population

    def to_dict(self) -> dict[str, Any]:
        """The sampler as JSON-ready values."""
        return {"type": "fixed_size", "cohort_size": self.cohort_size, "population": self.population}


Sampling: TypeAlias = Poisson | FullParticipation | FixedSize


def check_sampling(sampling: Sampling) -> Sampling:
    """Returns one of the samplers above, and nothing that only claims to be one.

    Raises:
        InvalidValueError: for anything else, subclasses included.
    """
    if type(sampling) not in (Poisson, FullParticipation, FixedSize):
        raise InvalidValueError("sampling", sampling, "Poisson, FullParticipation or FixedSize")
    return sampling


def sampling_from_dict(values: Mapping[str, Any]) -> Sampling:
    """Reads what a sampler's ``to_dict`` wrote; refuses everything else.

    Raises:
        UnsupportedError: for an unknown type, or missing or unknown keys.
        InvalidValueError: for a value outside its range.
    """
    keys = {"poisson": {"rate"}, "full_participation": set(), "fixed_size": {"cohort_size", "population"}}
    kind = expect_keys(values, "sampling", keys)
    if kind == "poisson":
        return Poisson(values["rate"])
    if kind == "full_participation":
        return FullParticipation()
    return FixedSize(values["cohort_size"], values["population"])


def expect_keys(values: Mapping[str, Any], what: str, keys: Mapping[str, set[str]]) -> str:
    """The type of a mapping that has one of the known types and exactly that type's `keys`.

    Raises:
        UnsupportedError: for anything else, which was written by a later version or damaged.
    """
    kind = values.get("type") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in keys:
        raise UnsupportedError(f"{what}={values!r}: expected a mapping whose type is one of {', '.join(keys)}.")
    found, expected = set(values), keys[kind] | {"type"}
    if found != expected:
        raise UnsupportedError(
            f"{what} of type {kind!r}: expected the keys {sorted(expected)}, found {sorted(map(str, found))}."
        )
    return kind
