"""Results: an item as Django's `TaskResult`."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from treadle import errors
from treadle.base.timing import to_datetime
from treadle.item import ItemState, Lease, Status
from treadle.logs.lines import WARNING, error_text, log_line

from .connections import fresh_connections
from .django_api import (
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
    settings,
    task_backends,
    task_finished,
    timezone,
)
from .task import RUN_AFTER

_STATUS: Final[Mapping[Status, str]] = {
    "blocked": TaskResultStatus.READY,
    "scheduled": TaskResultStatus.READY,
    "ready": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "success": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}


def new_result(task: Task, id: str, args: list[Any], kwargs: dict[str, Any], alias: str) -> TaskResult:
    """The result of an item that is not stored yet."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def result_of(state: ItemState, task: Task, input: Mapping[str, Any], alias: str) -> TaskResult:
    """The result of an item as it is now."""
    started = state.started_at if state.attempt else None
    result = TaskResult(
        task=_task_of(task, alias, state.queue, state.priority, state.headers),
        id=state.id,
        status=_STATUS[state.status],
        enqueued_at=to_time(state.queued_at),
        started_at=to_time(_first_start(state, started)),
        finished_at=to_time(state.ended_at),
        last_attempted_at=to_time(started),
        args=input["args"],
        kwargs=input["kwargs"],
        backend=alias,
        errors=_errors(state),
        worker_ids=_workers(state),
    )
    if state.status == "success":
        set_return_value(result, state.result)
    return result


def running_result(lease: Lease, worker: str, task: Task, input: Mapping[str, Any], alias: str) -> TaskResult:
    """The result of an item in its first attempt. It needs no request to the store."""
    began = to_time(lease.claimed_at)
    return TaskResult(
        task=_task_of(task, alias, lease.queue, lease.priority, {}),
        id=lease.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=to_time(lease.queued_at),
        started_at=began,
        finished_at=None,
        last_attempted_at=began,
        args=input["args"],
        kwargs=input["kwargs"],
        backend=alias,
        errors=[],
        worker_ids=[worker],
    )


def end_result(result: TaskResult, value: object, at: float) -> None:
    """The item of a running result has succeeded."""
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", to_time(at))
    set_return_value(result, value)


def set_return_value(result: TaskResult, value: object) -> None:
    # As Django's own backends do: it cannot be given to the constructor.
    object.__setattr__(result, "_return_value", value)


def to_time(epoch: float | None) -> datetime | None:
    """An instant as Django has it: aware, unless `USE_TZ` is False."""
    if epoch is None:
        return None
    at = to_datetime(epoch)
    return at if settings.USE_TZ else timezone.make_naive(at)


def _task_of(task: Task, alias: str, queue: str, priority: int, headers: Mapping[str, str]) -> Task:
    """The task with the options of one item."""
    found = headers.get(RUN_AFTER)
    run_after = None if found is None else datetime.fromisoformat(found)
    return task.using(priority=priority, queue_name=queue, backend=alias, run_after=run_after)


def _first_start(state: ItemState, started: float | None) -> float | None:
    """When the first attempt began. The store keeps the last start, and when failed attempts ended."""
    if state.attempt > 1 and state.history:
        return min(state.history[0].at, started or state.history[0].at)
    return started


def _errors(state: ItemState) -> list[TaskError]:
    found = [
        TaskError(exception_class_path=class_path(each.error_type), traceback=each.traceback or each.message)
        for each in state.history
    ]
    if not found and state.error:  # it ended without an attempt
        path = class_path(state.error_type or "")
        found.append(TaskError(exception_class_path=path, traceback=state.error))
    if not found and state.status == "cancelled":
        path = class_path(errors.WorkCancelled.__name__)
        found.append(TaskError(exception_class_path=path, traceback="it was cancelled"))
    return found


def class_path(name: str) -> str:
    """The path of an error class as `import_string` takes it. The history has that of classes of the user;
    those of Python and of treadle have their plain names there."""
    if "." in name:
        return name
    if hasattr(builtins, name):
        return f"builtins.{name}"
    known = name if hasattr(errors, name) else errors.WorkFailed.__name__
    return f"{errors.__name__}.{known}"


def _workers(state: ItemState) -> list[str]:
    """The worker of each attempt. Empty texts for attempts that the history does not have: those of workers
    that died, and those before the last ten."""
    workers = {each.attempt: each.worker for each in state.history}
    if state.worker and state.status not in ("ready", "scheduled", "blocked"):
        workers[state.attempt] = state.worker
    return [workers.get(number, "") for number in range(1, state.attempt + 1)]


_executor: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="treadle signals")
_here: list[Callable[[], None]] | None = None
_lock: Final = threading.Lock()


def send_later(send: Callable[[], None]) -> None:
    """Call `send` in the thread of signals, or in the thread that collects them. Signals about tasks that
    have ended are sent after the commit, in a thread of their own: a receiver may use the database, which it
    cannot on the event loop."""
    with _lock:
        if _here is not None:
            _here.append(send)
            return
    _executor.submit(_send, send)


def _send(send: Callable[[], None]) -> None:
    try:
        with fresh_connections():
            send()
    except Exception as error:  # noqa: BLE001  logged: there is no caller
        log_line(WARNING, f"a signal of Django was not sent: {error_text(error)}", error=error)


@contextmanager
def collected() -> Generator[Callable[[], None]]:
    """Meanwhile, signals wait for the function that this gives: it sends them in the thread of its caller."""
    global _here  # noqa: PLW0603  one for the process, as the executor
    waiting: list[Callable[[], None]] = []

    def send() -> None:
        while waiting:
            waiting.pop(0)()

    with _lock:
        _here = waiting
    try:
        yield send
        send()
    finally:
        with _lock:
            _here = None


def sender_of(alias: str) -> type[Any]:
    """The class of the backend: the sender of all signals."""
    return type(task_backends[alias])


def send_finished(result: TaskResult, error: BaseException | None) -> None:
    """Say that a task has ended. Django's own receiver logs the exception that is being handled."""
    sender = sender_of(result.backend)
    if error is None:
        task_finished.send_robust(sender, task_result=result)
        return
    try:
        raise error
    except BaseException:  # noqa: BLE001  it is only shown
        task_finished.send_robust(sender, task_result=result)
