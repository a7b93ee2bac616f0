"""The last value that keeps a promise, found in few evaluations of a costly curve.

One evaluation may be a whole composition of privacy loss distributions, so that plain bisection is too slow, and the
answer has to lie on the safe side, so that a root finder is not enough. Every step keeps one evaluated value on
either side. It aims at the root of the secant in logarithms, then a little beyond it, towards the farther side: both
sides close in, each pair of steps about squares their distance, and a pair that fails to is followed by a bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def last_within(
    excess: Callable[[float], float],
    *,
    safe: float,
    wanted: float,
    start: float,
    tolerance: float,
    whole: bool = False,
) -> float | None:
    """The value between `safe` and `wanted` nearest to `wanted` with ``excess(value) <= 0``.

    Guarantees, for any function (the second is what makes the value the best one where it is monotone):
        1. The returned value was evaluated, and its excess is at most 0.
        2. It is `wanted`, or a value nearer to `wanted` by at most `tolerance` (in logarithms; for whole numbers the
           next one is always near enough) was evaluated and exceeds.
        3. None is returned only if `safe` was evaluated and exceeds.

    Args:
        excess: positive where the promise is broken; steps are smallest where it is smooth in the logarithm of its
            argument. It may be infinite.
        safe: the end where the promise holds if it holds at all; positive.
        wanted: the end one would like to reach; positive, above or below `safe`.
        start: a guess; outside the range, its nearer end is tried first.
        tolerance: see guarantee 2; positive.
        whole: whether only whole numbers are evaluated; `safe` and `wanted` are whole then.

    >>> round(last_within(lambda x: x * x - 2.0, safe=1e-3, wanted=1e3, start=1.0, tolerance=1e-9), 6)
    1.414214
    """
    inside: tuple[float, float] | None = None
    outside: tuple[float, float] | None = None
    point = min(max(start, min(safe, wanted)), max(safe, wanted))
    point = float(round(point)) if whole else point
    leap, widths = 1.1, [math.inf, math.inf]
    while True:
        height = excess(point)
        if height <= 0.0:
            inside = (point, height)
        else:
            outside = (point, height)
        if inside is None or outside is None:
            end = wanted if outside is None else safe
            if point == end:
                return point if outside is None else None
            point = _travel(point, end, leap * min(max(abs(height), tolerance), _LONGEST), whole)
            leap *= 2.0
            continue
        width = abs(math.log(outside[0]) - math.log(inside[0]))
        if width <= tolerance or (whole and abs(outside[0] - inside[0]) <= 1.0):
            return inside[0]
        stalled = width > 0.5 * widths[-2]
        widths.append(math.inf if stalled else width)
        point = _between(inside, outside, width, tolerance, whole, halve=stalled)


_LONGEST = math.log(16.0)
"""The longest first step, as a logarithm: of a curve at infinity nothing is known but its side."""


def _travel(point: float, end: float, step: float, whole: bool) -> float:
    """From `point` towards `end` by `step` in logarithms, or by the next whole number, but not beyond `end`."""
    if step >= abs(math.log(end) - math.log(point)):
        return end
    if end > point:
        moved = point * math.exp(step)
        return min(float(math.ceil(moved)) if whole else moved, end)
    moved = point * math.exp(-step)
    return max(float(math.floor(moved)) if whole else moved, end)


def _between(
    inside: tuple[float, float],
    outside: tuple[float, float],
    width: float,
    tolerance: float,
    whole: bool,
    *,
    halve: bool,
) -> float:
    """The next value to evaluate, strictly between the two."""
    part = 0.5  # of the way from inside to outside
    if not halve and math.isfinite(inside[1]) and math.isfinite(outside[1]):
        part = -inside[1] / (outside[1] - inside[1])
        grain = max(tolerance, 1.0 / inside[0]) if whole else tolerance
        beyond = min(max(0.45 * grain / width, 0.5 * part * (1.0 - part) * width), 0.25)
        part += beyond if part <= 0.5 else -beyond
    point = inside[0] * math.exp(part * (math.log(outside[0]) - math.log(inside[0])))
    low, high = sorted((inside[0], outside[0]))
    if whole:
        return min(max(float(round(point)), low + 1.0), high - 1.0)
    return min(max(point, math.nextafter(low, high)), math.nextafter(high, low))
