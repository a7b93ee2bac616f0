"""The Gaussian event: what was released, never what it contained.

Its noise multiplier is always the standard deviation of the noise on the **sum** divided by the clip norm (times the
weight cap); it does not change with the neighbouring relation, so that no accountant has to guess which convention a
caller used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting.event import Event, check_event, event_from_dict, grouped, register_event
from fedDP.accounting.fixed_size import fixed_size_costs
from fedDP.accounting.neighbors import NEIGHBORING_RELATIONS, NeighboringRelation, sensitivity
from fedDP.accounting.privacy_loss import DominatingPair, FixedSizePair, PoissonPair, PoissonReplacedPair
from fedDP.accounting.sampled_gaussian import sampled_costs
from fedDP.accounting.sampling import (
    FixedSize,
    FullParticipation,
    Poisson,
    Sampling,
    check_sampling,
    sampling_from_dict,
)
from fedDP.privacy.limits import COUNT, NOISE_MULTIPLIER

__all__ = [
    "NEIGHBORING_RELATIONS",
    "Event",
    "FixedSize",
    "FullParticipation",
    "Gaussian",
    "NeighboringRelation",
    "Poisson",
    "Sampling",
    "check_event",
    "event_from_dict",
    "events_all_full",
    "sampling_from_dict",
    "sensitivity",
]


@register_event("gaussian")
@dataclass(frozen=True)
class Gaussian(Event):
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
    >>> event = Gaussian(0.1 + 0.2, sampling=Poisson(1 / 3))
    >>> event_from_dict(event.to_dict()) == event
    True
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
        check_sampling(self.sampling)

    @property
    def is_full(self) -> bool:
        """Whether every client takes part for sure, so that sampling amplifies nothing."""
        return self.sampling.rate == 1.0

    def parts(self) -> tuple[Event, ...]:
        """Itself; a sampler that always draws everybody counts as full participation."""
        if self.is_full and not isinstance(self.sampling, FullParticipation):
            return (Gaussian(self.noise_multiplier, count=self.count),)
        return (self,)

    def refusal(self, accountant: str, neighboring_relation: NeighboringRelation) -> str | None:
        """Why an accountant is not sound for this event; None where it is.

        Full participation has an exact GDP bound, and so any other. Poisson sampling has a Rényi bound where one
        client is absent, and a privacy loss under all relations. A cohort of fixed size has both, under replace-one.
        """
        if self.is_full:
            return None
        pair = f"accountant={accountant!r} with sampling={self.sampling!r}"
        if isinstance(self.sampling, FixedSize) and neighboring_relation != "replace_one":
            return (
                f"{pair} and neighboring_relation={neighboring_relation!r}: a fixed-size cohort is another one when "
                "a client is absent, and the Poisson formula does not cover it. "
                "Use neighboring_relation='replace_one', or Poisson sampling."
            )
        if accountant == "gdp":
            return f"{pair}: sampled rounds are not Gaussian private. Use accountant='pld' or 'rdp'."
        if accountant == "rdp" and isinstance(self.sampling, Poisson) and neighboring_relation == "replace_one":
            return (
                f"{pair} and neighboring_relation={neighboring_relation!r}: no Rényi bound is implemented for this "
                "pair. Use accountant='pld', 'zero_out' or 'add_remove', or FullParticipation."
            )
        return None

    def unsampled(self) -> Event:
        """The same noise with everybody taking part; mixing over cohorts never makes outputs easier to tell apart."""
        return Gaussian(self.noise_multiplier, count=self.count)

    def squared_mu(self, neighboring_relation: NeighboringRelation) -> float:
        """(sensitivity / noise)**2 of an unsampled release."""
        if not self.is_full:
            return super().squared_mu(neighboring_relation)
        ratio = sensitivity(neighboring_relation) / self.noise_multiplier
        return ratio * ratio

    def rdp_costs(self, orders: tuple[float, ...], neighboring_relation: NeighboringRelation) -> NDArray[np.float64]:
        """Rényi costs of one release: of the sampled Gaussian, or of a cohort drawn without replacement."""
        if not self.supports("rdp", neighboring_relation):
            return super().rdp_costs(orders, neighboring_relation)
        noise = self.noise_multiplier / sensitivity(neighboring_relation)
        if self.is_full:
            ratio = 1.0 / noise
            return np.array(orders, dtype=np.float64) * (ratio * ratio / 2.0)
        if isinstance(self.sampling, FixedSize):
            return fixed_size_costs(self.sampling.rate, noise, orders)
        return sampled_costs(self.sampling.rate, noise, orders)

    def dominating_pair(self, neighboring_relation: NeighboringRelation) -> DominatingPair:
        """The pair of one release under the relation."""
        if not self.supports("pld", neighboring_relation):
            return super().dominating_pair(neighboring_relation)
        distance = sensitivity(neighboring_relation)
        if self.is_full or isinstance(self.sampling, FixedSize):
            return FixedSizePair(self.sampling.rate, self.noise_multiplier / distance)
        if distance == 2.0:
            return PoissonReplacedPair(self.sampling.rate, self.noise_multiplier)
        return PoissonPair(self.sampling.rate, self.noise_multiplier)


def events_all_full(events: Iterable[Event]) -> bool:
    """Whether no event is amplified by sampling, so that the exact accountant covers all (true for no events).

    Raises:
        UnsupportedError: for a thing that is no registered event.

    >>> events_all_full([Gaussian(1.0), Gaussian(2.0, sampling=Poisson(1.0))])
    True
    """
    return all(event.supports("gdp", "zero_out") for event, _ in grouped(events))
