from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedDP.accounting import FixedSize, Gaussian, NeighboringRelation, Poisson, RdpAccountant, delta, epsilon, rdp
from fedDP.errors import InvalidValueError, UnsupportedError

EVENTS = [
    Gaussian(1.5, sampling=Poisson(0.02), count=30),
    Gaussian(9.0),
    Gaussian(1.1, sampling=Poisson(0.005)),
    Gaussian(1.5, sampling=Poisson(0.02)),
]


def test_it_says_what_the_accountant_says_after_every_event() -> None:
    running = RdpAccountant()
    assert running.epsilon(1e-5) == running.delta(0.0) == 0.0
    for known in range(1, len(EVENTS) + 1):
        running.compose(EVENTS[known - 1])
        assert running.epsilon(1e-5) == pytest.approx(epsilon(EVENTS[:known], 1e-5, "rdp"), rel=1e-13)
        assert running.delta(1.0) == pytest.approx(delta(EVENTS[:known], 1.0, "rdp"), rel=1e-12)


def test_the_relation_is_its_own() -> None:
    running = RdpAccountant("replace_one")
    events = [Gaussian(4.0, sampling=FixedSize(2, 10), count=4), Gaussian(9.0)]
    for event in events:
        running.compose(event)
    assert running.epsilon(1e-5) == pytest.approx(epsilon(events, 1e-5, "rdp", "replace_one"), rel=1e-13)
    with pytest.raises(UnsupportedError, match=r"rdp.*Poisson.*replace_one"):
        running.compose(EVENTS[0])
    unknown: Any = "swap"
    with pytest.raises(InvalidValueError, match="neighboring_relation='swap'"):
        RdpAccountant(unknown)


def test_a_refused_event_leaves_everything_as_it_was() -> None:
    running = RdpAccountant()
    running.compose(EVENTS[0])
    before = running.costs
    refused: list[Any] = [Gaussian(1.0, sampling=FixedSize(1, 2)), "gaussian", None]
    for event in refused:
        with pytest.raises(UnsupportedError):
            running.compose(event)
    np.testing.assert_array_equal(running.costs, before)


def test_its_costs_cannot_be_changed_from_outside() -> None:
    running = RdpAccountant()
    running.compose(EVENTS[0])
    running.costs[:] = 0.0
    np.testing.assert_array_equal(running.costs, rdp(EVENTS[0]))


def test_different_rounds_give_the_known_end() -> None:
    # Sampled rounds whose noise falls from 1.5 to 0.9, at rates between .005 and .02; the peer library says 3.1707
    # after all of 2000.
    rates, noises = np.random.default_rng(0).uniform(0.005, 0.02, 2000), np.linspace(1.5, 0.9, 2000)
    running = RdpAccountant()
    previous = 0.0
    for rate, noise in zip(rates[::10].tolist(), noises[::10].tolist(), strict=True):
        running.compose(Gaussian(noise, sampling=Poisson(rate), count=10))
        assert running.epsilon(1e-5) > previous
        previous = running.epsilon(1e-5)
    assert previous == pytest.approx(3.17, abs=0.1)


@pytest.mark.parametrize("relation", ["zero_out", "add_remove"])
def test_relations_of_one_client_absent_cost_the_same(relation: NeighboringRelation) -> None:
    running = RdpAccountant(relation)
    running.compose(EVENTS[0])
    np.testing.assert_array_equal(running.costs, rdp(EVENTS[0]))
