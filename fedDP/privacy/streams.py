"""Keyed random streams: ChaCha20 keystream turned into uniforms and normals.

NumPy's and torch's generators are seedable by anyone in the process and predictable from their output;
a ChaCha20 keystream under a secret key is neither.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

_TWO_POW_MINUS_53 = 2.0**-53
_CHUNK_PAIRS = 1 << 18  # 4 MiB of keystream at a time keeps Box-Muller in cache and memory flat


class KeyedStream:
    """A stream of random numbers that is a pure function of a 32-byte key.

    A stream is used for one purpose and never rewound; derive a new key for every other purpose.
    """

    def __init__(self, key: bytes) -> None:
        # The nonce is constant because a key is never used for two streams.
        self._cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """`count` uniforms in (0, 1], multiples of 2**-53; never 0, so their logarithm is finite."""
        return ((self.words(count) >> np.uint64(11)).astype(np.float64) + 1.0) * _TWO_POW_MINUS_53

    def normals(self, count: int) -> npt.NDArray[np.float64]:
        """`count` independent standard normals (Box-Muller), at most 8.58 in magnitude.

        The sampler works in float64, so it is not exact: statements list it under what they do not cover.
        """
        pairs = (count + 1) // 2
        out = np.empty(2 * pairs, dtype=np.float64)
        for start in range(0, pairs, _CHUNK_PAIRS):
            size = min(_CHUNK_PAIRS, pairs - start)
            uniforms = self.uniforms(2 * size)
            radius = np.sqrt(-2.0 * np.log(uniforms[:size]))
            angle = (2.0 * np.pi) * uniforms[size:]
            out[2 * start : 2 * start + size] = radius * np.cos(angle)
            out[2 * start + size : 2 * (start + size)] = radius * np.sin(angle)
        return out[:count]

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """A uniform order of ``range(count)`` (by sorting 64-bit words; ties are as good as impossible)."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)
