"""Stores: the apps behind the task backends of this process, one for each alias in `TASKS`. An app for other
work: `app(...)`. And the entries of `DATABASES` as stores.

Django makes a backend anew in each thread. Its app is shared: it has the connections and the event loop.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from weakref import WeakKeyDictionary

from treadle.app import Treadle
from treadle.backend import Backend, store_name
from treadle.errors import InputError, message_of
from treadle.handler.call_next import Middleware
from treadle.worker import set_scope

from .connections import close_connections, handler_scope
from .django_api import ImproperlyConfigured, connections

OWN_OPTIONS: Final = frozenset(("app", "url", "database", "transaction"))
"""The others in OPTIONS are settings of the app."""


class _Opened(NamedTuple):
    app: Treadle
    options: Mapping[str, Any]
    place: StorePlace | None


_opened: Final[dict[str, _Opened]] = {}
_lock: Final = threading.RLock()
_places: Final[WeakKeyDictionary[Treadle, tuple[str, StorePlace]]] = WeakKeyDictionary()
"""The database that an app was made for: its alias, and where it was then."""


def app_of(alias: str, options: Mapping[str, Any]) -> Treadle:
    """The app of a task backend. It is made when it is first asked for, and again if its settings, or the
    name of its database, have changed."""
    if "app" in options:
        return _import_app(options)
    place = None if "url" in options else place_of(options.get("database", "default"))
    with _lock:
        found = _opened.get(alias)
        if found is None or found.options != options or found.place != place:
            found = _opened[alias] = _Opened(_make_app(options, place), dict(options), place)
        return found.app


def _import_app(options: Mapping[str, Any]) -> Treadle:
    """The app that a module has."""
    path = str(options["app"])
    others = sorted(set(options) - {"app", "database", "transaction"})
    if others:
        raise ImproperlyConfigured(f"OPTIONS: {', '.join(others)}: the app {path} has its own settings")
    found = _import("app", path, "shop.work:app")
    if not isinstance(found, Treadle):
        raise ImproperlyConfigured(f"OPTIONS['app'] is {path!r}, which is no Treadle app")
    _check_place(found, path)
    return found


def _import(option: str, path: str, example: str) -> object:
    """What an option names as `module:name`."""
    module, _, name = path.partition(":")
    found: object = getattr(importlib.import_module(module), name, None) if name else None
    if found is None:
        raise ImproperlyConfigured(f"OPTIONS[{option!r}] is {path!r}: write module:name, as in {example}")
    return found


def _check_place(app: Treadle, path: str) -> None:
    """An app that was made before the tests of a project began is that of the real database."""
    made = _places.get(app)
    if made is not None and place_of(made[0]) != made[1]:
        raise ImproperlyConfigured(
            f"{path} was made for another database than the one that {made[0]!r} is now. In tests, use "
            "`treadle.contrib.django.testing.in_memory()`"
        )


def remember_place(app: Treadle, database: str, place: StorePlace) -> None:
    """Remember which database an app was made for."""
    _places[app] = database, place


def _make_app(options: Mapping[str, Any], place: StorePlace | None) -> Treadle:
    if "url" in options and "database" in options:
        raise ImproperlyConfigured("OPTIONS: url and database are two stores: give one")
    settings = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    if isinstance(settings.get("schedules"), str):
        settings["schedules"] = _import("schedules", settings["schedules"], "shop.schedules:SCHEDULES")
    try:
        return Treadle(str(options["url"]) if place is None else store_of(place), **settings)
    except (InputError, TypeError) as error:
        raise ImproperlyConfigured(f"OPTIONS: {message_of(error)}") from error


def close_apps() -> None:
    """Close the apps that were made here, with their connections. The next use makes new ones."""
    with _lock:
        apps = [opened.app for opened in _opened.values()]
        _opened.clear()
    for app in apps:
        app.sync.close()


def forget_changed(*, setting: str, **_: object) -> None:
    """A receiver of `setting_changed`: tests change settings."""
    if setting in ("TASKS", "DATABASES"):
        close_apps()


def app(
    backend: str | Backend | None = None,
    *,
    database: str = "default",
    middleware: Sequence[Middleware] = (),
    **settings: Any,
) -> Treadle:
    """Return an app whose handlers find the connections of Django usable, as views do.

    backend: a URL or a Backend. Without it, the items are in a database of Django.
    database: its alias in DATABASES.
    middleware, settings: as for `Treadle`.
    """
    place = None if backend is not None else place_of(database)
    store = store_of(place) if place is not None else backend
    assert store is not None
    made = Treadle(store, middleware=[close_connections, *middleware], **settings)
    set_scope(made.worker, handler_scope)
    if place is not None:
        remember_place(made, database, place)
    return made


# -- databases of Django as stores -------------------------------------------------------------------


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
