"""Tools for the tests of a Django project.

    @in_memory()
    class SignupTests(TestCase):
        def test_mail(self):
            self.client.post("/signup", {"email": "ann@example.org"})
            (result,) = run_enqueued()
            self.assertEqual(result.return_value, "sent")

`TestCase` never commits. So `run_enqueued` stores what waits for a commit, and runs it in the thread of the
test: the tasks see what the test has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from treadle.app import Treadle
from treadle.sync import SyncClaimedLease

from .backend import PendingSubmit, TreadleBackend
from .django_api import Task, TaskResult, connections, import_string, settings, sync_to_async, task_backends
from .results import collected
from .stores import OWN_OPTIONS, close_apps
from .task import discover
from .task_type import read_result, run_task, type_of

__all__ = ["arun_enqueued", "close_apps", "in_memory", "run_enqueued"]

MOST_RUNS: Final = 1000
"""A task that enqueues itself would run for ever."""


def in_memory(**options: Any) -> Any:
    """Keep the items of all backends of treadle in memory: a decorator of test classes and methods, and a
    context manager. `options` are further OPTIONS, as `retry=Retry(attempts=1)`."""
    tasks: dict[str, Any] = {}
    for alias, given in settings.TASKS.items():
        tasks[alias] = given
        if issubclass(import_string(given["BACKEND"]), TreadleBackend):
            kept = {
                name: value for name, value in given.get("OPTIONS", {}).items() if name not in OWN_OPTIONS
            }
            own = {"url": "memory://", "transaction": "on_commit"}
            tasks[alias] = {**given, "OPTIONS": {**kept, **own, **options}}
    return import_string("django.test.utils.override_settings")(TASKS=tasks)


def run_enqueued(alias: str = "default") -> list[TaskResult]:
    """Run the tasks of a backend that are due, and those that they enqueue, in this thread. Returns their
    results, in the order in which they ran. A task that failed and is to be tried again is not due yet."""
    backend = task_backends[alias]
    if not isinstance(backend, TreadleBackend):
        raise TypeError(f"TASKS[{alias!r}] is not a TreadleBackend")
    app, ids = backend.app, dict[str, None]()
    tasks = {type_of(task, app, alias).name: task for task in discover()}
    with collected() as send_now:
        for _ in range(MOST_RUNS):
            for submit in _taken(alias):
                submit()
            lease = app.sync.claim_one(types=list(tasks))
            if lease is None:
                return [backend.get_result(id) for id in ids]
            ids[lease.id] = None
            _run(app, lease, tasks[lease.type], alias)
            send_now()
    raise RuntimeError(f"{MOST_RUNS} tasks have run, and there are more: does one enqueue itself?")


arun_enqueued: Any = sync_to_async(run_enqueued)
"""The same for async tests."""


def _taken(alias: str) -> Iterator[PendingSubmit]:
    """What waits for a commit. What was enqueued in a savepoint that was rolled back is not there."""
    for connection in connections.all(initialized_only=True):
        waiting: list[tuple[Any, ...]] = connection.run_on_commit
        mine = [each for each in waiting if isinstance(each[1], PendingSubmit) and each[1].alias == alias]
        connection.run_on_commit = [each for each in waiting if each not in mine]
        yield from (each[1] for each in mine)


def _run(app: Treadle, lease: SyncClaimedLease, task: Task, alias: str) -> None:
    """One attempt."""
    (state,) = app.sync.get([lease.id])
    result = None if state is None else read_result(app, state, alias)
    assert result is not None, "it was just claimed, and its type is known"
    try:
        value = run_task(task, result)
    except KeyboardInterrupt:
        lease.release()
        raise
    except BaseException as error:  # noqa: BLE001  as in a worker: SystemExit too is a failure
        lease.fail(error)
    else:
        lease.complete(value)
