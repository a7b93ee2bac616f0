"""From the [data] section to training and test data: nothing lost, nobody in both, every fault named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedDP.errors import DataError, InvalidValueError
from fedDP.scenario.federated_data import FederatedData
from fedDP.scenario.load_data import LoadedData, load_data
from fedDP.scenario.sections import DataSpec
from fedDP.scenario.split import is_held_out

HEART: dict[str, Any] = {
    "name": "heart-disease",
    "ranges": {
        "age": (30.0, 80.0),
        "trestbps": (90.0, 200.0),
        "chol": (100.0, 400.0),
        "thalach": (70.0, 200.0),
        "oldpeak": (-1.0, 4.0),
        "ca": (0.0, 2.0),
    },
    "categories": {
        "cp": (1.0, 2.0, 3.0, 4.0),
        "restecg": (0.0, 1.0, 2.0),
        "slope": (1.0, 2.0, 3.0),
        "thal": (3.0, 6.0, 7.0),
        "sex": (1.0,),
        "fbs": (0.0, 1.0),
        "exang": (0.0, 1.0),
    },
}
ROWS = [(f"bank-{row % 3}", f"c{row % 29}", row, row % 7, row % 2) for row in range(400)]
"""Rows of a bank's file: site, client, a mark that is different in every row, a class, a binary target."""


def load(**keys: Any) -> LoadedData:
    return load_data(DataSpec(**{"test_fraction": 0.25, "max_records": 1000, **keys}))


def write_bank(folder: Path, rows: Sequence[Sequence[object]] = ROWS, name: str = "bank.csv") -> dict[str, Any]:
    lines = ["bank,customer,mark,class,default", *(",".join(map(str, row)) for row in rows)]
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    keys = {"client_column": "customer", "site_column": "bank", "drop": ("class",)}
    return {"path": str(path), "target": "default", "ranges": {"mark": (0.0, 200.0)}, **keys}


def owners(data: FederatedData) -> list[tuple[str, str]]:
    sites = np.repeat(np.array(data.sites), np.diff(data.site_offsets))
    return list(zip(sites.tolist(), data.client_ids.tolist(), strict=True))


def rows_of(data: FederatedData, client: int) -> np.ndarray[Any, Any]:
    return data.features[data.offsets[client] : data.offsets[client + 1]]


def marks(data: FederatedData) -> list[int]:
    """The marks of all rows, read back from the scaled feature."""
    return [round(float(value) * 100 + 100) for value in data.features[:, data.feature_names.index("mark")]]


def test_heart_disease_by_patient() -> None:
    data = load(**HEART)
    assert data.one_row_per_client
    assert not data.site_is_client
    assert data.unscaled == ()
    assert data.train.sites == data.test.sites == ("cleveland", "hungary", "switzerland", "va-long-beach")
    assert (data.train.num_clients, data.test.num_clients) == (694, 226)
    assert np.diff(data.train.site_offsets).tolist() == [232, 225, 92, 145]
    assert np.diff(data.test.site_offsets).tolist() == [71, 69, 31, 55]
    assert data.train.features.shape == (694, 24) == (694, len(data.train.feature_names))
    assert not {"num", "disease", "site"} & {name.partition("=")[0] for name in data.train.feature_names}
    assert data.train.targets.sum() + data.test.targets.sum() == 509
    everyone = [int(name) for name in (*data.train.client_ids, *data.test.client_ids)]
    assert sorted(everyone) == list(range(1, 921))


def test_heart_disease_by_hospital() -> None:
    data = load(**HEART, client_column="site")
    assert data.site_is_client
    assert not data.one_row_per_client
    assert owners(data.train) == owners(data.test) == [(name, name) for name in data.train.sites]
    total = data.train.records_per_client + data.test.records_per_client
    assert total.tolist() == [303, 294, 123, 200]


def test_heart_disease_severity() -> None:
    categories = {**HEART["categories"], "num": (0.0, 1.0, 2.0, 3.0, 4.0)}
    data = load(**{**HEART, "categories": categories}, target="num", task="multiclass")
    assert data.train.num_classes == 5
    counts = np.bincount(data.train.targets.astype(int)) + np.bincount(data.test.targets.astype(int))
    assert counts.tolist() == [411, 265, 109, 107, 28]
    assert data.train.features.shape[1] == 24


def test_every_row_is_used_once(tmp_path: Path) -> None:
    data = load(**write_bank(tmp_path))
    assert sorted(marks(data.train) + marks(data.test)) == list(range(400))
    assert set(owners(data.train)).isdisjoint(owners(data.test))
    assert 0 < data.test.num_clients < data.train.num_clients


def test_rows_reach_their_own_client(tmp_path: Path) -> None:
    data = load(**write_bank(tmp_path))
    for part in (data.train, data.test):
        found = marks(part)
        for client, (site, name) in enumerate(owners(part)):
            own = range(int(part.offsets[client]), int(part.offsets[client + 1]))
            assert [ROWS[found[row]][:2] for row in own] == [(site, name)] * len(own)
            assert [part.targets[row] for row in own] == [ROWS[found[row]][4] for row in own]
            assert is_held_out(site, name, 0.25) == (part is data.test)


def test_order_of_clients_does_not_depend_on_the_file(tmp_path: Path) -> None:
    shuffled = [ROWS[row] for row in np.random.default_rng(2).permutation(len(ROWS))]
    one, other = load(**write_bank(tmp_path)), load(**write_bank(tmp_path, shuffled, "shuffled.csv"))
    for first, second in ((one.train, other.train), (one.test, other.test)):
        assert owners(first) == owners(second)
        assert first.offsets.tolist() == second.offsets.tolist()
        for client in range(first.num_clients):
            assert sorted(rows_of(first, client).tolist()) == sorted(rows_of(second, client).tolist())


def test_a_client_does_not_depend_on_others(tmp_path: Path) -> None:
    full = load(**write_bank(tmp_path)).train
    for client in (0, full.num_clients - 1):
        own = [row for row in ROWS if row[:2] == owners(full)[client]]
        alone = load(**write_bank(tmp_path, own, "own.csv")).train
        assert owners(alone) == [owners(full)[client]]
        assert alone.features.tobytes() == rows_of(full, client).tobytes()


def test_records_are_capped(tmp_path: Path) -> None:
    data = load(**{**write_bank(tmp_path), "max_records": 2})
    assert data.train.records_per_client.max() == data.test.records_per_client.max() == 2


def test_without_client_and_site_columns(tmp_path: Path) -> None:
    keys = write_bank(tmp_path) | {"client_column": None, "site_column": None, "features": ("mark",), "drop": ()}
    data = load(**keys)
    assert data.one_row_per_client
    assert data.train.sites == ("all",)
    assert data.train.num_clients + data.test.num_clients == 400
    assert marks(data.train) == [int(name) - 1 for name in data.train.client_ids]


def test_everything_may_be_for_training(tmp_path: Path) -> None:
    data = load(**{**write_bank(tmp_path), "test_fraction": 0.0})
    assert (data.train.num_clients, data.test.num_clients, data.test.num_records) == (87, 0, 0)
    assert data.test.feature_names == ("mark",)


def test_unscaled_columns_are_named(tmp_path: Path) -> None:
    assert load(**{**write_bank(tmp_path), "ranges": {}, "drop": ()}).unscaled == ("mark", "class")


def test_multiclass_targets_are_mapped(tmp_path: Path) -> None:
    keys = write_bank(tmp_path) | {"target": "class", "task": "multiclass", "drop": ("default",)}
    data = load(**{**keys, "categories": {"class": (6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0)}}).train
    assert data.num_classes == 7
    assert data.targets.dtype == np.int64
    assert data.targets.tolist() == [6 - mark % 7 for mark in marks(data)]
    with pytest.raises(
        DataError, match=r"row 7 .*'class': expected one of its categories 0, 1, .*\(56 more such rows\)"
    ):
        load(**{**keys, "categories": {"class": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)}})
    with pytest.raises(DataError, match=r"'class' is missing; a multiclass target needs its classes"):
        load(**keys)
    with pytest.raises(DataError, match="at least two classes"):
        load(**{**keys, "categories": {"class": (0.0,)}})


@pytest.mark.parametrize(
    ("target", "message"),
    [("2", "expected 0 or 1. Correct"), ("0.5", "expected 0 or 1"), ("", "the target is missing. Correct")],
)
def test_refuses_binary_targets(tmp_path: Path, target: str, message: str) -> None:
    keys = write_bank(tmp_path, [("b", "c", 1, 1, 0), ("b", "c", 2, 1, target)])
    where = "bank.csv: row 2 (not counting the header), column 'default': "
    with pytest.raises(DataError, match=re.escape(where + message)):
        load(**keys)


def test_unknown_columns_are_reported_together(tmp_path: Path) -> None:
    keys = write_bank(tmp_path) | {
        "target": "defaults",
        "client_column": "costumer",
        "site_column": "bnak",
        "features": ("makr",),
        "drop": ("clas",),
        "ranges": {"mrak": (0.0, 1.0), "*": (0.0, 1.0)},
        "categories": {"zzzzz": (1.0,)},
    }
    with pytest.raises(DataError) as caught:
        load(**keys)
    for fault in (
        "data.target: there is no column 'defaults'; did you mean 'default'?",
        "data.client_column: there is no column 'costumer'; did you mean 'customer'?",
        "data.site_column: there is no column 'bnak'; did you mean 'bank'?",
        "data.features: there is no column 'makr'; did you mean 'mark'?",
        "data.drop: there is no column 'clas'; did you mean 'class'?",
        "data.ranges: there is no column 'mrak'; did you mean 'mark'?",
        "data.categories: there is no column 'zzzzz'; the columns are bank, customer, mark, class, default",
    ):
        assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": ("mark", "default")}, "data.features: 'default' is data.target and cannot be a feature"),
        ({"features": ("customer",)}, "data.features: 'customer' is data.client_column"),
        ({"drop": ("bank",)}, "data.drop: 'bank' is data.site_column and cannot be dropped"),
        ({"features": ("mark", "class")}, "data.drop: 'class' is in data.features too"),
        ({"drop": ("mark", "class")}, "data.features: no feature is left"),
        ({"target": "customer"}, "data.target: 'customer' is the client or site column too"),
        ({"categories": {"default": (0.0, 1.0)}}, "data.categories: 'default' is a binary target"),
    ],
)
def test_refuses_columns_in_two_roles(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        load(**{**write_bank(tmp_path), **changes})


def test_refuses_data_that_leaves_nobody_to_train(tmp_path: Path) -> None:
    held_out = next(f"c{number}" for number in range(99) if is_held_out("b", f"c{number}", 0.25))
    with pytest.raises(DataError, match=r"no client is left for training; lower data\.test_fraction"):
        load(**write_bank(tmp_path, [("b", held_out, 1, 1, 0)]))


def test_refuses_a_column_with_range_and_categories(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"data\.ranges\.mark=.*no range for a column with categories"):
        load(**{**write_bank(tmp_path), "categories": {"mark": (1.0, 2.0)}})


@pytest.mark.parametrize("diagnosis", ["num", "disease"])
def test_the_diagnosis_is_never_a_feature(diagnosis: str) -> None:
    with pytest.raises(DataError, match=f"data.features: '{diagnosis}' is"):
        load(**HEART, features=("age", diagnosis))


def test_refuses_a_numeric_client_column_of_packaged_data() -> None:
    with pytest.raises(DataError, match="'age' is numeric and cannot name clients or sites"):
        load(**HEART, client_column="age")


@pytest.mark.parametrize("keys", [{}, {"name": "heart-disease", "path": "/my.csv"}])
def test_refuses_two_sources_or_none(keys: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"either data\.name or data\.path"):
        load(**keys)


def test_a_file_needs_a_target(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.target is missing; .* one of bank, customer, mark"):
        load(**{**write_bank(tmp_path), "target": None})
