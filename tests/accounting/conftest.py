from __future__ import annotations

from collections.abc import Iterable

import pytest

from fedDP.accounting import Gaussian, NeighboringRelation, epsilon


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Gaussian, ...]]:
    """The events of every evaluation by calibration; the accountant "grid" stands for a slow one on a grid."""
    made: list[tuple[Gaussian, ...]] = []

    def counted(
        events: Iterable[Gaussian], delta: float, accountant: str | None, relation: NeighboringRelation
    ) -> float:
        made.append(tuple(events))
        return epsilon(made[-1], delta, "rdp" if accountant == "grid" else accountant, relation)

    monkeypatch.setattr("fedDP.accounting.promise.epsilon", counted)
    return made
