"""Can an attacker who sees the release tell whether one client took part? No better than the event says.

One client returns C * u for a random direction u in one world and nothing in the other; everybody else returns updates
of their own. The score is the release along u, the threshold was fixed beforehand. From 1,000 rounds a world,
Clopper-Pearson bounds (95 % for both error rates together) give a lower bound on the mu of Gaussian DP. At z = 0.5 a
right implementation stays between 0.75 / z and 1 / z for 99.7 % of all seeds; this one is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, norm

import fedDP.strategies.release as release
import fedDP.training.local_round as local_round
from fedDP.privacy.clipping import clip
from fedDP.privacy.noise import gaussian_noise
from tests.strategies.nodes import Node, make_strategy, model, open_ledger, releases
from tests.training.cases import Floats

Z, C, SIZE, CLIENTS = 0.5, 0.4, 100, 10
SEEDS = {"with": 11, "without": 12}


def direction() -> Floats:
    vector: Floats = np.random.default_rng(1).normal(size=SIZE)
    vector /= np.linalg.norm(vector)
    return vector


def scores(folder: Path, world: str, repetitions: int, *, canary_norm: float = C) -> Floats:
    """The release along u, in units of C, of `repetitions` rounds of the whole strategy."""
    canary = direction() * canary_norm
    others = np.random.default_rng(2).normal(size=(CLIENTS, SIZE)) * 0.01
    base = others[1:].sum(axis=0) @ direction() / C

    def update(site: int, client: int, parameters: Any) -> Floats:
        row: Floats = others[client]
        if client == 0:
            row = canary if world == "with" else np.zeros(SIZE)
        return row

    (folder / world).mkdir(parents=True)
    strategy = make_strategy(
        clip_norm=C, noise_multiplier=Z, ledger=open_ledger(folder / world), seed=SEEDS[world], run_id=world
    )
    means = releases(strategy, Node({"a": [1] * CLIENTS}, update), model((SIZE,)), rounds=repetitions)
    along: Floats = np.array(means) @ direction() * strategy.denominator / C - base
    return along


def mu_lower_bound(present: Floats, absent: Floats) -> float:
    """A lower bound on mu from the two error rates at the threshold 1/2, each bounded at 97.5 %."""

    def upper(errors: int, trials: int) -> float:
        return float(beta.ppf(0.975, errors + 1, trials - errors)) if errors < trials else 1.0

    misses = upper(int((present <= 0.5).sum()), present.size)
    false_alarms = upper(int((absent > 0.5).sum()), absent.size)
    return float(norm.ppf(1.0 - false_alarms) - norm.ppf(misses))


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where the system has a place there: thousands of charges wait for no disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.slow
def test_the_guarantee_is_neither_broken_nor_loose(folder: Path) -> None:
    bound = mu_lower_bound(scores(folder, "with", 1000), scores(folder, "without", 1000))
    assert 0.75 / Z <= bound <= 1.0 / Z


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["half the noise", "no clip"])
def test_broken_variants_are_flagged(folder: Path, monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    def half(size: int, *, noise_multiplier: float, **options: Any) -> Any:
        return gaussian_noise(size, noise_multiplier=noise_multiplier / 2, **options)

    if defect == "half the noise":
        monkeypatch.setattr(release, "gaussian_noise", half)
    else:
        monkeypatch.setattr(local_round, "clip", lambda update, clip_norm: clip(update, 100.0) * int(100.0 / clip_norm))
    present = scores(folder, "with", 120, canary_norm=3 * C)
    absent = scores(folder, "without", 120, canary_norm=3 * C)
    assert mu_lower_bound(present, absent) > 1.0 / Z
