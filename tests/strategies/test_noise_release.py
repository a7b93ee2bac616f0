"""The noise of a release, measured on the model that comes out of the whole strategy.

Clients return zero, so a released update is noise alone. Seeds are fixed. For a chi-square statistic of d coordinates
the accepted band is the central 1 - 2e-6 of its distribution: with d = 4,000 a standard deviation that is 10 % off is
rejected with probability above 0.9999, and 0.7 or 1.4 of it always.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from scipy.stats import chi2, kstest

import fedDP.strategies.release as release
from fedDP.accounting import FullParticipation, Poisson
from fedDP.errors import GrantError
from fedDP.privacy.keys import RootKey
from fedDP.privacy.noise import gaussian_noise
from fedDP.simulation.local_grid import LocalGrid
from fedDP.strategies.messages import to_array_record
from tests.strategies.nodes import Node, flat, make_strategy, model, open_ledger, releases, run
from tests.training.cases import Floats

Z, C = 1.5, 0.8
SITES = {"a": [3, 4, 5, 1], "b": [2, 2, 0, 7]}
SHAPES = ((50, 40), (), (2000,))
LEVEL = 1e-6


def accepts(noise: Floats, std: float) -> bool:
    """Whether independent normals of standard deviation `std` can have given `noise`."""
    statistic = float(np.square(noise / std).sum())
    return bool(chi2.ppf(LEVEL, noise.size) < statistic < chi2.isf(LEVEL, noise.size))


def noise_of(folder: Path, node: Node | None = None, *, rounds: int = 1, **options: Any) -> tuple[list[Floats], float]:
    """Released updates, and the standard deviation that they should have."""
    options = {"sampling": FullParticipation(), "num_nodes": 1, "ledger": None, **options}
    ledger = options.pop("ledger") or open_ledger(folder)
    num_nodes = options.pop("num_nodes")
    strategy = make_strategy(clip_norm=C, noise_multiplier=Z, ledger=ledger, **options)
    out = releases(strategy, node or Node(SITES), model(*SHAPES), rounds=rounds, num_nodes=num_nodes)
    return out, Z * C / strategy.denominator


def test_the_denominator_is_the_expected_cohort(tmp_path: Path) -> None:
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path), sampling=Poisson(0.25))
    strategy.enrol(LocalGrid(Node(SITES).app()))
    assert strategy.denominator == 2.0


@pytest.mark.parametrize("sampling", [FullParticipation(), Poisson(0.3)])
def test_zero_updates_release_noise_of_the_right_scale(tmp_path: Path, sampling: Poisson | FullParticipation) -> None:
    (noise,), std = noise_of(tmp_path, sampling=sampling)
    # v.weight is 0-d: it is a group of one coordinate, which the level allows to be 5 standard deviations off.
    groups = {"x": noise[:2000], "y": noise[2000:2001], "z": noise[2001:]}
    for group in (*groups.values(), noise):
        assert accepts(group, std)
    assert not accepts(noise, 0.9 * std)
    assert not accepts(noise, 1.1 * std)
    assert kstest(noise / std, "norm").pvalue > 1e-3
    assert (noise != 0.0).all()


@pytest.mark.parametrize("factor", [0.7, 0.5, 1.4])
def test_the_same_test_rejects_noise_of_a_wrong_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    def wrong(size: int, *, noise_multiplier: float, **options: Any) -> Any:
        return gaussian_noise(size, noise_multiplier=factor * noise_multiplier, **options)

    monkeypatch.setattr(release, "gaussian_noise", wrong)
    (noise,), std = noise_of(tmp_path)
    assert not accepts(noise[:2000], std)
    assert not accepts(noise, std)


def test_rounds_and_coordinates_are_independent(tmp_path: Path) -> None:
    rounds, std = noise_of(tmp_path, rounds=3)
    bound = 5.0 / np.sqrt(rounds[0].size)
    for first in range(3):
        for second in range(first):
            assert abs(np.corrcoef(rounds[first], rounds[second])[0, 1]) < bound
    for lag in (1, 2, 2000):
        assert abs(np.corrcoef(rounds[0][lag:], rounds[0][:-lag])[0, 1]) < bound
    # A repeated or shared draw would make a difference smaller than two independent ones.
    assert accepts(rounds[0] - rounds[1], np.sqrt(2.0) * std)


def failing(order: Message, reply: Message, node_id: int) -> Message:
    raise RuntimeError("this node is gone")


def first_node_fails(order: Message, reply: Message, node_id: int) -> Message:
    if node_id == 1:
        raise RuntimeError("this node is gone")
    return reply


@pytest.mark.parametrize(
    ("node", "sampling", "num_nodes"),
    [
        pytest.param(Node(SITES, spoil=failing), FullParticipation(), 2, id="no node replies"),
        pytest.param(Node(SITES, spoil=first_node_fails), FullParticipation(), 3, id="one node of three drops out"),
        pytest.param(Node(SITES), Poisson(1e-6), 2, id="empty cohort"),
        pytest.param(Node({"a": [0, 0, 0, 0], "b": [0, 0, 0, 0]}), FullParticipation(), 1, id="nobody has records"),
    ],
)
def test_dropouts_and_empty_cohorts_change_no_bit_of_the_noise(
    tmp_path: Path, node: Node, sampling: Poisson | FullParticipation, num_nodes: int
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (expected,), std = noise_of(tmp_path / "one")
    (noise,), own_std = noise_of(tmp_path / "two", node, sampling=sampling, num_nodes=num_nodes)
    # The key is the same and so is the draw; only the public denominator differs.
    np.testing.assert_allclose(noise / own_std, expected / std, rtol=1e-12)
    assert accepts(noise, own_std)


def test_an_empty_cohort_is_charged_and_marked_like_any_other(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    node = Node(SITES)
    (noise,), std = noise_of(tmp_path, node, sampling=Poisson(1e-6), ledger=ledger)
    assert node.orders == []
    assert accepts(noise, std)
    assert ledger.head[0] == 2  # the definition, the charge, the mark


def test_the_noise_of_a_seeded_run_repeats_and_of_an_unseeded_run_does_not(tmp_path: Path) -> None:
    def draw(name: str, seed: int | None) -> Floats:
        (tmp_path / name).mkdir()
        (noise,), std = noise_of(tmp_path / name, seed=seed)
        assert accepts(noise, std)
        return noise

    assert np.array_equal(draw("a", 7), draw("b", 7))
    assert not np.array_equal(draw("c", 8), draw("d", 7))
    one, two = draw("e", None), draw("f", None)
    assert abs(np.corrcoef(one, two)[0, 1]) < 5.0 / np.sqrt(one.size)


def test_two_runs_that_share_an_unseeded_root_key_do_not_share_noise(tmp_path: Path) -> None:
    """The difference of two releases with one draw would cancel it."""
    root, ledger = RootKey.create(), open_ledger(tmp_path, simulation=False)
    (one,), _ = noise_of(tmp_path, root_key=root, ledger=ledger, run_id="one")
    (two,), std = noise_of(tmp_path, root_key=root, ledger=ledger, run_id="two")
    assert accepts(one - two, np.sqrt(2.0) * std)


def test_global_generators_have_no_say(tmp_path: Path) -> None:
    """A user who seeds NumPy and torch before every round neither repeats nor knows the noise."""

    def seeding(site: int, client: int, parameters: Any) -> Floats:
        np.random.seed(42)  # noqa: NPY002
        torch.manual_seed(0)
        return np.zeros(4001)

    state = np.random.get_state()  # noqa: NPY002
    rounds, std = noise_of(tmp_path, Node(SITES, seeding), rounds=2, seed=None)
    known = np.random.RandomState(42).normal(size=4001)
    np.random.set_state(state)  # noqa: NPY002
    assert abs(np.corrcoef(rounds[0], rounds[1])[0, 1]) < 5.0 / np.sqrt(4001)
    for noise in rounds:
        assert accepts(noise, std)
        assert abs(np.corrcoef(noise, known)[0, 1]) < 5.0 / np.sqrt(4001)


def test_drawing_noise_leaves_global_generators_alone(tmp_path: Path) -> None:
    before = np.random.get_state()[1].copy(), torch.random.get_rng_state().clone()  # type: ignore[index] # noqa: NPY002
    noise_of(tmp_path, rounds=2)
    assert np.array_equal(before[0], np.random.get_state()[1])  # type: ignore[index] # noqa: NPY002
    assert torch.equal(before[1], torch.random.get_rng_state())


def test_a_grant_gives_noise_once(tmp_path: Path) -> None:
    strategy = make_strategy(noise_multiplier=Z, ledger=open_ledger(tmp_path))
    grid = LocalGrid(Node(SITES).app())
    record = to_array_record(model(*SHAPES))
    messages = list(strategy.configure_train(1, record, ConfigRecord(), grid))
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    with pytest.raises(GrantError, match="used already"):
        strategy.aggregate_train(1, [])


def test_without_noise_zero_updates_change_nothing() -> None:
    assert np.array_equal(flat(run(make_strategy(), Node(SITES), model(*SHAPES, fill=0.3))), np.full(4001, 0.3))
