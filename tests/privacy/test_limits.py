from __future__ import annotations

import numpy as np
import pytest

from fedDP.errors import InvalidValueError
from fedDP.privacy import gaussian_noise
from fedDP.privacy.limits import (
    CLIP_NORM,
    COUNT,
    DELTA,
    DENOMINATOR,
    EPSILON,
    GRID_BITS,
    HEADROOM_BITS,
    MAX_WEIGHT,
    NOISE_MULTIPLIER,
    SAMPLING_RATE,
    check_headroom,
)
from fedDP.ranges import Range


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        (NOISE_MULTIPLIER, [1e-300, 1e5], [0.0, 1.0000001e5]),
        (CLIP_NORM, [1e-9, 1e9], [0.0, 9e-10, 1.1e9]),
        (SAMPLING_RATE, [1e-300, 1.0], [0.0, 1.0000001]),
        (DELTA, [1e-11, 0.999], [0.0, 9e-12, 1.0]),
        (EPSILON, [1e-6, 1e6], [0.0, 9e-7, 1.1e6]),
        (MAX_WEIGHT, [1e-6, 1e6], [0.0, 9e-7, 1.1e6]),
        (DENOMINATOR, [1e-6, 1e12], [0.0, 9e-7, 1.1e12]),
        (COUNT, [1, 10**9], [0, 0.5, 1.5, 10**9 + 1]),
    ],
)
def test_bounds(allowed: Range, inside: list[float], outside: list[float]) -> None:
    for value in inside:
        assert allowed.check("x", value) == value
    for value in [*outside, -1.0, float("nan"), float("inf"), True]:
        with pytest.raises(InvalidValueError, match="x="):
            allowed.check("x", value)


@pytest.mark.parametrize(
    ("num_clients", "noise_multiplier", "max_weight"),
    [(4_000_000, 1.0, 1.0), (0, 1e5, 4.0), (3, 1e5, 4.19), (1000, 1.0, 4000.0), (10**9, 1.0, 1e-6)],
)
def test_headroom_covers_the_sum_and_the_noise_together(
    num_clients: int, noise_multiplier: float, max_weight: float
) -> None:
    check_headroom(num_clients=num_clients, noise_multiplier=noise_multiplier, max_weight=max_weight)
    largest_noise = int(8.6 * noise_multiplier * max_weight * 2**GRID_BITS) + 1
    largest_sum = int(num_clients * max_weight * 2**GRID_BITS)
    assert largest_sum + largest_noise < 2**HEADROOM_BITS
    noise = gaussian_noise(1000, noise_multiplier=noise_multiplier, max_weight=max_weight, key=bytes(32))
    assert int(np.abs(noise).max()) <= largest_noise


@pytest.mark.parametrize(
    ("num_clients", "noise_multiplier", "max_weight"),
    [
        (2**22, 1e-6, 1.0),
        (10**9, 1.0, 1.0),
        (1, 1e5, 5.0),  # noise grows with the weight cap
        (100, 1e4, 100.0),
        (1, float("nan"), 1.0),
        (1, float("inf"), 1.0),
    ],
)
def test_what_could_overflow_is_refused(num_clients: int, noise_multiplier: float, max_weight: float) -> None:
    with pytest.raises(InvalidValueError, match=r"integer sums are exact\. Use fewer clients"):
        check_headroom(num_clients=num_clients, noise_multiplier=noise_multiplier, max_weight=max_weight)
