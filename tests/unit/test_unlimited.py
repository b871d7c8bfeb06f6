"""Unlimited: what never waits shares a task; what waits, or leaves something behind, does not."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from treadle.doers import unlimited

mark: ContextVar[str] = ContextVar("mark", default="none")


class Notes:
    """Who ran in which task, and what each has found there."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None] | None] = []
        self.found: list[str] = []
        self.gate = asyncio.Event()

    async def quick(self) -> None:
        self.tasks.append(asyncio.current_task())
        self.found.append(mark.get())

    async def waiting(self) -> None:
        await self.quick()
        await self.gate.wait()

    async def marking(self) -> None:
        await self.quick()
        mark.set("left behind")

    async def cancelling(self) -> None:
        await self.quick()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


async def test_handlers_that_never_wait_share_a_task() -> None:
    doer, notes = unlimited(), Notes()
    for _ in range(5):
        doer.submit(notes.quick)
    await doer.idle()
    assert len(notes.tasks) == 5
    assert len(set(notes.tasks)) == 1


async def test_a_handler_that_waits_does_not_delay_the_others() -> None:
    doer, notes = unlimited(), Notes()
    for _ in range(5):
        doer.submit(notes.waiting)
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(set(notes.tasks)) == len(notes.tasks) == 5
    doer.submit(notes.quick)
    await asyncio.sleep(0)
    assert len(set(notes.tasks)) == 6
    notes.gate.set()
    await doer.idle()


async def test_the_task_of_a_handler_that_waited_is_not_reused() -> None:
    doer, notes = unlimited(), Notes()
    doer.submit(notes.waiting)
    await asyncio.sleep(0)
    notes.gate.set()
    await asyncio.sleep(0)
    doer.submit(notes.quick)
    await doer.idle()
    assert len(set(notes.tasks)) == 2


async def test_context_variables_do_not_leak_between_handlers() -> None:
    doer, notes = unlimited(), Notes()
    for task in (notes.quick, notes.marking, notes.quick, notes.marking, notes.quick):
        doer.submit(task)
    await doer.idle()
    assert notes.found == ["none"] * 5


async def test_a_cancellation_does_not_reach_the_next_handler() -> None:
    doer, notes = unlimited(), Notes()
    notes.gate.set()
    doer.submit(notes.cancelling)
    doer.submit(notes.waiting)
    doer.submit(notes.waiting)
    await doer.idle()
    assert len(notes.tasks) == 3
    assert [task.cancelled() for task in notes.tasks if task is not None] == [True, False, False]


async def test_an_error_does_not_stop_the_others() -> None:
    doer, notes, errors = unlimited(), Notes(), list[Exception]()
    doer.on_error(errors.append)

    async def broken() -> None:
        raise ValueError("broken")

    for task in (broken, notes.quick, broken, notes.quick):
        doer.submit(task)
    await doer.idle()
    assert len(notes.tasks) == len(errors) == 2


async def test_tasks_that_have_not_started_can_be_cancelled() -> None:
    doer, notes = unlimited(), Notes()
    doer.submit(notes.quick)
    assert doer.cancel_pending() == [notes.quick]
    await doer.idle()
    assert notes.tasks == []


async def test_a_starter_that_never_began_is_replaced() -> None:
    doer, notes = unlimited(), Notes()
    doer.submit(notes.quick)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await doer.idle()
    doer.submit(notes.quick)
    await doer.idle()
    assert len(notes.tasks) == 2
