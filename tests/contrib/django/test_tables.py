"""`manage.py migrate`, `check` and `treadle`, each in the database of a project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

from tests.contrib.django.conftest import BACKEND, backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.support.django_connection import django_connection, django_database
from treadle.backends.postgres.schema import VERSION
from treadle.backends.sqlite.schema import wanted_version
from treadle.contrib.django.checks import check_stores
from treadle.contrib.django.tables import MakeTables


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The alias of a database without tables."""
    if request.param == "postgres":
        with django_connection(request.getfixturevalue("postgres_url")) as connection:
            yield connection.alias
        return
    given = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": tmp_path / "empty.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
    with django_database("empty", given) as connection:
        yield connection.alias


def problems(alias: str) -> list[str]:
    found = [*backend_of().check(), *check_stores(databases=[alias])]
    return [each.id for each in found]


def migrate(alias: str, *arguments: str) -> None:
    call_command("migrate", "treadle", *arguments, database=alias, verbosity=0, skip_checks=True)


def test_migrate_makes_the_tables_and_removes_them(empty: str) -> None:
    with task_settings(database=empty):
        assert problems(empty) == ["treadle.W002"]
        migrate(empty)
        assert problems(empty) == []

        with transaction.atomic(using=empty):
            result = tasks.add.enqueue(1)
        with pytest.raises(RuntimeError, match="there are items"):
            migrate(empty, "zero")

        app = backend_of().app
        app.sync.cancel(result.id)
        app.sync.delete(result.id)
        migrate(empty, "zero")
        assert problems(empty) == ["treadle.W002"]
        migrate(empty)
        assert problems(empty) == []


def test_migrate_does_not_warn_that_it_is_needed(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with task_settings(database=empty):
        monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
        assert problems(empty) == []
        monkeypatch.setattr("sys.argv", ["manage.py", "runserver"])
        assert problems(empty) == ["treadle.W002"]


def test_other_databases_get_no_tables(empty: str) -> None:
    with task_settings(url="memory://"):
        migrate(empty)
        tables = connections[empty].introspection.table_names()
        assert [name for name in tables if name.startswith("treadle")] == []


def test_a_migration_for_each_version_of_the_schema() -> None:
    loader = MigrationLoader(None)
    (last,) = loader.graph.leaf_nodes("treadle")
    versions = [
        each.version for each in loader.get_migration(*last).operations if isinstance(each, MakeTables)
    ]
    assert versions == [VERSION] == [wanted_version()], "add a migration with MakeTables(version=...)"


def test_the_model_needs_no_other_migration() -> None:
    call_command("makemigrations", "treadle", check=True, dry_run=True, verbosity=0, skip_checks=True)


# -- checks --------------------------------------------------------------------------------------------


@contextmanager
def queues(*names: str, **options: Any) -> Iterator[None]:
    given = {"BACKEND": BACKEND, "QUEUES": list(names), "OPTIONS": options}
    with override_settings(TASKS={"default": given}):
        yield


def test_a_queue_that_no_worker_serves(sqlite_database: str) -> None:
    with queues("default", "mail", database=sqlite_database, queues=["default"]):
        app = backend_of().app
        app.sync.connect()
        assert problems(sqlite_database) == [], "no worker is running yet"
    with task_settings(database=sqlite_database, queues=["default"]):
        worker = backend_of().app
        worker.sync.start()
        # Another process would have another app.
        settings = {
            "BACKEND": BACKEND,
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"database": sqlite_database},
        }
        with override_settings_of_tasks(settings):
            assert problems(sqlite_database) == ["treadle.W003"]
        worker.sync.stop()


@contextmanager
def override_settings_of_tasks(given: dict[str, Any]) -> Iterator[None]:
    """As `override_settings`, but the apps that are in use stay open."""
    from treadle.contrib.django import stores

    kept = dict(stores._opened)
    stores._opened.clear()
    try:
        with override_settings(TASKS={"default": given}):
            yield
    finally:
        stores._opened.update(kept)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"url": "memory://"}, []),
        ({"url": "memory://", "transaction": "same"}, ["treadle.E002"]),
        ({"url": "nonsense"}, ["treadle.E001"]),
        ({"app": "no.such.module:app"}, ["treadle.E001"]),
        ({"database": "nowhere"}, ["treadle.E001"]),
        ({}, ["treadle.E001"]),
    ],
)
def test_what_settings_say_is_checked(options: dict[str, Any], expected: list[str]) -> None:
    with queues(**options):
        assert [each.id for each in backend_of().check()] == expected


@pytest.mark.parametrize(
    ("name", "expected"), [(":memory:", ["treadle.W004"]), ("db.sqlite3", ["treadle.W001"])]
)
def test_databases_of_sqlite_are_checked(tmp_path: Path, name: str, expected: list[str]) -> None:
    path = name if name.startswith(":") else str(tmp_path / name)
    given = {"ENGINE": "django.db.backends.sqlite3", "NAME": path}
    with django_database("checked", given), queues(database="checked"):
        assert [each.id for each in backend_of().check()] == expected
