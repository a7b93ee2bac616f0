"""The parts a strategy is put together from: how updates are clipped, and what noise is added."""

from __future__ import annotations

from dataclasses import dataclass

from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import CLIP_NORM, NOISE_MULTIPLIER


@dataclass(frozen=True)
class FlatClipping:
    """One bound on the L2 norm of a client's whole update.

    Attributes:
        clip_norm: C, in (0, 1e9].
    """

    clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", CLIP_NORM.check("clip_norm", self.clip_norm))


@dataclass(frozen=True)
class GaussianNoise:
    """Independent Gaussian noise each round.

    Attributes:
        noise_multiplier: z; the noise on the sum has standard deviation z * C. 0 means no privacy at all, and is
            accepted only without a ledger.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        if isinstance(self.noise_multiplier, bool) or self.noise_multiplier != 0:
            value = NOISE_MULTIPLIER.check("noise_multiplier", self.noise_multiplier)
            object.__setattr__(self, "noise_multiplier", value)
        else:
            object.__setattr__(self, "noise_multiplier", 0.0)

    def require_ledger(self, *, has_ledger: bool) -> None:
        """Refuses noise without a ledger, and a ledger without noise.

        Raises:
            InvalidValueError: for either.
        """
        if has_ledger != (self.noise_multiplier > 0.0):
            allowed = "above 0, since a ledger is kept" if has_ledger else "0, since no ledger is kept"
            raise InvalidValueError(
                "noise_multiplier", self.noise_multiplier, allowed, "Noise is only private when it is accounted for."
            )
