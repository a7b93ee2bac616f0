"""Records grouped by client and clients grouped by site: what a node trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedDP.errors import DataError
from fedDP.ranges import Range

MAX_RECORDS = Range(low=1, high=10**9, integer=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class FederatedData:
    """The records of N clients at S sites, as flat arrays.

    Guarantees:
        1. Rows of client k are ``offsets[k]:offsets[k + 1]``; clients of site s are
           ``site_offsets[s]:site_offsets[s + 1]``. Every row belongs to one client, every client to one site.
        2. Sites are in ascending order, and so are the clients of a site. An id that is seen at
           two sites is two clients.
        3. Features are finite, targets are valid, and no array can be written to.

    Attributes:
        features: (R, F) float32, C-contiguous.
        targets: (R,) float32 of 0 and 1 for a binary target, int64 in [0, num_classes) for a multiclass one.
        offsets: (N + 1,) int64. A client may have no rows.
        client_ids: (N,) str.
        sites: S names.
        site_offsets: (S + 1,) int64.
        feature_names: F names.
        num_classes: 2 for a binary target.
    """

    features: NDArray[np.float32]
    targets: NDArray[np.float32] | NDArray[np.int64]
    offsets: NDArray[np.int64]
    client_ids: NDArray[np.str_]
    sites: tuple[str, ...]
    site_offsets: NDArray[np.int64]
    feature_names: tuple[str, ...]
    num_classes: int

    def __post_init__(self) -> None:
        self._check_records()
        _check_offsets("offsets", self.offsets, groups=len(self.client_ids), total=len(self.features))
        _check_offsets("site_offsets", self.site_offsets, groups=len(self.sites), total=len(self.client_ids))
        self._check_names()
        self._freeze()

    def __setstate__(self, state: dict[str, object]) -> None:
        # Unpickled arrays are writable; a copy in another process must be as safe as the original.
        self.__dict__.update(state)
        self._freeze()

    @property
    def num_clients(self) -> int:
        """N, the clients without rows included."""
        return len(self.client_ids)

    @property
    def num_records(self) -> int:
        """R, the rows of all clients."""
        return len(self.features)

    @property
    def records_per_client(self) -> NDArray[np.int64]:
        """(N,) int64: the number of rows of each client."""
        return np.diff(self.offsets)

    def capped(self, max_records: int) -> FederatedData:
        """Returns the data with the first `max_records` rows of every client, in their order.

        Guarantee: what is kept of a client depends on this client's rows and `max_records` alone.

        Args:
            max_records: at least 1; a public number.

        Raises:
            InvalidValueError: when `max_records` is not a whole number of at least 1.
        """
        limit = int(MAX_RECORDS.check("max_records", max_records))
        counts = self.records_per_client
        if not np.any(counts > limit):
            return self
        position = np.arange(self.num_records) - np.repeat(self.offsets[:-1], counts)
        kept = position < limit
        offsets = _offsets(np.minimum(counts, limit))
        return replace(self, features=self.features[kept], targets=self.targets[kept], offsets=offsets)

    def _check_records(self) -> None:
        features, targets = self.features, self.targets
        shape = (len(features), len(self.feature_names))
        if features.dtype != np.float32 or features.shape != shape or not features.flags.c_contiguous:
            raise DataError(f"features: expected C-contiguous float32 of shape {shape}, got {_describe(features)}.")
        if not np.isfinite(features).all():
            raise DataError("features: expected finite numbers; scale the data by public ranges first.")
        if targets.shape != shape[:1] or targets.dtype not in (np.float32, np.int64):
            raise DataError(f"targets: expected float32 or int64 of shape {shape[:1]}, got {_describe(targets)}.")
        if self.num_classes < 2 or (targets.dtype == np.float32 and self.num_classes != 2):
            raise DataError(f"num_classes={self.num_classes}: expected at least 2, and 2 for float32 targets.")
        valid = np.isin(targets, (0, 1)) if targets.dtype == np.float32 else _within(targets, self.num_classes)
        if not valid.all():
            raise DataError(f"targets: expected the classes 0 to {self.num_classes - 1}.")

    def _check_names(self) -> None:
        if self.client_ids.ndim != 1 or self.client_ids.dtype.kind != "U":
            raise DataError(f"client_ids: expected str of shape (N,), got {_describe(self.client_ids)}.")
        if list(self.sites) != sorted(set(self.sites)):
            raise DataError("sites: expected different names in ascending order.")
        ascending = self.client_ids[1:] > self.client_ids[:-1]
        starts = self.site_offsets[1:-1]
        ascending[starts[(starts > 0) & (starts < self.num_clients)] - 1] = True
        if not ascending.all():
            raise DataError("client_ids: expected different ids in ascending order within each site.")

    def _freeze(self) -> None:
        for array in (self.features, self.targets, self.offsets, self.client_ids, self.site_offsets):
            array.setflags(write=False)


def group_by_client(
    features: NDArray[np.float32],
    targets: NDArray[np.float32] | NDArray[np.int64],
    *,
    sites: NDArray[np.str_],
    clients: NDArray[np.str_],
    feature_names: tuple[str, ...],
    num_classes: int,
) -> FederatedData:
    """Groups rows by (site, client id).

    Guarantees:
        1. Which clients exist and their order depend on the set of (site, id) pairs, not on the order of the rows.
        2. The rows of a client stay in the order in which they come.

    Args:
        features: (R, F) float32.
        targets: (R,) float32 or int64.
        sites: (R,) str, the site of each row.
        clients: (R,) str, the client id of each row.
        feature_names: F names.
        num_classes: 2 for a binary target.

    Returns:
        The grouped data; it shares no memory with the arguments.
    """
    site_names, site_index = np.unique(sites, return_inverse=True)
    id_names, id_index = np.unique(clients, return_inverse=True)
    pairs, first, owner = np.unique(site_index * len(id_names) + id_index, return_index=True, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    return FederatedData(
        features=np.ascontiguousarray(features[order]),
        targets=targets[order],
        offsets=_offsets(np.bincount(owner, minlength=len(pairs))),
        client_ids=clients[first],
        sites=tuple(str(name) for name in site_names),
        site_offsets=_offsets(np.bincount(site_index[first], minlength=len(site_names))),
        feature_names=feature_names,
        num_classes=num_classes,
    )


def _offsets(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _check_offsets(name: str, offsets: NDArray[np.int64], *, groups: int, total: int) -> None:
    shaped = offsets.dtype == np.int64 and offsets.shape == (groups + 1,)
    if not shaped or offsets[0] != 0 or offsets[-1] != total or np.any(np.diff(offsets) < 0):
        raise DataError(f"{name}: expected {groups + 1} int64 numbers that rise from 0 to {total}.")


def _within(targets: NDArray[np.float32] | NDArray[np.int64], num_classes: int) -> NDArray[np.bool_]:
    return (targets >= 0) & (targets < num_classes)


def _describe(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} of shape {array.shape}"
