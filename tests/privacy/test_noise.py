from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedDP.errors import GrantError, InvalidValueError
from fedDP.privacy import clip, derive_key, gaussian_noise
from fedDP.privacy.limits import GRID_BITS

ONE = 2.0**GRID_BITS
SIZE = 10_000
GROUPS = {"all": slice(None), "first": slice(0, 2000), "last": slice(-2000, None), "even": slice(0, None, 2)}

Noise = Callable[[int], npt.NDArray[np.float64]]


def draw(
    noise_multiplier: float, *key: str | int, max_weight: float = 1.0, size: int = SIZE
) -> npt.NDArray[np.float64]:
    """Noise in units of the claimed standard deviation."""
    noise = gaussian_noise(
        size, noise_multiplier=noise_multiplier, max_weight=max_weight, key=derive_key(b"test", *key)
    )
    return noise / (noise_multiplier * max_weight * ONE)


def has_unit_variance(values: npt.NDArray[np.float64]) -> bool:
    """The chi-square test of the claimed standard deviation, at a false alarm rate of 2e-6."""
    probability = float(stats.chi2.cdf(float(values @ values), values.size))
    return 1e-6 < probability < 1.0 - 1e-6


@pytest.mark.parametrize("noise_multiplier", [1e-6, 0.3, 1.0, 58.1, 1e5])
@pytest.mark.parametrize("max_weight", [1.0, 3.0])
@pytest.mark.parametrize("group", GROUPS)
def test_the_standard_deviation_is_the_claimed_one(noise_multiplier: float, max_weight: float, group: str) -> None:
    assert has_unit_variance(draw(noise_multiplier, "std", max_weight=max_weight)[GROUPS[group]])


@pytest.mark.parametrize("wrong", [0.7, 1 / 1.5, 1.5])
@pytest.mark.parametrize("group", GROUPS)
def test_the_same_test_rejects_noise_of_another_scale(wrong: float, group: str) -> None:
    assert not has_unit_variance(wrong * draw(1.0, "std")[GROUPS[group]])


@pytest.mark.parametrize("wrong", [0.95, 1.05])
def test_ten_thousand_coordinates_tell_five_per_cent(wrong: float) -> None:
    assert not has_unit_variance(wrong * draw(1.0, "std"))


def test_the_released_sum_of_clipped_clients_carries_the_claimed_noise() -> None:
    total = clip(np.ones((4, SIZE)), 0.5).sum(axis=0)
    released = total + gaussian_noise(SIZE, noise_multiplier=2.0, key=derive_key(b"test", "released"))
    assert has_unit_variance((released - total) / (2.0 * ONE))


@pytest.mark.parametrize("seed", range(5))
def test_the_noise_is_normal(seed: int) -> None:
    values = draw(1.0, "normal", seed)
    assert stats.kstest(values, "norm").pvalue > 1e-4
    assert stats.kstest(values[: SIZE // 2], "norm").pvalue > 1e-4
    assert abs(stats.skew(values)) < 5 * math.sqrt(6 / SIZE)
    assert abs(stats.kurtosis(values)) < 5 * math.sqrt(24 / SIZE)


def test_the_normality_test_rejects_other_shapes() -> None:
    values = draw(1.0, "normal", 0)
    laplace = np.sign(values) * stats.expon.isf(2 * stats.norm.sf(np.abs(values))) / math.sqrt(2)
    assert stats.kstest(laplace, "norm").pvalue < 1e-6
    assert stats.kstest(1.05 * values + 0.05, "norm").pvalue < 1e-4


def test_rounds_purposes_and_attempts_draw_independent_noise() -> None:
    draws = [draw(1.0, purpose, round, attempt) for purpose in "ab" for round in (1, 2) for attempt in (1, 2)]
    correlations = np.asarray(np.corrcoef(draws))[np.triu_indices(len(draws), 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(SIZE)


def test_coordinates_are_independent() -> None:
    values = draw(1.0, "lags")
    half = SIZE // 2  # where the two halves of the Box-Muller pairs meet
    for lag in (1, 2, 3, 64, half - 1, half, half + 1):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / math.sqrt(SIZE - lag)
    radius = values[:half] ** 2, values[half:] ** 2
    assert abs(np.corrcoef(*radius)[0, 1]) < 5 / math.sqrt(half)


def test_one_key_one_noise() -> None:
    one, again, other = draw(1.0, "k"), draw(1.0, "k"), draw(1.0, "l")
    assert np.array_equal(one, again)
    assert not np.any(one == other)


def test_noise_is_whole_numbers_rounded_to_the_nearest() -> None:
    from fedDP.privacy import KeyedStream

    key = derive_key(b"test", "rint")
    noise = gaussian_noise(101, noise_multiplier=1e-6, key=key)
    assert noise.dtype == np.int64
    exact = KeyedStream(key).normals(101) * (1e-6 * ONE)
    assert np.abs(noise - exact).max() <= 0.5
    assert abs(float((noise - exact).mean())) < 5 * math.sqrt(1 / 12 / 101)


def test_rounding_commutes_with_adding_a_whole_sum() -> None:
    total = np.arange(-50, 51, dtype=np.int64) * 12345
    values = np.random.default_rng(0).normal(size=101) * 1e6
    assert np.array_equal(total + np.rint(values).astype(np.int64), np.rint(total + values).astype(np.int64))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2**19 + 1])
def test_any_size(size: int) -> None:
    assert gaussian_noise(size, noise_multiplier=1.0, key=bytes(32)).shape == (size,)


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.nan, math.inf, 1.1e5, True, "1", None])
def test_a_noise_multiplier_outside_its_range_is_refused(noise_multiplier: Any) -> None:
    with pytest.raises(InvalidValueError, match="noise_multiplier="):
        gaussian_noise(3, noise_multiplier=noise_multiplier, key=bytes(32))


@pytest.mark.parametrize("max_weight", [0.0, -1.0, math.nan, math.inf, 1e7])
def test_a_weight_cap_outside_its_range_is_refused(max_weight: float) -> None:
    with pytest.raises(InvalidValueError, match="max_weight="):
        gaussian_noise(3, noise_multiplier=1.0, max_weight=max_weight, key=bytes(32))


def test_noise_that_would_overflow_is_refused_not_cast() -> None:
    with pytest.raises(GrantError, match="nothing was released"):
        gaussian_noise(100, noise_multiplier=1e5, max_weight=1e6, key=bytes(32))


def test_a_value_that_is_not_finite_is_refused_not_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedDP.privacy.streams.KeyedStream.normals", lambda self, count: np.array([0.0, math.nan, 1.0])[:count]
    )
    with pytest.raises(GrantError, match="nothing was released"):
        gaussian_noise(3, noise_multiplier=1.0, key=bytes(32))
