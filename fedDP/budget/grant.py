"""A grant: what one charged release may do."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NoReturn

from fedDP.accounting import FixedSize, FullParticipation, Gaussian, Poisson
from fedDP.budget.weeks import IsoWeek
from fedDP.errors import GrantError


@dataclass(frozen=True, kw_only=True)
class Grant:
    """The permission to draw noise once, for one release, exactly as it was charged.

    The aggregator takes every number that decides the guarantee from here and from nowhere else.

    Attributes:
        seq: the ledger's row; 0 when no ledger is kept, which is allowed only without noise.
        attempt: 1 for the first try of this (run, round, purpose); a retry after a crash is charged again.
        noise_multiplier: z; the noise on the sum has standard deviation z * max_weight * clip_norm.
        clip_norm: the bound on one client's update, as the clients were sent it.
        denominator: the fixed, public divisor of the sum.
        max_weight: the cap on one client's weight.
        sampling: how the cohort must be drawn.
        week: the ISO week the release was charged to.
    """

    seq: int
    run_id: str
    round: int
    purpose: str
    attempt: int
    event: Gaussian | None
    noise_multiplier: float
    clip_norm: float
    denominator: float
    max_weight: float
    sampling: Poisson | FullParticipation | FixedSize
    week: IsoWeek
    # A list, so that copies made with `copy` or `replace` share it.
    _used: list[bool] = field(default_factory=lambda: [False], repr=False, compare=False)
    _process: int = field(default_factory=os.getpid, repr=False, compare=False)

    def __deepcopy__(self, memo: object) -> Grant:
        return self  # a copy with a fresh mark could draw the same noise again

    def __reduce__(self) -> NoReturn:
        raise GrantError(f"The grant of row {self.seq} cannot be pickled: it is for one draw of noise in one process.")

    @property
    def used(self) -> bool:
        """Whether its noise was drawn."""
        return self._used[0]

    def use(self) -> None:
        """Marks the grant as used, before its noise is drawn.

        Raises:
            GrantError: on the second call, or in another process than the one it was granted to: the difference of two
                releases with one noise would cancel the noise.
        """
        if self._process != os.getpid():
            raise GrantError(
                f"The grant of row {self.seq} is another process's: ask the ledger for an attempt of your own."
            )
        if self._used[0]:
            raise GrantError(f"The grant of row {self.seq} was used already: ask the ledger for another attempt.")
        self._used[0] = True
