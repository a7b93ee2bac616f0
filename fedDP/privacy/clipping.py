"""Clipping onto the integer grid: the bound on what one client can move.

A client's update is one flat vector. It is scaled to norm at most C, multiplied by its weight, and truncated
towards zero onto a grid of step ``C * 2**-40``. From there on everything is integer arithmetic, whose sums do
not depend on order, on the number of workers or on rounding (Casacuberta et al. 2022, arXiv:2207.10635).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedDP.errors import InvalidValueError
from fedDP.privacy.limits import CLIP_NORM, GRID_BITS, MAX_WEIGHT

_MARGIN = 1.0 - 2.0**-24  # covers the rounding of the norm itself
_CHUNK_ELEMENTS = 1 << 16  # rows are worked on in chunks of half a megabyte, which stay in the cache


def grid_step(clip_norm: float) -> float:
    """The grid's step in the units of an update: ``clip_norm * 2**-40``."""
    return float(np.ldexp(CLIP_NORM.check("clip_norm", clip_norm), -GRID_BITS))


def clip(
    updates: npt.ArrayLike, clip_norm: float, *, weights: npt.ArrayLike | None = None, max_weight: float = 1.0
) -> npt.NDArray[np.int64]:
    """Clips updates to L2 norm `clip_norm` and returns them as integers on the grid.

    Guarantees:
        1. Every returned row v has ``||v||_2 <= w * 2**40`` with w its weight, capped at `max_weight`; so one
           client moves an integer sum by at most ``max_weight * clip_norm`` in the units of the update.
        2. A row with a NaN or an infinity becomes the zero vector; its neighbours are untouched. Nothing is raised
           because of a value, since an error would itself be a release.
        3. A row is a function of itself alone, bit for bit, wherever it stands.
        4. Truncation is towards zero: it never raises a norm. It costs at most one step a coordinate.

    Args:
        updates: shape (K, P) for K clients or (P,) for one; any real dtype.
        clip_norm: C > 0, in the units of the update.
        weights: shape (K,) or a scalar, in [0, max_weight]; larger ones are cut, NaN and negative ones count 0.
        max_weight: the public cap on a weight.

    Returns:
        int64 grid vectors of the same shape, in steps of ``clip_norm * 2**-40``.

    Raises:
        InvalidValueError: for `clip_norm` or `max_weight` outside its range, or updates that are not (K, P) or (P,).

    Example:
        >>> import numpy as np
        >>> vectors = clip(np.array([[3.0, 4.0], [np.nan, 0.0]]), clip_norm=1.0)
        >>> [round(float(x), 6) for x in vectors[0] * grid_step(1.0)], vectors[1].tolist()
        ([0.6, 0.8], [0, 0])
    """
    clip_norm = CLIP_NORM.check("clip_norm", clip_norm)
    max_weight = MAX_WEIGHT.check("max_weight", max_weight)
    array = np.asarray(updates)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        raise InvalidValueError("updates", f"{array.dtype} of shape {array.shape}", "a real array (K, P) or (P,)")
    rows = array.reshape(1, -1) if array.ndim == 1 else array
    row_weights = _capped_weights(weights, rows.shape[0], max_weight)
    out = np.empty(rows.shape, dtype=np.int64)
    per_chunk = max(1, _CHUNK_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], per_chunk):
        chunk = slice(start, start + per_chunk)
        with np.errstate(over="ignore"):  # wider floats become infinite, and so the zero vector
            # Row after row in memory: the order of a row's sum must not depend on how the caller laid the array out.
            copied = rows[chunk].astype(np.float64, order="C")
        out[chunk] = _clip_rows(copied, clip_norm, row_weights[chunk])
    return out.reshape(array.shape)


def _capped_weights(weights: npt.ArrayLike | None, rows: int, max_weight: float) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.full(rows, min(1.0, max_weight))
    values = np.broadcast_to(np.asarray(weights, dtype=np.float64), (rows,))
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=max_weight, neginf=0.0), 0.0, max_weight)


def _clip_rows(
    rows: npt.NDArray[np.float64], clip_norm: float, weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    if rows.shape[1] == 0:
        return np.zeros(rows.shape, dtype=np.int64)
    largest = _row_magnitudes(rows)
    finite = np.isfinite(largest)  # max propagates NaN, so one bad coordinate marks the row
    rows[~finite] = 0.0
    # Dividing by the largest coordinate first keeps the squares from overflowing or vanishing.
    unit = np.where(finite & (largest > 0.0), largest, 1.0)
    rows /= unit[:, None]
    norms = _row_norms(rows)  # of the scaled rows: at least 1 unless the row is zero
    with np.errstate(over="ignore"):  # an infinite product is a norm above any clip
        clipped = norms * unit > clip_norm * _MARGIN
        in_steps = np.where(clipped, _MARGIN / np.maximum(norms, 1.0), unit / clip_norm)
    rows *= (np.minimum(in_steps, 1.0) * weights * 2.0**GRID_BITS)[:, None]
    np.trunc(rows, out=rows)
    limit = weights * 2.0**GRID_BITS
    rows[~(_row_magnitudes(rows) <= limit)] = 0.0
    rows[~(_row_norms(rows) <= limit)] = 0.0
    return rows.astype(np.int64)


def _row_magnitudes(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    magnitudes: npt.NDArray[np.float64] = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return magnitudes


def _row_norms(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # NumPy sums a contiguous row pairwise, in an order that depends on its length alone. `einsum` and BLAS split long
    # rows by the number of rows or threads, so a row's norm would depend on its neighbours.
    norms: npt.NDArray[np.float64] = np.sqrt(np.square(rows).sum(axis=1))
    return norms


def is_valid_sum(total: npt.NDArray[np.int64], *, num_clients: int, max_weight: float = 1.0) -> bool:
    """Whether an integer sum can have come from `num_clients` clipped clients: norm at most n * w_max * 2**40.

    The server cannot check more than this about a node's sum; the clip itself is enforced at the node.
    """
    limit = num_clients * max_weight * 2.0**GRID_BITS
    values = total.astype(np.float64)
    return bool(values.size == 0 or (np.abs(values).max() <= limit and np.linalg.norm(values) <= limit))
