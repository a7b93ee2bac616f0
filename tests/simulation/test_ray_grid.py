"""The grid of Ray actors: the same sums as in one process, whatever happens to the workers."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedDP.errors import FedDPError
from fedDP.simulation import LocalGrid, RayGrid
from fedDP.simulation.base_grid import SimulationGrid
from fedDP.strategies.messages import to_array_record
from tests.strategies.nodes import Node, flat, make_strategy, model
from tests.training.cases import Floats

pytestmark = [
    pytest.mark.e2e,
    # Ray leaves its services and their output files to the garbage collector.
    pytest.mark.filterwarnings(r"ignore:unclosed file .*/dev/null:ResourceWarning"),
    pytest.mark.filterwarnings(r"ignore:subprocess .* is still running:ResourceWarning"),
]

SITES = {"a": [3, 3, 3, 3, 3], "b": [2, 2, 9]}
SIZE = 50


@dataclass
class Update:
    """An update of every client's own, and what the file `folder`/behaviour makes one of them do."""

    folder: Path

    def __call__(self, site: int, client: int, parameters: Any) -> Floats:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as torch's about arrays that cannot be written
            self.behave(site, client, parameters)
        vector: Floats = np.random.default_rng([site, client]).normal(size=SIZE) * 0.1
        moved: Floats = vector + 0.01 * parameters["z.weight"]
        return moved

    def behave(self, site: int, client: int, parameters: Any) -> None:
        import torch

        from fedDP.training.vectorised import VectorisedTrainer  # noqa: F401 - as a real node loads it

        for value in parameters.values():
            torch.tensor(value)
        with suppress(FileNotFoundError):
            behaviour, *who = (self.folder / "behaviour").read_text().split()
            if [int(part) for part in who] != [site, client]:
                return
            if behaviour == "raise":
                raise ArithmeticError("diverged")
            if behaviour == "hang":
                time.sleep(300.0)
            if behaviour == "die":
                with suppress(FileNotFoundError):
                    os.unlink(self.folder / "behaviour")  # once
                os.kill(os.getpid(), signal.SIGKILL)
            if behaviour == "always-die":
                os.kill(os.getpid(), signal.SIGKILL)
            if behaviour == "exit":
                os._exit(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("behaviour")


@pytest.fixture
def behave(folder: Path) -> Iterator[Callable[[str], None]]:
    def set_to(what: str) -> None:
        (folder / "behaviour").write_text(what)

    yield set_to
    with suppress(FileNotFoundError):
        (folder / "behaviour").unlink()


@pytest.fixture(scope="module")
def before_ray() -> set[int]:
    return set(_descendants())


@pytest.fixture(scope="module")
def grid(folder: Path, before_ray: set[int]) -> Iterator[RayGrid]:
    """Four actors, which is more than a small machine has cores."""
    with RayGrid(Node(SITES, Update(folder)).app(), 4) as opened:
        yield opened
    gc.collect()


def trained(grid: SimulationGrid, *, rounds: int = 2, **options: Any) -> Floats:
    """The model after some rounds, with blocks of two clients."""
    strategy = make_strategy(block_size=2)
    result = strategy.start(grid, to_array_record(model((SIZE,))), num_rounds=rounds, **options)
    return flat(result.arrays)


def in_process(folder: Path, *, without: tuple[int, int] | None = None, rounds: int = 2) -> Floats:
    own = Update(folder)

    def update(site: int, client: int, parameters: Any) -> Floats:
        return np.zeros(SIZE) if (site, client) == without else own(site, client, parameters)

    return trained(LocalGrid(Node(SITES, update).app()), rounds=rounds)


def test_the_same_model_as_in_one_process(grid: RayGrid, folder: Path) -> None:
    assert len(set(grid.worker_pids())) == 4
    assert np.array_equal(trained(grid), in_process(folder))


def test_a_client_that_raises_is_lost_alone_and_its_traceback_reaches_the_driver(
    grid: RayGrid, folder: Path, behave: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected = in_process(folder, without=(0, 1))
    behave("raise 0 1")
    with caplog.at_level(logging.ERROR, "fedDP.node"):
        assert np.array_equal(trained(grid), expected)
    assert "client 1 of site a failed" in caplog.text
    assert "Traceback" in caplog.text
    assert "ArithmeticError: diverged" in caplog.text


def test_a_worker_that_is_killed_during_a_round_changes_nothing(
    grid: RayGrid, folder: Path, behave: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected = in_process(folder)
    before = grid.worker_pids()
    behave("die 0 3")
    with caplog.at_level(logging.WARNING, "fedDP.node"):
        assert np.array_equal(trained(grid), expected)
    assert "died and is started again" in caplog.text
    assert "counts as zero" not in caplog.text
    assert len(set(before) & set(grid.worker_pids())) == 3


def test_workers_that_are_killed_between_rounds_are_no_black_holes(
    grid: RayGrid, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A fresh process in an old worker's place answers like the old one."""
    expected = in_process(folder)
    for pid in grid.worker_pids()[:2]:
        os.kill(pid, signal.SIGKILL)
    time.sleep(6.0)  # long enough for Ray to start them again by itself
    with caplog.at_level(logging.WARNING, "fedDP.node"):
        assert np.array_equal(trained(grid), expected)
    assert "did not return a usable sum" not in caplog.text


def test_a_client_that_hangs_is_lost_alone_and_the_round_ends(
    grid: RayGrid, folder: Path, behave: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected = in_process(folder, without=(0, 1), rounds=1)
    behave("hang 0 1")
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "fedDP.node"):
        result = trained(grid, rounds=1, timeout=4.0)
    assert np.array_equal(result, expected)
    assert time.monotonic() - began < 90.0
    lost = [record.getMessage() for record in caplog.records if "counts as zero" in record.getMessage()]
    assert len(lost) == 1
    assert "client 1 of site a failed" in lost[0]
    assert "no reply within 4 s" in lost[0]


@pytest.mark.slow
def test_a_client_that_always_kills_its_worker_is_lost_alone(
    grid: RayGrid, folder: Path, behave: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected = in_process(folder, without=(1, 2), rounds=1)
    behave("always-die 1 2")
    with caplog.at_level(logging.WARNING, "fedDP.node"):
        assert np.array_equal(trained(grid, rounds=1), expected)
    assert "client 2 of site b failed" in caplog.text
    assert "its worker died" in caplog.text


def test_grids_one_after_the_other_leave_no_process_behind(grid: RayGrid, folder: Path, before_ray: set[int]) -> None:
    """Last, since it ends the Ray that the other tests share."""
    expected = in_process(folder)
    assert set(grid.worker_pids()) <= set(_descendants())
    grid.close()
    assert _left_behind(before_ray) == {}
    for num_nodes in (1, 2):
        with RayGrid(Node(SITES, Update(folder)).app(), num_nodes) as another:
            assert np.array_equal(trained(another), expected)
        assert _left_behind(before_ray) == {}
    gc.collect()


def test_a_cluster_that_is_not_there_is_an_error_with_a_remedy(folder: Path) -> None:
    with pytest.raises(FedDPError, match=r'ray_address=.* Use resources\.engine="local"'):
        RayGrid(Node(SITES, Update(folder)).app(), 1, address="not-an-address")


def _descendants() -> dict[int, str]:
    """Living processes that descend from this one, and their names."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, rest = stat.read_text().split("(", 1)[1].rsplit(")", 1)
            state, parent = rest.split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)], names[int(stat.parent.name)] = int(parent), name
    found = {os.getpid()}
    while True:
        grown = found | {pid for pid, parent in parents.items() if parent in found}
        if grown == found:
            return {pid: names[pid] for pid in found - {os.getpid()}}
        found = grown


def _left_behind(before: set[int]) -> dict[int, str]:
    """Processes that were not there before, after at most 15 seconds for them to end."""
    deadline = time.monotonic() + 15.0
    while (found := {pid: name for pid, name in _descendants().items() if pid not in before}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    return found
