"""The errors fedDP raises.

Every message names the value (``name=value``), the allowed range and one remedy. All of them derive
from `FedDPError`, so one ``except`` catches what fedDP refuses and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FedDPError(Exception):
    """Base of everything fedDP raises on purpose. They pickle, since workers send them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[FedDPError], args: tuple[Any, ...], state: dict[str, Any]) -> FedDPError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidValueError(FedDPError, ValueError):
    """A value outside its allowed range.

    Attributes:
        name: the key or parameter, as the user wrote it.
        value: what was given.
        allowed: the allowed range, in words.
    """

    def __init__(self, name: str, value: object, allowed: str, remedy: str = "") -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        text = f"{name}={value!r}: expected {allowed}."
        super().__init__(f"{text} {remedy}" if remedy else text)


class UnsupportedError(FedDPError, NotImplementedError):
    """A known feature, or a combination, that cannot be used (here, or yet); named, never approximated."""


class ScenarioError(FedDPError, ValueError):
    """A scenario with faults; all of them are reported together.

    Attributes:
        faults: one sentence a fault.
    """

    def __init__(self, source: str, faults: Sequence[str]) -> None:
        self.source = source
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        super().__init__(f"{source}: {count}\n{lines}")


class DataError(FedDPError, ValueError):
    """Data that cannot be used as it is; the message names the file, row and column where it can."""


class ModelError(FedDPError, ValueError):
    """A model that cannot be trained under the guarantee; the message names the layer."""


class LedgerError(FedDPError):
    """The ledger cannot vouch for what it is asked to do; nothing was granted."""


class GrantError(FedDPError):
    """A release that its grant does not cover, or a grant used twice; nothing was released."""
