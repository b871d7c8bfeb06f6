"""Django's own connections to the databases of tests, without a project and a settings module."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings
from django.db import connections


def setup_django() -> None:
    """Configure Django for this process, once. A test that needs more uses `override_settings`."""
    if not settings.configured:
        databases = {"default": {"ENGINE": "django.db.backends.dummy"}}
        settings.configure(DATABASES=databases, SECRET_KEY="a secret of tests")
        django.setup()


@contextmanager
def django_connection(url: str) -> "Generator[Any]":
    """A Django connection to the database at `url`, for `transaction.atomic(using=connection.alias)`."""
    setup_django()
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
    connections.settings[alias] = connections.configure_settings({"default": given})["default"]
    connection = connections[alias]
    try:
        yield connection
    finally:
        connection.close()
        del connections[alias], connections.settings[alias]
