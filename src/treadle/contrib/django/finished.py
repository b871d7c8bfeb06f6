"""Signals of Django about tasks that have ended. They are sent by a thread of their own, after the commit: a
receiver may use the database, which it cannot on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from treadle.logs.lines import WARNING, error_text, log_line

from .connections import fresh_connections
from .tasks_api import TaskResult, task_backends, task_finished

_executor: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="treadle signals")
_here: list[Callable[[], None]] | None = None
_lock: Final = threading.Lock()


def send_later(send: Callable[[], None]) -> None:
    """Call `send` in the thread of signals, or in the thread that collects them."""
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
