"""`task_schedule(...)`: a task of Django that recurs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Unpack

from treadle.base.timing import Duration, Instant
from treadle.define.work import Work
from treadle.options import Options
from treadle.schedule import CatchUp, NextFn, Schedule

from .backend import TreadleBackend
from .django_api import ImproperlyConfigured
from .known_tasks import remember
from .task import item_options
from .task_type import plain_input, type_of
from .tasks_api import Task, task_backends


def task_schedule(
    name: str,
    task: Task,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    cron: str | None = None,
    tz: str | None = None,
    every: Duration | None = None,
    next: NextFn | None = None,
    start: Instant | None = None,
    end: Instant | None = None,
    catch_up: CatchUp = "none",
    **options: Unpack[Options],
) -> Schedule:
    """Return a `Schedule` that enqueues a task, with the options of its `using(...)`, again and again.

    args, kwargs: what the task is called with. `TypeError` if the function cannot be called with them.
    The others are those of `Schedule`.

    It is for `OPTIONS["schedules"]`, or for the app of the backend that the task names.
    """
    if task.run_after is not None:
        raise TypeError("run_after is for one enqueue: a schedule has its own times")
    input = plain_input(task, args, kwargs or {})
    merged: Any = {**item_options(task), **options}
    return Schedule(
        name,
        run=functools.partial(_work_of, task, input),
        cron=cron,
        tz=tz,
        every=every,
        next=next,
        start=start,
        end=end,
        catch_up=catch_up,
        **merged,
    )


def _work_of(task: Task, input: Mapping[str, Any]) -> Work[Any, Any]:
    backend = task_backends[task.backend]
    if not isinstance(backend, TreadleBackend):
        raise ImproperlyConfigured(f"TASKS[{task.backend!r}] is not a TreadleBackend")
    remember(task)
    return type_of(task, backend.app, task.backend).from_input(input)
