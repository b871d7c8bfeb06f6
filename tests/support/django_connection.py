"""Django's own connections to the databases of tests, without a project and a settings module."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings
from django.db import connections


def setup_django() -> None:
    """Configure Django for this process, once. A test that needs more uses `override_settings`."""
    if not settings.configured:
        tasks = [] if django.VERSION >= (6,) else ["django_tasks"]
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}},
            SECRET_KEY="a secret of tests",
            INSTALLED_APPS=[*_APPS, *tasks, "treadle.contrib.django", "tests.contrib.django.shop"],
            TASKS={"default": {"BACKEND": "treadle.contrib.django.TreadleBackend", "QUEUES": []}},
            TIME_ZONE="UTC",
        )
        django.setup()


_APPS = (
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
)


@contextmanager
def django_connection(url: str) -> "Generator[Any]":
    """A Django connection to the database at `url`, for `transaction.atomic(using=connection.alias)`."""
    parts = urlsplit(url)
    where = parse_qs(parts.query)
    alias = parts.path.removeprefix("/")
    given = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": alias,
        "USER": parts.username or "postgres",
        "HOST": where["host"][0],
        "PORT": where["port"][0],
    }
    with django_database(alias, given) as connection:
        yield connection


@contextmanager
def django_database(alias: str, given: dict[str, Any]) -> "Generator[Any]":
    """Another entry in DATABASES, and this thread's connection to it."""
    setup_django()
    before = connections.settings.get(alias)
    connections.settings[alias] = connections.configure_settings({"default": given})["default"]
    if before is not None:
        with suppress(AttributeError):  # this thread may not have used it
            del connections[alias]
    connection = connections[alias]
    try:
        yield connection
    finally:
        connection.close()
        del connections[alias], connections.settings[alias]
        if before is not None:
            connections.settings[alias] = before
