"""A mechanism brings an event of its own, and nothing else has to know it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedDP.accounting import (
    ORDERS,
    DominatingPair,
    Event,
    FullParticipation,
    Gaussian,
    NeighboringRelation,
    Poisson,
    RdpAccountant,
    Sampling,
    accountant_name,
    delta,
    epsilon,
    event_from_dict,
    events_all_full,
    gdp_mu,
    rdp,
    rdp_at,
    register_event,
)
from fedDP.accounting import event as event_module
from fedDP.accounting.event import grouped
from fedDP.accounting.neighbors import sensitivity
from fedDP.accounting.privacy_loss import FixedSizePair
from fedDP.budget.records import canonical_json
from fedDP.errors import UnsupportedError


@dataclass(frozen=True)
class Layered(Event):
    """Two layers, each with its noise, released together from one draw: one Gaussian."""

    first: float
    second: float
    _: KW_ONLY
    sampling: Sampling = field(default_factory=FullParticipation)
    count: int = 1

    def parts(self) -> tuple[Event, ...]:
        noise = (self.first**-2 + self.second**-2) ** -0.5
        return (Gaussian(noise, sampling=self.sampling, count=self.count),)


@dataclass(frozen=True)
class Doubled(Event):
    """States its own costs: a Gaussian at twice the distance, for which no exact account is claimed."""

    noise: float
    count: int = 1

    def refusal(self, accountant: str, neighboring_relation: NeighboringRelation) -> str | None:
        return f"accountant={accountant!r} with Doubled: Use 'rdp' or 'pld'." if accountant == "gdp" else None

    def unsampled(self) -> Event:
        return self

    def _noise(self, neighboring_relation: NeighboringRelation) -> float:
        return self.noise / (2.0 * sensitivity(neighboring_relation))

    def rdp_costs(self, orders: tuple[float, ...], neighboring_relation: NeighboringRelation) -> NDArray[np.float64]:
        return np.array(orders) / (2.0 * self._noise(neighboring_relation) ** 2)

    def dominating_pair(self, neighboring_relation: NeighboringRelation) -> DominatingPair:
        return FixedSizePair(1.0, self._noise(neighboring_relation))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    types, names = dict(event_module._TYPES), dict(event_module._NAMES)
    register_event("layered")(Layered)
    register_event("doubled")(Doubled)
    yield
    for registry, before in ((event_module._TYPES, types), (event_module._NAMES, names)):
        registry.clear()
        registry.update(before)  # type: ignore[arg-type]


LAYERED = Layered(3.0, 4.0, count=5)
SAMPLED = Layered(3.0, 4.0, sampling=Poisson(0.05), count=5)
SAME = Gaussian(2.4, count=5)


@pytest.mark.parametrize("accountant", [None, "gdp", "rdp", "pld"])
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_it_costs_what_its_parts_cost(accountant: str | None, relation: NeighboringRelation) -> None:
    assert epsilon([LAYERED], 1e-5, accountant, relation) == pytest.approx(
        epsilon([SAME], 1e-5, accountant, relation), rel=1e-12
    )
    assert delta([LAYERED], 2.0, accountant, relation) == pytest.approx(
        delta([SAME], 2.0, accountant, relation), rel=1e-9
    )


def test_it_can_be_sampled() -> None:
    same = Gaussian(2.4, sampling=Poisson(0.05), count=5)
    assert accountant_name([SAMPLED]) == "pld"
    for accountant in ("rdp", "pld"):
        assert epsilon([SAMPLED], 1e-5, accountant) == pytest.approx(epsilon([same], 1e-5, accountant), rel=1e-9)
    with pytest.raises(UnsupportedError, match=r"gdp.*Poisson"):
        epsilon([SAMPLED], 1e-5, "gdp")
    with pytest.raises(UnsupportedError, match=r"rdp.*Poisson.*replace_one"):
        epsilon([SAMPLED], 1e-5, "rdp", "replace_one")
    assert [LAYERED.supports("gdp", "zero_out"), SAMPLED.supports("gdp", "zero_out")] == [True, False]


def test_filters_and_modes_know_it() -> None:
    assert events_all_full([LAYERED])
    assert not events_all_full([LAYERED, SAMPLED])
    assert not events_all_full([Doubled(1.0)])
    assert gdp_mu([LAYERED]) == pytest.approx(gdp_mu([SAME]), rel=1e-12)
    assert rdp_at(LAYERED, 40) == pytest.approx(rdp_at(SAME, 40), rel=1e-12)
    assert rdp_at(Doubled(4.0), 40) == rdp_at(Gaussian(2.0), 40)
    running = RdpAccountant()
    running.compose(SAMPLED)
    np.testing.assert_array_equal(running.costs, rdp(SAMPLED))


def test_costs_of_its_own_enter_every_accountant_that_it_allows() -> None:
    ours, same = [Doubled(8.0, count=3), Gaussian(5.0)], [Gaussian(4.0, count=3), Gaussian(5.0)]
    assert epsilon(ours, 1e-5, "rdp") == pytest.approx(epsilon(same, 1e-5, "rdp"), rel=1e-12)
    assert epsilon(ours, 1e-5) == pytest.approx(epsilon(same, 1e-5, "gdp"), rel=1e-6)
    assert epsilon(ours, 1e-5) >= epsilon(same, 1e-5, "gdp")
    with pytest.raises(UnsupportedError, match="Doubled: Use"):
        epsilon(ours, 1e-5, "gdp")


def test_grouping_merges_equal_ones_and_knows_no_order() -> None:
    events: list[Event] = [LAYERED, SAMPLED, Doubled(3.0), Layered(3.0, 4.0), Gaussian(7.0)]
    assert len({epsilon(order, 1e-5) for order in itertools.permutations(events)}) == 1
    assert {count for _, count in grouped([LAYERED, Layered(3.0, 4.0)])} == {6}
    assert Doubled(3.0, count=2).repeated(4) == Doubled(3.0, count=8)
    assert len({Doubled(3.0), Doubled(3.0)}) == 1


@pytest.mark.parametrize("event", [LAYERED, SAMPLED, Doubled(0.1 + 0.2, count=9)], ids=repr)
def test_ledgers_can_write_and_read_it(event: Event) -> None:
    text = canonical_json(event.to_dict())
    assert event_from_dict(json.loads(text)) == event
    for change in ({"extra": 1}, {"type": "layer"}):
        with pytest.raises(UnsupportedError):
            event_from_dict(json.loads(text) | change)


def test_what_is_not_registered_is_refused() -> None:
    @dataclass(frozen=True)
    class Stranger(Event):
        count: int = 1

    for call in (lambda e: epsilon([e], 1e-5), lambda e: e.to_dict(), lambda e: rdp(e), lambda e: gdp_mu([e])):
        with pytest.raises(UnsupportedError, match=r"Stranger.*registered events only: gaussian"):
            call(Stranger())


def test_an_event_without_costs_is_refused_by_every_accountant() -> None:
    @register_event("silent")
    @dataclass(frozen=True)
    class Silent(Event):
        count: int = 1

    for accountant in ("gdp", "rdp", "pld", None):
        with pytest.raises(UnsupportedError, match=r"Silent.*states no cost"):
            epsilon([Silent()], 1e-5, accountant)
    for cost in (Silent().squared_mu, Silent().dominating_pair):
        with pytest.raises(UnsupportedError, match="states no cost"):
            cost("zero_out")
    with pytest.raises(UnsupportedError, match="states no cost"):
        Silent().rdp_costs(ORDERS, "zero_out")


def test_costs_that_are_no_costs_are_refused() -> None:
    @register_event("broken")
    @dataclass(frozen=True)
    class Broken(Event):
        value: float
        count: int = 1

        def refusal(self, accountant: str, neighboring_relation: NeighboringRelation) -> str | None:
            return None if accountant == "rdp" else "rdp only"

        def rdp_costs(
            self, orders: tuple[float, ...], neighboring_relation: NeighboringRelation
        ) -> NDArray[np.float64]:
            return np.full(len(orders), self.value)

    for value in (-1e-9, float("nan")):
        with pytest.raises(ValueError, match="event="):
            rdp(Broken(value))
    assert np.all(np.isinf(rdp(Broken(float("inf")))))


def test_names_and_classes_are_taken_once() -> None:
    with pytest.raises(UnsupportedError, match=r"register_event\('gaussian'\): taken by Gaussian"):
        register_event("gaussian")(Doubled)
    with pytest.raises(UnsupportedError, match="taken by Gaussian"):
        register_event("another")(Gaussian)


def test_only_frozen_dataclasses_of_event_with_a_count_are_registered() -> None:
    @dataclass
    class Mutable(Event):
        count: int = 1

    @dataclass(frozen=True)
    class Uncounted(Event):
        noise: float = 1.0

    class Plain(Gaussian):
        pass

    @dataclass(frozen=True)
    class Foreign:
        count: int = 1

    wrong: list[Any] = [Mutable, Uncounted, Plain, Foreign]
    for kind in wrong:
        with pytest.raises(UnsupportedError, match="is no frozen dataclass of Event with a count"):
            register_event("wrong")(kind)
    with pytest.raises(FrozenInstanceError):
        LAYERED.count = 2  # type: ignore[misc]
