"""Writes ``docs/scenario.md``, the reference of all scenario keys, from their declarations.

Usage: ``python scripts/scenario_reference.py [--check]``; ``--check`` only tells whether the file is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from fedDP.scenario.keys import Key, Section, keys_of
from fedDP.scenario.schema import SECTIONS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "scenario.md"

INTRODUCTION = """# Scenario keys

A scenario is a TOML file. `extends = "hospital"` (a shipped name or a path) stands at its top, above every table, and
takes over the keys that the file does not set. `--set section.key=value` overrides a key, `--set section.key=` resets
it. This page is written by `python scripts/scenario_reference.py`.
"""


def reference() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *(line for section in SECTIONS.values() for line in section_lines(section))]) + "\n"


def section_lines(section: type[Section]) -> Iterator[str]:
    """A section's table, and then those of the sections inside it."""
    yield f"## [{section.section}]\n"
    yield "| key | default | allowed | what it is |"
    yield "| --- | --- | --- | --- |"
    inner: list[type[Section]] = []
    for name, declared in keys_of(section).items():
        if isinstance(declared.default, Section):
            inner.append(type(declared.default))
        elif declared.written:
            yield f"| `{name}` | {default_text(declared)} | {cell(declared.allowed())} | {cell(declared.help)} |"
    yield ""
    for other in inner:
        yield from section_lines(other)


def default_text(declared: Key) -> str:
    """The default as a file would say it."""
    value = declared.default
    if value is None or value in ("", (), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def cell(text: str) -> str:
    """Text for a table."""
    return text.replace("|", "\\|")


def main() -> int:
    """Writes the page, or checks it."""
    page = reference()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.exists() and TARGET.read_text(encoding="utf-8") == page else 1
    TARGET.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
