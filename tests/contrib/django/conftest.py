"""Django with real databases: SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_connection import django_connection, django_database, setup_django
from treadle import Retry, Treadle

setup_django()

from django.test import override_settings  # noqa: E402

from tests.contrib.django.shop import tasks  # noqa: E402
from tests.contrib.django.shop.models import Order  # noqa: E402
from treadle.contrib.django import TreadleBackend  # noqa: E402
from treadle.contrib.django.django_api import task_backends  # noqa: E402
from treadle.contrib.django.stores import close_apps  # noqa: E402

BACKEND = "treadle.contrib.django.TreadleBackend"
QUICK = Retry(attempts=3, base=0.01, max=0.01, jitter=0)


def task_settings(**options: Any) -> Any:
    """Settings with one task backend. Enter it."""
    return override_settings(
        TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"retry": QUICK, **options}}}
    )


def backend_of(alias: str = "default") -> TreadleBackend:
    backend = task_backends[alias]
    assert isinstance(backend, TreadleBackend)
    return backend


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    tasks.seen.clear()
    yield
    close_apps()


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[str]:
    """A SQLite database with the table of orders: its alias."""
    given = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": tmp_path / "shop.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA synchronous=OFF"},
    }
    with django_database("file", given) as connection:
        with connection.schema_editor() as editor:
            editor.create_model(Order)
        yield "file"
        close_apps()


@pytest.fixture
def postgres_database(warm_url: str) -> Iterator[str]:
    """The same on PostgreSQL, with the tables of treadle."""
    with django_connection(warm_url) as connection:
        with connection.schema_editor() as editor:
            editor.create_model(Order)
        yield connection.alias
        close_apps()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """The alias of a database, with a task backend whose items are in it."""
    alias: str = request.getfixturevalue(f"{request.param}_database")
    return alias


@pytest.fixture
def backend(database: str) -> Iterator[TreadleBackend]:
    """A task backend whose items are in `database`."""
    with task_settings(database=database):
        found = backend_of()
        found.app.sync.connect()
        yield found


@pytest.fixture
def worker(backend: TreadleBackend) -> Iterator[Treadle]:
    """Its app, which runs what is enqueued."""
    app = backend.app
    app.sync.start()
    yield app
    app.sync.stop()
