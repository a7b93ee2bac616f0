"""From the ``[data]`` section of a scenario to the clients' training and test data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedDP.errors import DataError
from fedDP.scenario.federated_data import FederatedData, group_by_client
from fedDP.scenario.preprocessing import DEFAULT_RANGE, check_categories, public_ranges
from fedDP.scenario.sources import HEART_DISEASE_TARGETS, Table, read_csv, read_csv_header, read_heart_disease
from fedDP.scenario.split import held_out_rows

if TYPE_CHECKING:
    from fedDP.scenario.sections import DataSpec

HEART_DISEASE = "heart-disease"
ONLY_SITE = "all"
"""The name of the one site of data without a site column."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedData:
    """Training and test data.

    Attributes:
        train, test: disjoint; together they are the whole table, up to ``max_records`` rows a client each. A client
            is in both only where the client is the site.
        unscaled: columns that have neither a range nor categories; worth a warning.
        one_row_per_client: whether each row is a client, because no client column was named.
        site_is_client: whether each client is a whole site.
        num_capped: training clients with more than ``max_records`` rows, whose further rows are left out.
    """

    train: FederatedData
    test: FederatedData
    unscaled: tuple[str, ...]
    one_row_per_client: bool
    site_is_client: bool
    num_capped: int

    @property
    def num_ids_at_several_sites(self) -> int:
        """Client ids that are seen at more than one site; each is one client per site."""
        ids = np.concatenate([self.train.client_ids, self.test.client_ids])
        return int(np.sum(np.unique(ids, return_counts=True)[1] > 1)) if not self.site_is_client else 0


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """What each column of the table is for."""

    target: str
    client: str | None
    site: str | None
    features: tuple[str, ...]


def load_data(spec: DataSpec) -> LoadedData:
    """Loads, scales, splits and groups the data of a scenario.

    Guarantees:
        1. What a client's rows become depends on this client's rows and on the scenario, never on other clients.
           (Without a client column the row's number is the client's id and decides whether it is held out.)
        2. Clients are ordered by (site, id), whatever the order of the rows in the file.
        3. Faulty column names are reported together.

    Args:
        spec: the ``[data]`` section.

    Raises:
        DataError: for data that cannot be used; names file, row and column.
        InvalidValueError: for a range, categories, a fraction or a cap outside their limits.
    """
    table, columns = _read(spec)
    one_row_per_client = columns.client is None
    site_is_client = columns.client is not None and columns.client == columns.site
    sites = table.text(columns.site) if columns.site else np.full(table.num_rows, ONLY_SITE)
    clients = table.text(columns.client) if columns.client else _row_numbers(table.num_rows)
    targets, num_classes = _targets(table, columns.target, spec)
    categories = {name: values for name, values in spec.categories.items() if name != columns.target}
    scaled = public_ranges(table, features=columns.features, ranges=spec.ranges, categories=categories)
    held_out = held_out_rows(sites, clients, test_fraction=spec.test_fraction, within_clients=site_is_client)
    train, test = (
        group_by_client(
            scaled.matrix[rows],
            targets[rows],
            sites=sites[rows],
            clients=clients[rows],
            feature_names=scaled.names,
            num_classes=num_classes,
        )
        for rows in (~held_out, held_out)
    )
    num_capped = int(np.sum(train.records_per_client > spec.max_records))
    train, test = train.capped(spec.max_records), test.capped(spec.max_records)
    if train.num_clients == 0:
        raise DataError(f"{table.source}: no client is left for training; lower data.test_fraction.")
    return LoadedData(
        train=train,
        test=test,
        unscaled=scaled.unscaled,
        one_row_per_client=one_row_per_client,
        site_is_client=site_is_client,
        num_capped=num_capped,
    )


def _read(spec: DataSpec) -> tuple[Table, _Columns]:
    if (spec.name is None) == (spec.path is None):
        raise DataError("data: expected either data.name or data.path, not both and not neither.")
    if spec.path is not None:
        header = read_csv_header(spec.path)
        if spec.target is None:
            raise DataError(f"{spec.path}: data.target is missing; name the column to predict, one of {_list(header)}.")
        columns = _Columns(
            target=spec.target,
            client=spec.client_column,
            site=spec.site_column,
            features=_features(spec, header, (spec.target, spec.client_column, spec.site_column)),
        )
        _refuse(spec.path, [*_unknown(spec, header, columns), *_misused(spec, columns)])
        text = {name for name in (columns.client, columns.site) if name is not None}
        used = {*columns.features, columns.target, *text}
        return read_csv(spec.path, text_columns=text, skip=set(header) - used), columns
    if spec.name != HEART_DISEASE:
        raise DataError(f"data.name={spec.name!r}: expected {HEART_DISEASE!r}, or data.path for a file of your own.")
    table = read_heart_disease()
    header = tuple(table.columns)
    columns = _Columns(
        target=spec.target or "disease",
        client=spec.client_column,
        site=spec.site_column or "site",
        features=_features(spec, header, ("site", *HEART_DISEASE_TARGETS)),
    )
    faults = [*_unknown(spec, header, columns), *_misused(spec, columns)]
    faults += [
        f"data.features: {name!r} is the diagnosis" for name in columns.features if name in HEART_DISEASE_TARGETS
    ]
    _refuse(HEART_DISEASE, faults)
    return table, columns


def _features(spec: DataSpec, header: Sequence[str], reserved: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(spec.features) or tuple(name for name in header if name not in reserved and name not in spec.drop)


def _unknown(spec: DataSpec, header: Sequence[str], columns: _Columns) -> Iterator[str]:
    """Yields a fault for every column name that the table does not have."""
    named: list[tuple[str, str]] = [("data.target", columns.target)]
    named += [("data.client_column", columns.client)] if columns.client is not None else []
    named += [("data.site_column", columns.site)] if columns.site is not None else []
    named += [("data.features", name) for name in spec.features] + [("data.drop", name) for name in spec.drop]
    named += [("data.ranges", name) for name in spec.ranges if name != DEFAULT_RANGE]
    named += [("data.categories", name) for name in spec.categories]
    for key, name in named:
        if name not in header:
            near = get_close_matches(name, header, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the columns are {_list(header)}"
            yield f"{key}: there is no column {name!r}; {hint}"


def _misused(spec: DataSpec, columns: _Columns) -> Iterator[str]:
    """Yields a fault for every column that cannot be what the scenario makes of it."""
    roles = {"target": columns.target, "client_column": columns.client, "site_column": columns.site}
    if columns.target in (columns.client, columns.site):
        yield f"data.target: {columns.target!r} is the client or site column too"
    for role, name in roles.items():
        if name in spec.features:
            yield f"data.features: {name!r} is data.{role} and cannot be a feature"
        if name in spec.drop:
            yield f"data.drop: {name!r} is data.{role} and cannot be dropped"
    for name in spec.features:
        if name in spec.drop:
            yield f"data.drop: {name!r} is in data.features too"
    if not columns.features:
        yield "data.features: no feature is left"
    if spec.task == "multiclass" and columns.target not in spec.categories:
        yield f"data.categories: {columns.target!r} is missing; a multiclass target needs its classes, as public values"
    if spec.task == "binary" and columns.target in spec.categories:
        yield f"data.categories: {columns.target!r} is a binary target; remove it, or set data.task = 'multiclass'"


def _targets(table: Table, name: str, spec: DataSpec) -> tuple[NDArray[np.float32] | NDArray[np.int64], int]:
    """Returns the targets and the number of classes."""
    values = table.numbers(name)
    if spec.task == "binary":
        _check_targets(table, name, np.isin(values, (0.0, 1.0)), "0 or 1")
        return values.astype(np.float32), 2
    if spec.task != "multiclass":
        raise DataError(f"data.task={spec.task!r}: expected 'binary' or 'multiclass'.")
    classes = spec.categories[name]
    check_categories(name, classes)
    if len(classes) < 2:
        raise DataError(f"data.categories: the target {name!r} needs at least two classes.")
    matches = values[:, None] == np.array(classes)
    _check_targets(table, name, matches.any(axis=1), f"one of its categories {_list([f'{v:g}' for v in classes])}")
    return matches.argmax(axis=1).astype(np.int64), len(classes)


def _check_targets(table: Table, name: str, valid: NDArray[np.bool_], allowed: str) -> None:
    if valid.all():
        return
    row = int(np.argmin(valid))
    found = "the target is missing" if np.isnan(table.numbers(name)[row]) else f"expected {allowed}"
    others = int((~valid).sum()) - 1
    more = f" ({others} more such rows)" if others else ""
    raise DataError(
        f"{table.source}: row {row + 1} (not counting the header), column {name!r}: {found}{more}. "
        f"Correct the cell or delete the row."
    )


def _row_numbers(count: int) -> NDArray[np.str_]:
    """Returns the ids of rows that are clients; padded, so that their order is that of the rows."""
    return np.array([f"{row:08d}" for row in range(1, count + 1)], dtype=np.str_)


def _refuse(source: str, faults: Sequence[str]) -> None:
    if faults:
        raise DataError("\n  - ".join([f"{source}: the columns do not fit the scenario", *faults]))


def _list(names: Sequence[str], limit: int = 12) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
