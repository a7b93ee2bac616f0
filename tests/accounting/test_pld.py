from __future__ import annotations

import math
from typing import Any

import pytest

from fedDP.accounting import (
    FixedSize,
    Gaussian,
    NeighboringRelation,
    Poisson,
    delta,
    epsilon,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    pld,
)
from fedDP.accounting.pld import pld_delta, pld_epsilon
from fedDP.accounting.privacy_loss import PoissonPair

from .oracles import sampled_delta, two_sampled_rounds_delta

peer: Any = pytest.importorskip("dp_accounting")
RELATIONS: dict[NeighboringRelation, Any] = {
    "zero_out": peer.NeighboringRelation.REPLACE_SPECIAL,
    "add_remove": peer.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": peer.NeighboringRelation.REPLACE_ONE,
}


def poisson(rate: float, noise: float, count: int = 1) -> Gaussian:
    return Gaussian(noise, sampling=Poisson(rate), count=count)


def peer_epsilon(events: list[Gaussian], at: float, relation: NeighboringRelation = "zero_out") -> float:
    accountant = peer.pld.PLDAccountant(RELATIONS[relation])
    for event in events:
        single = peer.GaussianDpEvent(event.noise_multiplier)
        accountant.compose(peer.PoissonSampledDpEvent(event.sampling.rate, single), event.count)
    return float(accountant.get_epsilon(at))


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.02, 2.0), (0.3, 0.8), (0.5, 5.0), (1e-3, 0.6)])
def test_one_round_is_the_closed_form(rate: float, noise: float) -> None:
    for at in (0.001, 0.1, 0.5, 2.0):
        exact = float(sampled_delta(rate, noise, at))
        if exact > 1e-12:
            assert exact * (1.0 - 1e-12) <= pld_delta([poisson(rate, noise)], at, "zero_out") <= exact * (1.0 + 2e-5)
    for at in (1e-10, 1e-7, 1e-4):
        found = pld_epsilon([poisson(rate, noise)], at, "zero_out")
        assert sampled_delta(rate, noise, found) <= at
        if found > 0.0:
            assert sampled_delta(rate, noise, found - 1e-4) > at


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 0.8), (0.1, 3.0)])
def test_two_rounds_are_the_slow_oracle(rate: float, noise: float) -> None:
    for at in (0.2, 1.0):
        exact = float(two_sampled_rounds_delta(rate, noise, at))
        found = pld_delta([poisson(rate, noise, 2)], at, "zero_out")
        assert exact * (1.0 - 1e-9) <= found <= exact * (1.0 + 1e-4)


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (0.3, 5), (30.0, 1000), (5.0, 10**5)])
@pytest.mark.parametrize("at", [1e-11, 0.1])
def test_unsampled_rounds_are_bounded_tightly(noise: float, count: int, at: float) -> None:
    # Nobody asks for this: the exact account is used. It shows what the grid and the transform lose.
    events = [Gaussian(noise, count=count)]
    exact = gdp_epsilon(gdp_mu(events), at)
    assert exact <= pld_epsilon(events, at, "zero_out") <= exact * (1.0 + 1e-6) + 1e-7


RUNS: dict[str, list[Gaussian]] = {
    "small epsilon": [poisson(0.02, 3.824, 10)],
    "a year": [poisson(0.02, 3.824, 520)],
    "many rounds": [poisson(0.001, 0.8, 10_000)],
    "two noises": [poisson(0.05, 1.0, 20), poisson(0.01, 1.5, 50)],
    "rates near one": [poisson(0.99, 4.0, 10), poisson(0.5, 4.0, 3)],
    "little noise": [poisson(0.1, 0.5, 10)],
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_a_peer_library_agrees(name: str, relation: NeighboringRelation) -> None:
    for at in (1e-9, 1e-6, 1e-3):
        theirs = peer_epsilon(RUNS[name], at, relation)
        assert pld_epsilon(RUNS[name], at, relation) == pytest.approx(theirs, rel=4e-5, abs=2e-6)


def test_a_peer_library_agrees_on_one_run_of_each_kind() -> None:
    runs: list[tuple[list[Gaussian], NeighboringRelation]] = [
        ([poisson(0.02, 4.0, 50), Gaussian(40.0, sampling=Poisson(1.0), count=5)], "add_remove"),
        ([poisson(0.02, 4.0, 50)], "replace_one"),
    ]
    for events, relation in runs:
        assert pld_epsilon(events, 1e-6, relation) == pytest.approx(peer_epsilon(events, 1e-6, relation), abs=1e-6)


def test_a_fixed_cohort_lies_between_independent_sampling_and_the_renyi_bound() -> None:
    for cohort, population, noise, count in [(20, 1000, 2.0, 100), (3, 5, 8.0, 20), (1, 10**6, 0.7, 1000)]:
        fixed = [Gaussian(noise, sampling=FixedSize(cohort, population), count=count)]
        drawn = [poisson(cohort / population, noise, count)]
        lower = epsilon(drawn, 1e-6, "pld", "replace_one")
        assert lower < epsilon(fixed, 1e-6, "pld", "replace_one") < epsilon(fixed, 1e-6, "rdp", "replace_one")


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("noise", [1e-3, 0.05, 0.3, 1.0, 10.0, 1e5])
@pytest.mark.parametrize("rate", [1e-6, 0.03, 1.0 - 1e-9])
def test_extremes_neither_crash_nor_beat_a_sound_bound_below(
    noise: float, rate: float, relation: NeighboringRelation
) -> None:
    values = []
    for count in (1, 30, 10**6):
        events, full = [poisson(rate, noise, count)], [Gaussian(noise, count=count)]
        values.append(epsilon(events, 1e-6, "pld", relation))
        assert values[-1] <= epsilon(full, 1e-6, "gdp", relation)
        if relation == "zero_out":
            assert values[-1] <= epsilon(events, 1e-6, "rdp", relation)
        if rate > 0.9 and relation == "zero_out":
            assert values[-1] >= (1.0 - 1e-6) * epsilon(full, 1e-6, "gdp", relation)
    assert values == sorted(values)
    assert all(map(math.isfinite, values))


def test_more_points_than_fit_make_the_grid_coarser_and_not_better() -> None:
    # The peer's answer, on the full grid of 2.5 million points, took 1.5 s.
    assert 137.1613165 <= pld_epsilon([poisson(0.5, 0.5, 100)], 1e-5, "zero_out") <= 137.1614


def test_tiny_deltas_survive_many_different_rounds() -> None:
    # Cutting 1e-15 off each of many sums would leave nothing of a delta of 1e-11.
    events = [Gaussian(20.0 + 1e-3 * step) for step in range(40)] + [
        poisson(0.1, 8.0 + step, 10**4) for step in range(4)
    ]
    found = pld_epsilon(events, 1e-11, "zero_out")
    assert pld_epsilon(events, 1e-10, "zero_out") < found < epsilon(events, 1e-11, "rdp")
    assert pld_delta(events, found, "zero_out") == pytest.approx(1e-11, rel=1e-6)


def test_no_noise_to_speak_of_is_no_privacy() -> None:
    for sampling in (Poisson(1.0), Poisson(0.1), FixedSize(1, 10)):
        events = [Gaussian(1e-200, sampling=sampling)]
        assert pld_epsilon(events, 1e-5, "replace_one") == epsilon(events, 1e-5, "pld", "replace_one") == math.inf
        assert pld_delta(events, 1e6, "replace_one") == delta(events, 1e6, "pld", "replace_one") == 1.0


def test_delta_at_zero_and_far_out() -> None:
    events = [poisson(0.1, 1.0, 10)]
    assert pld_delta(events, 1e12, "zero_out") < 1e-12
    assert pld_epsilon(events, pld_delta(events, 0.0, "zero_out") * (1.0 + 1e-9), "zero_out") == 0.0
    assert pld_epsilon(events, pld_delta(events, 0.0, "zero_out") * (1.0 - 1e-3), "zero_out") > 0.0
    assert pld_epsilon([], 1e-5, "zero_out") == pld_delta([], 0.0, "zero_out") == 0.0


@pytest.mark.parametrize("left_out", [1e-3, 0.3])
def test_what_a_window_leaves_out_is_charged(monkeypatch: pytest.MonkeyPatch, left_out: float) -> None:
    monkeypatch.setattr(pld, "_LEFT_OUT", left_out)
    caches = (pld._epsilon, pld._delta)
    for cache in caches:
        cache.cache_clear()
    for noise, count in ((2.0, 4), (0.8, 1), (9.0, 200)):
        events = [Gaussian(noise, count=count)]
        mu = gdp_mu(events)
        for at in (1e-9, 1e-5, 1e-2):
            assert pld_epsilon(events, at, "zero_out") >= gdp_epsilon(mu, at)
        for at in (0.0, 0.5 * mu, 3.0 * mu, 30.0 * mu):
            assert pld_delta(events, at, "zero_out") >= gdp_delta(mu, at)
    for cache in caches:
        cache.cache_clear()


def test_the_larger_of_both_directions_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [poisson(0.3, 1.7, 3)]
    both = pld_delta(events, 0.1, "zero_out")
    discretise = PoissonPair.discretise
    single = []
    for way in (0, 1):
        monkeypatch.setattr(
            PoissonPair, "discretise", lambda self, step, way=way: discretise(self, step)[way : way + 1]
        )
        for cache in (pld._losses, pld._delta):
            cache.cache_clear()
        single.append(pld_delta(events, 0.1, "zero_out"))
    assert both == max(single) > min(single)
    for cache in (pld._losses, pld._delta):
        cache.cache_clear()
