"""Tables: those of treadle in a database of Django, for `manage.py migrate`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from .backend import TreadleBackend
from .django_api import ImproperlyConfigured, Operation, router, task_backends
from .stores import is_store

_MADE: Final = re.compile(r"^create (table|view) (\w+)", re.IGNORECASE | re.MULTILINE)


class MakeTables(Operation):
    """Make the tables of treadle, or bring them to the version of this library, in the database that `TASKS`
    names. In any other database it does nothing. It can be undone while there are no items.

    version: that of the schema, when the migration was written.
    """

    reversible = True
    reduces_to_sql = False

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: object) -> None:
        """The tables are not those of models."""

    def database_forwards(self, app_label: str, schema_editor: Any, *_: object) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            make_tables(schema_editor.connection.alias)

    def database_backwards(self, app_label: str, schema_editor: Any, *_: object) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            drop_tables(schema_editor)

    def describe(self) -> str:
        return f"Make the tables of treadle, version {self.version}"


def make_tables(alias: str) -> None:
    """Bring the stores in this database to the version of this library. They have connections of their
    own, which are closed then."""
    for backend in _stored_in(alias):
        app = backend.app
        app.sync.connect()
        app.sync.close()


def drop_tables(schema_editor: Any) -> None:
    """Remove the tables from this database, if there are no items in them."""
    connection = schema_editor.connection
    for backend in _stored_in(connection.alias):
        app = backend.app
        items = app.sync.list(limit=1).items
        app.sync.close()
        if items:
            raise RuntimeError(
                f"there are items in {connection.alias!r}: delete them first. The tables stay as they are"
            )
        prefix = str(backend.options.get("prefix", "treadle"))
        for statement in _dropping(connection.vendor, prefix):
            schema_editor.execute(statement)


def _dropping(vendor: str, prefix: str) -> Iterator[str]:
    if vendor == "postgresql":
        yield f'DROP SCHEMA IF EXISTS "{prefix}" CASCADE'
        return
    from treadle.backends.sqlite import schema_sql

    kinds = {
        name: kind for kind, name in _MADE.findall(schema_sql())
    }  # a later migration may make a table a view
    for name, kind in kinds.items():
        yield f"DROP {kind} IF EXISTS {name}"


def _stored_in(alias: str) -> Iterator[TreadleBackend]:
    """The backends whose items are in this database."""
    for name in task_backends:
        backend = task_backends[name]
        if isinstance(backend, TreadleBackend) and _is_in(backend, alias):
            yield backend


def _is_in(backend: TreadleBackend, alias: str) -> bool:
    try:
        return is_store(alias, backend.app.backend)
    except ImproperlyConfigured:
        return False  # a database in memory, for instance: the check says it


def make_current(*, using: str, plan: Iterable[tuple[Any, bool]] = (), **_: object) -> None:
    """A receiver of `post_migrate`: functions in the database may be those of an earlier release."""
    if not any(backwards and migration.app_label == APP_LABEL for migration, backwards in plan):
        make_tables(using)


APP_LABEL: Final = "treadle"
