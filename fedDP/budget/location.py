"""Where a ledger is: a path, or a URL that holds no secret.

A ledger's URL is written into run directories, statements and messages, so a password has no place in it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from fedDP.errors import InvalidValueError

POSTGRESQL_SCHEMES = ("postgresql", "postgresql+psycopg")

# How the one server is found and recognised. Others could hold a secret, or loosen what the ledger asks of a session.
POSTGRESQL_OPTIONS = (
    "application_name",
    "channel_binding",
    "connect_timeout",
    "gssencmode",
    "host",
    "krbsrvname",
    "passfile",
    "port",
    "require_auth",
    "service",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslrootcert",
)

_PASSWORD_OPTION = re.compile(r"[?&;][^=&;]*pass(word|wd)[^=&;]*=", re.IGNORECASE)
_ELSEWHERE = "Put the password into PGPASSWORD, ~/.pgpass, or a service of ~/.pg_service.conf."


def check_location(name: str, location: str) -> str:
    """Returns a ledger's path or URL if it may be shown and stored.

    Guarantees:
        1. A URL with a password is refused, and the error does not hold it.
        2. A PostgreSQL URL names one server and one database, with `POSTGRESQL_OPTIONS` alone.

    Raises:
        InvalidValueError: for anything else; whether the ledger is there was not looked at.
    """
    if not isinstance(location, str) or not location or "\0" in location:
        raise InvalidValueError(name, location, "a path or a URL")
    scheme, separator, rest = location.partition("://")
    if not separator or scheme.partition("+")[0] == "sqlite":
        if separator and _PASSWORD_OPTION.search(rest):
            raise InvalidValueError(name, f"{scheme}://...", "a path without a password")
        return location
    # Whatever stands before the last @, since a password may hold any other sign, even if that makes no valid URL.
    if ":" in rest.rpartition("@")[0] or _PASSWORD_OPTION.search(rest):
        raise InvalidValueError(name, f"{scheme}://...", "a URL without a password", _ELSEWHERE)
    if scheme in POSTGRESQL_SCHEMES:
        _check_postgresql(name, location, rest)
    return location


def _check_postgresql(name: str, location: str, rest: str) -> None:
    try:
        parts = urlsplit(f"//{rest}")
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidValueError(name, "postgresql://...", "a URL such as postgresql://user@host/database") from None
    names = [key for key, _ in options]
    if unknown := sorted(set(names) - set(POSTGRESQL_OPTIONS)):
        raise InvalidValueError(
            name, f"postgresql://...?{'&'.join(unknown)}", f"no other options than {', '.join(POSTGRESQL_OPTIONS)}"
        )
    servers = [parts.netloc, *(value for key, value in options if key in ("host", "port"))]
    if len(set(names)) != len(names) or any("," in server for server in servers):
        raise InvalidValueError(
            name, location, "one server", "After a switch to another server the last charges could be missing."
        )
    if not parts.path.strip("/") and "service" not in names:
        raise InvalidValueError(name, location, "a database: postgresql://user@host/database")
