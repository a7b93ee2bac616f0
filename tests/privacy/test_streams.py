from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedDP.privacy import KeyedStream, derive_key

# RFC 8439, appendix A.1: the keystream of the zero key and zero nonce, from block 0 (vector 1) and block 1 (vector 2).
RFC_8439_BLOCKS = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def test_the_keystream_is_chacha20() -> None:
    stream = KeyedStream(bytes(32))
    assert stream.words(5).tobytes() + stream.words(11).tobytes() == bytes.fromhex(RFC_8439_BLOCKS)


def test_a_stream_goes_on_where_it_was() -> None:
    one, other = KeyedStream(bytes(32)), KeyedStream(bytes(32))
    assert np.array_equal(np.concatenate([one.words(3), one.words(0), one.words(4)]), other.words(7))


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_has_32_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="key"):
        KeyedStream(bytes(length))


def test_uniforms_are_in_the_half_open_interval_and_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = np.array([0, 2**11 - 1, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(KeyedStream, "words", lambda self, count: extremes[:count])
    assert KeyedStream(bytes(32)).uniforms(3).tolist() == [2.0**-53, 2.0**-53, 1.0]


def test_uniforms_are_uniform() -> None:
    values = KeyedStream(derive_key(b"test", "uniform")).uniforms(50_000)
    assert values.min() > 0.0
    assert values.max() <= 1.0
    assert np.array_equal(values * 2.0**53, np.rint(values * 2.0**53))
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / math.sqrt(50_000)


def test_no_normal_exceeds_8_58(monkeypatch: pytest.MonkeyPatch) -> None:
    # The smallest uniform gives the largest radius; angles all around it.
    def extremes(self: KeyedStream, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.concatenate([np.full(count // 2, 2.0**-53), np.linspace(2.0**-53, 1.0, count - count // 2)])

    monkeypatch.setattr(KeyedStream, "uniforms", extremes)
    values = KeyedStream(bytes(32)).normals(10_000)
    assert 8.5 < np.abs(values).max() < 8.58
    assert np.isfinite(values).all()


def test_normals_of_a_million_draws_stay_in_range_and_do_not_repeat() -> None:
    values = KeyedStream(derive_key(b"test", "million")).normals(1_000_001)  # more than one chunk
    assert values.shape == (1_000_001,)
    assert np.abs(values).max() < 8.58
    assert np.unique(values).size > 1_000_000 - 10


def test_a_permutation_is_one_and_uniform_in_its_first_place() -> None:
    counts = np.zeros(5, dtype=int)
    for index in range(2000):
        order = KeyedStream(derive_key(b"test", "permutation", index)).permutation(5)
        assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
        counts[order[0]] += 1
    assert stats.chisquare(counts).pvalue > 1e-4
    assert KeyedStream(bytes(32)).permutation(0).shape == (0,)
