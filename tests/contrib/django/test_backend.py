"""The backend for the tasks of Django: storing, reading, running."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from tests.contrib.django.conftest import QUICK, backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.schedules import NIGHTLY
from treadle import Retry, Treadle, WorkFailed, work
from treadle.contrib.django import TreadleBackend, TreadleTask, task_type
from treadle.contrib.django.django_api import TaskResult, TaskResultDoesNotExist
from treadle.contrib.django.stores import app_of
from treadle.item import ItemState

PATIENCE = 30


def ended(app: Treadle, result: TaskResult) -> TaskResult:
    """The result of an item, once it has ended."""
    with suppress(WorkFailed):  # the result says how it ended
        app.sync.handle(result.id).result(timeout=PATIENCE)
    return backend_of().get_result(result.id)


def stored(backend: TreadleBackend, result: TaskResult) -> ItemState:
    (state,) = backend.app.sync.get([result.id])
    assert state is not None
    return state


# -- storing -------------------------------------------------------------------------------------------


def test_a_result_is_read_as_it_was_given(backend: TreadleBackend) -> None:
    given = tasks.add.enqueue(1, b=2)

    assert (given.status, given.args, given.kwargs, given.attempts) == ("READY", [1], {"b": 2}, 0)
    assert backend.get_result(given.id) == given
    assert tasks.add.get_result(given.id) == given
    assert given.task is tasks.add


def test_the_first_calls_of_several_threads_make_one_type(
    backend: TreadleBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, make = Barrier(2), task_type._make_type

    def make_beside_another(*args: Any) -> Any:
        with suppress(BrokenBarrierError):
            both.wait(0.2)
        return make(*args)

    monkeypatch.setattr(task_type, "_make_type", make_beside_another)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: task_type.type_of(tasks.add, backend.app, backend.alias), range(2)))

    assert found[0] is found[1]


def test_options_of_a_task_are_those_of_its_item(backend: TreadleBackend) -> None:
    first = tasks.add.using(tenant="acme").enqueue(1)
    later = datetime.now(UTC) + timedelta(hours=1)
    task = tasks.add.using(
        priority=7,
        queue_name="mail",
        run_after=later,
        retry=Retry(attempts=9),
        timeout=5,
        expires_in=timedelta(days=1),
        key="once",
        lane="ann",
        tenant="acme",
        after=[first],
    )

    result = task.enqueue(2)

    state = stored(backend, result)
    assert (state.type, state.queue, state.priority) == ("tests.contrib.django.shop.tasks.add", "mail", 7)
    assert (state.attempts, state.key, state.lane, state.tenant) == (9, "once", "ann", "acme")
    assert state.after == (first.id,)
    assert state.status == "blocked"
    assert state.deadline == pytest.approx(state.queued_at + 86400)
    assert backend.get_result(result.id) == result


def test_run_after_schedules(backend: TreadleBackend) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    result = tasks.add.using(run_after=later).enqueue(1)

    state = stored(backend, result)
    assert (state.status, state.due_at) == ("scheduled", pytest.approx(later.timestamp()))
    assert backend.get_result(result.id).task.run_after == later


def test_a_naive_time_is_that_of_the_process(backend: TreadleBackend) -> None:
    with override_settings(USE_TZ=False):
        later = datetime.now() + timedelta(hours=1)  # noqa: DTZ005
        result = tasks.add.using(run_after=later).enqueue(1)
        found = backend.get_result(result.id)
        assert found == result
        assert found.enqueued_at is not None
        assert found.enqueued_at.tzinfo is None
    assert stored(backend, result).due_at == pytest.approx(later.timestamp())


def test_a_key_answers_with_the_earlier_item(backend: TreadleBackend) -> None:
    task = tasks.add.using(key="order 1")
    assert task.enqueue(1).id == task.enqueue(2).id


@pytest.mark.parametrize("arguments", [(), (1, 2, 3)])
def test_a_call_that_cannot_be_made_is_refused(backend: TreadleBackend, arguments: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match="argument"):
        tasks.add.enqueue(*arguments)
    assert backend.app.sync.list().items == ()


def test_arguments_are_what_json_can_hold(backend: TreadleBackend) -> None:
    value = {"none": None, "list": [1, 2.5, True], 3: "key", "bytes": b"text", "$treadle": "date"}
    result = tasks.echo.enqueue(value)

    assert result.args == [
        {"none": None, "list": [1, 2.5, True], "3": "key", "bytes": "text", "$treadle": "date"}
    ]
    assert backend.get_result(result.id) == result
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.echo.enqueue(datetime.now(UTC))


def test_a_task_is_that_of_its_module_also_if_a_copy_was_enqueued_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("treadle.contrib.django.task._known", {})
    with task_settings(url="memory://"):
        tasks.echo.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)
        assert backend_of().get_result(tasks.echo.enqueue(2).id).task == tasks.echo


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match=r"using\(\) has no option 'retires': did you mean 'retry'"):
        tasks.add.using(retires=3)


def test_tasks_are_those_of_treadle() -> None:
    assert isinstance(tasks.add, TreadleTask)
    assert tasks.add.using() == tasks.add
    assert tasks.add.using(retry=QUICK).using(priority=3).retry == QUICK


# -- reading -------------------------------------------------------------------------------------------


@work
async def no_task() -> None: ...


def test_only_tasks_have_results() -> None:
    with task_settings(url="memory://"):
        backend = backend_of()
        backend.app.register(no_task)
        other = backend.app.sync.enqueue(no_task())
        for id in (other.id, "123", "", "x" * 300, 123):
            with pytest.raises(TaskResultDoesNotExist):
                backend.get_result(id)  # type: ignore[arg-type]


def test_an_app_of_one_tenant_reads_its_own_items() -> None:
    with task_settings(url="memory://", tenant="acme"):
        backend = backend_of()
        result = tasks.add.enqueue(1)
        assert stored(backend, result).tenant == "acme"
        assert backend.get_result(result.id) == result


async def test_async_code_enqueues_and_reads(sqlite_database: str) -> None:
    with task_settings(database=sqlite_database):
        result = await tasks.add.aenqueue(1)
        assert await tasks.add.aget_result(result.id) == result


# -- running -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async], ids=["sync", "async"])
def test_a_task_runs(worker: Treadle, task: Any) -> None:
    result = ended(worker, task.enqueue(1, b=2))

    assert (result.status, result.return_value, result.errors) == ("SUCCESSFUL", 3, [])
    assert result.worker_ids == [worker.worker.id]
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


def test_a_task_that_fails_is_tried_again(worker: Treadle) -> None:
    result = ended(worker, tasks.attempt.enqueue(2))

    assert result.status == "SUCCESSFUL"
    assert result.return_value == [3, result.id, 2]
    assert [each.exception_class for each in result.errors] == [tasks.OutOfStock] * 2
    assert "attempt 1" in result.errors[0].traceback
    assert result.worker_ids == [worker.worker.id] * 3
    assert result.started_at < result.last_attempted_at


def test_a_task_that_fails_too_often_has_failed(worker: Treadle) -> None:
    result = ended(worker, tasks.attempt.enqueue(5))

    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 3, 3)
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.parametrize(
    ("task", "error", "attempts"), [(tasks.bad_value, TypeError, 1), (tasks.leave, SystemExit, 3)]
)
def test_what_a_task_does_wrong_is_its_error(
    worker: Treadle, task: Any, error: type[BaseException], attempts: int
) -> None:
    result = ended(worker, task.enqueue())

    assert (result.status, result.attempts) == ("FAILED", attempts)
    assert result.errors[-1].exception_class is error


def test_an_item_that_was_cancelled_has_failed(backend: TreadleBackend) -> None:
    result = tasks.add.enqueue(1)
    backend.app.sync.cancel(result.id)

    found = backend.get_result(result.id)
    assert (found.status, found.attempts) == ("FAILED", 0)
    assert found.errors[0].exception_class.__name__ == "WorkCancelled"


def test_a_deadline_that_passed_is_an_error(worker: Treadle) -> None:
    result = ended(worker, tasks.add.using(expires_in=0.001, after=["not-submitted"]).enqueue(1))

    assert result.status == "FAILED"
    assert result.errors[0].exception_class.__name__ == "DeadlineExceeded"


def test_a_task_enqueues_another(worker: Treadle) -> None:
    outer = ended(worker, tasks.enqueue_another.enqueue(1))
    assert ended(worker, backend_of().get_result(outer.return_value)).return_value == 2


# -- configuration -------------------------------------------------------------------------------------


def test_one_app_for_all_threads_until_settings_change() -> None:
    with task_settings(url="memory://"):
        app = backend_of().app
        assert app_of("default", backend_of().options) is app
    with task_settings(url="memory://"):
        assert backend_of().app is not app


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transaction": "never"}, "transaction is 'never': it must be one of same, on_commit, now"),
        ({"database": "nowhere"}, "DATABASES has no 'nowhere'"),
        ({"database": "default"}, "DATABASES\\['default'\\] is .*SQLite or PostgreSQL"),
        ({"url": "memory://", "database": "default"}, "url and database are two stores"),
        ({"url": "mysql://host"}, "is not a backend URL"),
        ({"url": "memory://", "retires": 3}, "there is no setting 'retires'"),
        ({"app": "tests.contrib.django.shop.tasks:add"}, "which is no Treadle app"),
        ({"app": "tests.contrib.django.shop"}, "write module:name, as in shop.work:app"),
        ({"url": "memory://", "schedules": "shop"}, "write module:name, as in shop.schedules:SCHEDULES"),
        ({"url": "memory://", "schedules": [NIGHTLY, NIGHTLY]}, "has a schedule 'nightly' already"),
        ({"app": "tests.contrib.django.shop.tasks:add", "keep": 3}, "has its own settings"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], message: str) -> None:
    settings = {"BACKEND": "treadle.contrib.django.TreadleBackend", "OPTIONS": options}
    with (
        override_settings(TASKS={"default": settings}),
        pytest.raises(ImproperlyConfigured, match=message),
    ):
        _ = backend_of().app
