from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from fedDP.accounting.privacy_loss import (
    DominatingPair,
    FixedSizePair,
    LossDistribution,
    PoissonPair,
    PoissonReplacedPair,
)

from .oracles import gaussian_delta, mixture_delta

STEP = 1e-3
PARAMETERS = [(0.01, 1.0), (0.5, 0.5), (0.02, 3.8), (0.9, 2.0), (1e-4, 0.3), (1.0 - 1e-9, 1.0), (0.3, 50.0)]
Exact = Callable[[float], object]


def exact_deltas(pair: DominatingPair) -> list[Exact]:
    """Delta of the pair at any epsilon, in 60 digits: of (P, Q), and of (Q, P) where that is another one."""
    if isinstance(pair, FixedSizePair):
        return [lambda epsilon: swapped_delta(pair.rate, pair.noise, epsilon)]
    assert isinstance(pair, PoissonPair | PoissonReplacedPair)
    q, z = pair.rate, pair.noise
    mixture = {0.0: 1.0 - q, 1.0: q}
    if isinstance(pair, PoissonReplacedPair):
        return [lambda epsilon: mixture_delta(mixture, {0.0: 1.0 - q, -1.0: q}, z, epsilon)]
    nothing = {0.0: 1.0}
    return [
        lambda epsilon: mixture_delta(mixture, nothing, z, epsilon),
        lambda epsilon: mixture_delta(nothing, mixture, z, epsilon),
    ]


def swapped_delta(rate: float, noise: float, epsilon: float) -> object:
    """Balle, Barthe, Gaboardi (2018), Thm. 9, and below zero what the symmetry of swapping makes of it."""
    if epsilon < 0.0:
        return 1.0 - math.exp(epsilon) + math.exp(epsilon) * float(str(swapped_delta(rate, noise, -epsilon)))
    return rate * gaussian_delta(1.0 / noise, math.log1p(math.expm1(epsilon) / rate))


def delta_of(loss: LossDistribution, epsilon: float, step: float = STEP) -> float:
    losses = step * (loss.first + np.arange(loss.mass.size))
    above = losses > epsilon
    return loss.infinite + float(-np.expm1(epsilon - losses[above]) @ loss.mass[above])


def pairs() -> list[DominatingPair]:
    found: list[DominatingPair] = [FixedSizePair(1.0, 0.7), FixedSizePair(1.0, 9.0)]
    for rate, noise in PARAMETERS:
        found += [PoissonPair(rate, noise), PoissonReplacedPair(rate, noise), FixedSizePair(rate, noise)]
    return found


def test_one_pair_of_each_kind_on_the_grid() -> None:
    for kind in (PoissonPair, PoissonReplacedPair, FixedSizePair):
        pair = kind(0.05, 2.0)
        for loss, exact in zip(pair.discretise(STEP), exact_deltas(pair), strict=True):
            for index in (-20, 0, 30):
                true = float(str(exact(STEP * index)))
                assert true * (1.0 - 1e-13) <= delta_of(loss, STEP * index) <= true * (1.0 + 1e-8)


@pytest.mark.parametrize("pair", pairs(), ids=repr)
class TestEveryPair:
    @pytest.mark.slow
    def test_the_grid_is_exact_at_its_points_and_an_upper_bound_between(self, pair: DominatingPair) -> None:
        for loss, exact in zip(pair.discretise(STEP), exact_deltas(pair), strict=True):
            last = loss.first + loss.mass.size - 1
            for index in sorted({-300, -1, 0, 1, 7, 150, last // 3, last // 2}):
                if not loss.first < index < last:
                    continue
                true = float(str(exact(STEP * index)))
                if true > 1e-13:
                    assert true * (1.0 - 1e-13) <= delta_of(loss, STEP * index) <= true * (1.0 + 1e-8)
                true = float(str(exact(STEP * (index + 0.5))))
                if true > 1e-13:
                    assert delta_of(loss, STEP * (index + 0.5)) >= true * (1.0 - 1e-13)

    def test_it_is_a_distribution(self, pair: DominatingPair) -> None:
        for loss in pair.discretise(STEP):
            assert float(loss.mass.min()) >= 0.0
            assert 0.0 <= loss.infinite < 1e-22
            assert float(loss.mass.sum()) + loss.infinite == pytest.approx(1.0, abs=1e-12)
            assert (loss.mass.size - 3) * STEP <= pair.reach

    @pytest.mark.slow
    def test_a_coarser_grid_is_never_better(self, pair: DominatingPair) -> None:
        for fine, coarse in zip(pair.discretise(STEP), pair.discretise(8 * STEP), strict=True):
            for epsilon in (-1.0, 0.0, 0.0033, 0.1, 1.0, 3.0):
                assert delta_of(coarse, epsilon, 8 * STEP) >= delta_of(fine, epsilon) * (1.0 - 1e-8) - 1e-20

    def test_equal_pairs_are_one_key(self, pair: DominatingPair) -> None:
        assert len({pair, type(pair)(pair.rate, pair.noise)}) == 1  # type: ignore[attr-defined, call-arg]


@pytest.mark.parametrize("rate", [0.05, 0.9999])
def test_what_lies_beyond_the_tails_is_kept_as_loss_not_dropped(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    # Ten standard deviations hide whatever happens there; two do not.
    monkeypatch.setattr("fedDP.accounting.privacy_loss._TAIL", 2.0)
    pairs: list[DominatingPair] = [PoissonPair(rate, 1.0), PoissonReplacedPair(rate, 1.0), FixedSizePair(rate, 1.0)]
    for pair in pairs:
        for loss, exact in zip(pair.discretise(STEP), exact_deltas(pair), strict=True):
            assert float(loss.mass.sum()) + loss.infinite == pytest.approx(1.0, abs=1e-12)
            for index in (-3000, -1000, -30, 0, 30, 1000, 3000):
                assert delta_of(loss, STEP * index) >= float(str(exact(STEP * index))) * (1.0 - 1e-12)


def test_the_two_directions_of_a_sampled_round_differ() -> None:
    taking_part, absent = PoissonPair(0.1, 1.0).discretise(STEP)
    assert delta_of(taking_part, 0.5) > delta_of(absent, 0.5) == 0.0
    assert -STEP * absent.first > 1.0


def test_hardly_any_noise_gives_huge_losses_or_none() -> None:
    for noise in (1e-200, 5e-324):
        none: list[DominatingPair] = [
            PoissonPair(0.1, noise),
            PoissonReplacedPair(0.1, noise),
            FixedSizePair(0.1, noise),
        ]
        assert all(pair.reach == math.inf for pair in none)
    extreme: list[DominatingPair] = [PoissonPair(0.1, 1e-3), PoissonReplacedPair(0.1, 1e-3), FixedSizePair(0.1, 1e-3)]
    for pair in extreme:
        step = pair.reach / 1000.0
        for loss in pair.discretise(step):
            assert float(loss.mass.sum()) == pytest.approx(1.0, abs=1e-9)
            assert np.all(np.isfinite(loss.mass))
        assert delta_of(pair.discretise(step)[0], 4e5, step) >= 0.1 * (1.0 - 1e-9)
