"""What a scenario key is: default, allowed values, values that arrive later, one line of help.

A section of the scenario file is a frozen dataclass that derives from `Section`; each field is declared
with `key`. Values pass the same checks whether they come from a file or from Python, so a section that
exists is valid. A later version adds a key or a value by changing its declaration and nothing here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from fedDP.errors import FedDPError, InvalidValueError, ScenarioError, UnsupportedError
from fedDP.ranges import Range

METADATA = "feddp"
"""Where a field's metadata holds its `Key`."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of value that is neither a number in a range nor one of a few words.

    Attributes:
        allowed: the kind in words, for error messages and documentation.
        read: returns the value in its canonical form; raises ValueError for anything else.
    """

    allowed: str
    read: Callable[[object], Any]


@dataclass(frozen=True, kw_only=True)
class Key:
    """The declaration of one key.

    Attributes:
        default: the value of an absent key.
        help: one line for users.
        range: allowed numbers.
        choices: allowed words, beside the numbers where both are given.
        later: known words that are refused by name until they exist; True for everything not allowed now.
        shape: the kind of value where neither range nor choices say it.
        entries: the key is a table of the user's own names, and every entry has this shape.
        written: whether the key stands in files under its own name.
    """

    default: Any
    help: str
    range: Range | None = None
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] | bool = ()
    shape: Shape | None = None
    entries: Shape | None = None
    written: bool = True

    def allowed(self) -> str:
        """The allowed values in words: ``'auto' or a number in [0, 100000]``."""
        parts = [repr(choice) for choice in self.choices]
        if self.range is not None:
            parts.append(self.range.describe())
        if self.shape is not None:
            parts.append(self.shape.allowed)
        if self.entries is not None:
            parts.append(f"a table with, for each name, {self.entries.allowed}")
        if isinstance(self.default, bool):
            parts.append("true or false")
        return " or ".join(parts) if parts else "nothing yet"

    def read(self, name: str, value: object) -> Any:
        """Returns `value` in its canonical form, or refuses it by `name`.

        Raises:
            InvalidValueError: the value is not allowed.
            UnsupportedError: the value arrives in a later version.
        """
        if type(value) is type(self.default) and value == self.default:
            return value
        if isinstance(value, str) and value in self.choices:
            return value
        if self.later is True:
            if isinstance(value, int | float) and not isinstance(value, bool) and value == self.default:
                return self.default
            raise _not_yet(name, value, self.default)
        if self.later and isinstance(value, str) and value in self.later:
            raise _not_yet(name, value, self.default)
        if isinstance(self.default, bool):
            if isinstance(value, bool):
                return value
            raise InvalidValueError(name, value, self.allowed())
        return self._read_kind(name, value)

    def _read_kind(self, name: str, value: object) -> Any:
        remedy = ""
        if self.choices and isinstance(value, str):
            close = difflib.get_close_matches(value, self.choices, n=1)
            remedy = f"Nearest known: {close[0]!r}." if close else ""
        if self.range is not None and not (self.choices and isinstance(value, str)):
            try:
                number = self.range.check(name, value)
            except OverflowError:
                raise InvalidValueError(name, value, self.range.describe()) from None
            return number if self.range.integer else float(number)
        shape = self.shape
        if shape is not None:
            return _read_shape(shape, name, value, self.allowed(), remedy)
        raise InvalidValueError(name, value, self.allowed(), remedy)


def key(
    default: Any,
    *,
    help: str,
    range: Range | None = None,
    choices: Iterable[str] = (),
    later: Iterable[str] | bool = (),
    shape: Shape | None = None,
    entries: Shape | None = None,
    written: bool = True,
) -> Any:
    """Declares a dataclass field as a scenario key; the arguments are those of `Key`."""
    declared = Key(
        default=default,
        help=help,
        range=range,
        choices=tuple(choices),
        later=later if isinstance(later, bool) else tuple(later),
        shape=shape,
        entries=entries,
        written=written,
    )
    metadata = {METADATA: declared}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Base of the sections. A section that exists is valid.

    Raises:
        ScenarioError: on construction, with every fault of the section.
    """

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        values, faults = read_section(type(self), vars(self))
        if faults:
            raise ScenarioError(f"[{self.section}]", list(faults.values()))
        for name, value in values.items():
            object.__setattr__(self, name, value)


def keys_of(section: type[Section]) -> dict[str, Key]:
    """The keys of a section, in the order of their declaration."""
    return {item.name: item.metadata[METADATA] for item in fields(section) if METADATA in item.metadata}


def read_section(section: type[Section], table: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads the known keys of a table; keys the section does not know are left to the caller.

    Returns:
        The valid values by key, and the faults by full name (``privacy.delta``).
    """
    values: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, declared in keys_of(section).items():
        if name not in table:
            continue
        full, value = f"{section.section}.{name}", table[name]
        if isinstance(declared.default, Section):
            values[name] = _read_nested(declared.default, full, value, faults)
        elif declared.entries is not None:
            values[name] = _read_entries(declared, full, value, faults)
        elif declared.later is True and isinstance(value, Mapping) and value:
            faults.update({f"{full}.{inner}": str(_not_yet(f"{full}.{inner}", value[inner], None)) for inner in value})
        else:
            try:
                values[name] = declared.read(full, value)
            except FedDPError as error:
                faults[full] = str(error)
    return values, faults


def _read_nested(default: Section, full: str, value: object, faults: dict[str, str]) -> Section:
    if isinstance(value, type(default)):
        return value
    if not isinstance(value, Mapping):
        faults[full] = str(InvalidValueError(full, value, "a table"))
        return default
    inner_values, inner_faults = read_section(type(default), value)
    faults.update(inner_faults)
    return type(default)(**inner_values)


def _read_entries(declared: Key, full: str, value: object, faults: dict[str, str]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    if not isinstance(value, Mapping):
        faults[full] = str(InvalidValueError(full, value, declared.allowed()))
        return entries
    shape = declared.entries
    assert shape is not None
    if not declared.written:  # the user wrote its entries into the section itself
        full = full.rpartition(".")[0]
    for name, entry in value.items():
        try:
            entries[name] = _read_shape(shape, f"{full}.{name}", entry, shape.allowed, "")
        except InvalidValueError as error:
            faults[f"{full}.{name}"] = str(error)
    return entries


def _read_shape(shape: Shape, name: str, value: object, allowed: str, remedy: str) -> Any:
    try:
        return shape.read(value)
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidValueError) and error.name == name:
            raise  # it says more, and leaves out what must not be shown
        raise InvalidValueError(name, value, allowed, remedy) from None


def _not_yet(name: str, value: object, default: object) -> UnsupportedError:
    remedy = f"use {default!r}" if isinstance(default, str) and default else "leave it out"
    return UnsupportedError(f"{name}={value!r} is not available yet: it arrives in a later version; {remedy}")
