"""Which rows are held out for testing: a keyed hash decides, not a shuffle.

Whether a client is held out depends on its own identity and the fraction alone. A shuffled or stratified split would
let one client more change the membership of all others, and with it their influence on the model.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedDP.ranges import Range

TEST_FRACTION = Range(low=0.0, high=0.9, remedy="Leave at least a tenth of the data for training.")

_KEY = b"fedDP train/test split, version 1"  # public and fixed: the same people are held out in every run


def is_held_out(site: str, client: str, test_fraction: float, *, position: int | None = None) -> bool:
    """Returns whether a client, or the row at `position` within it, is held out.

    Guarantee: who is held out at a fraction is also held out at every larger one.

    >>> is_held_out("basel", "patient-17", 0.0)
    False
    """
    # The length keeps ("ab", "c") and ("a", "bc") apart.
    message = f"{len(site)}:{site}{client}" if position is None else f"{len(site)}:{site}{client}\0{position}"
    digest = blake2b(message.encode("utf-8"), key=_KEY, digest_size=8).digest()
    return int.from_bytes(digest, "big") < test_fraction * 2.0**64


def held_out_rows(
    sites: NDArray[np.str_], clients: NDArray[np.str_], *, test_fraction: float, within_clients: bool
) -> NDArray[np.bool_]:
    """Returns which rows are held out for testing.

    Guarantees:
        1. Without `within_clients` a client is held out with all of its rows or with none.
        2. The result for a client's rows is the same whatever other rows there are.

    Args:
        sites: (R,) str, the site of each row.
        clients: (R,) str, the client id of each row.
        test_fraction: in [0, 0.9], the expected fraction.
        within_clients: hold out rows by their position within their client. For clients that are whole sites, where
            to hold out clients would be to train without a hospital.

    Returns:
        (R,) bool.

    Raises:
        InvalidValueError: when the fraction is out of its range.
    """
    fraction = TEST_FRACTION.check("test_fraction", test_fraction)
    decided: dict[tuple[str, str], bool] = {}
    seen: dict[tuple[str, str], int] = {}
    result = np.zeros(len(sites), dtype=np.bool_)
    for row, pair in enumerate(zip(sites.tolist(), clients.tolist(), strict=True)):
        if within_clients:
            position = seen.get(pair, 0)
            seen[pair] = position + 1
            result[row] = is_held_out(*pair, fraction, position=position)
        else:
            if pair not in decided:
                decided[pair] = is_held_out(*pair, fraction)
            result[row] = decided[pair]
    return result
