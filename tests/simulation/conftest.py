"""One thread, as every worker has; and Flower imported where its dependencies' own warnings are no errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

with warnings.catch_warnings():
    # typer, which Flower imports, uses names that click 8.4 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.serverapp  # noqa: F401

if TYPE_CHECKING:
    from tests.simulation.commands import Commands
    from tests.simulation.crashes import Finished


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs `feddp` in processes that may be killed."""
    from tests.simulation.commands import Commands

    with Commands(tmp_path_factory.mktemp("streams")) as started:
        yield started


@pytest.fixture(scope="session")
def seeded(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A seeded run that nothing has interrupted."""
    from tests.simulation.crashes import SEEDED, straight

    return straight(commands, tmp_path_factory.mktemp("seeded"), SEEDED)
