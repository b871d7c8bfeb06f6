"""treadle.contrib.celery: callers of Celery tasks, on treadle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from treadle import (
    Context,
    DuplicateIdError,
    InputError,
    NotFound,
    Result,
    Retry,
    Treadle,
    WaitTimeout,
    WorkCancelled,
    WorkFailed,
    work,
)
from treadle.contrib import celery as shim
from treadle.contrib.celery import CeleryTask, chain, chord, group
from treadle.contrib.celery.task import enqueue_options

QUICK = Retry(attempts=2, base=0.01)


@work
def add(a: int, b: int = 10) -> int:
    return a + b


@work(retry=QUICK)
def fail(text: str) -> None:
    raise ValueError(text)


@work
async def tell(ctx: Context) -> dict[str, Any]:
    return {"headers": dict(ctx.headers), "attempt": ctx.attempt}


@work
async def total(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work
async def later(ctx: Context) -> Result[None, int]:
    return ctx.queue(add(1), delay=3600)


@work
async def basket(ctx: Context, numbers: list[int]) -> Result[None, int]:
    return ctx.queue([add(number, 0) for number in numbers]).next(total())


TYPES = (add, fail, tell, total, later, basket)


def made(url: str) -> Treadle:
    return Treadle(url, work=TYPES, log_failures=False)


@pytest.fixture
def app(quick_file: Path) -> Iterator[Treadle]:
    """An app that runs, for sync callers."""
    app = made(f"sqlite:///{quick_file}")
    with app.sync:
        yield app


@pytest.fixture
def idle(quick_file: Path) -> Iterator[Treadle]:
    """An app without a worker."""
    app = made(f"sqlite:///{quick_file}")
    yield app
    app.sync.close()


# -- on every store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite", "postgres", "valkey"])
def test_a_caller_of_celery_gets_the_same_values(store: str, request: pytest.FixtureRequest) -> None:
    names = {"sqlite": "quick_file", "postgres": "prepared_url", "valkey": "valkey_url"}
    found = request.getfixturevalue(names[store])
    app = made(f"sqlite:///{found}" if store == "sqlite" else found)
    task = CeleryTask(app, add)
    with app.sync:
        assert task.delay(1, b=2).get(timeout=60) == 3
        assert task.apply_async((1,), {"b": 2}, countdown=0.01, queue="sums", priority=3).get(timeout=60) == 3
        assert task.s(2).delay(1).get(timeout=60) == 3
        assert group(task.s(n, n) for n in range(3)).delay().get(timeout=60) == [0, 2, 4]
        assert CeleryTask(app, basket).delay([1, 2, 3]).get(timeout=60) == 6
        failed = CeleryTask(app, fail).delay("no")
        with pytest.raises(WorkFailed, match="ValueError: no"):
            failed.get(timeout=60)
        assert failed.state == "FAILURE"


async def test_async_callers_await(quick_file: Path) -> None:
    async with made(f"sqlite:///{quick_file}") as app:
        task = CeleryTask(app, add)
        result = await task.adelay(1, 2)
        assert await result.aget(timeout=60) == 3
        assert await result.astate() == "SUCCESS"
        assert await (await task.aapply_async((1,), countdown=0.01)).aget(timeout=60) == 11
        assert await (await task.si(4).adelay(99)).aget(timeout=60) == 14
        several = await group([task.s(1), task.s(2)]).adelay()
        assert await several.aget(timeout=60) == [11, 12]


async def test_blocking_calls_are_refused_on_an_event_loop(quick_file: Path) -> None:
    async with made(f"sqlite:///{quick_file}") as app:
        task = CeleryTask(app, add)
        with pytest.raises(RuntimeError, match=r"use `await add\.adelay\(\.\.\.\)`"):
            task.delay(1)
        with pytest.raises(RuntimeError, match=r"use `await add\.aapply_async\(\.\.\.\)`"):
            task.apply_async((1,))
        result = await task.adelay(1)
        with pytest.raises(RuntimeError, match=r"use `await result\.aget\(\.\.\.\)`"):
            result.get()
        assert await result.aget(timeout=60) == 11


# -- options -------------------------------------------------------------------------------------------------


def test_options_have_their_names_here() -> None:
    when = datetime(2030, 1, 1, tzinfo=UTC)
    assert enqueue_options({"countdown": timedelta(minutes=1), "expires": 60, "queue": "mail"}) == {
        "delay": 60.0,
        "expires_in": 60.0,
        "queue": "mail",
    }
    assert enqueue_options({"eta": when, "expires": when, "task_id": "order-7", "time_limit": 5}) == {
        "run_at": when.timestamp(),
        "deadline": when.timestamp(),
        "id": "order-7",
        "timeout": 5.0,
    }
    assert enqueue_options({"headers": {"request": "r"}, "priority": 3, "ignore_result": True}) == {
        "headers": {"request": "r"},
        "priority": 3,
    }
    assert enqueue_options({"priority": 3}, redis_priorities=True) == {"priority": -3}
    assert enqueue_options({"countdown": None, "queue": None, "ignore_result": None}) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"countdown": "soon"}, "countdown='soon' must be seconds or a timedelta"),
        ({"eta": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"eta": 60}, "eta=60 must be a datetime"),
        ({"eta": datetime(2030, 1, 1, tzinfo=UTC), "countdown": 1}, "eta or countdown, not both"),
        ({"expires": 0}, "expires=0 must be more than zero"),
        ({"priority": "high"}, "priority='high' must be a whole number"),
        ({"task_id": "an id"}, "task_id='an id' must be 1 to 128 characters"),
        ({"headers": {"n": 1}}, "must be a str, not int"),
        ({"queue": object()}, "must be a str"),
        ({"link": None}, "use|after="),
        ({"link": "x"}, r"ctx\.result\(value\)\.next"),
        ({"link_error": "x"}, "on_dead="),
        ({"soft_time_limit": 5}, "timeout_grace"),
        ({"retry": False}, r"retry=Retry"),
        ({"serializer": "pickle"}, "codec="),
        ({"routing_key": "mail"}, "queue='...'"),
        ({"producer": "x"}, "leave it out"),
    ],
)
def test_an_option_that_does_not_fit_says_what_to_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        enqueue_options(options)
    assert set(raised.value.parameters) <= set(options)


def test_an_unknown_option_is_a_type_error_with_a_hint() -> None:
    with pytest.raises(TypeError, match="did you mean 'countdown'"):
        enqueue_options({"countdwn": 1})


def test_options_reach_the_item(idle: Treadle) -> None:
    task = CeleryTask(idle, add)
    result = task.apply_async(
        (1,), task_id="sum-1", queue="sums", priority=4, countdown=60, expires=120, headers={"from": "ada"}
    )
    state = idle.sync.handle("sum-1").state()
    assert (state.queue, state.priority, state.status, state.headers) == (
        "sums",
        4,
        "scheduled",
        {"from": "ada"},
    )
    assert state.deadline is not None
    assert result.state == "PENDING"
    assert (result.id, result.task_id, str(result)) == ("sum-1", "sum-1", "sum-1")
    with pytest.raises(DuplicateIdError):
        task.apply_async((1,), task_id="sum-1")
    lower = CeleryTask(idle, add, redis_priorities=True).s(1).apply_async(priority=4)
    assert idle.sync.handle(lower.id).state().priority == -4


def test_arguments_are_checked_where_the_call_is(idle: Treadle) -> None:
    with pytest.raises(InputError, match="parameter 'a'"):
        CeleryTask(idle, add).delay(cast("int", "one"))


def test_items_belong_to_the_tenant_of_the_client(idle: Treadle) -> None:
    result = CeleryTask(idle.tenant("acme"), add).delay(1)
    assert idle.sync.handle(result.id).state().tenant == "acme"


# -- results -------------------------------------------------------------------------------------------------


def test_a_result_has_the_states_of_celery(app: Treadle) -> None:
    task = CeleryTask(app, add)
    result = task.delay(1)
    assert result.get(timeout=60) == 11
    assert (result.state, result.status, result.result) == ("SUCCESS", "SUCCESS", 11)
    assert (result.ready(), result.successful(), result.failed()) == (True, True, False)
    failed = CeleryTask(app, fail).delay("no")
    error = failed.get(timeout=60, propagate=False)
    assert isinstance(error, WorkFailed)
    assert (failed.ready(), failed.successful(), failed.failed()) == (True, False, True)
    assert isinstance(failed.result, WorkFailed)
    again = task.AsyncResult(result.id)
    assert again.get(timeout=60) == 11
    with pytest.raises(NotFound) as refused:
        _ = task.AsyncResult("nothing").state
    assert refused.value.__context__ is None


def test_a_revoked_result(idle: Treadle) -> None:
    result = CeleryTask(idle, add).delay(1)
    assert result.result is None
    with pytest.raises(WaitTimeout):
        result.get(timeout=0.01)
    with pytest.raises(InputError, match=r"revoke\(terminate=True\)"):
        result.revoke()
    result.revoke(terminate=True)
    assert result.state == "REVOKED"
    with pytest.raises(WorkCancelled):
        result.get(timeout=60)


def test_a_failing_work_is_retried_and_says_so(idle: Treadle) -> None:
    result = CeleryTask(idle, fail).delay("no")
    lease = idle.sync.claim_one()
    assert lease is not None
    assert result.state == "STARTED"
    lease.fail(ValueError("no"))
    assert result.state == "RETRY"


def test_a_workflow_is_ready_when_its_group_has_ended(idle: Treadle) -> None:
    """The item itself ends when it has queued the rest."""
    result = CeleryTask(idle, basket).delay([1, 2])
    lease = idle.sync.claim_one()
    assert lease is not None
    assert result.state == "STARTED"
    assert not result.ready()


def test_a_workflow_with_a_cancelled_member_is_revoked(app: Treadle) -> None:
    result = CeleryTask(app, later).delay()
    app.sync.handle(result.id).result(timeout=60)
    assert result.state == "STARTED"
    assert app.sync.cancel([each.id for each in app.sync.list("scheduled").items]) == 1
    with pytest.raises(WorkCancelled):
        result.get(timeout=60)
    assert result.state == "REVOKED"


def test_results_of_a_group(app: Treadle) -> None:
    task = CeleryTask(app, add)
    results = group(task.s(1), task.s(2).set(queue="sums")).apply_async(countdown=0.01)
    assert results.get(timeout=60) == [11, 12]
    assert (results.ready(), results.successful(), results.failed(), results.completed_count()) == (
        True,
        True,
        False,
        2,
    )
    assert [each.get() for each in results] == [11, 12]
    assert len(results) == 2
    assert app.sync.handle(results.results[1].id).state().queue == "sums"
    assert group(task.s(1))().get(timeout=60) == [11]
    assert group([]).delay().get() == []


def test_the_timeout_of_a_group_is_for_all(idle: Treadle) -> None:
    task = CeleryTask(idle, add)
    with pytest.raises(WaitTimeout):
        group(task.s(n) for n in range(3)).delay().get(timeout=0.01)


def test_a_group_is_stored_in_one_step(idle: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    submit = idle.backend.submit

    async def counted(items: Any, *args: Any, **options: Any) -> Any:
        calls.append(1)
        return await submit(items, *args, **options)

    monkeypatch.setattr(idle.backend, "submit", counted)
    task = CeleryTask(idle, add)
    assert len(group(task.s(n) for n in range(20)).delay()) == 20
    assert len(calls) == 1


# -- signatures ----------------------------------------------------------------------------------------------


def test_signatures_take_arguments_as_celery_does(idle: Treadle) -> None:
    task = CeleryTask(idle, add)
    assert task.s(2).work(1).input == {"a": 1, "b": 2}
    assert task.s(b=2).work(1).input == {"a": 1, "b": 2}
    assert task.s(1, b=2).work(b=3).input == {"a": 1, "b": 3}
    assert task.si(1, 2).work(7, b=9).input == {"a": 1, "b": 2}
    assert task.s(2).clone((1,)).work().input == {"a": 1, "b": 2}
    assert task.si(2).clone((1,), {"b": 5}).work().input == {"a": 2}
    assert repr(task.s(1, b=2)).endswith(".add(1, b=2)>")


def test_options_of_a_signature_stay_with_it(idle: Treadle) -> None:
    signature = CeleryTask(idle, add).s(1).set(queue="sums", countdown=60)
    state = idle.sync.handle(signature.apply_async(queue="other").id).state()
    assert (state.queue, state.status) == ("other", "scheduled")
    with pytest.raises(InputError, match="on_dead="):
        signature.set(link_error="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda task: chain(task.s(1), task.s(2)), "there are no chains"),
        (lambda task: task.s(1) | task.s(2), "there are no chains"),
        (lambda task: chord([task.s(1)])(task.s()), "there are no chords"),
        (lambda task: group(task.s(1)) | task.s(), "there are no chords"),
        (group, "must be a signature|not iterable"),
        (lambda task: group([add(1)]), "must be a signature"),
        (lambda task: group(task.s(1)).apply_async(task_id="one"), "task_id names one item"),
    ],
)
def test_what_there_is_not_says_what_to_write(
    idle: Treadle, use: Callable[[CeleryTask[..., Any, Any]], object], message: str
) -> None:
    with pytest.raises((InputError, TypeError), match=message):
        use(CeleryTask(idle, add))


# -- the task ------------------------------------------------------------------------------------------------


def test_a_task_can_be_called_like_its_function(idle: Treadle) -> None:
    assert CeleryTask(idle, add)(1, b=2) == 3
    with pytest.raises(TypeError, match=r"submit it with tell\.delay"):
        CeleryTask(idle, tell)()


def test_attributes_of_celery_tasks_have_hints(idle: Treadle) -> None:
    task: Any = CeleryTask(idle, add)
    assert task.name == add.name
    assert repr(task) == f"<CeleryTask {add.name}>"
    for name, hint in {"retry": "RetryAfter", "request": "ctx: Context", "apply": "run_inline"}.items():
        with pytest.raises(AttributeError, match=hint):
            getattr(task, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = task.nothing


def test_mistakes_are_errors_where_they_are_made(idle: Treadle) -> None:
    with pytest.raises(InputError, match="must be a work type: decorate"):
        CeleryTask(idle, cast("Any", lambda: None))
    with pytest.raises(InputError, match="must be a Treadle app"):
        CeleryTask(cast("Any", idle.sync), add)


def test_every_option_of_celery_is_known_or_explained() -> None:
    """The parameters that Celery's own documentation lists, read from the library where it is installed."""
    task = pytest.importorskip("celery.app.task")
    import re

    documented = task.Task.apply_async.__doc__.partition("Arguments:")[2].partition("Returns:")[0]
    names = set(re.findall(r"^ {12}(\w+) \(", documented, re.MULTILINE)) - {"args", "kwargs"}
    assert len(names) > 15
    for name in sorted(names):
        value = {"eta": datetime.now(UTC), "headers": {}, "queue": "q", "task_id": "t"}.get(name, 1)
        try:
            enqueue_options({name: True if name == "ignore_result" else value})
        except InputError as error:
            assert f"apply_async: {name} " in str(error)  # noqa: PT017


@pytest.mark.usefixtures("processes")
def test_it_needs_no_celery() -> None:
    program = (
        f"import sys, {shim.__name__}\n"
        "assert not any(each.partition('.')[0] in ('celery', 'kombu') for each in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_thread_without_a_loop_may_call_an_app_of_another_loop(quick_file: Path) -> None:
    async def run() -> int:
        async with made(f"sqlite:///{quick_file}") as app:
            task = CeleryTask(app, add)
            return await asyncio.to_thread(lambda: task.delay(1).get(timeout=60))

    assert asyncio.run(run()) == 11
