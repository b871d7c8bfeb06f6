"""Tools for the tests of a Django project."""

from __future__ import annotations

import io
import threading
import unittest
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction
from django.test import SimpleTestCase, TestCase

from tests.contrib.django.conftest import backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Order
from tests.contrib.django.test_signals import hearing
from treadle import MemoryBackend, Retry
from treadle.contrib.django import app as django_app
from treadle.contrib.django.testing import arun_enqueued, in_memory, run_enqueued


class Undo(Exception):
    """Rolls a transaction back."""


def test_tasks_run_in_the_transaction_of_the_test(database: str) -> None:
    with in_memory(), transaction.atomic(using=database):
        Order.objects.using(database).create(number=1)
        task = tasks.count_here.using(database=database)
        given = task.enqueue(database)
        with suppress(Undo), transaction.atomic(using=database):
            task.enqueue(database)
            raise Undo

        (result,) = run_enqueued()

        assert (result.id, result.return_value) == (given.id, 1)
        assert tasks.seen == [threading.current_thread()]
        transaction.set_rollback(True, using=database)
    assert Order.objects.using(database).count() == 0


def test_what_tasks_enqueue_runs_too() -> None:
    with in_memory():
        tasks.enqueue_another.enqueue(4)
        assert [each.return_value for each in run_enqueued()][1:] == [5]
        assert run_enqueued() == []


def test_signals_are_sent_in_the_same_thread() -> None:
    with in_memory(), hearing() as heard:
        tasks.add.enqueue(1)
        run_enqueued()
    assert [name for name, *_ in heard.calls] == ["enqueued", "started", "finished"]


def test_a_task_that_fails_is_not_due_again_at_once() -> None:
    with in_memory(retry=Retry(attempts=2)):
        tasks.attempt.enqueue(1)
        (result,) = run_enqueued()
    assert (result.status, len(result.errors), result.attempts) == ("READY", 1, 1)


def test_a_task_that_is_not_tried_again_has_failed() -> None:
    with in_memory(retry=Retry(attempts=1)):
        tasks.leave.enqueue()
        tasks.add_async.enqueue(1, 2)
        failed, added = run_enqueued()
    assert failed.errors[0].exception_class is SystemExit
    assert added.return_value == 3


async def test_an_async_test() -> None:
    with in_memory():
        await tasks.add.aenqueue(1)
        (result,) = await arun_enqueued()
    assert result.return_value == 1


def test_a_test_case_of_django(sqlite_database: str) -> None:
    with task_settings(database=sqlite_database):

        @in_memory()
        class ShopTests(TestCase):
            databases = {sqlite_database}  # noqa: RUF012  as Django has it

            def test_order(self) -> None:
                assert isinstance(backend_of().app.backend, MemoryBackend)
                Order.objects.using(sqlite_database).create(number=1)
                tasks.count_here.enqueue(sqlite_database)
                assert [each.return_value for each in run_enqueued()] == [1]

        outcome = run_case(ShopTests)
        assert outcome.wasSuccessful(), outcome.failures + outcome.errors
        assert outcome.testsRun == 1


def run_case(case: type[SimpleTestCase]) -> unittest.TestResult:
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    return unittest.TextTestRunner(stream=io.StringIO()).run(suite)


def test_an_app_of_a_module_is_not_used_with_the_database_of_tests(
    sqlite_database: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    made = django_app(database=sqlite_database)
    monkeypatch.setattr(tasks, "own_app", made, raising=False)
    from django.test import override_settings

    settings = {
        "BACKEND": "treadle.contrib.django.TreadleBackend",
        "OPTIONS": {"app": f"{tasks.__name__}:own_app"},
    }
    with override_settings(TASKS={"default": settings}):
        assert backend_of().app is made
        monkeypatch.setitem(connections[sqlite_database].settings_dict, "NAME", tmp_path / "test.sqlite3")
        with pytest.raises(ImproperlyConfigured, match="made for another database"):
            _ = backend_of().app
