"""Known tasks: the tasks of this process, by the path of their function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from .django_api import autodiscover_modules, import_string
from .tasks_api import Task

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
