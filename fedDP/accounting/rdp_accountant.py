"""The Rényi account of a run as it goes on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedDP.accounting.event import Event
from fedDP.accounting.neighbors import NeighboringRelation, sensitivity
from fedDP.accounting.rdp import ORDERS, rdp, rdp_delta, rdp_epsilon


class RdpAccountant:
    """Costs at every order, summed as events happen, so that epsilon after each of T rounds takes time T, not T**2.

    Guarantees:
        1. `epsilon` and `delta` are those of the "rdp" accountant for the events composed so far, but for the rounding
           of one addition an event.
        2. An event that is refused leaves everything as it was.

    What it says is no filter: a run that stops when `epsilon` reaches a target it had not planned for keeps no promise.

    Args:
        neighboring_relation: what is hidden.

    Raises:
        InvalidValueError: for an unknown relation.

    >>> from fedDP.accounting import Gaussian, Poisson
    >>> accountant = RdpAccountant()
    >>> for noise_multiplier in (1.5, 1.2, 0.9):
    ...     accountant.compose(Gaussian(noise_multiplier, sampling=Poisson(0.01), count=100))
    >>> round(accountant.epsilon(1e-5), 3)
    1.655
    """

    def __init__(self, neighboring_relation: NeighboringRelation = "zero_out") -> None:
        sensitivity(neighboring_relation)
        self._neighboring_relation = neighboring_relation
        self._costs: NDArray[np.float64] = np.zeros(len(ORDERS))

    def compose(self, event: Event) -> None:
        """Adds an event, all its releases.

        Raises:
            UnsupportedError: for an event without a Rényi bound under the relation.
        """
        self._costs = self._costs + rdp(event, self._neighboring_relation)

    @property
    def costs(self) -> NDArray[np.float64]:
        """The summed cost at each of `ORDERS`; a copy."""
        return self._costs.copy()

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at `delta` in [1e-11, 1)."""
        return rdp_epsilon(self._costs, delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta at `epsilon` in [0, 1e12]."""
        return rdp_delta(self._costs, epsilon)
