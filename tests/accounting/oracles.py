"""Slow, independent ways to the same numbers, in arbitrary precision; they share no code with the package."""

from __future__ import annotations

import math
from typing import Any

import pytest

mp: Any = pytest.importorskip("mpmath")


def gaussian_delta(mu: float, epsilon: float) -> Any:
    """Balle and Wang (2018), Thm. 8, in 400 digits, so that nothing cancels."""
    with mp.workdps(400):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return +(mp.ncdf(-e / m + m / 2) - mp.exp(e) * mp.ncdf(-e / m - m / 2))


def sampled_divergence(rate: float, noise_multiplier: float, order: float) -> Any:
    """Rényi divergence of (1 - q) N(0, z**2) + q N(1, z**2) from N(0, z**2), by adaptive quadrature."""
    with mp.workdps(30):
        q, z, a = mp.mpf(rate), mp.mpf(noise_multiplier), mp.mpf(order)
        scale = 2 * z * z
        split = scale / 2 * mp.log(1 / q - 1) + mp.mpf(1) / 2

        def excess(x: Any) -> Any:
            u = q * mp.expm1((2 * x - 1) / scale)
            return ((1 + u) ** a - 1 - a * u) * mp.exp(-x * x / scale)

        points = sorted({centre + k * z for centre in (mp.mpf(0), split, a) for k in (-12, -4, 0, 4, 12)})
        return mp.log1p(mp.quad(excess, points) / mp.sqrt(mp.pi * scale)) / (a - 1)


def sampled_divergence_whole(rate: float, noise_multiplier: float, order: int) -> Any:
    """The same at a whole order: the binomial expansion of the definition, in 60 digits."""
    with mp.workdps(60):
        q, variance = mp.mpf(rate), mp.mpf(noise_multiplier) ** 2
        moment = mp.fsum(
            mp.binomial(order, k) * (1 - q) ** (order - k) * q**k * mp.exp(k * (k - 1) / (2 * variance))
            for k in range(order + 1)
        )
        return mp.log(moment) / (order - 1)


def sampled_delta(rate: float, noise_multiplier: float, epsilon: float) -> Any:
    """Delta of one sampled Gaussian round in the direction that removes a client, in closed form."""
    return rate * gaussian_delta(1.0 / noise_multiplier, math.log1p(math.expm1(epsilon) / rate))
