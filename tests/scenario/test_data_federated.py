"""Grouped records: offsets, order, caps, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from fedDP.errors import DataError, InvalidValueError
from fedDP.scenario.federated_data import FederatedData, group_by_client

ROWS = [("b", "2"), ("a", "2"), ("b", "10"), ("a", "1"), ("b", "2"), ("a", "2"), ("b", "2")]
"""(site, client) of rows 0 to 6; client 2 is seen at both sites."""


def group(rows: list[tuple[str, str]], marks: list[int]) -> FederatedData:
    return group_by_client(
        np.array([[mark, -mark] for mark in marks], dtype=np.float32),
        np.array([mark % 2 for mark in marks], dtype=np.float32),
        sites=np.array([site for site, _ in rows]),
        clients=np.array([client for _, client in rows]),
        feature_names=("mark", "minus"),
        num_classes=2,
    )


def fields(**changes: Any) -> dict[str, Any]:
    """A valid set of two sites, three clients (the second without rows) and three rows."""
    valid: dict[str, Any] = {
        "features": np.zeros((3, 2), np.float32),
        "targets": np.array([0, 1, 1], np.float32),
        "offsets": np.array([0, 1, 1, 3]),
        "client_ids": np.array(["p", "q", "a"]),
        "sites": ("north", "south"),
        "site_offsets": np.array([0, 2, 3]),
        "feature_names": ("x", "y"),
        "num_classes": 2,
    }
    return valid | changes


def test_groups_by_site_and_client() -> None:
    data = group(ROWS, list(range(7)))
    assert data.sites == ("a", "b")
    assert data.client_ids.tolist() == ["1", "2", "10", "2"]
    assert data.site_offsets.tolist() == [0, 2, 4]
    assert data.offsets.tolist() == [0, 1, 3, 4, 7]
    assert data.features[:, 0].tolist() == [3, 1, 5, 2, 0, 4, 6]
    assert data.targets.tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert (data.num_clients, data.num_records, data.records_per_client.tolist()) == (4, 7, [1, 2, 1, 3])


def test_offsets_gather_each_clients_own_rows() -> None:
    rng = np.random.default_rng(3)
    rows = [(f"s{rng.integers(4)}", f"c{rng.integers(30)}") for _ in range(500)]
    data = group(rows, list(range(500)))
    for site, name in enumerate(data.sites):
        for client in range(data.site_offsets[site], data.site_offsets[site + 1]):
            own = data.features[data.offsets[client] : data.offsets[client + 1], 0]
            assert own.tolist() == [row for row, pair in enumerate(rows) if pair == (name, data.client_ids[client])]


def test_order_of_clients_does_not_depend_on_the_order_of_rows() -> None:
    order = np.random.default_rng(5).permutation(7).tolist()
    data, shuffled = group(ROWS, list(range(7))), group([ROWS[row] for row in order], order)
    assert shuffled.client_ids.tolist() == data.client_ids.tolist()
    assert shuffled.offsets.tolist() == data.offsets.tolist()
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        assert sorted(shuffled.features[start:end, 0]) == sorted(data.features[start:end, 0])


def test_a_client_does_not_depend_on_others() -> None:
    data, kept = group(ROWS, list(range(7))), [0, 4, 6]
    alone = group([ROWS[row] for row in kept], kept)
    assert alone.features.tobytes() == data.features[data.offsets[3] : data.offsets[4]].tobytes()


def test_cap_keeps_the_first_rows_of_each_client() -> None:
    data = group(ROWS, list(range(7)))
    capped = data.capped(2)
    assert capped.client_ids.tolist() == data.client_ids.tolist()
    assert capped.records_per_client.tolist() == [1, 2, 1, 2]
    assert capped.features[:, 0].tolist() == [3, 1, 5, 2, 0, 4]
    assert capped.targets.tolist() == [1, 1, 1, 0, 0, 0]
    assert data.capped(3) is data
    with pytest.raises(InvalidValueError, match="max_records=0"):
        data.capped(0)


def test_cap_skips_clients_without_rows() -> None:
    assert FederatedData(**fields()).capped(1).offsets.tolist() == [0, 1, 1, 2]


def test_nothing_can_be_written_to() -> None:
    data = group(ROWS, list(range(7)))
    for copy in (data, data.capped(1), pickle.loads(pickle.dumps(data))):
        for name in ("features", "targets", "offsets", "client_ids", "site_offsets"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(copy, name)[0] = 0


def test_empty_data() -> None:
    data = group_by_client(
        np.zeros((0, 2), np.float32),
        np.zeros(0, np.int64),
        sites=np.zeros(0, np.str_),
        clients=np.zeros(0, np.str_),
        feature_names=("x", "y"),
        num_classes=3,
    )
    assert (data.num_clients, data.num_records, data.sites) == (0, 0, ())
    assert data.capped(1).offsets.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.zeros((3, 2))}, "features: expected C-contiguous float32"),
        ({"features": np.zeros((3, 3), np.float32)}, r"features: expected .* of shape \(3, 2\), got float32 .*3, 3"),
        ({"features": np.zeros((2, 3), np.float32).T}, "features: expected C-contiguous"),
        ({"features": np.full((3, 2), np.nan, np.float32)}, "features: expected finite"),
        ({"targets": np.array([0, 1], np.float32)}, r"targets: expected float32 or int64 of shape \(3,\)"),
        ({"targets": np.array([0.0, 1.0, 1.0])}, "targets: .*got float64"),
        ({"targets": np.array([0, 1, 0.5], np.float32)}, "targets: expected the classes 0 to 1"),
        ({"targets": np.array([0, 1, 2])}, "targets: expected the classes 0 to 1"),
        ({"targets": np.array([0, 1, -1]), "num_classes": 3}, "targets: expected the classes 0 to 2"),
        ({"num_classes": 3}, "num_classes=3"),
        ({"targets": np.array([0, 0, 0]), "num_classes": 1}, "num_classes=1: expected at least 2"),
        ({"offsets": np.array([0, 1, 3])}, "offsets: expected 4 int64 numbers that rise from 0 to 3"),
        ({"offsets": np.array([0, 2, 1, 3])}, "offsets: expected"),
        ({"offsets": np.array([0, 1, 1, 2])}, "offsets: expected"),
        ({"offsets": np.array([1, 1, 1, 3])}, "offsets: expected"),
        ({"offsets": np.array([0, 1, 1, 3], np.int32)}, "offsets: expected"),
        ({"site_offsets": np.array([0, 2, 2])}, "site_offsets: expected 3 int64 numbers that rise from 0 to 3"),
        ({"sites": ("south", "north")}, "sites: expected different names in ascending order"),
        ({"sites": ("north", "north")}, "sites: expected different names"),
        ({"client_ids": np.array(["q", "p", "a"])}, "client_ids: expected different ids in ascending order"),
        ({"client_ids": np.array(["p", "p", "a"])}, "client_ids: expected different ids"),
        ({"client_ids": np.array([1, 2, 3])}, "client_ids: expected str"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    FederatedData(**fields())
    with pytest.raises(DataError, match=message):
        FederatedData(**fields(**changes))
