"""Scaling by public numbers: exact values, and that no row depends on another."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fedDP.errors import DataError, InvalidValueError
from fedDP.scenario.preprocessing import public_ranges
from fedDP.scenario.sources import Table, read_heart_disease

NAN = math.nan


def table(**columns: list[float]) -> Table:
    return Table(source="test", columns={name: np.array(column, np.float64) for name, column in columns.items()})


def test_range_maps_its_bounds_and_clips() -> None:
    ages = table(age=[45, 65, 55, 0, 200, NAN])
    scaled = public_ranges(ages, features=["age"], ranges={"age": (45.0, 65.0)}, categories={})
    assert scaled.matrix.dtype == np.float32
    assert scaled.matrix[:, 0].tolist() == [-1, 1, 0, -3, 3, 0]
    assert scaled.names == ("age",)
    assert scaled.unscaled == ()


def test_categories_are_one_hot_over_the_public_vocabulary() -> None:
    scaled = public_ranges(table(cp=[1, 4, 9, NAN]), features=["cp"], ranges={}, categories={"cp": (1, 4)})
    assert scaled.names == ("cp=1", "cp=4")
    assert scaled.matrix.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]


def test_default_range_holds_where_no_other_does() -> None:
    columns = table(a=[1], b=[1], c=[1])
    ranges = {"*": (0.0, 1.0), "b": (1.0, 3.0)}
    scaled = public_ranges(columns, features=["c", "b", "a"], ranges=ranges, categories={"c": (1, 2)})
    assert scaled.names == ("c=1", "c=2", "b", "a")
    assert scaled.matrix.tolist() == [[1, 0, -1, 1]]
    assert scaled.unscaled == ()


def test_unscaled_features_are_named_and_clipped() -> None:
    scaled = public_ranges(table(a=[2.5, -1e9, NAN], b=[0, 0, 0]), features=["a"], ranges={}, categories={})
    assert scaled.matrix[:, 0].tolist() == [2.5, -1000, 0]
    assert scaled.unscaled == ("a",)


def test_extreme_numbers_stay_finite() -> None:
    columns = table(a=[1e308, -1e308, 5e-324, 0.0])
    for bounds in ((-8e307, 8e307), (0.0, 5e-324), (-1e308, -9e307)):
        scaled = public_ranges(columns, features=["a"], ranges={"a": bounds}, categories={})
        assert np.isfinite(scaled.matrix).all()


def test_a_row_does_not_depend_on_other_rows() -> None:
    full = read_heart_disease()
    features = ["age", "chol", "oldpeak", "cp", "thal", "thalach"]
    ranges, categories = {"age": (45.0, 65.0), "chol": (170.0, 290.0), "*": (-0.3, 1.7)}, {"cp": (1, 2, 3, 4)}
    expected = public_ranges(full, features=features, ranges=ranges, categories=categories).matrix
    for row in range(0, full.num_rows, 7):
        single = Table(source="test", columns={name: column[row : row + 1] for name, column in full.columns.items()})
        found = public_ranges(single, features=features, ranges=ranges, categories=categories).matrix
        assert found.tobytes() == expected[row].tobytes()


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (NAN, 1.0), (0.0, math.inf), (-1.7e308, 1.7e308)])
@pytest.mark.parametrize("name", ["a", "*"])
def test_refuses_ranges(name: str, bounds: tuple[float, float]) -> None:
    message = re.escape(f"data.ranges.{name}={bounds!r}: expected two finite numbers, low < high")
    with pytest.raises(InvalidValueError, match=message):
        public_ranges(table(a=[1.0]), features=["a"], ranges={name: bounds}, categories={})


@pytest.mark.parametrize("values", [(), (1.0, 1.0), (NAN,), (1.0, math.inf)])
def test_refuses_categories(values: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValueError, match=r"categories\.a=.*each of them once"):
        public_ranges(table(a=[1.0]), features=["a"], ranges={}, categories={"a": values})


def test_refuses_a_column_with_both() -> None:
    with pytest.raises(InvalidValueError, match=r"ranges\.a=.*no range for a column with categories"):
        public_ranges(table(a=[1.0]), features=["a"], ranges={"a": (0.0, 1.0)}, categories={"a": (1.0,)})


def test_refuses_text() -> None:
    with pytest.raises(DataError, match="'site' is text"):
        public_ranges(read_heart_disease(), features=["site"], ranges={}, categories={})
