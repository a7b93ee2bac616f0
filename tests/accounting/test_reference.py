"""Golden values: every result lies between the exact value and the bounds of a peer's accountants."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedDP.accounting import (
    ORDERS,
    FixedSize,
    Gaussian,
    Poisson,
    calibrate_noise_multiplier,
    delta,
    epsilon,
    gdp_epsilon,
    gdp_mu,
    rdp,
    rdp_at,
    rdp_budget,
)

Case = dict[str, Any]
CASES: list[Case] = json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))["cases"]
SEGMENTS = {"gaussian", "poisson", "hetero"}
CALIBRATIONS = {"calibrate_gaussian", "calibrate_poisson", "yearly_gaussian_q1", "yearly_poisson"}
PER_LAYER = {"per_layer_gaussian", "per_layer_poisson"}
SEVERAL_RELEASES = {"person_across_silos_gdp", "group_privacy_gdp"}
EQUIVALENT = {"tree_aggregation", "adaptive_clip_split"}
OTHERS = {"gaussian_replace_one", "fixed_size_replace_one", "rdp_value", "rdp_filter_capacity", "poisson_single_delta"}


def of(*kinds: str, slow: bool = False) -> pytest.MarkDecorator:
    """One test a case of these kinds."""
    chosen = [case for case in CASES if case["kind"] in kinds]
    assert chosen
    marks = [pytest.mark.slow] if slow else []
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["id"], marks=marks) for case in chosen])


def test_every_case_is_used() -> None:
    used = SEGMENTS | CALIBRATIONS | PER_LAYER | SEVERAL_RELEASES | EQUIVALENT | OTHERS
    assert {case["kind"] for case in CASES} == used


@of(*SEGMENTS)
def test_epsilon(case: Case) -> None:
    events = [Gaussian(z, sampling=Poisson(q), count=rounds) for q, z, rounds in case["inputs"]["segments"]]
    at = case["inputs"]["delta"]
    assert case["value"] - 1e-4 <= epsilon(events, at, "rdp") <= 1.01 * case["dp_accounting_rdp"]
    if all(q == 1.0 for q, _, _ in case["inputs"]["segments"]):
        # The tolerance of the file is that of grid-based accountants; the exact one does far better.
        assert epsilon(events, at) == pytest.approx(case["value"], rel=1e-9, abs=0.0)
    found = epsilon(events, at, "pld")
    assert epsilon(events, at) == found
    assert case["value"] - 1e-4 <= found <= 1.01 * case["dp_accounting_rdp"]
    assert found <= epsilon(events, at, "rdp")
    assert found == pytest.approx(case["dp_accounting_pld"], abs=2e-5)


@of(*PER_LAYER)
def test_layers_noised_on_one_draw_are_one_gaussian(case: Case) -> None:
    inputs = case["inputs"]
    noise = sum(z**-2 for z in inputs["z_layers"]) ** -0.5
    events = [Gaussian(noise, sampling=Poisson(inputs["q"]), count=inputs["T"])]
    assert case["value"] - case["tol"] <= epsilon(events, inputs["delta"], "rdp") <= 1.01 * case["dp_accounting_rdp"]
    assert epsilon(events, inputs["delta"]) == pytest.approx(case["value"], rel=1e-9 if inputs["q"] == 1.0 else 1e-5)


@of("gaussian_replace_one")
def test_replace_one(case: Case) -> None:
    inputs = case["inputs"]
    events = [Gaussian(inputs["sigma_over_C"], count=inputs["T"])]
    assert epsilon(events, inputs["delta"], None, "replace_one") == pytest.approx(case["value"], rel=1e-9)
    bound = epsilon(events, inputs["delta"], "rdp", "replace_one")
    assert case["wrong"] < case["value"] <= bound < 1.1 * case["value"]


@of("fixed_size_replace_one")
def test_fixed_size(case: Case) -> None:
    inputs = case["inputs"]
    sampling = FixedSize(inputs["cohort_size"], inputs["population"])
    events = [Gaussian(inputs["noise_multiplier"], sampling=sampling, count=inputs["T"])]
    found = epsilon(events, inputs["delta"], None, "replace_one")
    assert case["attained"] <= found <= case["value"] + case["tol"]
    assert found == pytest.approx(case["value"], abs=1e-5)
    bound = epsilon(events, inputs["delta"], "rdp", "replace_one")
    full = epsilon([Gaussian(inputs["noise_multiplier"], count=inputs["T"])], inputs["delta"], "rdp", "replace_one")
    assert bound == pytest.approx(min(case["wbk_rdp"], full), rel=1e-6)
    poisson = [Gaussian(inputs["noise_multiplier"], sampling=Poisson(sampling.rate), count=inputs["T"])]
    replaced = epsilon(poisson, inputs["delta"], None, "replace_one")
    assert replaced == pytest.approx(case["poisson_replaced"], abs=1e-5)
    assert replaced < case["attained"]  # drawn together is not drawn independently


@of("tree_aggregation")
def test_nodes_of_a_tree_are_releases(case: Case) -> None:
    inputs = case["inputs"]
    nodes = math.ceil(math.log2(inputs["steps"] + 1)) * inputs["restarts"]
    events = [Gaussian(inputs["z"], count=nodes)]
    assert epsilon(events, inputs["delta"]) == pytest.approx(case["value"], rel=1e-9)
    assert case["value"] <= epsilon(events, inputs["delta"], "rdp") <= 1.001 * case["dp_accounting_rdp"]


@of("adaptive_clip_split")
def test_updates_and_counts_of_one_draw_are_one_gaussian(case: Case) -> None:
    inputs = case["inputs"]
    together = [Gaussian(case["value"]), Gaussian(2.0 * inputs["sigma_b"])]  # the count moves by 1/2
    assert gdp_mu(together) == pytest.approx(1.0 / inputs["z"], rel=case["tol"])


@of(*CALIBRATIONS, slow=True)
def test_calibration(case: Case) -> None:
    inputs = case["inputs"]
    count = inputs["T"] if "T" in inputs else inputs["weeks"] * inputs["rounds_per_week"]
    sampling = Poisson(inputs["q"])
    noise = calibrate_noise_multiplier(inputs["eps"], inputs["delta"], sampling=sampling, count=count)
    assert noise >= case["value"] - case["tol"]
    assert epsilon([Gaussian(noise, sampling=sampling, count=count)], inputs["delta"]) <= inputs["eps"]
    if inputs["q"] == 1.0:
        assert noise == pytest.approx(case["value"], rel=1e-8)
    else:
        assert noise <= case["value"] + case["tol"]
    if "weekly_epsilon" in case:
        week = Gaussian(case["value"], sampling=sampling, count=inputs["rounds_per_week"])
        assert epsilon([week], inputs["delta"]) == pytest.approx(case["weekly_epsilon"], abs=1e-6)


@of("rdp_value")
def test_renyi_cost(case: Case) -> None:
    inputs = case["inputs"]
    event = Gaussian(inputs["z"], sampling=Poisson(inputs["q"]))
    assert rdp(event)[ORDERS.index(inputs["alpha"])] == pytest.approx(case["value"], rel=1e-9, abs=0.0)
    if inputs["alpha"] == int(inputs["alpha"]):
        assert rdp_at(event, inputs["alpha"]) == pytest.approx(case["value"], rel=1e-9, abs=0.0)


@of("rdp_filter_capacity")
def test_filter_budget(case: Case) -> None:
    inputs = case["inputs"]
    budget = rdp_budget(inputs["eps"], inputs["delta"], inputs["alpha"])
    assert case["value"] * (1 - 1e-12) <= budget <= case["value"] + case["tol"]


@of("poisson_single_delta")
def test_delta_of_one_round(case: Case) -> None:
    inputs = case["inputs"]
    event = Gaussian(inputs["z"], sampling=Poisson(inputs["q"]))
    assert case["value"] * (1 - case["tol"]) <= delta([event], inputs["eps"]) <= inputs["q"]


@of("person_across_silos_gdp")
def test_one_person_in_several_places(case: Case) -> None:
    inputs = case["inputs"]
    events = [Gaussian(1.0 / inputs["mu_each"], count=inputs["silos"])]
    assert epsilon(events, inputs["delta"]) == pytest.approx(case["value"], rel=1e-9)


@of("group_privacy_gdp")
def test_groups(case: Case) -> None:
    inputs = case["inputs"]
    assert gdp_epsilon(inputs["mu"] * inputs["k"], inputs["delta"]) == pytest.approx(case["value"], rel=1e-9)
    assert math.isfinite(case["value"])
