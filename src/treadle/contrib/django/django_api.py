"""What this package uses of Django. Django has no types of its own: they are declared here, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    F = TypeVar("F", bound=Callable[..., Any])

    CheckError: Any
    CheckWarning: Any
    HttpResponse: Any
    StreamingHttpResponse: Any
    SyncToAsync: Any
    Tags: Any
    ThreadSensitiveContext: Any
    apps: Any
    connections: Any
    migrations: Any
    models: Any
    post_migrate: Any
    re_path: Any
    register: Any
    router: Any
    setting_changed: Any
    settings: Any
    sync_to_async: Any
    timezone: Any
    transaction: Any

    class AppConfig: ...

    class BaseCommand: ...

    class BaseMigration: ...

    class CommandError(Exception): ...

    class ImproperlyConfigured(Exception): ...

    class Manager: ...

    class Model: ...

    class Operation: ...

    class PermissionDenied(Exception): ...

    def autodiscover_modules(*names: str) -> None: ...
    def close_old_connections() -> None: ...
    def csrf_exempt(view: F) -> F: ...
    def import_string(path: str) -> Any: ...
    def reset_queries() -> None: ...
    def setup() -> None: ...

else:
    from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
    from django import setup
    from django.apps import AppConfig, apps
    from django.conf import settings
    from django.core.checks import Error as CheckError
    from django.core.checks import Tags, register
    from django.core.checks import Warning as CheckWarning
    from django.core.exceptions import ImproperlyConfigured, PermissionDenied
    from django.core.management.base import BaseCommand, CommandError
    from django.core.signals import setting_changed
    from django.db import (
        close_old_connections,
        connections,
        migrations,
        models,
        reset_queries,
        router,
        transaction,
    )
    from django.db.migrations import Migration as BaseMigration
    from django.db.migrations.operations.base import Operation
    from django.db.models import Manager, Model
    from django.db.models.signals import post_migrate
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import re_path
    from django.utils import timezone
    from django.utils.module_loading import autodiscover_modules, import_string
    from django.views.decorators.csrf import csrf_exempt

__all__ = [
    "AppConfig",
    "BaseCommand",
    "BaseMigration",
    "CheckError",
    "CheckWarning",
    "CommandError",
    "HttpResponse",
    "ImproperlyConfigured",
    "Manager",
    "Model",
    "Operation",
    "PermissionDenied",
    "StreamingHttpResponse",
    "SyncToAsync",
    "Tags",
    "ThreadSensitiveContext",
    "apps",
    "autodiscover_modules",
    "close_old_connections",
    "connections",
    "csrf_exempt",
    "import_string",
    "migrations",
    "models",
    "post_migrate",
    "re_path",
    "register",
    "reset_queries",
    "router",
    "setting_changed",
    "settings",
    "setup",
    "sync_to_async",
    "timezone",
    "transaction",
]
