"""Where the ledger of each site is kept, and which names a site may have."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedDP.budget.definition import check_text
from fedDP.errors import InvalidValueError


def site_names(sites: Sequence[str]) -> list[str]:
    """The sites, sorted.

    Raises:
        InvalidValueError: for no site, one that is given twice, or a name that is not printable text in NFC.
    """
    if isinstance(sites, str):
        raise InvalidValueError("sites", sites, "a sequence of names")
    names = sorted(check_text("site", site) for site in sites)
    if not names or len(set(names)) != len(names):
        raise InvalidValueError("sites", names, "at least one site, each once")
    for name in names:
        if unicodedata.normalize("NFC", name) != name:
            raise InvalidValueError(
                "site", ascii(name), "a name in Unicode's composed form (NFC)", "One site must not have two spellings."
            )
    return names


def of_each(name: str, values: Mapping[str, Any], sites: Sequence[str]) -> dict[str, Any]:
    """`values`, if it has one for each of `sites` and no other.

    Raises:
        InvalidValueError: for anything else.
    """
    if not isinstance(values, Mapping) or set(values) != set(sites):
        given = sorted(values) if isinstance(values, Mapping) else values
        raise InvalidValueError(name, given, f"a value for each of the sites {', '.join(sites)}, and for no other")
    return dict(values)


def places(location: Path | str | Mapping[str, str], sites: Sequence[str]) -> dict[str, str]:
    """The path or URL of each site's ledger.

    Raises:
        InvalidValueError: for one URL, or places that are not of exactly these sites.
    """
    if isinstance(location, Mapping):
        return of_each("location", location, sites)
    if "://" in str(location):
        raise InvalidValueError("location", "a URL", "a folder, or a URL for each site", "A database holds one ledger.")
    folder = os.path.abspath(location)  # the working directory may be another one later
    return {site: os.path.join(folder, _file_name(site)) for site in sites}


def _file_name(site: str) -> str:
    """A file name of the site's alone, on file systems that ignore case too: a hash, and as much of it as is harmless.

    It does not depend on the population, so that a site with another population is refused by its ledger.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", site.lower())[:40].strip("-")
    digest = hashlib.sha256(site.encode()).hexdigest()[:32]
    return f"{readable}.{digest}.record-ledger.db".lstrip(".")
