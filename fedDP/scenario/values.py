"""The shapes of scenario values that are neither a number in a range nor one of a few words.

Each reader returns the canonical, immutable form (lists become tuples) and accepts it again, so a value
that was read once reads to itself.
"""

from __future__ import annotations

import math
import re

from fedDP.budget.location import check_location
from fedDP.budget.weeks import IsoWeek
from fedDP.scenario.keys import Shape

LARGEST_SEED = 2**63 - 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_OBJECT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_object_name(text: str) -> bool:
    """Whether `text` has the form ``package.module:attribute``."""
    return _OBJECT.fullmatch(text) is not None


def iso_week(text: str) -> tuple[int, int]:
    """The ISO year and week of ``"2026-W01"``, as the ledger's calendar reads it.

    Raises:
        ValueError: for another form, or a week that the year does not have.
    """
    week = IsoWeek.parse(text)
    return week.year, week.week


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _read_ledger(value: object) -> str:
    # Before anything shows or stores it.
    return check_location("budget.ledger", _read_text(value))


def _read_free_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _read_unit(value: object) -> str:
    text = _read_text(value)
    if len(text) > 64 or not text.isprintable() or text != text.strip():
        raise ValueError
    return text


def _read_name(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError
    return value


def _read_object_name(value: object) -> str:
    if not isinstance(value, str) or not is_object_name(value):
        raise ValueError
    return value


def _read_week(value: object) -> str:
    text = _read_text(value)
    iso_week(text)
    return text


def _read_seed(value: object) -> int:
    # Not a Range: a float cannot hold every seed, and a seed that was rounded is another seed.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_SEED:
        raise ValueError
    return value


def _read_columns(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    names = tuple(_read_text(item) for item in value)
    if len(set(names)) != len(names):
        raise ValueError
    return names


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _read_interval(value: object) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError
    low, high = _finite(value[0]), _finite(value[1])
    if not low < high or not math.isfinite(high - low):
        raise ValueError
    return low, high


def _read_levels(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    levels = tuple(_finite(item) for item in value)
    if len(set(levels)) != len(levels):
        raise ValueError
    return levels


def _read_widths(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    for width in value:
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= 65536:
            raise ValueError
    return tuple(value)


def _read_option(value: object) -> object:
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_read_option(item) for item in value]
    raise ValueError


TEXT = Shape(allowed="text", read=_read_text)
LEDGER = Shape(allowed="a path or a URL without a password", read=_read_ledger)
FREE_TEXT = Shape(allowed="text", read=_read_free_text)
UNIT = Shape(allowed="a printable word or two, such as 'patient'", read=_read_unit)
NAME = Shape(allowed="letters, digits and hyphens, 64 at most, the first no hyphen", read=_read_name)
OBJECT_NAME = Shape(allowed="'package.module:attribute'", read=_read_object_name)
WEEK = Shape(allowed="an ISO week that exists, such as '2026-W01'", read=_read_week)
SEED = Shape(allowed=f"a whole number in [0, {LARGEST_SEED}]", read=_read_seed)
COLUMNS = Shape(allowed="a list of different column names", read=_read_columns)
INTERVAL = Shape(allowed="two finite numbers, [low, high] with low < high", read=_read_interval)
LEVELS = Shape(allowed="a list of at least one finite number, all different", read=_read_levels)
WIDTHS = Shape(allowed="a list of at least one whole number in [1, 65536]", read=_read_widths)
OPTION = Shape(allowed="true, false, a finite number, text, or a list of these", read=_read_option)
