"""TreadleTask: a task of Django with the options of treadle."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from treadle.base.timing import Duration
from treadle.base.wording import did_you_mean
from treadle.options import After, KeyScope
from treadle.retry import Retry

from .tasks_api import Task


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
