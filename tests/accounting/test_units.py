from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import (
    ACCOUNTANTS,
    Gaussian,
    Guarantee,
    NeighboringRelation,
    Poisson,
    calibrate_noise_multiplier,
    delta,
    epsilon,
    gdp_delta,
    gdp_epsilon,
    group_epsilon,
    group_guarantee,
    noise_in_words,
    noise_per_coordinate,
    parallel_guarantee,
    person_epsilon,
    rdp,
    rdp_epsilon,
    sequential_guarantee,
)
from fedDP.errors import InvalidValueError, UnsupportedError

# Values with their provenance: mpmath and dp-accounting 0.6.0 agree on them.
REFERENCE: dict[str, Any] = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))["cases"]
}
SAMPLED = Gaussian(1.3, sampling=Poisson(0.02), count=100)
NOT_COUNTS = [0, -1, 1.5, math.nan, math.inf, True, None, "2", 10**10]


def from_mu(mu: float, count: int = 1) -> Gaussian:
    return Gaussian(math.sqrt(count) / mu, count=count)


# --- a person in several silos, each with its own noise


@pytest.mark.parametrize(("silos", "expected"), [(1, 1.993), (2, 2.943), (3, 3.709), (5, 4.983)])
def test_a_person_in_several_silos_costs_the_root_of_the_sum_of_squares(silos: int, expected: float) -> None:
    found = person_epsilon([[from_mu(0.5)]] * silos, 1e-5)
    assert found == pytest.approx(expected, abs=5e-4)
    assert found == pytest.approx(gdp_epsilon(0.5 * math.sqrt(silos), 1e-5), rel=1e-12)


def test_golden_person_in_two_silos() -> None:
    case = REFERENCE["person_in_2_silos_mu0.5"]
    inputs = case["inputs"]
    silos = [[from_mu(inputs["mu_each"])]] * inputs["silos"]
    assert person_epsilon(silos, inputs["delta"]) == pytest.approx(case["value"], rel=1e-9)


@pytest.mark.parametrize("relation", ["zero_out", "add_remove", "replace_one"])
def test_several_records_multiply_their_silos_distance(relation: NeighboringRelation) -> None:
    distance = 2.0 if relation == "replace_one" else 1.0
    silos = [[from_mu(0.1, count=30)], [from_mu(0.3), from_mu(0.4)], [from_mu(0.2)]]
    mu = distance * math.sqrt((3 * 0.1) ** 2 + 0.5**2 + (2 * 0.2) ** 2)
    found = person_epsilon(silos, 1e-6, records=[3, 1, 2], neighboring_relation=relation)
    assert found == pytest.approx(gdp_epsilon(mu, 1e-6), rel=1e-9)


def test_renyi_costs_add_up() -> None:
    silos = [[SAMPLED], [Gaussian(3.0, count=7)], [Gaussian(0.9, sampling=Poisson(0.001), count=1000)]]
    total = sum(rdp(event) for silo in silos for event in silo)
    assert person_epsilon(silos, 1e-5, accountant="rdp") == pytest.approx(rdp_epsilon(total, 1e-5), rel=1e-12)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_laws_of_persons(accountant: str) -> None:
    silos = [[Gaussian(2.0, count=3)], [Gaussian(5.0)], [Gaussian(1.5)]]
    together = person_epsilon(silos, 1e-5, accountant=accountant)
    for order in itertools.permutations(silos):
        assert person_epsilon(order, 1e-5, accountant=accountant) == together
    alone = [epsilon(silo, 1e-5, accountant) for silo in silos]
    assert max(alone) < together
    assert person_epsilon(silos, 1e-5, records=[1, 2, 1], accountant=accountant) > together
    assert person_epsilon(silos[:1], 1e-5, accountant=accountant) == alone[0]


def test_a_person_never_costs_more_than_the_general_rule() -> None:
    silos = [[from_mu(mu)] for mu in (0.2, 0.5, 1.0)]
    pairs = [Guarantee(epsilon(silo, 1e-6), 1e-6) for silo in silos]
    general = sequential_guarantee(pairs)
    assert general.epsilon > person_epsilon(silos, general.delta)


def test_sampled_silos_with_several_records_are_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedError, match=r"records=2.*unsampled.*group_guarantee"):
        person_epsilon([[SAMPLED], [Gaussian(3.0)]], 1e-5, records=[2, 1])
    assert person_epsilon([[SAMPLED], [Gaussian(3.0)]], 1e-5, records=[1, 2]) > 0.0


def test_bad_records_are_refused() -> None:
    for bad in NOT_COUNTS:
        with pytest.raises(InvalidValueError, match="records="):
            person_epsilon([[Gaussian(1.0)]], 1e-5, records=[bad])  # type: ignore[list-item]
    with pytest.raises(InvalidValueError, match=r"records=\[1\]: expected one number for each of the 2 silos"):
        person_epsilon([[Gaussian(1.0)]] * 2, 1e-5, records=[1])
    with pytest.raises(InvalidValueError, match="silos="):
        person_epsilon([], 1e-5)


# --- groups: records of one silo, and silos under central noise


def test_golden_group() -> None:
    case = REFERENCE["group_mu0.5_k3"]
    inputs = case["inputs"]
    found = group_epsilon([from_mu(inputs["mu"])], inputs["delta"], size=inputs["k"])
    assert found == pytest.approx(case["value"], rel=1e-9)


def test_central_noise_meets_a_persons_silos_all_at_once() -> None:
    """The contrast of two silos at mu 0.5: 4.377 where the noise is on the sum, 2.943 where each silo has its own."""
    assert group_epsilon([from_mu(0.5)], 1e-5, size=2) == pytest.approx(4.377, abs=5e-4)
    assert person_epsilon([[from_mu(0.5)]] * 2, 1e-5) == pytest.approx(2.943, abs=5e-4)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_group_costs_what_so_much_less_noise_costs(accountant: str) -> None:
    events = [Gaussian(6.0, count=5), Gaussian(9.0)]
    expected = epsilon([Gaussian(2.0, count=5), Gaussian(3.0)], 1e-5, accountant)
    assert group_epsilon(events, 1e-5, size=3, accountant=accountant) == pytest.approx(expected, rel=1e-12)


def test_groups_in_sampled_releases_are_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedError, match=r"size=2.*unsampled.*group_guarantee"):
        group_epsilon([Gaussian(1.0), SAMPLED], 1e-5, size=2)
    assert group_epsilon([SAMPLED], 1e-5, size=1) == epsilon([SAMPLED], 1e-5)


@pytest.mark.parametrize("bad", NOT_COUNTS)
def test_bad_sizes_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidValueError, match="size="):
        group_epsilon([Gaussian(1.0)], 1e-5, size=bad)
    with pytest.raises(InvalidValueError, match="size="):
        group_guarantee(Guarantee(1.0, 1e-6), bad)


@pytest.mark.parametrize("size", [2, 3, 10])
@pytest.mark.parametrize("value", [0.0, 1e-300, 1e-9, 0.1, 1.0, 5.0])
def test_the_general_group_rule_is_the_sum_rounded_up(value: float, size: int) -> None:
    pair = group_guarantee(Guarantee(value, 1e-30), size)
    exact = sum(math.exp(step * value) for step in range(size)) * 1e-30
    assert exact <= pair.delta <= exact * (1.0 + 1e-11)
    assert Fraction(pair.epsilon) >= size * Fraction(value)
    assert pair.epsilon == pytest.approx(size * value, rel=1e-15)


def test_the_general_group_rule_holds_for_a_mechanism_that_is_known() -> None:
    for mu, at, size in itertools.product([0.1, 0.5, 1.0], [0.5, 1.0, 2.0], [2, 3, 5]):
        pair = Guarantee(at, gdp_delta(mu, at))
        try:
            group = group_guarantee(pair, size)
        except InvalidValueError:
            continue
        assert gdp_delta(size * mu, group.epsilon) <= group.delta
    unit = Guarantee(1.0, delta([SAMPLED], 1.0))
    assert group_guarantee(unit, 1) == unit


def test_group_pairs_that_promise_nothing_are_refused() -> None:
    for value, at, size in [(5.0, 1e-5, 4), (1e9, 1e-11, 2), (0.0, 0.5, 2), (400.0, 5e-324, 3), (1.0, 1e-300, 10**9)]:
        with pytest.raises(InvalidValueError, match=r"delta=.*account each part at a smaller delta"):
            group_guarantee(Guarantee(value, at), size)
    assert group_guarantee(Guarantee(500.0, 0.0), 1000) == Guarantee(500_000.0, 0.0)


# --- pairs


def test_disjoint_records_have_the_largest_of_the_silos() -> None:
    silos = [Guarantee(0.5, 1e-6), Guarantee(2.0, 1e-7), Guarantee(1.0, 1e-5)]
    for order in itertools.permutations(silos):
        assert parallel_guarantee(order) == Guarantee(2.0, 1e-5)
    assert parallel_guarantee(silos[:1]) == silos[0]


def test_shared_records_have_the_sum_of_the_silos_rounded_up() -> None:
    silos = [Guarantee(0.1, 1e-6), Guarantee(0.2, 1e-7), Guarantee(0.3, 1e-5)]
    for order in itertools.permutations(silos):
        pair = sequential_guarantee(order)
        exact = sum((Fraction(silo.epsilon) for silo in silos), Fraction(0))
        assert exact <= Fraction(pair.epsilon) <= exact * (1 + Fraction(1, 2**52))
        exact = sum((Fraction(silo.delta) for silo in silos), Fraction(0))
        assert exact <= Fraction(pair.delta) <= exact * (1 + Fraction(1, 2**52))
    assert sequential_guarantee(silos[:1]) == silos[0]
    with pytest.raises(InvalidValueError, match="delta="):
        sequential_guarantee([Guarantee(1.0, 0.5)] * 2)


def test_no_silo_is_no_guarantee() -> None:
    for rule in (parallel_guarantee, sequential_guarantee):
        with pytest.raises(InvalidValueError, match="silos="):
            rule([])


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf, True, None, "1"])
def test_bad_pairs_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidValueError, match="epsilon="):
        Guarantee(bad, 1e-6)
    with pytest.raises(InvalidValueError, match="delta="):
        Guarantee(1.0, bad)
    with pytest.raises(InvalidValueError, match=r"delta=1\.0"):
        Guarantee(1.0, 1.0)


# --- what an epsilon means in noise


@pytest.mark.parametrize(
    ("clients", "dimension", "expected"),
    [(5, 10**4, 528), (5, 10**6, 5276), (1000, 10**4, 2.6), (1000, 10**6, 26)],
)
def test_noise_beside_the_signal(clients: int, dimension: int, expected: float) -> None:
    noise = calibrate_noise_multiplier(1.0, 1e-5, count=50)
    assert noise == pytest.approx(26.4, abs=0.05)
    found = noise_per_coordinate(noise, dimension=dimension, denominator=clients)
    assert found == pytest.approx(expected, rel=0.015 if clients == 1000 else 1e-3)


def test_noise_is_the_norm_of_what_is_added_to_the_average() -> None:
    import numpy as np

    noise, dimension, clients = 3.0, 400_000, 50.0
    added = np.random.default_rng(1).normal(0.0, noise, dimension) / clients
    found = noise_per_coordinate(noise, dimension=dimension, denominator=clients)
    assert float(np.linalg.norm(added)) == pytest.approx(found, rel=0.01)


def test_noise_in_words_says_when_it_drowns_the_signal() -> None:
    assert "5,276 times" in noise_in_words(5276.0)
    assert "more noise than signal" in noise_in_words(1.0)
    assert "more noise than signal" not in noise_in_words(0.99)
    for bad in (-1.0, math.nan, math.inf, True):
        with pytest.raises(InvalidValueError, match="ratio="):
            noise_in_words(bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True, None, "1"])
def test_bad_noise_is_refused(bad: Any) -> None:
    good = {"noise_multiplier": 1.0, "dimension": 10, "denominator": 5.0}
    for name in good:
        values = {**good, name: bad}
        with pytest.raises(InvalidValueError, match=f"{name}="):
            noise_per_coordinate(values.pop("noise_multiplier"), **values)
