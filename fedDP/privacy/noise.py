"""Gaussian noise on the integer grid."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedDP.errors import GrantError
from fedDP.privacy.limits import GRID_BITS, HEADROOM_BITS, MAX_WEIGHT, NOISE_MULTIPLIER
from fedDP.privacy.streams import KeyedStream


def gaussian_noise(size: int, *, noise_multiplier: float, key: bytes, max_weight: float = 1.0) -> npt.NDArray[np.int64]:
    """Draws integer noise for a sum of clipped grid vectors.

    Guarantees:
        1. Each coordinate is ``rint(X)`` with X ~ N(0, (z * w_max * 2**40)**2), independent; in the units of the
           update its standard deviation is ``z * w_max * C``.
        2. The sum S is an integer, so ``S + rint(X) = rint(S + X)``: the release is exact post-processing of the
           real-valued Gaussian mechanism. Rounding costs nothing, and attacks on the precision of a
           floating-point addition (Haney et al. 2022, arXiv:2207.13793) do not apply.
        3. Every value is checked finite and below 2**62 before the cast to int64.

    Args:
        size: number of coordinates.
        noise_multiplier: z = sigma / (w_max * C), in (0, 1e5].
        key: 32 bytes, used for this draw and never again.
        max_weight: the cap on a client's weight.

    Raises:
        InvalidValueError: for a multiplier outside its range.
        GrantError: if a value leaves the range (nothing is returned).
    """
    noise_multiplier = NOISE_MULTIPLIER.check("noise_multiplier", noise_multiplier)
    scale = noise_multiplier * MAX_WEIGHT.check("max_weight", max_weight) * 2.0**GRID_BITS
    values = KeyedStream(key).normals(size)
    values *= scale
    np.rint(values, out=values)
    if values.size and not np.abs(values).max() < 2.0**HEADROOM_BITS:
        raise GrantError("Noise outside the range of the grid: nothing was released.")
    return values.astype(np.int64)
