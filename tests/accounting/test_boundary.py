from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from fedDP.accounting.boundary import last_within

ROOT = 37.123456789
INCREASING: dict[str, Callable[[float], float]] = {
    "power": lambda x: 1.7 * math.log(x / ROOT),
    "exponential": lambda x: x - ROOT,
    "bent": lambda x: math.log(x / ROOT) * (1.0 if x < ROOT else 30.0),
    "infinite beyond": lambda x: -math.inf if x < ROOT else math.inf,
    "zero below": lambda x: -math.inf if x < ROOT else math.log(x / ROOT) + 1e-9,
    "one step": lambda x: -1.0 if x < ROOT else 1.0,
    "flat": lambda x: math.copysign(1e-6, x - ROOT),
    "cubic": lambda x: math.log(x / ROOT) ** 3,
}


def search(
    excess: Callable[[float], float], *, safe: float, wanted: float, start: float, tolerance: float, whole: bool = False
) -> tuple[float | None, list[float]]:
    """The result, checked against guarantees 1 to 3, and the values that were evaluated."""
    seen: dict[float, float] = {}

    def counted(value: float) -> float:
        assert min(safe, wanted) <= value <= max(safe, wanted)
        assert not whole or value == int(value)
        assert value not in seen, "evaluated twice"
        seen[value] = excess(value)
        return seen[value]

    found = last_within(counted, safe=safe, wanted=wanted, start=start, tolerance=tolerance, whole=whole)
    if found is None:
        assert seen[safe] > 0.0
    else:
        assert seen[found] <= 0.0
        nearer = [value for value, height in seen.items() if height > 0.0 and (value > found) == (wanted > found)]
        near = tolerance if not whole else max(tolerance, math.log1p(1.0 / (found - 1.0 if wanted < found else found)))
        assert found == wanted or min(abs(math.log(value / found)) for value in nearer) <= near * (1.0 + 1e-9) + 4e-16
    return found, list(seen)


@pytest.mark.parametrize("name", INCREASING)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("start", [1e-9, 0.5, 36.0, 38.0, 1e12])
def test_the_root_is_enclosed_from_the_safe_side(name: str, tolerance: float, start: float) -> None:
    rising = INCREASING[name]
    below, _ = search(rising, safe=1e-6, wanted=1e5, start=start, tolerance=tolerance)
    assert below is not None
    assert ROOT * (1.0 - 1.1 * tolerance) <= below <= ROOT * (1.0 + 1e-12)
    above, _ = search(lambda x: -rising(x), safe=1e5, wanted=1e-6, start=start, tolerance=tolerance)
    assert above is not None
    assert ROOT * (1.0 - 1e-12) <= above <= ROOT * (1.0 + 1.1 * tolerance)


@pytest.mark.parametrize("name", INCREASING)
@pytest.mark.parametrize("start", [1.0, 36.0, 38.0, 1e9])
def test_whole_numbers_are_exact(name: str, start: float) -> None:
    rising = INCREASING[name]
    assert search(rising, safe=1, wanted=10**9, start=start, tolerance=1e-10, whole=True)[0] == 37
    assert search(lambda n: -rising(n), safe=10**9, wanted=1, start=start, tolerance=1e-10, whole=True)[0] == 38


@pytest.mark.parametrize("last", [1, 2, 3, 999_999_999, 10**9])
def test_whole_numbers_at_the_ends(last: int) -> None:
    def excess(number: float) -> float:
        return math.log(number / (last + 0.5))

    assert search(excess, safe=1, wanted=10**9, start=1e4, tolerance=1e-10, whole=True)[0] == last


def test_the_ends_are_returned_and_an_infeasible_search_says_so() -> None:
    for start in (1e-3, 1.0, 1e3):
        assert search(lambda x: -1.0, safe=0.1, wanted=10.0, start=start, tolerance=1e-6)[0] == 10.0
        assert search(lambda x: 1.0, safe=0.1, wanted=10.0, start=start, tolerance=1e-6)[0] is None
        assert search(lambda x: -1.0, safe=2.0, wanted=2.0, start=start, tolerance=1e-6)[0] == 2.0
    assert search(lambda x: 0.0 if x == 0.1 else 1.0, safe=0.1, wanted=10.0, start=1.0, tolerance=1e-6)[0] == 0.1


def test_an_excess_of_zero_is_within() -> None:
    found, _ = search(lambda x: x - 4.0, safe=1.0, wanted=1e3, start=4.0, tolerance=1e-6)
    assert found == 4.0


def test_a_curve_that_wiggles_keeps_the_first_two_guarantees() -> None:
    for seed in range(50):
        noise = random.Random(seed)

        def wiggling(x: float, noise: random.Random = noise) -> float:
            return math.log(ROOT / x) + noise.gauss(0.0, 1e-3)

        found, seen = search(wiggling, safe=1e5, wanted=1e-6, start=30.0, tolerance=1e-6)
        assert found is not None
        assert len(seen) < 60


@pytest.mark.parametrize(
    ("tolerance", "most"),
    [(1e-3, 6), (1e-5, 7), (1e-10, 8)],
)
def test_smooth_curves_take_few_evaluations(tolerance: float, most: int) -> None:
    """Curves like epsilon over noise: a power whose exponent goes from -2 to -1, guessed 20 % off."""
    for root in (0.3, 1.0, 5.0):

        def excess(x: float, root: float = root) -> float:
            return math.log((1.0 / x + 1.0 / x**2) / (1.0 / root + 1.0 / root**2))

        for start in (0.8 * root, 1.2 * root):
            _, seen = search(excess, safe=1e5, wanted=1e-6, start=start, tolerance=tolerance)
            assert len(seen) <= most


@pytest.mark.parametrize("name", INCREASING)
def test_no_curve_takes_many_more_than_bisection(name: str) -> None:
    bisection = math.log2(math.log(1e11) / 1e-10)
    for start in (1e-6, 1.0, 1e5):
        _, seen = search(INCREASING[name], safe=1e-6, wanted=1e5, start=start, tolerance=1e-10)
        assert len(seen) <= 3.0 * bisection
