from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from fedDP.accounting import (
    FixedSize,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Sampling,
    accountant_name,
    delta,
    epsilon,
)
from fedDP.errors import InvalidValueError, UnsupportedError

RUNS: dict[str, tuple[str, list[Gaussian]]] = {
    "gdp": ("gdp", [Gaussian(12.0, count=50), Gaussian(20.0, count=10)]),
    "rdp, full": ("rdp", [Gaussian(12.0, count=50), Gaussian(20.0, count=10)]),
    "rdp, sampled": ("rdp", [Gaussian(1.5, sampling=Poisson(0.02), count=300), Gaussian(0.9, sampling=Poisson(0.02))]),
    "rdp, mixed": ("rdp", [Gaussian(1.2, sampling=Poisson(0.05), count=100), Gaussian(20.0, count=100)]),
    "pld, full": ("pld", [Gaussian(12.0, count=50), Gaussian(20.0, count=10)]),
    "pld, sampled": ("pld", [Gaussian(1.5, sampling=Poisson(0.02), count=300), Gaussian(2.9, sampling=Poisson(0.02))]),
    "pld, mixed": ("pld", [Gaussian(2.2, sampling=Poisson(0.05), count=100), Gaussian(20.0, count=100)]),
}
SAMPLED: dict[str, tuple[str, Sampling, NeighboringRelation]] = {
    "rdp, Poisson": ("rdp", Poisson(0.02), "zero_out"),
    "rdp, fixed size": ("rdp", FixedSize(20, 1000), "replace_one"),
    "pld, Poisson": ("pld", Poisson(0.02), "zero_out"),
    "pld, Poisson, replaced": ("pld", Poisson(0.02), "replace_one"),
    "pld, fixed size": ("pld", FixedSize(20, 1000), "replace_one"),
}


@pytest.mark.parametrize(("accountant", "events"), RUNS.values(), ids=RUNS.keys())
class TestEveryAccountant:
    """What holds for any accountant and any run."""

    def test_smaller_delta_costs_more(self, accountant: str, events: list[Gaussian]) -> None:
        values = [epsilon(events, d, accountant) for d in (0.5, 1e-2, 1e-5, 1e-7, 1e-9, 1e-11)]
        assert values == sorted(values)
        assert min(values) >= 0.0

    def test_more_rounds_cost_more(self, accountant: str, events: list[Gaussian]) -> None:
        values = [epsilon(events[:1] * k + events[1:], 1e-5, accountant) for k in (1, 2, 3, 10)]
        assert values == sorted(set(values))

    @pytest.mark.slow
    def test_less_noise_costs_more(self, accountant: str, events: list[Gaussian]) -> None:
        scaled = (
            [Gaussian(e.noise_multiplier * f, sampling=e.sampling, count=e.count) for e in events]
            for f in (4.0, 2.0, 1.01, 1.0, 0.5, 0.1, 0.05, 0.01)
        )
        values = [epsilon(run, 1e-5, accountant) for run in scaled]
        assert values == sorted(set(values))

    def test_order_of_rounds_is_irrelevant_to_the_last_bit(self, accountant: str, events: list[Gaussian]) -> None:
        more = [*events, Gaussian(7.0), Gaussian(3.3)]
        assert len({epsilon(order, 1e-5, accountant) for order in itertools.permutations(more)}) == 1

    def test_halves_compose_to_the_whole(self, accountant: str, events: list[Gaussian]) -> None:
        whole = [Gaussian(e.noise_multiplier, sampling=e.sampling, count=2 * e.count) for e in events]
        assert epsilon(events + events, 1e-5, accountant) == pytest.approx(epsilon(whole, 1e-5, accountant), rel=1e-14)

    def test_count_is_repetition(self, accountant: str, events: list[Gaussian]) -> None:
        single = [Gaussian(e.noise_multiplier, sampling=e.sampling) for e in events for _ in range(e.count)]
        assert epsilon(single, 1e-5, accountant) == pytest.approx(epsilon(events, 1e-5, accountant), rel=1e-14)

    def test_delta_and_epsilon_agree(self, accountant: str, events: list[Gaussian]) -> None:
        for d in (1e-9, 1e-5, 1e-3):
            tolerance = 1e-6 if accountant == "pld" else 1e-9
            assert delta(events, epsilon(events, d, accountant), accountant) == pytest.approx(d, rel=tolerance)

    def test_delta_falls_with_epsilon(self, accountant: str, events: list[Gaussian]) -> None:
        values = [delta(events, e, accountant) for e in (0.0, 0.1, 1.0, 5.0, 50.0)]
        assert values == sorted(values, reverse=True)
        assert 0.0 <= values[-1] <= values[0] <= 1.0

    def test_relations_of_one_client_absent_cost_the_same(self, accountant: str, events: list[Gaussian]) -> None:
        assert epsilon(events, 1e-5, accountant, "zero_out") == epsilon(events, 1e-5, accountant, "add_remove")

    def test_nothing_released_costs_nothing(self, accountant: str, events: list[Gaussian]) -> None:
        assert epsilon([], 1e-11, accountant) == delta([], 0.0, accountant) == 0.0

    @pytest.mark.parametrize("bad", [0.0, 1e-12, 1.0, -1e-5, math.nan, math.inf, True, None, "1e-5"])
    def test_bad_delta_is_refused_also_without_events(self, accountant: str, events: list[Gaussian], bad: Any) -> None:
        for run in (events, []):
            with pytest.raises(InvalidValueError, match="delta="):
                epsilon(run, bad, accountant)

    @pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, True, None])
    def test_bad_epsilon_is_refused_also_without_events(
        self, accountant: str, events: list[Gaussian], bad: Any
    ) -> None:
        for run in (events, []):
            with pytest.raises(InvalidValueError, match="epsilon="):
                delta(run, bad, accountant)

    def test_fixed_size_is_refused_where_one_client_is_absent(self, accountant: str, events: list[Gaussian]) -> None:
        relations: tuple[NeighboringRelation, ...] = ("zero_out", "add_remove")
        for relation in relations:
            with pytest.raises(UnsupportedError, match=r"FixedSize.*replace_one"):
                epsilon([*events, Gaussian(1.0, sampling=FixedSize(2, 5))], 1e-5, accountant, relation)


@pytest.mark.parametrize(("accountant", "sampling", "relation"), SAMPLED.values(), ids=SAMPLED.keys())
class TestEverySampledAccount:
    """What holds for sampled rounds, however they are drawn and whatever is hidden."""

    def test_the_laws(self, accountant: str, sampling: Sampling, relation: NeighboringRelation) -> None:
        def of(noise: float, count: int, at: float, drawn: Sampling = sampling) -> float:
            return epsilon([Gaussian(noise, sampling=drawn, count=count)], at, accountant, relation)

        rates: list[Sampling] = [Poisson(q) for q in (1e-4, 0.02, 0.5, 0.999)]
        if isinstance(sampling, FixedSize):
            rates = [FixedSize(m, 1000) for m in (1, 20, 500, 1000)]
        rising = [
            [of(2.5, 50, at) for at in (1e-2, 1e-5, 1e-8, 1e-11)],
            [of(2.5, count, 1e-5) for count in (1, 2, 50, 51, 1000)],
            [of(noise, 50, 1e-5) for noise in (50.0, 2.5, 2.4, 1.0, 0.3, 0.05)],
            [of(2.5, 50, 1e-5, drawn) for drawn in rates],
        ]
        for values in rising:
            assert values == sorted(set(values))

    def test_sampling_never_costs_more_than_full_participation(
        self, accountant: str, sampling: Sampling, relation: NeighboringRelation
    ) -> None:
        for noise, count in ((0.01, 3), (1.0, 10), (2.5, 1), (1e5, 10**6)):
            full = epsilon([Gaussian(noise, count=count)], 1e-5, accountant, relation) * (1.0 + 1e-10)
            assert epsilon([Gaussian(noise, sampling=sampling, count=count)], 1e-5, accountant, relation) <= full
            if isinstance(sampling, Poisson):
                nearly = [Gaussian(noise, sampling=Poisson(math.nextafter(1.0, 0.0)), count=count)]
                assert epsilon(nearly, 1e-5, accountant, relation) <= full

    def test_halves_compose_and_order_is_irrelevant(
        self, accountant: str, sampling: Sampling, relation: NeighboringRelation
    ) -> None:
        parts = [Gaussian(2.5, sampling=sampling, count=20), Gaussian(30.0, count=4), Gaussian(4.0, sampling=sampling)]
        whole = [event.repeated(2) for event in parts]
        orders = {epsilon([*order, *parts], 1e-6, accountant, relation) for order in itertools.permutations(parts)}
        assert orders == {epsilon(whole, 1e-6, accountant, relation)}

    def test_delta_and_epsilon_agree(self, accountant: str, sampling: Sampling, relation: NeighboringRelation) -> None:
        events = [Gaussian(1.5, sampling=sampling, count=50)]
        for at in (1e-9, 1e-5, 1e-3):
            found = epsilon(events, at, accountant, relation)
            assert delta(events, found, accountant, relation) == pytest.approx(at, rel=1e-6)

    def test_decay_is_never_cheaper_than_constant_noise(
        self, accountant: str, sampling: Sampling, relation: NeighboringRelation
    ) -> None:
        constant = [Gaussian(2.0, sampling=sampling, count=40)]
        decay = [Gaussian(2.0 - 0.3 * step, sampling=sampling, count=10) for step in range(4)]
        assert epsilon(decay, 1e-5, accountant, relation) > epsilon(constant, 1e-5, accountant, relation)


@pytest.mark.parametrize("accountant", ["gdp", "rdp", "pld"])
def test_replace_one_is_half_the_noise_in_every_accountant(accountant: str) -> None:
    far = epsilon([Gaussian(2.0, count=3)], 1e-5, accountant, "replace_one")
    assert far == epsilon([Gaussian(1.0, count=3)], 1e-5, accountant)
    assert far > 2.0 * epsilon([Gaussian(2.0, count=3)], 1e-5, accountant)


def test_the_exact_accountant_is_the_default_where_it_can_be() -> None:
    full, sampled = Gaussian(5.0), Gaussian(5.0, sampling=Poisson(0.5))
    assert accountant_name([]) == accountant_name([full, Gaussian(1.0, sampling=Poisson(1.0))]) == "gdp"
    assert accountant_name([full, sampled]) == "pld"
    assert epsilon([full], 1e-5) == epsilon([full], 1e-5, "gdp") < epsilon([full], 1e-5, "rdp")
    assert epsilon([full], 1e-5, "pld") == epsilon([full], 1e-5, "gdp")
    assert epsilon([full, sampled], 1e-5) == epsilon([full, sampled], 1e-5, "pld")
    assert epsilon([full, sampled], 1e-5) < epsilon([full, sampled], 1e-5, "rdp")


def test_higher_rates_cost_more_up_to_full_participation() -> None:
    rates = (1e-6, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.999, 1.0)
    values = [epsilon([Gaussian(1.3, sampling=Poisson(q), count=10)], 1e-5, "rdp") for q in rates]
    assert values == sorted(values)
    assert values[-1] == epsilon([Gaussian(1.3, count=10)], 1e-5, "rdp")


def test_a_rate_of_one_is_exact() -> None:
    assert epsilon([Gaussian(1.0, sampling=Poisson(1.0))], 1e-5) == epsilon([Gaussian(1.0)], 1e-5)
    mixed = [Gaussian(1.0, sampling=Poisson(1)), Gaussian(1.0)]
    assert epsilon(mixed, 1e-5) == epsilon([Gaussian(1, count=2)], 1e-5)


@pytest.mark.parametrize("rate", [pytest.param(0.01, marks=pytest.mark.slow), 1.0])
def test_noise_that_decays_from_1_to_03_is_never_cheaper_than_constant_1(rate: float) -> None:
    sampling = Poisson(rate)
    constant = [Gaussian(1.0, sampling=sampling, count=100)]
    decay = [Gaussian(1.0 - 0.7 * min(max(t - 29, 0), 40) / 40, sampling=sampling) for t in range(100)]
    assert decay[-1].noise_multiplier == pytest.approx(0.3)
    assert epsilon(decay, 1e-5) > 3.0 * epsilon(constant, 1e-5)


def test_integer_noise_is_not_dropped() -> None:
    # Some accountants skip noise multipliers that are not Python floats.
    pairs: list[Any] = [(1, 2), (np.float32(1), np.float32(2)), (np.int64(1), np.int64(2))]
    for one, two in pairs:
        events = [Gaussian(one, sampling=Poisson(0.1), count=10), Gaussian(two, sampling=Poisson(0.1), count=10)]
        floats = [Gaussian(1.0, sampling=Poisson(0.1), count=10), Gaussian(2.0, sampling=Poisson(0.1), count=10)]
        assert epsilon(events, 1e-5) == epsilon(floats, 1e-5) > epsilon(floats[:1], 1e-5)


def test_unsound_pairs_are_refused_by_name() -> None:
    sampled = [Gaussian(1.0, sampling=Poisson(0.1))]
    with pytest.raises(UnsupportedError, match=r"gdp.*Poisson"):
        epsilon(sampled, 1e-5, "gdp")
    with pytest.raises(UnsupportedError, match=r"rdp.*Poisson.*replace_one"):
        epsilon(sampled, 1e-5, "rdp", "replace_one")
    with pytest.raises(UnsupportedError, match=r"rdp.*Poisson.*replace_one"):
        delta(sampled, 1.0, "rdp", "replace_one")
    for accountant in (None, "gdp", "rdp", "pld"):
        with pytest.raises(UnsupportedError, match=r"FixedSize.*'zero_out'.*Use neighboring_relation='replace_one'"):
            epsilon([*sampled, Gaussian(1.0, sampling=FixedSize(2, 5))], 1e-5, accountant)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    for events in ([], [Gaussian(1.0)]):
        with pytest.raises(InvalidValueError, match=r"accountant='moments'.*gdp, rdp, pld"):
            epsilon(events, 1e-5, "moments")
        unknown: Any = "swap"
        with pytest.raises(InvalidValueError, match=r"neighboring_relation='swap'.*zero_out, add_remove, replace_one"):
            epsilon(events, 1e-5, neighboring_relation=unknown)


def test_things_that_are_no_events_are_refused() -> None:
    class Quiet(Gaussian):
        pass

    things: list[Any] = [1.0, None, Quiet(1.0), {"type": "gaussian"}]
    for thing in things:
        with pytest.raises(UnsupportedError, match="event="):
            epsilon([Gaussian(1.0), thing], 1e-5)


def test_events_may_come_from_a_generator() -> None:
    assert epsilon((Gaussian(z) for z in (1.0, 2.0)), 1e-5) == epsilon([Gaussian(1.0), Gaussian(2.0)], 1e-5)


def test_hardly_any_noise_is_hardly_any_privacy() -> None:
    assert epsilon([Gaussian(1e-200)], 1e-5) == math.inf
    assert epsilon([Gaussian(1e-200, sampling=Poisson(0.1))], 1e-5) == math.inf
    assert delta([Gaussian(1e-200)], 1e6) == delta([Gaussian(1e-200, sampling=Poisson(0.1))], 1e6) == 1.0


def test_peer_library_is_never_undercut() -> None:
    peer: Any = pytest.importorskip("dp_accounting")
    accountant = peer.rdp.RdpAccountant()
    accountant.compose(peer.PoissonSampledDpEvent(0.02, peer.GaussianDpEvent(1.1)), 200)
    ours = epsilon([Gaussian(1.1, sampling=Poisson(0.02), count=200)], 1e-6, "rdp")
    assert ours == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-6)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_many_sampled_rounds_in_any_order_cost_the_same_to_the_last_bit(accountant: str) -> None:
    rng = np.random.default_rng(1)
    events = [Gaussian(float(z), sampling=Poisson(float(q))) for z, q in rng.uniform((1.5, 0.001), (3.0, 0.1), (20, 2))]
    orders = [[events[index] for index in rng.permutation(len(events))] for _ in range(20)]
    assert len({epsilon(order, 1e-5, accountant) for order in orders}) == 1
