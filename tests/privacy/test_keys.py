from __future__ import annotations

import hashlib
import hmac
import itertools

import pytest

from fedDP.privacy import RootKey, derive_key


def test_known_answers() -> None:
    assert derive_key(bytes(32)) == hmac.new(bytes(32), b"", hashlib.sha256).digest()
    message = b"s\x00\x00\x00\x05noise" + b"i\x00\x00\x00\x017"
    assert derive_key(b"k" * 32, "noise", 7) == hmac.new(b"k" * 32, message, hashlib.sha256).digest()
    assert (
        derive_key(bytes(32), "noise", "train", 1, 1).hex()
        == "b825d0081c871b2d4e1609c39a1bccbda3bacad7fa437ce21899511afb7e3cec"
    )
    assert RootKey.create(0).secret.hex() == "6ac028937b36a0ee6ee6f18ca8cc349af4f1fa15040da121cb5aa0636e40f827"


def test_paths_are_separate_domains() -> None:
    paths: list[tuple[str | int, ...]] = [
        (),
        ("",),
        ("", ""),
        ("a", "bc"),
        ("ab", "c"),
        ("abc",),
        ("abc", ""),
        (1,),
        ("1",),
        (-1,),
        (11,),
        (1, 1),
        ("1", 1),
        ("i\x00\x00\x00\x011",),
        ("noise", 1, 12),
        ("noise", 11, 2),
        ("sampling", 1, 12),
    ]
    keys = [derive_key(bytes(32), *path) for path in paths]
    assert len(set(keys)) == len(paths)
    assert all(len(key) == 32 for key in keys)


def test_every_round_purpose_and_attempt_has_its_own_key() -> None:
    root = RootKey.create(3)
    uses = itertools.product(["noise", "sampling", "training"], ["train", "evaluate"], range(1, 8), range(1, 4))
    keys = [root.derive(*use) for use in uses]
    assert len(set(keys)) == len(keys)


def test_another_root_gives_other_keys() -> None:
    assert derive_key(bytes(32), "a") != derive_key(b"\x01" + bytes(31), "a")


@pytest.mark.parametrize("seed", [0, 1, -1, 2**100])
def test_a_seed_gives_the_same_key_again(seed: int) -> None:
    key = RootKey.create(seed)
    assert key == RootKey.create(seed)
    assert key.rng == "seeded"
    assert key != RootKey.create(seed + 1)


def test_without_a_seed_the_key_is_fresh() -> None:
    keys = {RootKey.create().secret for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 32 for key in keys)
    assert RootKey.create().rng == "csprng"


def test_no_text_shows_the_secret() -> None:
    key = RootKey.create(7)
    for text in (repr(key), str(key), f"{key}", repr([key]), repr({"key": key})):
        assert key.secret.hex() not in text
        assert repr(key.secret)[2:-1] not in text
    assert repr(key) == "RootKey(rng='seeded')"
