"""What every kind of event offers, so that accountants, ledgers and their JSON need to know none of them by name.

A mechanism brings its event as a frozen dataclass with a ``count``, registered under a name. It either says which
known events it costs as much as (`Event.parts`), or states its own costs (`Event.refusal` and one method an
accountant). Accountants add up costs of registered types only: a subclass that nobody registered is refused.
"""

from __future__ import annotations

import abc
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting.neighbors import NeighboringRelation
from fedDP.accounting.privacy_loss import DominatingPair
from fedDP.accounting.sampling import expect_keys, sampling_from_dict
from fedDP.errors import UnsupportedError


class Event(abc.ABC):
    """`count` equal releases; subclasses are frozen dataclasses registered with `register_event`.

    Guarantees that a subclass which states costs must keep, for every relation it does not refuse:
        1. No cost is below the exact one of a single release (`count` is the accountant's business).
        2. Costs hold when what is released, but not the event itself, depends on earlier releases.

    Attributes:
        count: how many such releases.
    """

    count: int

    def parts(self) -> tuple[Event, ...]:
        """Events that together cost what this one costs, its count included; itself where it states its own costs."""
        return (self,)

    def refusal(self, accountant: str, neighboring_relation: NeighboringRelation) -> str | None:
        """Why `accountant` is not sound for this event under the relation, with a remedy; None where it is sound.

        Args:
            accountant: "gdp", "rdp" or "pld".
            neighboring_relation: what is hidden.
        """
        parts = self.parts()
        if parts == (self,):
            return f"accountant={accountant!r} with event={self!r}: the event states no cost for it."
        reasons = (part.refusal(accountant, neighboring_relation) for part in parts)
        return next((reason for reason in reasons if reason is not None), None)

    def supports(self, accountant: str, neighboring_relation: NeighboringRelation) -> bool:
        """Whether `accountant` is sound for this event under the relation."""
        return self.refusal(accountant, neighboring_relation) is None

    def unsampled(self) -> Event:
        """An event that costs at least as much under every relation and needs no sampling; itself if none is known."""
        return self

    def squared_mu(self, neighboring_relation: NeighboringRelation) -> float:
        """For "gdp": the square of the exact GDP parameter of one release."""
        raise UnsupportedError(self.refusal("gdp", neighboring_relation) or f"event={self!r} states no GDP cost.")

    def rdp_costs(self, orders: tuple[float, ...], neighboring_relation: NeighboringRelation) -> NDArray[np.float64]:
        """For "rdp": the Rényi costs of one release, at any whole orders >= 2 and any below 11.

        Returns:
            Shape (len(orders),); infinity where there is no bound.
        """
        raise UnsupportedError(self.refusal("rdp", neighboring_relation) or f"event={self!r} states no Rényi cost.")

    def dominating_pair(self, neighboring_relation: NeighboringRelation) -> DominatingPair:
        """For "pld": distributions that are at least as easy to tell apart as one release on neighbouring data."""
        raise UnsupportedError(self.refusal("pld", neighboring_relation) or f"event={self!r} states no privacy loss.")

    def repeated(self, times: int) -> Self:
        """The event that happens so many times as often."""
        return dataclasses.replace(self, count=self.count * times)  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-ready values; floats survive `json` exactly, since it writes their shortest repr."""
        check_event(self)
        values = {field.name: getattr(self, field.name) for field in _fields(type(self))}
        return {
            "type": _NAMES[type(self)],
            **{name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in values.items()},
        }


_TYPES: dict[str, type[Event]] = {}
_NAMES: dict[type[Event], str] = {}

EventType = TypeVar("EventType", bound=type[Event])


def register_event(name: str) -> Callable[[EventType], EventType]:
    """Makes a frozen dataclass of `Event` known under `name`, in the accountants and in what ledgers write.

    Its fields must be JSON values, but for one named ``sampling``, and its constructor must refuse bad ones.

    Raises:
        UnsupportedError: for a name that is taken, or a class that is no frozen dataclass of `Event` with a count.
    """

    def register(event_type: EventType) -> EventType:
        if name in _TYPES or event_type in _NAMES:
            raise UnsupportedError(f"register_event({name!r}): taken by {_TYPES.get(name, event_type).__qualname__}.")
        frozen = getattr(getattr(event_type, "__dataclass_params__", None), "frozen", False)
        is_event = issubclass(event_type, Event) and "__dataclass_fields__" in vars(event_type)
        if not (is_event and frozen and "count" in {field.name for field in _fields(event_type)}):
            raise UnsupportedError(
                f"register_event({name!r}): {event_type.__qualname__} is no frozen dataclass of Event with a count."
            )
        _TYPES[name] = event_type
        _NAMES[event_type] = name
        return event_type

    return register


def event_from_dict(values: Mapping[str, Any]) -> Event:
    """Reads what an event's ``to_dict`` wrote; refuses everything else.

    Raises:
        UnsupportedError: for an unknown type, or missing or unknown keys.
        InvalidValueError: for a value outside its range.
    """
    known = {name: {field.name for field in _fields(event_type)} for name, event_type in _TYPES.items()}
    event_type = _TYPES[expect_keys(values, "event", known)]
    given = {name: value for name, value in values.items() if name != "type"}
    if "sampling" in given:
        given["sampling"] = sampling_from_dict(given["sampling"])
    return event_type(**given)


def check_event(event: Event) -> Event:
    """Returns `event` if its type is registered.

    Raises:
        UnsupportedError: for anything else; an accountant would have to guess what it costs.
    """
    if type(event) not in _NAMES:
        raise UnsupportedError(f"event={event!r}: accountants charge registered events only: {', '.join(_TYPES)}.")
    return event


def grouped(events: Iterable[Event]) -> list[tuple[Event, int]]:
    """The distinct single releases that `events` cost as much as, each with how often it happens.

    Guarantee: the same list, in the same order, whatever the order of `events` and however equal ones are counted.

    Raises:
        UnsupportedError: for a thing that is no registered event.
    """
    counts: Counter[Event] = Counter()
    for event in events:
        for part in _primitives(event):
            counts[dataclasses.replace(part, count=1)] += part.count  # type: ignore[type-var]
    return sorted(counts.items(), key=lambda item: repr(item[0]))


def require_sound(events: Iterable[Event], accountant: str, neighboring_relation: NeighboringRelation) -> None:
    """Refuses events for which the accountant is not sound.

    Raises:
        UnsupportedError: with the event's reason and remedy.
    """
    for event in events:
        reason = event.refusal(accountant, neighboring_relation)
        if reason is not None:
            raise UnsupportedError(reason)


def _primitives(event: Event) -> Iterator[Event]:
    parts = check_event(event).parts()
    if parts == (event,):
        yield event
        return
    for part in parts:
        yield from _primitives(part)


def _fields(event_type: type[Event]) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(field for field in dataclasses.fields(event_type) if field.init)  # type: ignore[arg-type]
