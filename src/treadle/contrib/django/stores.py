"""Stores: the apps behind the task backends of this process, one for each alias in `TASKS`.

Django makes a backend anew in each thread. Its app is shared: it has the connections and the event loop.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from treadle.app import Treadle
from treadle.errors import InputError, message_of

from .databases import StorePlace, place_of, store_of
from .django_api import ImproperlyConfigured

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
