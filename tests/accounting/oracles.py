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


def mixture_delta(one: dict[float, float], two: dict[float, float], noise: float, epsilon: float) -> Any:
    """Hockey-stick divergence of one normal mixture (mean: weight) from another, where their ratio rises or falls."""
    with mp.workdps(60):
        z, limit = mp.mpf(noise), mp.exp(mp.mpf(epsilon))

        def gap(x: Any) -> Any:
            densities = [mp.fsum(w * mp.npdf(x, m, z) for m, w in mixture.items()) for mixture in (one, two)]
            return densities[0] - limit * densities[1]

        def above(mixture: dict[float, float], x: Any, side: int) -> Any:
            return mp.fsum(w * mp.ncdf(side * (m - x) / z) for m, w in mixture.items())

        low, high = mp.mpf(-1) - 30 * z, mp.mpf(1) + 30 * z
        if mp.sign(gap(low)) == mp.sign(gap(high)):
            return max(mp.mpf(0), 1 - limit) if gap(low) > 0 else mp.mpf(0)
        side = 1 if gap(high) > 0 else -1
        for _ in range(120):
            middle = (low + high) / 2
            if mp.sign(gap(middle)) == side:
                high = middle
            else:
                low = middle
        return above(one, low, side) - limit * above(two, low, side)


def two_sampled_rounds_delta(rate: float, noise_multiplier: float, epsilon: float) -> Any:
    """Delta of two sampled rounds that remove a client: the mean, over the first one's loss, of the second's delta."""
    with mp.workdps(25):
        q, z = mp.mpf(rate), mp.mpf(noise_multiplier)

        def single(at: Any) -> Any:
            inner = 1 + mp.expm1(at) / q
            if inner <= 0:
                return -mp.expm1(at)
            e, m = mp.log(inner), 1 / z
            return q * (mp.ncdf(-e / m + m / 2) - mp.exp(e) * mp.ncdf(-e / m - m / 2))

        def integrand(x: Any) -> Any:
            ratio = 1 + q * mp.expm1((2 * x - 1) / (2 * z * z))
            return ratio * mp.npdf(x, 0, z) * single(epsilon - mp.log(ratio))

        edges = [-12 * z, -4 * z, 0, 1, 2, 4 * z, 1 + 8 * z, 1 + 12 * z]
        return mp.quad(integrand, sorted(edges))
