"""One thread, as every worker has; and Flower imported where its dependencies' own warnings are no errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

with warnings.catch_warnings():
    # typer, which Flower imports, uses names that click 8.4 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.serverapp  # noqa: F401


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
