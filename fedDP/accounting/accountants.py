"""From events to (epsilon, delta): one function each way, and the choice of accountant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from fedDP.accounting.event import Event, grouped, require_sound
from fedDP.accounting.events import events_all_full
from fedDP.accounting.gdp import EPSILON_QUERY, gdp_delta, gdp_epsilon, gdp_mu
from fedDP.accounting.neighbors import NeighboringRelation, sensitivity
from fedDP.accounting.pld import pld_delta, pld_epsilon
from fedDP.accounting.rdp import rdp_delta, rdp_epsilon, total_costs
from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import DELTA

AccountantName: TypeAlias = Literal["gdp", "rdp", "pld"]

ACCOUNTANTS: tuple[AccountantName, ...] = get_args(AccountantName)


def accountant_name(events: Iterable[Event]) -> AccountantName:
    """The accountant that is used unless one is named: exact GDP where nothing is sampled, privacy loss otherwise.

    Raises:
        UnsupportedError: for a thing that is no registered event.

    >>> from fedDP.accounting import Gaussian, Poisson
    >>> accountant_name([Gaussian(1.0)]), accountant_name([Gaussian(1.0, sampling=Poisson(0.1))])
    ('gdp', 'pld')
    """
    return "gdp" if events_all_full(events) else "pld"


def epsilon(
    events: Iterable[Event],
    delta: float,
    accountant: str | None = None,
    neighboring_relation: NeighboringRelation = "zero_out",
) -> float:
    """An epsilon at which `events`, fixed in advance, are (epsilon, delta)-private.

    Guarantees:
        1. Never below the exact value (but for rounding at 1e-12); exact for "gdp".
        2. Independent of the order of the events, to the last bit; 0.0 without events.
        3. With one accountant, never smaller for more releases, less noise, a higher rate or a smaller delta (but
           for the grid of "pld").
        4. "pld" takes the smallest of its own bound, that of "rdp" where it is sound, and that without sampling.

    Results are kept, and so are the losses of single releases: one more release of a kind that was seen before takes
    some milliseconds. Every new kind takes some ten of them, so for epsilon after each of thousands of different rounds
    use `RdpAccountant`.

    Args:
        events: the releases.
        delta: in [1e-11, 1).
        accountant: "gdp", "rdp" or "pld"; None picks by `accountant_name`. Events say which are sound for them.
        neighboring_relation: replace-one doubles the sensitivity.

    Raises:
        InvalidValueError: for an unknown accountant or relation, or a delta outside its range.
        UnsupportedError: for an accountant that is not sound for an event.

    >>> from fedDP.accounting import Gaussian, Poisson
    >>> round(epsilon([Gaussian(1.0, sampling=Poisson(0.01), count=100)], 1e-5), 4)
    0.718
    """
    delta = DELTA.check("delta", delta)
    bounds = _bounds(accountant, tuple(events), neighboring_relation)
    return min(_epsilon(name, bounded, delta, neighboring_relation) for name, bounded in bounds)


def delta(
    events: Iterable[Event],
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

    >>> from fedDP.accounting import Gaussian
    >>> round(delta([Gaussian(1.0)], 1.0), 9)
    0.126936738
    """
    epsilon = EPSILON_QUERY.check("epsilon", epsilon)
    bounds = _bounds(accountant, tuple(events), neighboring_relation)
    return min(_delta(name, bounded, epsilon, neighboring_relation) for name, bounded in bounds)


def _epsilon(
    accountant: AccountantName, events: tuple[Event, ...], delta: float, neighboring_relation: NeighboringRelation
) -> float:
    if accountant == "gdp":
        return gdp_epsilon(gdp_mu(events, neighboring_relation), delta)
    if accountant == "rdp":
        return rdp_epsilon(total_costs(events, neighboring_relation), delta)
    return pld_epsilon(events, delta, neighboring_relation)


def _delta(
    accountant: AccountantName, events: tuple[Event, ...], epsilon: float, neighboring_relation: NeighboringRelation
) -> float:
    if accountant == "gdp":
        return gdp_delta(gdp_mu(events, neighboring_relation), epsilon)
    if accountant == "rdp":
        return rdp_delta(total_costs(events, neighboring_relation), epsilon)
    return pld_delta(events, epsilon, neighboring_relation)


def _bounds(
    accountant: str | None, events: tuple[Event, ...], neighboring_relation: NeighboringRelation
) -> list[tuple[AccountantName, tuple[Event, ...]]]:
    """The bounds of which the smallest is asked for: accountants, and the events they are to account for."""
    sensitivity(neighboring_relation)
    asked = accountant_name(events) if accountant is None else accountant
    if asked not in ACCOUNTANTS:
        raise InvalidValueError("accountant", accountant, f"one of {', '.join(ACCOUNTANTS)}")
    singles = [event for event, _ in grouped(events)]
    require_sound(singles, asked, neighboring_relation)
    if asked != "pld":
        return [(known, events) for known in ACCOUNTANTS if known == asked]
    if _all_support("gdp", singles, neighboring_relation):
        return [("gdp", events)]
    bounds: list[tuple[AccountantName, tuple[Event, ...]]] = [("pld", events)]
    if _all_support("rdp", singles, neighboring_relation):
        bounds.append(("rdp", events))
    unsampled = tuple(single.unsampled().repeated(count) for single, count in grouped(events))
    if _all_support("gdp", unsampled, neighboring_relation):
        bounds.append(("gdp", unsampled))
    return bounds


def _all_support(accountant: str, events: Iterable[Event], neighboring_relation: NeighboringRelation) -> bool:
    return all(event.supports(accountant, neighboring_relation) for event in events)
