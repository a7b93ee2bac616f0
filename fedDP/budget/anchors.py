"""Anchors: what a ledger's head was, kept where the ledger is not, so that an old copy cannot pass for the ledger.

A hash chain vouches for the rows before its head. That rows came after it is known only to whoever has kept a later
head: the checkpoints of runs, and an operator file beside the ledger that follows every row.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedDP.budget.enrolment_terms import check_digest
from fedDP.budget.records import canonical_json
from fedDP.errors import InvalidValueError, LedgerError
from fedDP.ranges import Range

_SEQ = Range(low=0, high=2**53, integer=True)
_sync = os.fsync


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """That a ledger once had a row `seq` with this hash.

    Raises:
        InvalidValueError: for anything that no ledger has.
    """

    ledger_id: str
    seq: int
    hash: str

    def __post_init__(self) -> None:
        if not isinstance(self.ledger_id, str) or not self.ledger_id:
            raise InvalidValueError("anchor.ledger_id", self.ledger_id, "the id of a ledger")
        object.__setattr__(self, "seq", int(_SEQ.check("anchor.seq", self.seq)))
        check_digest("anchor.hash", self.hash)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Anchor:
        """Reads what `to_dict` returned.

        Raises:
            InvalidValueError: for anything else.
        """
        if not isinstance(values, Mapping) or set(values) != {"ledger_id", "seq", "hash"}:
            raise InvalidValueError("anchor", values, "a mapping with ledger_id, seq and hash, such as Ledger.anchor")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The anchor as JSON-ready values."""
        return asdict(self)


class AnchorFile:
    """The operator file: the newest anchor, as JSON, replaced atomically and in step with the ledger.

    Guarantees:
        1. It is never ahead of the ledger: it is replaced after a row's commit.
        2. Whether it can be written is found out before the commit: the new content is on the disk by then, and only
           its name is missing. A folder that is full or read-only refuses the charge, and nothing is spent.
        3. Processes change ledger and file one after the other, so that it never goes back.

    A crash between commit and rename leaves it a row behind, which is an anchor all the same.

    Args:
        path: the file; None keeps none.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @property
    def is_missing(self) -> bool:
        """Whether a file is kept and not there."""
        return self.path is not None and not self.path.exists()

    def read(self) -> Anchor | None:
        """The anchor; None when there is no file.

        Raises:
            LedgerError: when the file cannot be read as one.
        """
        if self.path is None:
            return None
        try:
            return Anchor.parse(json.loads(self.path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise LedgerError(
                f"The anchor file {self.path} cannot be read ({error}). Restore it; if it is lost, remove it and have "
                "an operator say so: Ledger.load(url).reset_anchor(operator=..., reason=...)."
            ) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from changing the file, and the ledger with it, until the block ends."""
        if self.path is None:
            yield
            return
        try:
            # The folder is what stays the same when the file is replaced.
            folder = os.open(self.path.parent, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(f"The folder of the anchor file {self.path} cannot be opened: {error}") from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)  # and with it the lock

    def prepare(self, anchor: Anchor) -> None:
        """Writes the next content beside the file, durably; call it before the commit.

        Raises:
            LedgerError: when that is not possible.
        """
        if self.path is None:
            return
        try:
            with self._prepared.open("w", encoding="utf-8") as file:
                file.write(canonical_json(anchor.to_dict()) + "\n")
                file.flush()
                _sync(file.fileno())
        except OSError as error:
            raise LedgerError(
                f"The anchor file {self.path} cannot be written ({error}). Without it an old copy of the ledger could "
                "pass for this one, so nothing was granted. Make room or set its permissions right."
            ) from error

    def publish(self) -> None:
        """Puts the prepared content in place; call it after the commit.

        Raises:
            LedgerError: when that is not possible any more.
        """
        if self.path is None:
            return
        try:
            self._prepared.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                _sync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise LedgerError(
                f"The anchor file {self.path} cannot be replaced ({error}). The ledger has its row, what it charged "
                "stays spent, and nothing was granted for it."
            ) from error

    @property
    def _prepared(self) -> Path:
        assert self.path is not None
        return self.path.with_name(self.path.name + ".tmp")


def check_anchors(
    anchors: Sequence[Anchor], *, ledger_id: str | None, head_seq: int, hashes: Mapping[int, str]
) -> None:
    """Compares what is known of a ledger from elsewhere with the rows it has.

    Args:
        anchors: of this ledger, at any of its rows.
        ledger_id: the id in its definition; None for a ledger without rows.
        head_seq: its last row.
        hashes: its hashes, at least those of the rows that `anchors` name.

    Raises:
        LedgerError: naming the first row that is missing or another one.
    """
    for anchor in sorted(anchors, key=lambda anchor: anchor.seq):
        if ledger_id is not None and anchor.ledger_id != ledger_id:
            raise LedgerError(
                f"The ledger was exchanged: row 0 says that it is {ledger_id}, an anchor is of {anchor.ledger_id}. "
                "Put the right one back; nothing is granted from this one."
            )
        if anchor.seq > head_seq:
            raise LedgerError(
                f"The ledger was rolled back: row {head_seq + 1} is missing, and an anchor has seen row {anchor.seq}. "
                "Put the newest copy back; nothing is granted from this one."
            )
        if anchor.hash != hashes.get(anchor.seq):
            raise LedgerError(
                f"The ledger was altered: row {anchor.seq} is not the row that an anchor has seen there. It was rolled "
                "back and written to again, or rewritten; put the right copy back. Nothing is granted from this one."
            )
