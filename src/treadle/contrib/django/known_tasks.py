"""Known tasks: the tasks of this process, by the path of their function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from .django_api import autodiscover_modules, import_string
from .tasks_api import Task

_known: Final[dict[str, Task]] = {}


def remember(task: Task) -> None:
    _known.setdefault(task.module_path, task)


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
    for name, module in sys.modules.copy().items():
        for key, value in tuple(getattr(module, "__dict__", {}).items()):
            if issubclass(type(value), Task):  # `isinstance` would make a lazy object load what it is for
                func = value.func
                if (func.__module__, func.__name__) == (name, key):
                    _known[value.module_path] = value  # not a copy with other options
                yield value
