"""Features scaled by public numbers only.

A mean, a deviation, an imputed value or a vocabulary taken from several clients' rows would make the update of one
client depend on the data of others, and no epsilon would hold. Here every row is scaled by itself, with ranges and
categories that the scenario states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedDP.errors import InvalidValueError
from fedDP.scenario.sources import Table

DEFAULT_RANGE = "*"
"""The key of the range that holds for every numeric feature without its own."""

SCALED_LIMIT = 3.0
"""A scaled feature is clipped to [-3, 3]: one extreme value cannot dominate its client's update."""

UNSCALED_LIMIT = 1e3


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaledFeatures:
    """The model's inputs.

    Attributes:
        matrix: (R, F) float32, finite.
        names: F names; a category is called ``cp=4``.
        unscaled: columns that had neither range nor categories.
    """

    matrix: NDArray[np.float32]
    names: tuple[str, ...]
    unscaled: tuple[str, ...]


def public_ranges(
    table: Table,
    *,
    features: Sequence[str],
    ranges: Mapping[str, tuple[float, float]],
    categories: Mapping[str, Sequence[float]],
) -> ScaledFeatures:
    """Scales features by public ranges and categories.

    Guarantees:
        1. A row of the result is a function of the same row of the table and of the arguments, bit for bit.
        2. Every number is finite, whatever the table holds.

    | column | value | missing |
    | --- | --- | --- |
    | with categories | one column a category, 1 where it holds; all 0 for a value outside them | all 0 |
    | with a range (low, high) | low becomes -1, high +1; clipped to [-3, 3] | 0 |
    | with neither | as it is, clipped to [-1000, 1000] | 0 |

    Args:
        table: the columns, NaN where missing.
        features: numeric columns of the table, in the order of the result.
        ranges: (low, high) by column; ``"*"`` is the default of all columns without range or categories.
        categories: the possible values by column.

    Raises:
        InvalidValueError: for a range that is not finite with low < high, for categories that are empty, not finite
            or repeated, and for a column with both.
        DataError: when a feature is text.
    """
    for name, bounds in ranges.items():
        _check_range(name, bounds)
    for name, values in categories.items():
        check_categories(name, values)
        if name in ranges:
            raise InvalidValueError(f"data.ranges.{name}", ranges[name], "no range for a column with categories")
    width = sum(len(categories[name]) if name in categories else 1 for name in features)
    matrix = np.zeros((table.num_rows, width), dtype=np.float32)
    names: list[str] = []
    unscaled: list[str] = []
    for name in features:
        column = table.numbers(name)
        bounds_or_none = ranges.get(name, ranges.get(DEFAULT_RANGE))
        if name in categories:
            for value in categories[name]:
                matrix[:, len(names)] = column == value
                names.append(f"{name}={value:.15g}")
            continue
        if bounds_or_none is not None:
            matrix[:, len(names)] = _scale(column, *bounds_or_none)
        else:
            matrix[:, len(names)] = _clip(column, UNSCALED_LIMIT)
            unscaled.append(name)
        names.append(name)
    return ScaledFeatures(matrix=matrix, names=tuple(names), unscaled=tuple(unscaled))


def check_categories(name: str, values: Sequence[float]) -> None:
    """Refuses a vocabulary that is empty, not finite or repeats a value.

    Raises:
        InvalidValueError: naming ``data.categories.<name>``.
    """
    if not values or not all(map(math.isfinite, values)) or len(set(values)) != len(values):
        raise InvalidValueError(
            f"data.categories.{name}", tuple(values), "one or more finite numbers, each of them once"
        )


def _check_range(name: str, bounds: tuple[float, float]) -> None:
    low, high = bounds
    if not (low < high and math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
        remedy = "Use bounds that are known without looking at the data."
        raise InvalidValueError(f"data.ranges.{name}", (low, high), "two finite numbers, low < high", remedy)


def _scale(column: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # an overflow is infinite and clipped
        return _clip(2.0 * ((column - low) / (high - low)) - 1.0, SCALED_LIMIT)


def _clip(column: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    return np.where(np.isnan(column), 0.0, np.clip(column, -limit, limit))
