"""The enrolment that a ledger's charges are measured against, and what a run may not change under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedDP.accounting import FixedSize, Gaussian
from fedDP.accounting.events import Sampling
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import COUNT


@dataclass(frozen=True, kw_only=True)
class EnrolmentTerms:
    """Who is enrolled, as far as a ledger needs to know: public, and fixed until an operator changes it.

    Attributes:
        num_clients: the number of enrolled clients, in [1, 1e9].
        sha256: a fingerprint of the enrolment list and the clients' record counts, 64 hexadecimal digits.

    Raises:
        InvalidValueError: for anything else.
    """

    num_clients: int
    sha256: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_clients", int(COUNT.check("num_clients", self.num_clients)))
        check_digest("sha256", self.sha256)


class RunTerms(NamedTuple):
    """What all charges of one run and purpose must have in common under an enrolment."""

    enrolment: int
    sampling: Sampling
    denominator: float

    def conflict(self, asked: RunTerms) -> str | None:
        """In which way another charge of the run would differ; None when it does not."""
        if self == asked:
            return None
        return "; ".join(
            f"its {name} is {own!r} since its first charge, now {other!r}"
            for name, own, other in zip(self._fields, self, asked, strict=True)
            if own != other
        )


def population_conflict(event: Gaussian, terms: EnrolmentTerms | None) -> str | None:
    """In which way a cohort's population differs from the enrolment; None when it does not."""
    sampling = event.sampling
    if terms is None or not isinstance(sampling, FixedSize) or sampling.population == terms.num_clients:
        return None
    return f"its cohort is drawn from {sampling.population} clients and {terms.num_clients} are enrolled"


def check_digest(name: str, value: object) -> str:
    """Returns `value` if it is a SHA-256 in lower-case hexadecimal digits.

    Raises:
        InvalidValueError: for anything else.
    """
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise InvalidValueError(name, value, "64 lower-case hexadecimal digits")
    return value
