from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedDP.errors import InvalidValueError
from fedDP.privacy import clip, grid_step, is_valid_sum
from fedDP.privacy.limits import GRID_BITS

ONE = 2**GRID_BITS
CLIP_NORMS = [1e-9, 1e-3, 1.0, 7.3, 1e9]


def squared_norm(vector: npt.NDArray[np.int64]) -> int:
    return sum(value * value for value in vector.tolist())


def samples(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=shape) * scale


ADVERSARIAL: dict[str, npt.NDArray[np.float64]] = {
    "norm a million": samples(0, (1000,), 1e6),
    "huge": np.full(100, 1e308),
    "huge and tiny": np.array([1e308, -1e-308, 5e-324, 1e200]),
    "denormal": np.full(50, 5e-324),
    "largest": np.array([np.finfo(np.float64).max, -np.finfo(np.float64).max]),
    "one coordinate": np.array([0.0, 0.0, -1e300, 0.0]),
    "many equal": np.full(10_000, 0.123456789),
    "absorbed": np.concatenate([[1.0], np.full(100_000, 1e-9)]),
    "just above": np.array([np.nextafter(1.0, 2.0)]),
    "exactly": np.array([0.6, 0.8]),
}


@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("weight", [0.0, 1e-3, 1.0, 1e6])
def test_the_norm_bound_holds_in_exact_integers(name: str, clip_norm: float, weight: float) -> None:
    row = clip(ADVERSARIAL[name], clip_norm, weights=weight, max_weight=1e6)
    assert row.dtype == np.int64
    assert row.shape == ADVERSARIAL[name].shape
    assert squared_norm(row) <= (Fraction(weight) * ONE) ** 2


@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
def test_an_update_that_is_clipped_keeps_its_direction_and_almost_all_of_the_norm(clip_norm: float) -> None:
    update = samples(1, (500,), clip_norm * 1e3)
    row = clip(update, clip_norm).astype(np.float64)
    assert math.sqrt(squared_norm(clip(update, clip_norm))) >= ONE * (1.0 - 2.0**-23)
    assert row @ update == pytest.approx(np.linalg.norm(row) * np.linalg.norm(update), rel=1e-9)


def test_an_update_within_the_norm_is_truncated_towards_zero_by_less_than_a_step() -> None:
    update = samples(2, (20, 50), 0.01)
    assert np.linalg.norm(update, axis=1).max() < 1.0
    for given, got in zip(update.ravel().tolist(), clip(update, 1.0).ravel().tolist(), strict=True):
        exact = Fraction(given) * ONE
        assert abs(got) <= abs(exact)
        assert abs(exact) - abs(got) < 1
        assert got == 0 or (got > 0) == (given > 0)


def test_the_grid_has_no_bias_where_the_clip_is_far_above_the_update() -> None:
    update = np.full(1_000_000, 1e-6)  # norm 1e-3 under a clip of 1000
    mean = float(clip(update, 1000.0).mean()) * grid_step(1000.0)
    assert mean == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_zero_and_its_neighbours_are_untouched(bad: float) -> None:
    updates = samples(3, (5, 40), 0.3)
    clean = clip(updates, 1.0)
    updates[2, 17] = bad
    got = clip(updates, 1.0)
    assert not got[2].any()
    kept = [0, 1, 3, 4]
    assert np.array_equal(got[kept], clean[kept])
    assert not clip(updates[2], 1.0).any()


@pytest.mark.parametrize("shape", [(7,), (0,), (1, 7), (5, 3), (0, 3), (5, 0), (0, 0)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    assert clip(np.ones(shape), 1.0).shape == shape


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint64, np.longdouble])
def test_every_real_dtype_is_clipped_as_its_value(dtype: Any) -> None:
    values = np.array([[3, 4], [0, 1], [100, 0]], dtype=dtype)
    assert np.array_equal(clip(values, 2.0), clip(values.astype(np.float64), 2.0))


def test_a_wider_float_beyond_float64_is_the_zero_vector() -> None:
    value = (
        np.longdouble(2.0) ** np.longdouble(2000.0) if np.finfo(np.longdouble).maxexp > 2000 else np.longdouble("inf")
    )
    assert not clip(np.array([value, 1.0], dtype=np.longdouble), 1.0).any()


def test_plain_lists_are_taken() -> None:
    assert clip([3.0, 4.0], 5.0).shape == (2,)
    assert clip([[1, 2], [3, 4]], 1.0).shape == (2, 2)


@pytest.mark.parametrize(
    "updates", [np.ones((2, 2, 2)), np.float64(1.0), np.array(["a"]), np.array([True]), np.array([1j])]
)
def test_what_is_not_a_real_vector_is_refused(updates: Any) -> None:
    with pytest.raises(InvalidValueError, match="updates="):
        clip(updates, 1.0)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, math.inf, 1e-10, 1e10, True, "1"])
def test_a_clip_norm_outside_its_range_is_refused(clip_norm: Any) -> None:
    with pytest.raises(InvalidValueError, match="clip_norm="):
        clip(np.ones(2), clip_norm)


def test_weights_are_capped_and_what_is_no_weight_counts_nothing() -> None:
    updates = np.tile([30.0, 40.0], (8, 1))
    weights = [0.0, 0.5, 2.0, 1e9, math.inf, math.nan, -1.0, -math.inf]
    got = clip(updates, 1.0, weights=weights, max_weight=2.0)
    norms = [math.sqrt(squared_norm(row)) / ONE for row in got]
    assert norms == pytest.approx([0.0, 0.5, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0], rel=1e-6)
    assert all(squared_norm(row) <= (2 * ONE) ** 2 for row in got)


def test_without_weights_a_client_counts_one_or_the_cap_if_that_is_less() -> None:
    for max_weight, expected in [(0.25, 0.25), (1.0, 1.0), (5.0, 1.0)]:
        norm = math.sqrt(squared_norm(clip(np.array([9.0, 9.0]), 1.0, max_weight=max_weight)))
        assert norm == pytest.approx(expected * ONE, rel=1e-6)


@pytest.mark.parametrize("parameters", [1, 2, 3, 7, 8, 9, 16, 33, 100, 1000, 8191, 8192, 8193, 30_000])
@pytest.mark.parametrize("clients", [2, 3, 17])
def test_a_row_is_a_function_of_itself_alone_bit_for_bit(parameters: int, clients: int) -> None:
    updates = samples(parameters, (clients, parameters))
    together = clip(updates, 0.7)
    alone = np.stack([clip(row, 0.7) for row in updates])
    reversed_order = clip(updates[::-1], 0.7)[::-1]
    shifted = np.empty(updates.size + 1)[1:].reshape(updates.shape)  # another alignment
    shifted[:] = updates
    assert np.array_equal(together, alone)
    assert np.array_equal(together, reversed_order)
    assert np.array_equal(together, clip(np.asfortranarray(updates), 0.7))
    assert np.array_equal(together, clip(shifted, 0.7))


def test_rows_are_the_same_in_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = samples(5, (50, 64))
    whole = clip(updates, 0.5, weights=np.linspace(0, 1, 50))
    monkeypatch.setattr("fedDP.privacy.clipping._CHUNK_ELEMENTS", 64 * 7)
    assert np.array_equal(whole, clip(updates, 0.5, weights=np.linspace(0, 1, 50)))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_one_client_moves_the_sum_by_at_most_the_clip_norm(name: str) -> None:
    victim = ADVERSARIAL[name]
    others = samples(6, (20, victim.size), 1e3)
    with_victim = clip(np.vstack([others[:10], victim, others[10:]]), 0.8).sum(axis=0)
    without = clip(others, 0.8).sum(axis=0)
    zeroed = clip(np.vstack([others[:10], np.zeros_like(victim), others[10:]]), 0.8).sum(axis=0)
    assert squared_norm(with_victim - without) <= ONE**2
    assert np.array_equal(zeroed, without)


def test_replacing_one_client_moves_the_sum_by_at_most_twice_the_clip_norm() -> None:
    updates = samples(7, (5, 30), 1e6)
    opposite = updates.copy()
    opposite[3] *= -1.0
    moved = squared_norm(clip(updates, 1.0).sum(axis=0) - clip(opposite, 1.0).sum(axis=0))
    assert (2 * ONE) ** 2 * (1 - 1e-6) <= moved <= (2 * ONE) ** 2


def test_the_input_is_not_changed() -> None:
    updates = samples(8, (3, 4), 10.0)
    updates[1, 1] = math.nan
    before = updates.copy()
    clip(updates, 1.0)
    assert np.array_equal(before, updates, equal_nan=True)


def test_a_sum_of_honest_clients_is_valid_and_a_larger_one_is_not() -> None:
    for max_weight in (0.5, 1.0, 1e6):
        rows = clip(np.tile([3.0, 4.0], (10, 1)), 1.0, weights=np.full(10, max_weight), max_weight=max_weight)
        assert is_valid_sum(rows.sum(axis=0), num_clients=10, max_weight=max_weight)
        assert not is_valid_sum(rows.sum(axis=0), num_clients=9, max_weight=max_weight)
    assert is_valid_sum(np.zeros(3, dtype=np.int64), num_clients=0)
    assert is_valid_sum(np.zeros(0, dtype=np.int64), num_clients=0)
    assert not is_valid_sum(np.array([1], dtype=np.int64), num_clients=0)
    assert not is_valid_sum(np.array([-(2**63)], dtype=np.int64), num_clients=1)
    # Every coordinate within the bound, but not the norm.
    assert not is_valid_sum(np.full(4, ONE, dtype=np.int64), num_clients=1)


def test_the_grid_step_is_exact() -> None:
    for clip_norm in CLIP_NORMS:
        assert Fraction(grid_step(clip_norm)) * ONE == Fraction(clip_norm)
