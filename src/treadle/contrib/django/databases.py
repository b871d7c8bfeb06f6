"""Databases: the entries of `DATABASES` as stores of treadle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from treadle.backend import Backend, store_name

from .django_api import ImproperlyConfigured, connections

_PASSED_ON: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile", "service")
"""The options of a connection to PostgreSQL that treadle's driver has too."""
MEMORY_ADVICE: Final = (
    "treadle cannot share a SQLite database in memory. In tests, use "
    "`treadle.contrib.django.testing.in_memory()`, or a file: 'TEST': {'NAME': 'test.sqlite3'}"
)


class StorePlace(NamedTuple):
    """Where the items of a database are: its vendor, and a path or a URL."""

    vendor: str
    address: str


def place_of(alias: str) -> StorePlace:
    """Where the database `alias` is now: tests give it another name. `ImproperlyConfigured` if treadle
    cannot keep items there."""
    if alias not in connections.settings:
        raise ImproperlyConfigured(f"DATABASES has no {alias!r}: it has {', '.join(connections.settings)}")
    connection = connections[alias]
    vendor: str = connection.vendor
    if vendor == "sqlite":
        if connection.is_in_memory_db():
            raise ImproperlyConfigured(MEMORY_ADVICE)
        return StorePlace(vendor, str(Path(connection.settings_dict["NAME"]).absolute()))
    if vendor == "postgresql":
        return StorePlace(vendor, postgres_url(connection.settings_dict))
    raise ImproperlyConfigured(
        f"DATABASES[{alias!r}] is {connection.display_name}, and treadle keeps items in SQLite or "
        "PostgreSQL: give another store with OPTIONS['url']"
    )


def store_of(place: StorePlace) -> str | Backend:
    """What an app is made with: a backend, or a URL."""
    if place.vendor == "sqlite":
        from treadle.backends.sqlite import SqliteBackend

        return SqliteBackend(place.address)  # a path may have characters that a URL gives a meaning
    return place.address


def postgres_url(settings: Mapping[str, Any]) -> str:
    """The URL of a database as Django's settings name it."""
    host, port = str(settings["HOST"] or ""), str(settings["PORT"] or "")
    user, password = str(settings["USER"] or ""), str(settings["PASSWORD"] or "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    given: Mapping[str, Any] = settings.get("OPTIONS") or {}
    query = {name: str(given[name]) for name in _PASSED_ON if given.get(name) is not None}
    # In the query: a directory of sockets cannot be the host of a URL.
    query |= {name: value for name, value in (("host", host), ("port", port)) if value}
    name = quote(str(settings["NAME"] or ""), safe="")
    return f"postgresql://{f'{login}@' if login else ''}/{name}{f'?{urlencode(query)}' if query else ''}"


def is_store(alias: str, backend: Backend) -> bool:
    """Whether the items of `backend` are in the database `alias`."""
    try:
        place = place_of(alias)
    except ImproperlyConfigured:
        return False
    theirs = store_name(backend)
    if place.vendor == "sqlite":
        path = theirs.removeprefix("sqlite:///")
        return path != theirs and Path(path).absolute().resolve() == Path(place.address).resolve()
    return theirs.startswith("postgres") and _server_and_name(theirs) == _server_and_name(place.address)


def _server_and_name(url: str) -> tuple[str, str, str]:
    """The host, the port and the database that a URL names. One server may have several names: then they
    differ, and an enqueue waits for the commit."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    host = query.get("host") or parts.hostname or ""
    port = query.get("port") or str(parts.port or 5432)
    name = query.get("dbname") or query.get("database") or unquote(parts.path.removeprefix("/"))
    return host, port, name


def raw_connection(connection: Any) -> Any:
    """The connection of Django, in a transaction, as `tx=` takes it."""
    if connection.vendor != "sqlite":
        return connection
    connection.validate_no_broken_transaction()
    return connection.connection


def in_transaction(connection: Any) -> bool:
    """Whether what is executed on this connection waits for a commit."""
    is_open = connection.connection is not None
    return bool(connection.in_atomic_block or (is_open and not connection.autocommit))
