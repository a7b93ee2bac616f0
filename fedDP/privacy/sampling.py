"""Which clients take part in a round."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedDP.privacy.limits import SAMPLING_RATE
from fedDP.privacy.streams import KeyedStream

# Both outweigh every rounding below, so that no client's probability exceeds q: uniforms are multiples of 2**-53, so a
# probability is off by a few of those, which a relative margin alone would not cover at small rates.
_RELATIVE_MARGIN = 2.0**-40
_ABSOLUTE_MARGIN = 2.0**-49


def poisson_sample(num_clients: int, *, rate: float, key: bytes) -> npt.NDArray[np.int64]:
    """Draws a Poisson cohort: every client independently with probability `rate`.

    Guarantees:
        1. Inclusions are independent but for the rounding of the uniforms, each with a probability in
           ``[rate * (1 - 2**-39) - 2**-48, rate]``; epsilon grows with the rate, so accounting for `rate` is an
           upper bound.
        2. The cost is proportional to the cohort, not to the population (geometric skips).
        3. The cohort may be empty; the round is released all the same.

    Args:
        num_clients: number of enrolled clients N.
        rate: q in (0, 1]; 1 takes everybody.
        key: 32 secret bytes; amplification by sampling holds only while the cohort stays secret.

    Returns:
        The indices of the cohort, ascending, shape (cohort,).

    Raises:
        InvalidValueError: for a rate outside (0, 1].
    """
    rate = SAMPLING_RATE.check("sampling_rate", rate)
    if rate == 1.0:
        return np.arange(num_clients, dtype=np.int64)
    log_miss = _log_miss(rate)
    if log_miss == 0.0:
        return np.empty(0, dtype=np.int64)
    stream = KeyedStream(key)
    # A chunk that covers the population with five standard deviations to spare; usually one is enough.
    chunk = int(num_clients * rate + 5.0 * math.sqrt(num_clients * rate) + 16)
    parts: list[npt.NDArray[np.int64]] = []
    position = -1
    while position < num_clients:
        skips = _skips(stream.uniforms(chunk), log_miss)
        skips = np.minimum(skips, num_clients)  # avoids overflow for tiny rates; the client is beyond the end anyway
        reached = position + np.cumsum(skips.astype(np.int64) + 1)
        parts.append(reached[reached < num_clients])
        position = int(reached[-1])
    return np.concatenate(parts)


def _log_miss(rate: float) -> float:
    """The logarithm of the probability that a client is left out, at a rate just below `rate`; 0 if that is none."""
    return math.log1p(-max(0.0, rate * (1.0 - _RELATIVE_MARGIN) - _ABSOLUTE_MARGIN))


def _skips(uniforms: npt.NDArray[np.float64], log_miss: float) -> npt.NDArray[np.float64]:
    """How many clients are passed over: for U in (0, 1], P(skip >= k) = P(U <= (1-q)**k) = (1-q)**k."""
    return np.floor(np.log(uniforms) / log_miss)
