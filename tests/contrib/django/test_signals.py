"""The signals of Django about tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.contrib.django.conftest import backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Order
from tests.contrib.django.test_backend import PATIENCE
from treadle import Treadle
from treadle.contrib.django import TreadleBackend
from treadle.contrib.django.django_api import task_enqueued, task_finished, task_started


class Heard:
    """What receivers were told."""

    def __init__(self, database: str | None = None) -> None:
        self.calls: list[tuple[str, Any, str, int]] = []
        self.results: list[Any] = []
        self.finished = threading.Event()
        self._database = database

    def enqueued(self, sender: Any, task_result: Any, **_: object) -> None:
        self._note("enqueued", sender, task_result)

    def started(self, sender: Any, task_result: Any, **_: object) -> None:
        self._note("started", sender, task_result)

    def ended(self, sender: Any, task_result: Any, **_: object) -> None:
        self._note("finished", sender, task_result)
        self.results.append(task_result)
        if self._database is not None:  # not on an event loop, where Django would refuse
            self.results.append(Order.objects.using(self._database).count())
        self.finished.set()

    def of_worker(self) -> list[tuple[str, Any, str, int]]:
        """What its worker has told. It may start a task before the caller has told that it is enqueued."""
        return [call for call in self.calls if call[0] != "enqueued"]

    def _note(self, name: str, sender: Any, result: Any) -> None:
        self.calls.append((name, sender, str(result.status), result.attempts))


@contextmanager
def hearing(database: str | None = None) -> Iterator[Heard]:
    heard = Heard(database)
    pairs: list[tuple[Any, Any]] = [
        (task_enqueued, heard.enqueued),
        (task_started, heard.started),
        (task_finished, heard.ended),
    ]
    for signal, receiver in pairs:
        signal.connect(receiver)
    try:
        yield heard
    finally:
        for signal, receiver in pairs:
            signal.disconnect(receiver)


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async], ids=["sync", "async"])
def test_a_task_that_succeeds(worker: Treadle, database: str, task: Any) -> None:
    with hearing(database) as heard:
        result = task.enqueue(1)
        assert heard.finished.wait(PATIENCE)

    assert ("enqueued", TreadleBackend, "READY", 0) in heard.calls
    assert heard.of_worker() == [
        ("started", TreadleBackend, "RUNNING", 1),
        ("finished", TreadleBackend, "SUCCESSFUL", 1),
    ]
    assert heard.results[0].return_value == 1
    assert heard.results[0].id == result.id
    assert heard.results[0].finished_at >= heard.results[0].started_at
    assert heard.results[1] == 0


def test_a_task_that_fails_is_finished_once() -> None:
    with task_settings(url="memory://"), hearing() as heard:
        backend_of().app.sync.start()
        tasks.attempt.enqueue(9)
        assert heard.finished.wait(PATIENCE)

    assert [(name, status, attempts) for name, _, status, attempts in heard.of_worker()] == [
        ("started", "RUNNING", 1),
        ("started", "RUNNING", 2),
        ("started", "RUNNING", 3),
        ("finished", "FAILED", 3),
    ]
    assert [each.exception_class for each in heard.results[0].errors] == [tasks.OutOfStock] * 3


def test_a_receiver_that_raises_changes_nothing() -> None:
    def broken(**_: object) -> None:
        raise ValueError("a receiver")

    with task_settings(url="memory://"), hearing() as heard:
        signals: list[Any] = [task_enqueued, task_started, task_finished]
        for signal in signals:
            signal.connect(broken)
        try:
            backend_of().app.sync.start()
            tasks.add.enqueue(1)
            assert heard.finished.wait(PATIENCE)
        finally:
            for signal in signals:
                signal.disconnect(broken)
    assert heard.results[0].return_value == 1


def test_an_operator_cancels_a_task() -> None:
    with task_settings(url="memory://"), hearing() as heard:
        result = tasks.add.enqueue(1)
        backend_of().app.sync.cancel(result.id)
        assert heard.finished.wait(PATIENCE)
    assert heard.calls[-1][:1] + heard.calls[-1][2:] == ("finished", "FAILED", 0)
