"""`app(...)`: an app for a Django project, for work that is no task of Django."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.app import Treadle
from treadle.backend import Backend
from treadle.handler.call_next import Middleware
from treadle.worker import set_scope

from .connections import close_connections, handler_scope
from .databases import place_of, store_of
from .stores import remember_place


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
