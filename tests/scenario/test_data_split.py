"""Who is held out: the client's own identity decides, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from fedDP.errors import InvalidValueError
from fedDP.scenario.split import held_out_rows, is_held_out


def test_fraction_is_met() -> None:
    for fraction in (0.1, 0.25, 0.9):
        share = np.mean([is_held_out("basel", f"p{number}", fraction) for number in range(4000)])
        assert abs(share - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / 4000)


def test_membership_is_fixed() -> None:
    """The key is part of the format: the same people stay held out from one version to the next."""
    assert [number for number in range(20) if is_held_out("basel", f"p{number}", 0.25)] == [4, 10, 11, 13, 14, 16]


def test_larger_fractions_hold_out_more() -> None:
    ids = [f"p{number}" for number in range(300)]
    held = [{name for name in ids if is_held_out("basel", name, fraction)} for fraction in (0.0, 0.2, 0.5, 0.9)]
    assert held[0] == set() < held[1] < held[2] < held[3]


def test_sites_and_ids_are_kept_apart() -> None:
    one = [is_held_out("ab", f"c{number}", 0.5) for number in range(200)]
    other = [is_held_out("a", f"bc{number}", 0.5) for number in range(200)]
    assert one != other


@pytest.mark.parametrize("within_clients", [False, True])
def test_a_client_does_not_depend_on_others(within_clients: bool) -> None:
    rng = np.random.default_rng(1)
    clients = np.array([f"p{number}" for number in rng.integers(0, 40, 400)])
    sites = np.array([f"s{number}" for number in rng.integers(0, 3, 400)])
    together = held_out_rows(sites, clients, test_fraction=0.4, within_clients=within_clients)
    for client in set(clients.tolist()):
        own = clients == client
        alone = held_out_rows(sites[own], clients[own], test_fraction=0.4, within_clients=within_clients)
        np.testing.assert_array_equal(alone, together[own])


def test_clients_are_held_out_whole() -> None:
    clients = np.array([f"p{number % 50}" for number in range(500)])
    held = held_out_rows(np.full(500, "all"), clients, test_fraction=0.5, within_clients=False)
    assert set(clients[held]).isdisjoint(clients[~held])
    assert held.any()


def test_rows_are_held_out_within_clients() -> None:
    clients = np.repeat(np.array(["north", "south"]), 500)
    held = held_out_rows(clients, clients, test_fraction=0.25, within_clients=True)
    for client in ("north", "south"):
        assert 0.15 < held[clients == client].mean() < 0.35
    assert held[:500].tolist() != held[500:].tolist()


@pytest.mark.parametrize("fraction", [-0.1, 0.91, float("nan"), True])
def test_refuses_fractions(fraction: float) -> None:
    with pytest.raises(InvalidValueError, match=r"test_fraction=.*expected a number in \[0, 0\.9\]"):
        held_out_rows(np.array(["a"]), np.array(["a"]), test_fraction=fraction, within_clients=False)
