"""Ranges of the privacy numbers, used by the scenario, the accountants, the ledger and the aggregator.

They keep the integer arithmetic of the grid exact: a noise multiplier that is too large overflows int64,
and NumPy turns the overflow into a constant, silently, which would release the exact sum.
"""

from __future__ import annotations

from fedDP.errors import InvalidValueError
from fedDP.ranges import Range

GRID_BITS = 40
"""The grid has 2**40 steps a clip norm (`fedDP.privacy.clipping`)."""

HEADROOM_BITS = 62
"""Sums and noise stay below 2**62 in magnitude, so that int64 never overflows."""

NOISE_MULTIPLIER = Range(low=0.0, high=1e5, low_open=True)
CLIP_NORM = Range(low=1e-9, high=1e9)
SAMPLING_RATE = Range(low=0.0, high=1.0, low_open=True)
DELTA = Range(low=1e-11, high=1.0, high_open=True, remedy="Choose delta well below 1 / number of clients.")
EPSILON = Range(low=1e-6, high=1e6)
MAX_WEIGHT = Range(low=1e-6, high=1e6)
DENOMINATOR = Range(low=1e-6, high=1e12)
COUNT = Range(low=1, high=10**9, integer=True)


def check_headroom(*, num_clients: int, noise_multiplier: float, max_weight: float = 1.0) -> None:
    """Refuses a population and a noise multiplier whose sum could overflow int64.

    Guarantee: with ``(num_clients + 10 * noise_multiplier) * max_weight * 2**40 < 2**62`` neither the sum of all
    clients' grid vectors, nor the noise (its sampler never exceeds 8.6 sigma), nor both together leave int64.

    Raises:
        InvalidValueError: when the bound does not hold.
    """
    limit = 2.0 ** (HEADROOM_BITS - GRID_BITS)
    needed = (num_clients + 10.0 * noise_multiplier) * max_weight
    if not needed < limit:
        raise InvalidValueError(
            "(num_clients + 10 * noise_multiplier) * max_weight",
            needed,
            f"less than {limit:g}, so that integer sums are exact",
            "Use fewer clients a round or a smaller noise multiplier.",
        )
