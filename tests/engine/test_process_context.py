"""Handlers with `run_in="process"` that take a Context, and batches with contexts (SPEC §18)."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.engine import process_context_handlers as handlers
from tests.engine.kit import PATIENCE, MakeApp, failure, until
from treadle import Context, Treadle


@pytest.mark.usefixtures("processes")
async def test_a_process_handler_knows_the_facts(make_app: MakeApp) -> None:
    async with make_app(handlers.facts, processes=1) as app:
        client = app.tenant("acme")
        handle = await client.enqueue(handlers.facts(7), workflow="w", workflow_type="t", expires_in=60)
        found = await handle.result(PATIENCE)
        assert found.pop("pid") != os.getpid()
        assert found == {
            "id": handle.id,
            "facts": ["facts", 1, None, "acme", "w", "t", 7],
            "group": handle.id,
            "worker": app.worker.id,
            "interrupt": (None, False),
        }


@pytest.mark.usefixtures("processes")
async def test_a_process_handler_asks_the_store(make_app: MakeApp) -> None:
    async with make_app(handlers.value, handlers.bad, handlers.ask, processes=1) as app:
        dead = await app.enqueue(handlers.bad())
        await failure(dead.result(PATIENCE))
        works = [handlers.value(3), handlers.value(4)]
        last = await app.enqueue(handlers.ask(dead.id), after=works)
        await app.enqueue_many(works)
        assert await last.result(PATIENCE) == [
            7,
            ["success", "success", None],
            ["int", "int", "WorkFailed", "WorkFailed"],
            [True, True],
            [3, 4],
        ]
        other = await app.enqueue(handlers.ask(dead.id), after=works)
        assert (await other.result(PATIENCE))[3] == [False, False]


@pytest.mark.usefixtures("processes")
async def test_a_process_handler_returns_a_result(make_app: MakeApp) -> None:
    async with make_app(
        handlers.value, handlers.fan_out, handlers.sum_up, handlers.append, processes=1
    ) as app:
        root = await app.enqueue(handlers.fan_out(3))
        assert await root.group(PATIENCE) == 103
        items = {item.id: item for item in (await app.list(type="value", group_id=root.id)).items}
        assert sorted((item.priority, item.lane, item.parent) for item in items.values()) == [
            (0, "slow", root.id),
            *[(5, "", root.id)] * 3,
        ]
        (last,) = (await app.list(type="sum up")).items
        assert last.queue == "sums"
        handle = await app.enqueue(handlers.append())
        assert await handle.result(PATIENCE) == "own"
        assert await handle.group(PATIENCE) == 1


@pytest.mark.usefixtures("processes")
async def test_a_process_handler_makes_nested_groups(make_app: MakeApp) -> None:
    """`sum_up` waits for all that `fan_out` queues, and reads its value."""
    async with make_app(
        handlers.grouped, handlers.value, handlers.fan_out, handlers.sum_up, processes=1
    ) as app:
        assert await app.enqueue(handlers.grouped()).group(PATIENCE) == 101


@pytest.mark.usefixtures("processes")
async def test_a_process_handler_extends_its_timeout(make_app: MakeApp) -> None:
    async with make_app(handlers.longer, processes=1) as app:
        now = await app.backend.now()
        first, second = await app.enqueue(handlers.longer()).result(PATIENCE)
        assert 60 <= first - now < 60 + PATIENCE
        assert 90 <= second - now < 90 + PATIENCE


only_memory = pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved


@pytest.mark.usefixtures("processes")
@only_memory
async def test_results_of_a_process_handler_are_checked(make_app: MakeApp) -> None:
    async with make_app(
        handlers.forget, handlers.with_lambda, handlers.with_local_type, handlers.value, processes=1
    ) as app:
        died = await failure(app.enqueue(handlers.forget()).result(PATIENCE))
        assert (died.reason, died.error_type) == ("bad_result", "StrictReturnError")
        for handler in (handlers.with_lambda, handlers.with_local_type):
            died = await failure(app.enqueue(handler()).result(PATIENCE))
            assert (died.reason, died.error_type) == ("bad_result", "BadResultError")
            assert "at the top" in died.error
        assert (await app.list(type="value")).items == ()


@pytest.mark.usefixtures("processes")
@only_memory
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("resources", "ctx.resources stays in the worker's process"),
        ("transaction", "ctx.transaction() is not available with run_in='process'"),
        ("lock", "ctx.sync.claim() cannot be asked with"),
        ("loop", "in a process, use `await asyncio.to_thread(ctx.sync.states, ...)`"),
        ("async", "use ctx.sync.results()"),
    ],
)
async def test_what_a_process_cannot_do_is_refused(make_app: MakeApp, what: str, message: str) -> None:
    async with make_app(handlers.wrong, processes=1) as app:
        died = await failure(app.enqueue(handlers.wrong(what)).result(PATIENCE))
        assert message in died.error


@pytest.mark.usefixtures("processes")
@only_memory
async def test_what_middlewares_put_into_extra_is_sent(make_app: MakeApp) -> None:
    async def middleware(ctx: Context, call_next: Any) -> Any:
        ctx.extra.update(user="ann", lock=threading.Lock())
        return await call_next()

    async with make_app(handlers.extras, middleware=[middleware], processes=1) as app:
        user, has_lock, problem = await app.enqueue(handlers.extras()).result(PATIENCE)
        assert (user, has_lock) == ("ann", False)
        assert "lock: its value cannot be sent to a process" in problem


@pytest.mark.usefixtures("processes")
@only_memory
async def test_the_log_of_a_process_handler_is_the_workers(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="treadle"):
        async with make_app(handlers.speak, processes=1) as app:
            handle = await app.enqueue(handlers.speak("o-1"), workflow="w")
            await handle.result(PATIENCE)
    hello, failed = [record for record in caplog.records if getattr(record, "order", "") == "o-1"]
    assert hello.getMessage() == "from a process: hello"
    fields = ("id", "type", "attempt", "tenant", "workflow", "step")
    assert [getattr(hello, name) for name in fields] == [handle.id, "speak", 1, "default", "w", 2]
    assert "ValueError: seen" in (failed.exc_text or "")


@pytest.mark.usefixtures("processes")
async def test_a_process_handler_learns_of_an_interrupt(make_app: MakeApp, tmp_path: Path) -> None:
    started = tmp_path / "started"
    app = make_app(handlers.wait_for_end, processes=1)
    await app.start()
    handle = await app.enqueue(handlers.wait_for_end(str(started)))
    await until(started.exists)
    await app.worker.stop(drain=PATIENCE)
    assert (await handle.state()).result == "stopping"


@pytest.mark.usefixtures("processes")
@only_memory
async def test_threads_that_a_handler_leaves_behind_are_not_answered(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """Their messages would be taken for those of the next call."""
    file = tmp_path / "error"
    async with make_app(handlers.left_behind, handlers.facts, processes=1) as app:
        assert await app.enqueue(handlers.left_behind(str(file))).result(PATIENCE) == 1
        await until(lambda: file.exists() and file.read_text())
        assert "the attempt" in file.read_text()
        assert (await app.enqueue(handlers.facts(1), expires_in=60).result(PATIENCE))["facts"][0] == "facts"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "batch",
    [handlers.batch_on_loop, handlers.batch_in_thread, handlers.batch_in_process],
    ids=lambda each: each.name,
)
async def test_a_batch_function_gets_the_contexts_of_its_inputs(make_app: MakeApp, batch: Any) -> None:
    async with make_app(batch, handlers.value, processes=1) as app:
        handles = await app.enqueue_many([batch(n) for n in range(4)], workflow="w")
        assert await handles[0].result(PATIENCE) == [handles[0].id, 1, "w"]
        assert await handles[1].group(PATIENCE) == 50
        assert "no 2" in (await failure(handles[2].result(PATIENCE))).error
        died = await failure(handles[3].result(PATIENCE))
        assert died.error_type == "StrictReturnError"
        assert len((await app.list(type="value")).items) == 1


@only_memory
async def test_a_batch_has_no_transaction(make_app: MakeApp) -> None:
    async with make_app(handlers.batch_in_transaction) as app:
        died = await failure(app.enqueue(handlers.batch_in_transaction(1)).result(PATIENCE))
        assert "ctx.transaction() is not for a batch" in died.error


@only_memory
async def test_each_context_of_a_batch_has_its_own_interrupt(make_app: MakeApp) -> None:
    async with make_app(handlers.interrupted) as app:
        first, second = await app.enqueue_many([handlers.interrupted(1), handlers.interrupted(2)])
        await until(lambda: len(running(app)) == 2)
        await app.cancel(first)
        assert await second.result(PATIENCE) == "None"


def running(app: Treadle) -> list[Any]:
    runtime = app.worker._runtime
    assert runtime is not None
    return [held for held in runtime.held.all() if held.ctx is not None]
