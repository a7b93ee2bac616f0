"""The one place where a sum becomes a release."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedDP.budget.grant import Grant
from fedDP.errors import GrantError
from fedDP.privacy.clipping import grid_step
from fedDP.privacy.keys import RootKey
from fedDP.privacy.noise import gaussian_noise


def privatise(total: npt.NDArray[np.int64], grant: Grant, root: RootKey) -> npt.NDArray[np.float64]:
    """Adds the noise of `grant` to a sum of clipped grid vectors and divides by the fixed denominator.

    Guarantees:
        1. The noise's standard deviation on the result is ``z * w_max * C / D`` in every coordinate, with all four
           numbers from the grant.
        2. A grant adds noise once; its key is derived from (purpose, round, attempt) and, unless the run is seeded,
           never used again.
        3. The noise depends on neither the cohort nor on how many nodes replied.

    Args:
        total: int64, shape (P,), in steps of ``C * 2**-40``.
        grant: what was charged.
        root: the run's key.

    Returns:
        The privatised mean update, float64, shape (P,).

    Raises:
        GrantError: when the grant was used before, or is for a release of several steps, whose noise is drawn at the
            client and not here; nothing is returned.
    """
    if grant.event is not None and grant.event.count != 1:
        raise GrantError(
            f"The grant of row {grant.seq} is for {grant.event.count} noised steps at a client; no noise is drawn for "
            "it here. Charge the release of a sum as an event with count=1."
        )
    grant.use()
    if grant.event is not None:
        key = root.for_round(f"noise {grant.purpose}", grant.round, grant.attempt)
        total = total + gaussian_noise(
            total.size, noise_multiplier=grant.noise_multiplier, max_weight=grant.max_weight, key=key
        )
    return total.astype(np.float64) * (grid_step(grant.clip_norm) / grant.denominator)
