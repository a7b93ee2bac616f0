"""Finding, merging and loading scenario files.

A file may build on another with ``extends = "name or relative path"``: tables merge key by key, the file's
own keys win. Overrides (``--set section.key=value``) are one more layer on top. What a higher layer makes
meaningless goes (`_supersede`): the description of other data, the keys of another model, the rate of another
sampling, the range of a column that becomes categorical.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from fedDP.errors import ScenarioError
from fedDP.scenario.schema import SECTIONS, SHARED_MODEL_KEYS, Scenario, known_keys, scenario_from_tables, unknown_key


class Default(Enum):
    """The type of `DEFAULT`."""

    DEFAULT = "default"


DEFAULT: Final = Default.DEFAULT
"""The value of an override that resets its key, as if no file had set it."""

Tables = dict[str, object]

_DESCRIBES_DATA = [
    "name",
    "path",
    "public",
    "population_id",
    "target",
    "task",
    "client_column",
    "site_column",
    "features",
    "drop",
    "ranges",
    "categories",
]
_RATES = ("sampling_rate", "cohort_size")


def load_scenario(path_or_name: str | os.PathLike[str], overrides: Mapping[str, object] | None = None) -> Scenario:
    """Loads a scenario file, or a scenario that ships with the package.

    Args:
        path_or_name: a TOML file, or one of `named_scenarios`. A plain word that is both is the name;
            ``./word`` is the file.
        overrides: full key -> value, as in ``{"server.rounds": 3, "data.ranges.age": [45, 65]}``; None and
            `DEFAULT` reset a key.

    Raises:
        ScenarioError: with every fault at once; or the file is missing, unreadable, not TOML, or extends
            itself.

    >>> load_scenario("hospital", {"server.rounds": 3}).server.rounds
    3
    """
    source = os.fspath(path_or_name)
    tables = _read_chain(_locate(source, is_path=not isinstance(path_or_name, str)), source, ())
    tables, faults = _override(tables, overrides or {})
    return scenario_from_tables(tables, source=source, faults=faults)


def named_scenarios() -> tuple[str, ...]:
    """The names of the scenarios that ship with the package, sorted."""
    entries = resources.files("fedDP.scenario.named").iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))


def parse_override(text: str) -> tuple[str, object]:
    """Splits ``section.key=value`` into the key and the value, which is read as TOML.

    A value that is no TOML is a string; an empty value is `DEFAULT`.

    Raises:
        ScenarioError: there is no ``=``, or no section.

    >>> parse_override("server.rounds=80"), parse_override("model.name=mlp")
    (('server.rounds', 80), ('model.name', 'mlp'))
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or "." not in name:
        raise ScenarioError("--set", [f"{text!r}: expected section.key=value, such as server.rounds=80"])
    if not value:
        return name, DEFAULT
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return name, value
    return name, parsed["value"] if len(parsed) == 1 else value


def _locate(source: str, *, is_path: bool = False, directory: Path | None = None) -> Path | Traversable:
    """The file that `source` means; relative paths start at `directory`, or at the working directory."""
    names = named_scenarios()
    if not is_path and source in names:
        return resources.files("fedDP.scenario.named") / f"{source}.toml"
    path = Path(os.path.abspath((directory or Path()) / Path(source).expanduser()))
    if path.is_dir():
        raise ScenarioError(source, [f"{path} is a directory; expected a TOML file"])
    if not path.exists():
        close = difflib.get_close_matches(source, names, n=1)
        hint = f" Nearest: {close[0]}." if close else ""
        raise ScenarioError(
            source, [f"there is no file {path}, and no scenario of that name; these ship: {', '.join(names)}.{hint}"]
        )
    return path


def _read_chain(location: Path | Traversable, source: str, seen: tuple[str, ...]) -> Tables:
    """Reads a file and what it extends, merged. `seen` are the files that led here."""
    identity = os.path.realpath(str(location))
    if identity in seen:
        chain = " -> ".join([*(Path(each).name for each in seen[seen.index(identity) :]), Path(identity).name])
        raise ScenarioError(source, [f"extends: {chain} is a cycle; a file cannot build on itself"])
    tables = _parse(location, source)
    directory = location.parent if isinstance(location, Path) else None
    if directory is not None:
        _make_path_absolute(tables, directory)
    base = tables.pop("extends", None)
    if base is None:
        return tables
    if not isinstance(base, str) or not base:
        raise ScenarioError(source, [f"extends={base!r}: expected the name of a scenario or a relative path"])
    return _merge(_read_chain(_locate(base, directory=directory), base, (*seen, identity)), tables)


def _make_path_absolute(tables: Tables, directory: Path) -> None:
    data = tables.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str) and data["path"]:
        data["path"] = os.path.abspath(directory / Path(data["path"]).expanduser())


def _parse(location: Path | Traversable, source: str) -> Tables:
    try:
        return tomllib.loads(location.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as error:
        raise ScenarioError(source, [f"{location} cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise ScenarioError(source, [f"{location} is not UTF-8 text"]) from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(source, [f"{location} is not TOML: {error}"]) from None


def _merge(base: Tables, layer: Mapping[str, object]) -> Tables:
    return _merge_tables(_supersede(base, layer), layer)


def _merge_tables(base: Mapping[str, object], layer: Mapping[str, object]) -> Tables:
    merged = dict(base)
    for name, value in layer.items():
        inherited = merged.get(name)
        both = isinstance(inherited, Mapping) and isinstance(value, Mapping)
        merged[name] = _merge_tables(inherited, value) if both else value  # type: ignore[arg-type]
    return merged


def _supersede(base: Tables, layer: Mapping[str, object]) -> Tables:
    """Removes from `base` what `layer` makes meaningless.

    Guarantee: ``public = true``, columns and the population of one data set never carry over to another.
    """
    kept = dict(base)
    if _changes(base, layer, "data", ("name", "path")):
        kept["data"] = _keep(kept["data"], lambda name: name not in _DESCRIBES_DATA)
    if _changes(base, layer, "model", ("name",)):
        kept["model"] = _keep(kept["model"], lambda name: name in SHARED_MODEL_KEYS)
    if _changes(base, layer, "privacy", ("sampling", *_RATES)):
        kept["privacy"] = _keep(kept["privacy"], lambda name: name not in _RATES)
    data, new_data = kept.get("data"), layer.get("data")
    if isinstance(data, Mapping) and isinstance(new_data, Mapping):
        kept["data"] = data = dict(data)
        for one, other in (("ranges", "categories"), ("categories", "ranges")):
            if isinstance(data.get(one), Mapping) and isinstance(columns := new_data.get(other), Mapping):
                data[one] = _keep(data[one], lambda name, columns=columns: name not in columns)  # type: ignore[misc]
    return kept


def _changes(base: Tables, layer: Mapping[str, object], section: str, names: Iterable[str]) -> bool:
    old, new = base.get(section), layer.get(section)
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return False
    return any(name in new and new[name] != old.get(name) for name in names)


def _keep(table: object, wanted: Callable[[str], bool]) -> Tables:
    assert isinstance(table, Mapping)
    return {name: value for name, value in table.items() if wanted(name)}


def _override(tables: Tables, overrides: Mapping[str, object]) -> tuple[Tables, list[str]]:
    """The tables with the overrides on top, and the faults of the overrides' keys."""
    faults: list[str] = []
    resets: list[list[str]] = []
    layer: Tables = {}
    known = set(known_keys())
    for name, value in overrides.items():
        parts = _split(name)
        if len(parts) < 2 or not all(parts):
            faults.append(f"{name!r}: expected section.key, such as server.rounds")
        elif value is DEFAULT or value is None:
            resets.append(parts)
            # Any key may be a model's own; everywhere else an unknown key is a mistake.
            if parts[0] != "model" and not {".".join(parts[:2]), ".".join(parts[:3])} & known:
                faults.append(unknown_key(name) if parts[0] in SECTIONS else unknown_key(".".join(parts)))
        else:
            nested: object = value
            for part in reversed(parts):
                nested = {part: nested}
            assert isinstance(nested, dict)
            layer = _merge_tables(layer, nested)
    _make_path_absolute(layer, Path())
    merged = _merge(tables, layer)
    for parts in resets:
        merged = _without(merged, parts)
    return merged, faults


def _without(table: Tables, parts: list[str]) -> Tables:
    first, *rest = parts
    if not rest:
        return {name: value for name, value in table.items() if name != first}
    inner = table.get(first)
    return {**table, first: _without(dict(inner), rest)} if isinstance(inner, Mapping) else table


def _split(name: str) -> list[str]:
    """The parts of a dotted key; a part in double quotes may hold dots."""
    found = re.findall(r'"([^"]*)"|([^.]+)', name)
    return [quoted or plain for quoted, plain in found]
