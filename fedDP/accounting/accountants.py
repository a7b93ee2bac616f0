"""From events to (epsilon, delta): one function each way, and the choice of accountant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting.events import Gaussian, NeighboringRelation, Poisson, events_all_full, sensitivity
from fedDP.accounting.gdp import EPSILON_QUERY, gdp_delta, gdp_epsilon, gdp_mu
from fedDP.accounting.rdp import ORDERS, rdp, rdp_delta, rdp_epsilon
from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.privacy.limits import DELTA

AccountantName: TypeAlias = Literal["gdp", "rdp"]

ACCOUNTANTS: tuple[AccountantName, ...] = get_args(AccountantName)


def accountant_name(events: Iterable[Gaussian]) -> AccountantName:
    """The accountant that is used unless one is named: exact GDP where nothing is sampled, Rényi otherwise.

    Raises:
        UnsupportedError: for an event that no accountant accepts.

    >>> accountant_name([Gaussian(1.0)]), accountant_name([Gaussian(1.0, sampling=Poisson(0.1))])
    ('gdp', 'rdp')
    """
    return "gdp" if events_all_full(events) else "rdp"


def epsilon(
    events: Iterable[Gaussian],
    delta: float,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """An epsilon at which `events`, fixed in advance, are (epsilon, delta)-private.

    Guarantees:
        1. Never below the exact value (but for rounding at 1e-12); exact for "gdp".
        2. Independent of the order of the events, to the last bit; 0.0 without events.
        3. With one accountant, never smaller for more releases, less noise, a higher rate or a smaller delta.

    Args:
        events: the releases.
        delta: in [1e-11, 1).
        accountant: "gdp" (full participation only) or "rdp"; None picks by `accountant_name`.
        neighboring_relation: replace-one doubles the sensitivity and refuses sampled events.

    Raises:
        InvalidValueError: for an unknown accountant or relation, or a delta outside its range.
        UnsupportedError: for an accountant that is not sound for an event.

    >>> round(epsilon([Gaussian(1.0, sampling=Poisson(0.01), count=100)], 1e-5), 4)
    1.2141
    """
    delta = DELTA.check("delta", delta)
    charged = tuple(events)
    if _pick(accountant, charged, neighboring_relation) == "gdp":
        return gdp_epsilon(gdp_mu(charged, neighboring_relation), delta)
    return rdp_epsilon(_total(charged, neighboring_relation), delta) if charged else 0.0


def delta(
    events: Iterable[Gaussian],
    epsilon: float,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """A delta at which `events`, fixed in advance, are (epsilon, delta)-private.

    Args:
        events: the releases.
        epsilon: in [0, 1e12].
        accountant: as for `epsilon`.
        neighboring_relation: as for `epsilon`.

    Raises:
        InvalidValueError: for an unknown accountant or relation, or an epsilon outside its range.
        UnsupportedError: for an accountant that is not sound for an event.

    >>> round(delta([Gaussian(1.0)], 1.0), 9)
    0.126936738
    """
    epsilon = EPSILON_QUERY.check("epsilon", epsilon)
    charged = tuple(events)
    if _pick(accountant, charged, neighboring_relation) == "gdp":
        return gdp_delta(gdp_mu(charged, neighboring_relation), epsilon)
    return rdp_delta(_total(charged, neighboring_relation), epsilon) if charged else 0.0


def _pick(
    accountant: str | None, events: tuple[Gaussian, ...], neighboring_relation: NeighboringRelation
) -> AccountantName:
    sensitivity(neighboring_relation)
    default = accountant_name(events)
    if accountant is None:
        return default
    if accountant == "pld":
        raise UnsupportedError(
            "accountant='pld': privacy loss distributions arrive in a later version. Use 'rdp', a valid upper bound."
        )
    for known in ACCOUNTANTS:
        if accountant == known:
            return known
    raise InvalidValueError("accountant", accountant, f"one of {', '.join(ACCOUNTANTS)}")


def _total(events: tuple[Gaussian, ...], neighboring_relation: NeighboringRelation) -> NDArray[np.float64]:
    """Costs of all events; equal ones are charged together, and in a fixed order, so that sums are the same."""
    counts: Counter[tuple[float, float]] = Counter()
    for event in events:
        rate = event.sampling.rate if isinstance(event.sampling, Poisson) else 1.0
        counts[rate, event.noise_multiplier] += event.count
    total = np.zeros(len(ORDERS))
    for (rate, noise_multiplier), count in sorted(counts.items()):
        total += count * rdp(Gaussian(noise_multiplier, sampling=Poisson(rate)), neighboring_relation)
    return total
