"""TreadleTask: a task of Django with the options of treadle. And the tasks that this process knows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from treadle.base.timing import Duration
from treadle.base.wording import did_you_mean
from treadle.options import After, KeyScope
from treadle.retry import Retry

from .django_api import Task, autodiscover_modules, import_string


# A result is read from the store, which has the item and not the task: these options do not make two tasks
# different.
@dataclass(frozen=True, slots=True, kw_only=True)
class TreadleTask(Task):
    """A task whose items may have options of treadle: `send.using(retry=Retry(attempts=5)).enqueue(...)`.

    retry, timeout, expires_in, key, key_scope, lane, after: as for `enqueue`.
    tenant: whose items they are.
    database: the alias of the database whose transaction decides about the enqueue.
    """

    retry: Retry | None = field(default=None, compare=False)
    timeout: Duration | None = field(default=None, compare=False)
    expires_in: Duration | None = field(default=None, compare=False)
    key: str | None = field(default=None, compare=False)
    key_scope: KeyScope | None = field(default=None, compare=False)
    lane: str | None = field(default=None, compare=False)
    tenant: str | None = field(default=None, compare=False)
    after: After | None = field(default=None, compare=False)
    database: str | None = field(default=None, compare=False)

    def using(self, **changes: Any) -> TreadleTask:
        """Return the same task with other options. None leaves an option as it is."""
        known = {each.name for each in fields(self)} - {"func", "takes_context"}
        for name in changes:
            if name not in known:
                hint = did_you_mean(name, known, f"it takes {', '.join(sorted(known))}")
                raise TypeError(f"using() has no option {name!r}: {hint}")
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


_OPTIONS: Final = ("retry", "timeout", "expires_in", "key", "key_scope", "lane", "after")


def item_options(task: Task) -> dict[str, Any]:
    """The options of the item that an enqueue of this task stores."""
    given = {name: getattr(task, name, None) for name in _OPTIONS}
    options = {name: value for name, value in given.items() if value is not None}
    if task.run_after is not None:
        options["run_at"] = task.run_after.astimezone()  # without a time zone, it is that of the process
        options["headers"] = {RUN_AFTER: task.run_after.isoformat()}
    return {**options, "priority": task.priority, "queue": task.queue_name}


RUN_AFTER: Final = "django.run_after"
"""The header with the `run_after` of the task: retries move the time when an item is due."""


_known: Final[dict[str, Task]] = {}


def remember(task: Task) -> None:
    """Know a task from now on. A copy with other options (`using`) stands for the task of its module."""
    if task.module_path not in _known:
        own = getattr(sys.modules.get(task.func.__module__), task.func.__name__, None)
        _known[task.module_path] = own if isinstance(own, Task) else task


def find_task(path: str) -> Task | None:
    """The task whose function is at `path`. None if there is none."""
    if path in _known:
        return _known[path]
    try:
        imported = import_string(path)
    except ImportError:
        imported = None
    found: Task | None = imported if isinstance(imported, Task) else None
    if found is None:
        found = next((each for each in _loaded() if each.module_path == path), None)
    if found is not None:
        remember(found)
    return found


def discover() -> list[Task]:
    """All tasks: those in the modules `tasks` of the installed apps, and in all modules that are loaded."""
    autodiscover_modules("tasks")
    for task in _loaded():
        remember(task)
    return list(_known.values())


def _loaded() -> Iterator[Task]:
    for module in sys.modules.copy().values():
        for value in tuple(getattr(module, "__dict__", {}).values()):
            if issubclass(type(value), Task):  # `isinstance` would make a lazy object load what it is for
                yield value
