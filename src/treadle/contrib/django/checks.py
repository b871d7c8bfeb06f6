"""System checks of the task backends: `manage.py check`, and with the databases `check --database default`.

| id | what |
|---|---|
| `treadle.E001` | the app of a backend cannot be made: OPTIONS say something wrong |
| `treadle.E002` | `transaction` is `same`, and the items are in no database of Django |
| `treadle.W001` | SQLite begins transactions as readers, so an enqueue in one may find the file locked |
| `treadle.W002` | the tables of treadle are missing, or of another version |
| `treadle.W003` | no worker serves one of QUEUES |
| `treadle.W004` | the database is in memory, where treadle cannot keep items |
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from treadle.errors import SchemaError, TreadleError, message_of

from .backend import TreadleBackend
from .django_api import CheckError, CheckWarning, ImproperlyConfigured, connections, task_backends
from .stores import is_store


def check_backend(backend: TreadleBackend) -> Iterator[Any]:
    """Look at the settings of a backend. It asks no store."""
    where = f"TASKS[{backend.alias!r}]"
    try:
        store = backend.app.backend
    except (ImproperlyConfigured, ImportError) as error:
        yield _unusable(backend, where, error)
        return
    here = [each for each in connections if is_store(each, store)]
    if backend.transaction == "same" and not here:
        yield CheckError(
            f"{where}: transaction is 'same', and the items are in no database of DATABASES.",
            hint="Use 'on_commit', or give the name of a database: OPTIONS['database'].",
            id="treadle.E002",
        )
    if backend.transaction in ("same", None):
        yield from (_deferred(where, each) for each in here if _is_deferred(each))


def _unusable(backend: TreadleBackend, where: str, error: Exception) -> Any:
    """Why there is no app. Tests have a database in memory, and may go on without treadle."""
    alias = backend.options.get("database", "default")
    if {"app", "url"} & backend.options.keys() or not _is_in_memory(alias):
        return CheckError(f"{where}: {error}", id="treadle.E001")
    return CheckWarning(
        f"{where}: the database {alias!r} is in memory, where treadle cannot keep items.",
        hint="Use `treadle.contrib.django.testing.in_memory()` in tests, or a file.",
        id="treadle.W004",
    )


def _is_in_memory(alias: str) -> bool:
    if alias not in connections.settings or connections[alias].vendor != "sqlite":
        return False
    return bool(connections[alias].is_in_memory_db())


def _is_deferred(alias: str) -> bool:
    options: dict[str, Any] = connections[alias].settings_dict.get("OPTIONS") or {}
    mode = str(options.get("transaction_mode") or "DEFERRED")
    return connections[alias].vendor == "sqlite" and mode.upper() == "DEFERRED"


def _deferred(where: str, alias: str) -> Any:
    return CheckWarning(
        f"{where}: transactions of {alias!r} begin as readers: an enqueue in one may find the file locked.",
        hint=f"DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}",
        id="treadle.W001",
    )


def check_stores(
    app_configs: object = None, databases: Sequence[str] | None = None, **_: object
) -> Iterable[Any]:
    """Look at the stores that are in these databases: the tables, and the workers."""
    for name in task_backends if databases else ():
        backend = task_backends[name]
        if isinstance(backend, TreadleBackend):
            yield from _check_store(backend, databases or ())


def _check_store(backend: TreadleBackend, databases: Sequence[str]) -> Iterator[Any]:
    where = f"TASKS[{backend.alias!r}]"
    try:
        app = backend.app
    except (ImproperlyConfigured, ImportError):
        return  # `check_backend` says it
    store: Any = app.backend
    if not any(is_store(each, store) for each in databases):
        return
    applies, store.apply_schema = store.apply_schema, False  # a check changes nothing
    try:
        unserved = backend.queues - _served(app.sync.workers(), backend.queues)
    except SchemaError as error:
        hint = "Run `manage.py migrate`."
        if not _is_migrating():
            yield CheckWarning(f"{where}: {message_of(error)}.", hint=hint, id="treadle.W002")
        return
    except TreadleError as error:
        yield CheckWarning(f"{where}: {message_of(error)}.", id="treadle.W002")
        return
    finally:
        app.sync.close()
        store.apply_schema = applies
    for queue in sorted(unserved):
        yield CheckWarning(
            f"{where}: workers are running, and none of them serves the queue {queue!r}.",
            hint=f"Run `manage.py treadle worker --queues {queue}`, or a worker without --queues.",
            id="treadle.W003",
        )


def _is_migrating() -> bool:
    """Whether `manage.py migrate` looks: it is about to do what the hint says."""
    return sys.argv[1:2] == ["migrate"]


def _served(workers: Sequence[Any], queues: set[str]) -> set[str]:
    """Those of the queues that a worker serves. All of them if there is no worker: it may start later."""
    served: set[str] = set() if workers else set(queues)
    for worker in workers:
        info = worker.info
        served |= queues if info is None or info.queues is None else set(info.queues)
    return served
