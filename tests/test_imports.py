"""What an import costs, and what the packages offer."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import fedDP

LAZY_PACKAGES = ["fedDP.budget", "fedDP.privacy"]


def loaded_after(statement: str, *modules: str) -> list[str]:
    """Which of `modules` a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {list(modules)!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import fedDP",
        "import fedDP.accounting",
        "from fedDP.privacy import *",
        "from fedDP.budget import *",
        "import fedDP.budget.ledger, fedDP.privacy.clipping",
    ],
)
def test_numbers_and_ledgers_need_neither_torch_nor_flwr_nor_ray(statement: str) -> None:
    assert loaded_after(statement, "torch", "flwr", "ray") == []


@pytest.mark.parametrize("statement", ["import fedDP", "import fedDP.privacy", "import fedDP.budget"])
def test_packages_load_on_first_use(statement: str) -> None:
    assert loaded_after(statement, "numpy", "scipy", "sqlalchemy", "cryptography") == []


def test_the_ranges_of_a_scenario_need_no_numpy() -> None:
    assert loaded_after("from fedDP.privacy.limits import NOISE_MULTIPLIER", "numpy", "cryptography") == []


def test_a_budget_needs_no_database() -> None:
    assert loaded_after("from fedDP.budget import Budget, SimulatedClock", "sqlalchemy") == []


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_lazy_packages_offer_what_they_say(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__ == sorted(package.__all__)
    assert package.__all__ == sorted(package._LAZY)
    for public in package.__all__:
        value = getattr(package, public)
        assert getattr(package, public) is value
        assert value.__name__ == public
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_the_top_level_names_are_sorted_and_complete() -> None:
    assert fedDP.__all__ == sorted(fedDP.__all__)
    assert len(set(fedDP.__all__)) == len(fedDP.__all__)
    assert set(fedDP._LAZY) <= set(fedDP.__all__)
    assert all(hasattr(fedDP, name) for name in set(fedDP.__all__) - set(fedDP._LAZY))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fedDP.nothing
