from __future__ import annotations

import dataclasses
import decimal
import json
import math
from typing import Any

import numpy as np
import pytest

from fedDP.accounting.events import (
    NEIGHBORING_RELATIONS,
    FixedSize,
    FullParticipation,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Sampling,
    event_from_dict,
    events_all_full,
    sampling_from_dict,
    sensitivity,
)
from fedDP.errors import InvalidValueError, UnsupportedError

NOT_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, True, False, None, "1.0", 1j, np.bool_(True), np.array([1.0])]
SAMPLINGS: list[Sampling] = [Poisson(1 / 3), Poisson(1), FullParticipation(), FixedSize(3, 5)]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1, 0, 0.0, -0.0, 1.0001e5, 1e15, decimal.Decimal(1)])
def test_noise_multiplier_outside_its_range_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="noise_multiplier="):
        Gaussian(value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1, 0, 0.0, 1.0000001, 2])
def test_rate_outside_its_range_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="rate="):
        Poisson(value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1, 0, 1.5, 2 * 10**9])
def test_count_outside_its_range_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="count="):
        Gaussian(1.0, count=value)


@pytest.mark.parametrize(("cohort_size", "population"), [(0, 5), (6, 5), (1.5, 5), (True, 5), (3, math.nan)])
def test_fixed_size_is_validated(cohort_size: Any, population: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"cohort_size|population"):
        FixedSize(cohort_size, population)


@pytest.mark.parametrize("sampling", [None, 0.5, "poisson", Poisson])
def test_unknown_samplers_are_refused(sampling: Any) -> None:
    with pytest.raises(InvalidValueError, match="sampling="):
        Gaussian(1.0, sampling=sampling)


def test_a_subclass_of_a_sampler_is_refused() -> None:
    class Flattering(FullParticipation):
        pass

    with pytest.raises(InvalidValueError, match="sampling="):
        Gaussian(1.0, sampling=Flattering())


def test_numbers_become_plain_floats_and_ints() -> None:
    rate: Any = np.float32(0.1)
    count: Any = np.int64(3)
    event = Gaussian(2, sampling=Poisson(rate), count=count)
    assert event == Gaussian(2.0, sampling=Poisson(float(np.float32(0.1))), count=3)
    assert type(event.noise_multiplier) is float
    assert type(event.count) is int
    assert isinstance(event.sampling, Poisson)
    assert type(event.sampling.rate) is float


def test_events_are_frozen_and_hashable() -> None:
    event = Gaussian(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.noise_multiplier = 2.0  # type: ignore[misc]
    assert len({event, Gaussian(1)}) == 1


def test_everything_after_the_noise_multiplier_is_keyword_only() -> None:
    with pytest.raises(TypeError):
        Gaussian(1.0, Poisson(0.1))  # type: ignore[call-arg]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_round_trip_through_json_is_exact(sampling: Sampling) -> None:
    event = Gaussian(0.1 + 0.2, sampling=sampling, count=7)
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    assert sampling_from_dict(sampling.to_dict()) == sampling


@pytest.mark.parametrize(
    "change",
    [
        {"type": "laplace"},
        {"type": None},
        {"type": ["gaussian"]},
        {"extra": 1},
        {"sampling": None},
        {"sampling": "poisson"},
        {"sampling": {"type": "poisson"}},
        {"sampling": {"type": "poisson", "rate": 0.1, "cap": 3}},
        {"sampling": {"type": "truncated", "rate": 0.1}},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": "1.0"},
        {"sampling": {"type": "poisson", "rate": True}},
        {"count": 0},
        {"count": None},
    ],
)
def test_reading_fails_closed(change: dict[str, Any]) -> None:
    with pytest.raises((UnsupportedError, InvalidValueError)):
        event_from_dict(Gaussian(1.0).to_dict() | change)


@pytest.mark.parametrize("key", ["type", "noise_multiplier", "sampling", "count"])
def test_missing_keys_are_refused(key: str) -> None:
    values = Gaussian(1.0).to_dict()
    del values[key]
    with pytest.raises(UnsupportedError):
        event_from_dict(values)


def test_reading_something_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        event_from_dict([("type", "gaussian")])  # type: ignore[arg-type]


def test_full_participation_is_recognised() -> None:
    assert events_all_full([])
    assert events_all_full([Gaussian(1.0), Gaussian(1.0, sampling=Poisson(1))])
    assert not events_all_full([Gaussian(1.0), Gaussian(1.0, sampling=Poisson(math.nextafter(1.0, 0.0)))])


def test_a_cohort_of_everybody_is_full_participation() -> None:
    assert events_all_full([Gaussian(1.0, sampling=FixedSize(5, 5))])
    assert not events_all_full([Gaussian(1.0, sampling=FixedSize(10**9 - 1, 10**9))])


SOUND = {
    ("gdp", "full", "zero_out"), ("gdp", "full", "add_remove"), ("gdp", "full", "replace_one"),
    ("rdp", "full", "zero_out"), ("rdp", "full", "add_remove"), ("rdp", "full", "replace_one"),
    ("pld", "full", "zero_out"), ("pld", "full", "add_remove"), ("pld", "full", "replace_one"),
    ("rdp", "poisson", "zero_out"), ("rdp", "poisson", "add_remove"),
    ("pld", "poisson", "zero_out"), ("pld", "poisson", "add_remove"), ("pld", "poisson", "replace_one"),
    ("rdp", "fixed", "replace_one"), ("pld", "fixed", "replace_one"),
}  # fmt: skip


@pytest.mark.parametrize("accountant", ["gdp", "rdp", "pld"])
@pytest.mark.parametrize("relation", NEIGHBORING_RELATIONS)
def test_what_is_sound_is_the_documented_table(accountant: str, relation: NeighboringRelation) -> None:
    samplings: dict[str, list[Sampling]] = {
        "full": [FullParticipation(), Poisson(1.0), FixedSize(5, 5)],
        "poisson": [Poisson(0.1), Poisson(math.nextafter(1.0, 0.0))],
        "fixed": [FixedSize(1, 5), FixedSize(4, 5)],
    }
    for kind, members in samplings.items():
        for sampling in members:
            event = Gaussian(1.0, sampling=sampling)
            assert event.supports(accountant, relation) == ((accountant, kind, relation) in SOUND)
            if not event.supports(accountant, relation):
                assert f"accountant={accountant!r} with sampling={sampling!r}" in str(
                    event.refusal(accountant, relation)
                )
                cost: dict[str, Any] = {
                    "gdp": lambda event=event: event.squared_mu(relation),
                    "rdp": lambda event=event: event.rdp_costs((2.0,), relation),
                    "pld": lambda event=event: event.dominating_pair(relation),
                }
                with pytest.raises(UnsupportedError, match="Use"):
                    cost[accountant]()


def test_replace_one_doubles_the_sensitivity_and_unknown_relations_are_refused() -> None:
    assert [sensitivity("zero_out"), sensitivity("add_remove"), sensitivity("replace_one")] == [1.0, 1.0, 2.0]
    unknown: Any = "replace_special"
    with pytest.raises(InvalidValueError, match=r"neighboring_relation='replace_special'.*zero_out"):
        sensitivity(unknown)
