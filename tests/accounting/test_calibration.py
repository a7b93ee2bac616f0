"""The least noise for a target. Values with their provenance (which programs agree on them, and how closely) are in
reference.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import (
    ACCOUNTANTS,
    FixedSize,
    FullParticipation,
    Gaussian,
    Poisson,
    Sampling,
    calibrate_noise_multiplier,
    calibrate_scale,
    epsilon,
    gdp_squared_budget,
    smallest_noise_multiplier,
)
from fedDP.errors import InvalidValueError, UnsupportedError

SAMPLED_ACCOUNTANTS = [name for name in ("rdp", "pld") if name in ACCOUNTANTS]
CASES = [
    case
    for case in json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))["cases"]
    if case["id"].startswith(("calib_", "year_"))
]
TARGETS = [0.0, -1.0, 1e-300, 1e-7, 1e7, math.nan, math.inf, True, None, "1"]


SAMPLINGS: list[Sampling] = [FullParticipation(), Poisson(1.0), Poisson(0.5), Poisson(0.01), Poisson(1e-4)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("target", [0.1, 1.0, 8.0, 1e3, 1e6])
@pytest.mark.parametrize("count", [1, 365])
def test_the_target_is_met_and_hardly_less_noise_would_miss_it(sampling: Sampling, target: float, count: int) -> None:
    for accountant in ("gdp", "rdp") if Gaussian(1.0, sampling=sampling).is_full else ("rdp",):
        noise = calibrate_noise_multiplier(target, 1e-6, sampling=sampling, count=count, accountant=accountant)
        assert epsilon([Gaussian(noise, sampling=sampling, count=count)], 1e-6, accountant) <= target
        less = Gaussian(noise * (1 - 1e-8), sampling=sampling, count=count)
        assert epsilon([less], 1e-6, accountant) > target


@pytest.mark.parametrize("accountant", SAMPLED_ACCOUNTANTS)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_golden_noise(case: dict[str, Any], accountant: str) -> None:
    inputs = case["inputs"]
    count = inputs["T"] if "T" in inputs else inputs["weeks"] * inputs["rounds_per_week"]
    sampling = Poisson(inputs["q"])
    exact = "gdp" if inputs["q"] == 1.0 else accountant
    noise = calibrate_noise_multiplier(inputs["eps"], inputs["delta"], sampling=sampling, count=count, accountant=exact)
    assert noise >= case["value"] - case["tol"]
    assert epsilon([Gaussian(noise, sampling=sampling, count=count)], inputs["delta"], exact) <= inputs["eps"]
    if exact == "gdp":
        assert noise == pytest.approx(case["value"], rel=1e-8)
    elif exact == "pld":
        assert noise <= case["value"] + case["tol"]
    else:
        assert noise <= 1.01 * case.get("dp_accounting_rdp", 1.2 * case["value"])


def test_naive_weekly_shares_cost_seven_times_the_noise() -> None:
    """The 52nd part of epsilon 0.5 and of delta 1e-6 each week (the sums are the year's), one round a week."""
    naive = calibrate_noise_multiplier(0.5 / 52, 1e-6 / 52)
    year = calibrate_noise_multiplier(0.5, 1e-6, count=52)
    assert naive == pytest.approx(413.6, abs=0.05)
    assert naive / year == pytest.approx(7.1, abs=0.05)


def test_full_participation_is_a_closed_form() -> None:
    for count in (1, 10, 10**6):
        expected = math.sqrt(count / gdp_squared_budget(1.0, 1e-5))
        assert calibrate_noise_multiplier(1.0, 1e-5, count=count) == pytest.approx(expected, rel=1e-9)


def test_replace_one_needs_twice_the_noise() -> None:
    once = calibrate_noise_multiplier(1.0, 1e-5, count=5)
    twice = calibrate_noise_multiplier(1.0, 1e-5, count=5, neighboring_relation="replace_one")
    assert twice == pytest.approx(2.0 * once, rel=1e-9)


def test_the_named_accountant_is_used() -> None:
    exact, bound = (calibrate_noise_multiplier(1.0, 1e-5, accountant=name) for name in ("gdp", "rdp"))
    assert exact < bound
    assert epsilon([Gaussian(bound)], 1e-5, "rdp") <= 1.0 < epsilon([Gaussian(exact)], 1e-5, "rdp")


@pytest.mark.parametrize("sampling", [FullParticipation(), Poisson(0.01)])
@pytest.mark.parametrize("target", [1e6, 1e-6])
def test_extreme_targets(sampling: Sampling, target: float, calls: list[tuple[Gaussian, ...]]) -> None:
    noise = calibrate_noise_multiplier(target, 1e-5, sampling=sampling, accountant="rdp")
    assert len(calls) <= 40
    assert 0.0 < noise <= 1e5
    assert epsilon([Gaussian(noise, sampling=sampling)], 1e-5, "rdp") <= target


@pytest.mark.parametrize("sampling", [FullParticipation(), Poisson(0.9)])
def test_a_target_out_of_reach_is_refused_with_the_remedy(sampling: Sampling) -> None:
    with pytest.raises(InvalidValueError, match=r"target_epsilon=1e-06.*100000.*larger target_epsilon"):
        calibrate_noise_multiplier(1e-6, 1e-9, sampling=sampling, count=1000)


@pytest.mark.parametrize("target", TARGETS)
def test_bad_targets_are_refused_by_name(target: Any) -> None:
    with pytest.raises(InvalidValueError, match="target_epsilon="):
        calibrate_noise_multiplier(target, 1e-5)


def test_other_bad_values_are_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match="delta="):
        calibrate_noise_multiplier(1.0, 1e-12)
    with pytest.raises(InvalidValueError, match="count="):
        calibrate_noise_multiplier(1.0, 1e-5, count=0)
    with pytest.raises(InvalidValueError, match="accountant="):
        calibrate_noise_multiplier(1.0, 1e-5, accountant="exact")
    with pytest.raises(InvalidValueError, match="neighboring_relation="):
        calibrate_noise_multiplier(1.0, 1e-5, neighboring_relation="swap")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="FixedSize"):
        calibrate_noise_multiplier(1.0, 1e-5, sampling=FixedSize(2, 5))
    with pytest.raises(UnsupportedError, match="gdp"):
        calibrate_noise_multiplier(1.0, 1e-5, sampling=Poisson(0.1), accountant="gdp")
    with pytest.raises(UnsupportedError, match="replace_one"):
        calibrate_noise_multiplier(
            1.0, 1e-5, sampling=Poisson(0.1), accountant="rdp", neighboring_relation="replace_one"
        )


@pytest.mark.parametrize(
    ("rate", "count", "target"), [(0.01, 1000, 1.0), (0.05, 52, 0.5), (0.02, 520, 0.5), (0.5, 500, 1)]
)
def test_a_slow_accountant_is_asked_a_few_times(
    rate: float, count: int, target: float, calls: list[tuple[Gaussian, ...]]
) -> None:
    noise = calibrate_noise_multiplier(target, 1e-6, sampling=Poisson(rate), count=count, accountant="grid")
    assert len(calls) == len(set(calls)) <= 8
    best = calibrate_noise_multiplier(target, 1e-6, sampling=Poisson(rate), count=count, accountant="rdp")
    assert best <= noise <= best * (1 + 1e-4)


def test_an_epsilon_that_is_not_a_number_never_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedDP.accounting.promise.epsilon", lambda *_: math.nan)
    with pytest.raises(InvalidValueError, match="target_epsilon="):
        calibrate_noise_multiplier(1.0, 1e-6)


# --- schedules and windows

SCHEDULE = [Gaussian(1.5 - 0.03 * step, sampling=Poisson(0.01), count=50) for step in range(20)]
WEEK, YEAR = [Gaussian(1.0, sampling=Poisson(0.02), count=10)], [Gaussian(1.0, sampling=Poisson(0.02), count=520)]


def scaled(events: list[Gaussian], scale: float) -> list[Gaussian]:
    return [Gaussian(event.noise_multiplier * scale, sampling=event.sampling, count=event.count) for event in events]


def test_a_schedule_is_scaled_to_its_target(calls: list[tuple[Gaussian, ...]]) -> None:
    scale = calibrate_scale([(SCHEDULE, 1.0)], 1e-5, accountant="rdp")
    assert epsilon(scaled(SCHEDULE, scale), 1e-5, "rdp") <= 1.0
    assert epsilon(scaled(SCHEDULE, scale * (1 - 1e-8)), 1e-5, "rdp") > 1.0
    calls.clear()
    assert scale <= calibrate_scale([(SCHEDULE, 1.0)], 1e-5, accountant="grid") <= scale * (1 + 1e-4)
    assert len(calls) <= 10


def test_scales_are_closed_forms_without_sampling() -> None:
    events = [Gaussian(0.5, count=3), Gaussian(2.0, count=8)]
    expected = math.sqrt((3 / 0.25 + 8 / 4) / gdp_squared_budget(0.7, 1e-6))
    assert calibrate_scale([(events, 0.7)], 1e-6) == pytest.approx(expected, rel=1e-9)
    twice = calibrate_scale([(events, 0.7)], 1e-6, neighboring_relation="replace_one")
    assert twice == pytest.approx(2 * expected, rel=1e-9)


@pytest.mark.parametrize("week_target", [0.05, 0.1])
def test_the_week_and_the_year_hold_together(week_target: float, calls: list[tuple[Gaussian, ...]]) -> None:
    windows = [(WEEK, week_target), (YEAR, 0.5)]
    scale = calibrate_scale(windows, 1e-6, accountant="grid")
    assert len(calls) == len(set(calls)) <= 20
    alone = [calibrate_scale([window], 1e-6, accountant="rdp") for window in windows]
    assert max(alone) <= scale <= max(alone) * (1 + 1e-4)
    assert alone.index(max(alone)) == (0 if week_target == 0.05 else 1)
    for events, target in windows:
        assert epsilon(scaled(events, scale), 1e-6, "rdp") <= target
    assert calibrate_scale(windows[::-1], 1e-6, accountant="rdp") == pytest.approx(max(alone), rel=1e-9)


def test_equal_windows_are_evaluated_once(calls: list[tuple[Gaussian, ...]]) -> None:
    calibrate_scale([(WEEK, 0.1)] * 53 + [(YEAR, 0.5), ([], 0.1)], 1e-6, accountant="grid")
    assert len(calls) <= 12


def test_each_window_has_its_own_accountant() -> None:
    full, sampled = [Gaussian(1.0)], [Gaussian(1.0, sampling=Poisson(0.5), count=2)]
    scale = calibrate_scale([(full, 0.5), (sampled, 10.0)], 1e-6)
    assert scale == pytest.approx(calibrate_noise_multiplier(0.5, 1e-6, accountant="gdp"), rel=1e-4)


def test_no_scaled_noise_leaves_its_range() -> None:
    events = [Gaussian(1e5 / 3), Gaussian(3.0, count=10)]
    scale = calibrate_scale([(events, 100.0)], 1e-6)
    assert scale < 1.0
    with pytest.raises(InvalidValueError, match=r"target_epsilon=0\.1.*at most 100000 reaches"):
        calibrate_scale([(events, 0.1)], 1e-6)
    assert calibrate_scale([([Gaussian(1e5)], 1e-4)], 1e-6) <= 1.0
    multiplier = 15 / 7
    assert 1e5 / multiplier * multiplier > 1e5  # the largest factor is the float below
    with pytest.raises(InvalidValueError, match=r"target_epsilon=1e-06"):
        calibrate_scale([([Gaussian(multiplier, count=10**9)], 1e-6)], 1e-6)
    # The smallest noise that is searched is enough: nobody is ever drawn, but with probability 1e-7.
    rare = Gaussian(1.0, sampling=Poisson(1e-7))
    assert 1e-6 <= calibrate_scale([([rare], 20.0)], 1e-6, accountant="rdp") < 1.0


def test_windows_that_cannot_be_scaled_are_refused() -> None:
    nothing: list[list[tuple[list[Gaussian], float]]] = [[], [([], 1.0)]]
    for empty in nothing:
        with pytest.raises(InvalidValueError, match=r"windows=.*at least one event"):
            calibrate_scale(empty, 1e-6)
    with pytest.raises(UnsupportedError, match="only the noise of Gaussian events"):
        calibrate_scale([(["release"], 1.0)], 1e-6)  # type: ignore[list-item]
    bad: Any
    for bad in TARGETS:
        with pytest.raises(InvalidValueError, match="target_epsilon="):
            calibrate_scale([(WEEK, 0.5), (YEAR, bad)], 1e-6)
    with pytest.raises(InvalidValueError, match=r"target_epsilon=1e-06"):  # of the window that cannot be met
        calibrate_scale([(WEEK, 1.0), ([Gaussian(1.0, count=10**6)], 1e-6)], 1e-6)


# --- bisection of a rule


@pytest.mark.parametrize("threshold", [1.1e-6, 1e-3, 1.0, math.pi, 99_999.9, 1e5])
def test_bisection_returns_a_value_that_fits(threshold: float) -> None:
    noise = smallest_noise_multiplier(lambda z: z >= threshold)
    assert threshold <= noise <= threshold * (1 + 1e-9)
    assert noise <= 1e5


def test_bisection_limits() -> None:
    assert smallest_noise_multiplier(lambda z: True) == 1e-6
    with pytest.raises(InvalidValueError, match=r"noise_multiplier=100000.*larger budget"):
        smallest_noise_multiplier(lambda z: False)
