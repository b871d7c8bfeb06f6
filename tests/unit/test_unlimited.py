"""Unlimited: tasks that never wait share an asyncio task. A task that waits or changes its context does
not."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from treadle.doers import unlimited

mark: ContextVar[str] = ContextVar("mark", default="none")


class Recorder:
    """The asyncio task of each run, and the context variable that it found."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None] | None] = []
        self.found: list[str] = []
        self.go = asyncio.Event()

    async def quick(self) -> None:
        self.tasks.append(asyncio.current_task())
        self.found.append(mark.get())

    async def waiting(self) -> None:
        await self.quick()
        await self.go.wait()

    async def marking(self) -> None:
        await self.quick()
        mark.set("left behind")

    async def cancelling(self) -> None:
        await self.quick()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


async def test_handlers_that_never_wait_share_a_task() -> None:
    doer, recorder = unlimited(), Recorder()
    for _ in range(5):
        doer.submit(recorder.quick)
    await doer.idle()
    assert len(recorder.tasks) == 5
    assert len(set(recorder.tasks)) == 1


async def test_a_handler_that_waits_does_not_delay_the_others() -> None:
    doer, recorder = unlimited(), Recorder()
    for _ in range(5):
        doer.submit(recorder.waiting)
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(set(recorder.tasks)) == len(recorder.tasks) == 5
    doer.submit(recorder.quick)
    await asyncio.sleep(0)
    assert len(set(recorder.tasks)) == 6
    recorder.go.set()
    await doer.idle()


async def test_the_task_of_a_handler_that_waited_is_not_reused() -> None:
    doer, recorder = unlimited(), Recorder()
    doer.submit(recorder.waiting)
    await asyncio.sleep(0)
    recorder.go.set()
    await asyncio.sleep(0)
    doer.submit(recorder.quick)
    await doer.idle()
    assert len(set(recorder.tasks)) == 2


async def test_context_variables_do_not_leak_between_handlers() -> None:
    doer, recorder = unlimited(), Recorder()
    for task in (recorder.quick, recorder.marking, recorder.quick, recorder.marking, recorder.quick):
        doer.submit(task)
    await doer.idle()
    assert recorder.found == ["none"] * 5


async def test_a_cancellation_does_not_reach_the_next_handler() -> None:
    doer, recorder = unlimited(), Recorder()
    recorder.go.set()
    doer.submit(recorder.cancelling)
    doer.submit(recorder.waiting)
    doer.submit(recorder.waiting)
    await doer.idle()
    assert len(recorder.tasks) == 3
    assert [task.cancelled() for task in recorder.tasks if task is not None] == [True, False, False]


async def test_an_error_does_not_stop_the_others() -> None:
    doer, recorder, errors = unlimited(), Recorder(), list[Exception]()
    doer.on_error(lambda error, _: errors.append(error))

    async def broken() -> None:
        raise ValueError("broken")

    for task in (broken, recorder.quick, broken, recorder.quick):
        doer.submit(task)
    await doer.idle()
    assert len(recorder.tasks) == len(errors) == 2


async def test_tasks_that_have_not_started_can_be_cancelled() -> None:
    doer, recorder = unlimited(), Recorder()
    doer.submit(recorder.quick)
    assert doer.cancel_pending() == [recorder.quick]
    await doer.idle()
    assert recorder.tasks == []


async def test_a_cancelled_starter_task_is_replaced() -> None:
    doer, recorder = unlimited(), Recorder()
    doer.submit(recorder.quick)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await doer.idle()
    doer.submit(recorder.quick)
    await doer.idle()
    assert len(recorder.tasks) == 2
