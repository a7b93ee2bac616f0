from __future__ import annotations

import decimal
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fedDP.errors import FedDPError, InvalidValueError
from fedDP.ranges import Range

UNIT = Range(low=0.0, high=1.0)
WHOLE = Range(low=0, high=100, integer=True, remedy="Count again.")


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        np.True_,
        "0.5",
        b"0.5",
        None,
        [0.5],
        0.5j,
        np.array(0.5),
        np.array([0.5]),
        np.float64("nan"),
        np.float32("inf"),
        decimal.Decimal("0.5"),
        1.5,
        -1e-9,
        object(),
    ],
)
def test_what_is_not_a_finite_number_inside_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="x=") as caught:
        UNIT.check("x", value)
    assert caught.value.name == "x"
    assert caught.value.value is value
    assert isinstance(caught.value, FedDPError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "value", [0, 1, 0.0, 1.0, -0.0, 0.5, np.float16(0.5), np.float32(0.5), np.int64(1), Fraction(1, 2)]
)
def test_numbers_of_every_kind_become_floats(value: Any) -> None:
    checked = UNIT.check("x", value)
    assert type(checked) is float
    assert checked == float(value)


def test_open_bounds_are_excluded() -> None:
    both_open = Range(low=0.0, high=1.0, low_open=True, high_open=True)
    for value in (0.0, -0.0, 1.0):
        with pytest.raises(InvalidValueError, match=r"a number in \(0, 1\)\."):
            both_open.check("x", value)
    assert both_open.check("x", 5e-324) == 5e-324
    assert both_open.check("x", math.nextafter(1.0, 0.0)) < 1.0


@pytest.mark.parametrize("value", [3, 3.0, np.int32(3), np.float64(3.0)])
def test_whole_numbers_become_ints(value: Any) -> None:
    checked = WHOLE.check("n", value)
    assert type(checked) is int
    assert checked == 3


@pytest.mark.parametrize("value", [3.5, -1, 101, math.nan, True, "3"])
def test_what_is_not_whole_is_refused_with_the_remedy(value: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"n=.*: expected a whole number in \[0, 100\]\. Count again\.$"):
        WHOLE.check("n", value)
