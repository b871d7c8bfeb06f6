"""Submit middlewares: what they see, change and refuse (SPEC §18)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Errors, MakeApp, Seen, until_status
from treadle import Context, CycleError, InputError, Result, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.events import Queued
from treadle.submit_middleware import NewItem, SubmitNext


@work(name="submit.show")
async def show(ctx: Context, n: int = 0) -> dict[str, str]:
    return dict(ctx.headers)


@work(name="submit.parent")
async def parent(ctx: Context) -> Result[Any, Any]:
    return ctx.queue(show())


class Kept:
    """A middleware that keeps what it saw, and adds a header."""

    def __init__(self, **headers: str) -> None:
        self.seen: list[list[tuple[str, str]]] = []
        self.headers = headers

    async def __call__(self, items: Sequence[NewItem], call_next: SubmitNext) -> None:
        self.seen.append([(item.type, item.tenant) for item in items])
        for item in items:
            item.headers |= self.headers
        await call_next()


async def test_it_sees_submits_and_sets_headers(make_app: MakeApp) -> None:
    kept = Kept(user="ada")
    async with make_app(show, parent, submit_middleware=[kept]) as app:
        assert await app.enqueue(show(), headers={"a": "1"}).result(PATIENCE) == {"a": "1", "user": "ada"}
        assert await (await app.enqueue(show())).group(PATIENCE) == {"user": "ada"}
        await app.tenant("acme").enqueue_many([show(), show()])
        assert await app.enqueue("submit.show", {"n": 1}).result(PATIENCE) == {"user": "ada"}
        schedule = app.schedule("nightly", every=3600, run=show)
        handle = await schedule.trigger()
        assert handle is not None
        assert await handle.result(PATIENCE) == {"user": "ada"}
    one = [("submit.show", "default")]
    assert kept.seen == [one, one, [("submit.show", "acme")] * 2, one, one]


async def test_children_do_not_pass_it_and_inherit_its_headers(make_app: MakeApp) -> None:
    kept = Kept(user="ada")
    async with make_app(show, parent, submit_middleware=[kept]) as app:
        assert await app.enqueue(parent()).group(PATIENCE) == {"user": "ada"}
    assert kept.seen == [[("submit.parent", "default")]]


async def test_an_occurrence_passes_it(make_app: MakeApp) -> None:
    kept, seen = Kept(user="ada"), Seen()
    async with make_app(show, submit_middleware=[kept], on_event=seen) as app:
        app.schedule("often", every=0.05, run=show)
        queued = await seen.until(Queued)
        state = await until_status(app, queued.id, "success")
        assert state.result == {"user": "ada"}


async def test_a_refused_occurrence_is_reported_and_the_schedule_goes_on(make_app: MakeApp) -> None:
    refusing, errors, seen = [True], Errors(), Seen()

    async def once(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        if refusing and refusing.pop():
            raise PermissionError("not today")
        await call_next()

    async with make_app(show, submit_middleware=[once], on_error=errors, on_event=seen) as app:
        app.schedule("often", every=0.05, run=show)
        assert isinstance(await errors.until("schedule"), PermissionError)
        await seen.until(Queued)


async def test_it_changes_options(make_app: MakeApp) -> None:
    async def later(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        for item in items:
            item.options["delay"] = 60
            item.options.pop("priority", None)
            item.options.setdefault("queue", "slow" if item.input["n"] else "default")
        await call_next()

    app = make_app(show, submit_middleware=[later])
    states = [await (await app.enqueue(show(n), priority=5)).state() for n in (0, 1)]
    assert [(state.status, state.queue, state.priority) for state in states] == [
        ("scheduled", "default", 0),
        ("scheduled", "slow", 0),
    ]


async def test_it_keeps_what_an_item_waits_for(make_app: MakeApp) -> None:
    async with make_app(show, submit_middleware=[Kept()]) as app:
        first = await app.enqueue(show())
        second = await app.enqueue(show(), after=[first])
        await second.result(PATIENCE)
        assert (await second.state()).after == (first.id,)


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        (lambda item: item.options.update(dely=1), TypeError, "did you mean 'delay'"),
        (lambda item: item.options.update(priority="high"), InputError, "whole number"),
        (lambda item: item.options.update(headers={}), TypeError, "no option 'headers'"),
        (lambda item: item.options.update(tx=1), TypeError, "no option 'tx'"),
        (lambda item: item.headers.update(n=1), InputError, "must be a str"),
        (lambda item: setattr(item, "id", "other"), AttributeError, "id"),
        (lambda item: item.input.update(n=2), AttributeError, "update"),
    ],
)
async def test_what_it_may_not_change(change: Any, error: type[Exception], problem: str) -> None:
    async def changes(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        change(items[0])
        await call_next()

    app = Treadle(work=[show], submit_middleware=[changes])
    with pytest.raises(error, match=problem):
        await app.enqueue(show())
    assert (await app.list()).items == ()


async def test_its_error_reaches_the_caller_and_nothing_is_stored(make_app: MakeApp) -> None:
    async def refuse(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        raise PermissionError(f"{len(items)} refused")

    app = make_app(show, submit_middleware=[refuse])
    with pytest.raises(PermissionError, match="1 refused"):
        await app.enqueue(show())
    with pytest.raises(PermissionError, match="1 refused"):
        await app.enqueue(show()).result()
    with pytest.raises(PermissionError, match="2 refused"):
        await app.enqueue_many([show(), show()])
    assert (await app.list()).items == ()


async def test_the_first_is_outermost_and_sees_errors_of_the_store(make_app: MakeApp) -> None:
    order: list[str] = []

    def layer(name: str) -> Any:
        async def around(items: Sequence[NewItem], call_next: SubmitNext) -> None:
            order.append(f"{name} in")
            try:
                await call_next()
            except Exception as error:
                order.append(f"{name} {type(error).__name__}")
                raise
            order.append(f"{name} out")

        return around

    app = make_app(show, submit_middleware=[layer("a"), layer("b")])
    await app.enqueue(show(), id="one")
    assert order == ["a in", "b in", "b out", "a out"]
    order.clear()
    with pytest.raises(Exception, match="one"):
        await app.enqueue(show(), id="one")
    assert order == ["a in", "b in", "b DuplicateIdError", "a DuplicateIdError"]


async def test_mistakes_are_named() -> None:
    async def forgets(items: Sequence[NewItem], call_next: SubmitNext) -> None: ...

    async def swallows(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        with contextlib.suppress(Exception):
            await call_next()

    async def twice(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        await call_next()
        await call_next()

    async def at_once(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        await asyncio.gather(call_next(), call_next())

    async def unawaited(items: Sequence[NewItem], call_next: SubmitNext) -> Any:
        return call_next()

    async def stops(items: Sequence[NewItem], call_next: SubmitNext) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await call_next()

    def plain(items: Sequence[NewItem], call_next: SubmitNext) -> None: ...

    class SlowBackend(MemoryBackend):
        """It answers after a turn of the event loop."""

    async def submitted(middleware: Any, **options: Any) -> None:
        await Treadle(SlowBackend(), work=[show], submit_middleware=[middleware]).enqueue(show(), **options)

    with pytest.raises(RuntimeError, match=r"has not called call_next.*raise an error: \S*forgets$"):
        await submitted(forgets)
    with pytest.raises(CycleError):
        await submitted(swallows, after=["x"], id="x")
    for middleware in (twice, at_once):
        with pytest.raises(RuntimeError, match=rf"called call_next\(\) twice: \S*{middleware.__name__}$"):
            await submitted(middleware)
    with pytest.raises(RuntimeError, match=r"called call_next\(\) without await: \S*unawaited$"):
        await submitted(unawaited)
    with pytest.raises(RuntimeError, match="may be stored or not"):
        await submitted(stops)
    with pytest.raises(TypeError, match="must be async"):
        await submitted(plain)
    with pytest.raises(InputError, match="submit_middleware"):
        Treadle(submit_middleware=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="submit_middleware takes a list"):
        Treadle(submit_middleware=forgets)  # type: ignore[arg-type]


async def test_a_call_in_a_task_of_its_own_is_waited_for_and_a_late_one_refused(make_app: MakeApp) -> None:
    tasks: list[asyncio.Task[None]] = []
    late: list[SubmitNext] = []

    async def in_task(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        tasks.append(asyncio.ensure_future(call_next()))
        late.append(call_next)
        await asyncio.sleep(0)

    app = make_app(show, submit_middleware=[in_task])
    handle = await app.enqueue(show())
    assert tasks[0].done()
    assert (await handle.state()).status == "ready"
    with pytest.raises(RuntimeError, match=r"called call_next\(\) after it returned: \S*in_task$"):
        await late[0]()
    with pytest.raises(CycleError):  # it was not awaited, so no one else would know
        await app.enqueue(show(), id="x", after=["x"])
    assert [isinstance(task.exception(), CycleError) for task in tasks] == [False, True]
    assert len((await app.list()).items) == 1


async def test_it_may_try_again_what_failed(make_app: MakeApp) -> None:
    async def insists(items: Sequence[NewItem], call_next: SubmitNext) -> None:
        try:
            await call_next()
        except CycleError:
            items[0].options.pop("after")
            await call_next()

    app = make_app(show, submit_middleware=[insists])
    await app.enqueue(show(), id="x", after=["x"])
    assert [state.id for state in (await app.list()).items] == ["x"]


def test_the_sync_side_and_a_transaction_of_the_caller_pass_it(tmp_path: Path) -> None:
    kept, file = Kept(user="ada"), tmp_path / "work.db"
    app = Treadle(f"sqlite:///{file}", work=[show], submit_middleware=[kept])
    with app.sync:
        assert app.sync.enqueue(show()).result(PATIENCE) == {"user": "ada"}
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("BEGIN")
        (inside,) = app.sync.enqueue_many([show()], tx=connection)
        connection.execute("COMMIT")
        connection.close()
        assert inside.result(PATIENCE) == {"user": "ada"}
    assert len(kept.seen) == 2
