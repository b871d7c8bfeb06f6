"""The tasks framework of Django: `django.tasks` from Django 6 on, before that the package `django_tasks`.

Django has no types of its own. What this package uses of the framework is declared here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dataclasses import dataclass
    from datetime import datetime

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
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
