"""Keys: one root key a run, everything else derived from it one way.

Noise, sampling and training draw from separate keys, so that what a node learns (its training key)
says nothing about who was sampled or what noise was added.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Literal

KEY_BYTES = 32

RngKind = Literal["csprng", "seeded"]


def derive_key(key: bytes, *path: str | int) -> bytes:
    """Derives a 32-byte key from `key` for a purpose.

    Guarantees:
        1. One way: HMAC-SHA256, so a derived key reveals neither its parent nor a sibling.
        2. Domain separation: parts are length-prefixed and typed, so ``("a", "bc")`` and ``("ab", "c")``,
           or ``1`` and ``"1"``, give different keys.

    Example:
        >>> derive_key(bytes(32), "noise", 1) == derive_key(bytes(32), "noise", "1")
        False
    """
    message = bytearray()
    for part in path:
        kind = b"i" if isinstance(part, int) else b"s"
        data = str(part).encode()
        message += kind + len(data).to_bytes(4, "big") + data
    return hmac.new(key, bytes(message), hashlib.sha256).digest()


@dataclass(frozen=True, repr=False)
class RootKey:
    """The root of a run's randomness.

    Attributes:
        rng: "csprng" when the key came from the operating system, "seeded" when it came from a seed. Whoever
            knows a seed can remove the noise, so every epsilon of a seeded run is nominal.

    The bytes are kept out of ``repr`` so that no log or traceback shows them.
    """

    secret: bytes = field(repr=False)
    rng: RngKind

    @classmethod
    def create(cls, seed: int | None = None) -> RootKey:
        """A fresh key from the operating system, or the repeatable key of a seed."""
        if seed is None:
            return cls(secrets.token_bytes(KEY_BYTES), "csprng")
        return cls(derive_key(b"fedDP seeded run", "seed", seed), "seeded")

    def derive(self, *path: str | int) -> bytes:
        """`derive_key` from the root."""
        return derive_key(self.secret, *path)

    def for_round(self, purpose: str, round: int, attempt: int) -> bytes:
        """The key of one purpose in one round.

        Guarantee: a key from the operating system is never used for a second attempt, since the difference of two sums
        under one noise would be exact. A seeded run repeats its rounds bit for bit, also after a crash; its noise is
        no secret anyway.
        """
        return self.derive(purpose, round, attempt if self.rng == "csprng" else 1)

    def __repr__(self) -> str:
        return f"RootKey(rng={self.rng!r})"
