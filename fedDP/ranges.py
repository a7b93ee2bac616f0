"""Allowed ranges of numbers, and the one check that every key and parameter passes.

A NaN passes every comparison-based check that is written the wrong way round, a boolean is an `int`
in Python, and an infinity survives most arithmetic; each of them has led to a run without noise in
some library. They are refused here, once, by name.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from fedDP.errors import InvalidValueError


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval of finite numbers.

    Attributes:
        low, high: the bounds.
        low_open, high_open: whether the bound itself is excluded.
        integer: whether only whole numbers are allowed.
        remedy: one sentence for the user whose number is outside.
    """

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False
    integer: bool = False
    remedy: str = ""

    def describe(self) -> str:
        """The range in words: ``a number in (0, 1)``."""
        kind = "a whole number" if self.integer else "a number"
        left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
        return f"{kind} in {left}{self.low:g}, {self.high:g}{right}"

    def check(self, name: str, value: object) -> float:
        """Returns `value` as a float (an int for integer ranges) or refuses it.

        Raises:
            InvalidValueError: for a boolean, a non-number, NaN, an infinity, or a value outside.
        """
        valid = not isinstance(value, bool) and isinstance(value, numbers.Real)
        try:
            number = float(value) if valid else math.nan  # type: ignore[arg-type]
        except OverflowError:  # an int beyond every float
            number = math.nan
        valid = valid and math.isfinite(number)
        valid = valid and (number > self.low if self.low_open else number >= self.low)
        valid = valid and (number < self.high if self.high_open else number <= self.high)
        if valid and self.integer and number != int(number):
            valid = False
        if not valid:
            raise InvalidValueError(name, value, self.describe(), self.remedy)
        return int(number) if self.integer else number
