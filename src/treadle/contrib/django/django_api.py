"""What this package uses of Django. Django has no types of its own: they are declared here, once.

The tasks framework is `django.tasks` from Django 6 on, before that the package `django_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass
    from datetime import datetime

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

    # -- tasks

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Task:
        func: Callable[..., Any]
        priority: int = 0
        backend: str = "default"
        queue_name: str = "default"
        run_after: datetime | None = None
        takes_context: bool = False

        @property
        def module_path(self) -> str: ...

        def using(self, **changes: Any) -> Task: ...
        def enqueue(self, *args: Any, **kwargs: Any) -> TaskResult: ...
        def call(self, *args: Any, **kwargs: Any) -> Any: ...

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TaskError:
        exception_class_path: str
        traceback: str

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TaskResult:
        task: Task
        id: str
        status: str
        enqueued_at: datetime | None
        started_at: datetime | None
        finished_at: datetime | None
        last_attempted_at: datetime | None
        args: list[Any]
        kwargs: dict[str, Any]
        backend: str
        errors: list[TaskError]
        worker_ids: list[str]

        @property
        def return_value(self) -> Any: ...

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TaskContext:
        task_result: TaskResult

    class TaskResultStatus:
        READY: str
        RUNNING: str
        FAILED: str
        SUCCESSFUL: str

    class BaseTaskBackend:
        alias: str
        queues: set[str]
        options: dict[str, Any]

        def __init__(self, alias: str, params: Mapping[str, Any]) -> None: ...
        def validate_task(self, task: Task) -> None: ...

    class TaskResultDoesNotExist(Exception): ...

    class TaskSignal(Protocol):
        def send_robust(self, sender: type[Any], *, task_result: TaskResult) -> object: ...
        async def asend_robust(self, sender: type[Any], *, task_result: TaskResult) -> object: ...

    class TaskBackends(Protocol):
        def __getitem__(self, alias: str) -> BaseTaskBackend: ...
        def __iter__(self) -> Iterator[str]: ...

    task_backends: TaskBackends
    task_enqueued: TaskSignal
    task_started: TaskSignal
    task_finished: TaskSignal

    def normalize_json(value: Any) -> Any: ...

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

    try:
        from django.tasks import task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    except ModuleNotFoundError as error:
        if error.name not in ("django.tasks", "django.utils.json"):
            raise
        from django_tasks import task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json

__all__ = [
    "AppConfig",
    "BaseCommand",
    "BaseMigration",
    "BaseTaskBackend",
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
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "ThreadSensitiveContext",
    "apps",
    "autodiscover_modules",
    "close_old_connections",
    "connections",
    "csrf_exempt",
    "import_string",
    "migrations",
    "models",
    "normalize_json",
    "post_migrate",
    "re_path",
    "register",
    "reset_queries",
    "router",
    "setting_changed",
    "settings",
    "setup",
    "sync_to_async",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
    "timezone",
    "transaction",
]
