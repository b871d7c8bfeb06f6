from __future__ import annotations

import asyncio
import threading

import pytest

from treadle.errors import LeaseLost
from treadle.handler.context import Interrupt, set_interrupt


def test_a_new_interrupt_is_not_set() -> None:
    interrupt = Interrupt("item")
    assert (interrupt.reason, interrupt.is_set(), bool(interrupt)) == (None, False, False)
    interrupt.raise_if_set()
    assert repr(interrupt) == "<Interrupt not set>"


def test_the_first_reason_stays() -> None:
    interrupt = Interrupt("item")
    assert set_interrupt(interrupt, "cancelled") is True
    assert set_interrupt(interrupt, "stopping") is False
    assert (interrupt.reason, interrupt.is_set(), bool(interrupt)) == ("cancelled", True, True)
    assert repr(interrupt) == "<Interrupt cancelled>"


def test_raise_if_set_raises_with_the_reason() -> None:
    interrupt = Interrupt("item")
    set_interrupt(interrupt, "taken")
    with pytest.raises(LeaseLost) as caught:
        interrupt.raise_if_set()
    assert (caught.value.id, caught.value.reason) == ("item", "taken")


async def test_awaiting_a_set_interrupt_returns_the_reason() -> None:
    interrupt = Interrupt()
    set_interrupt(interrupt, "deadline")
    assert await interrupt == "deadline"


async def test_every_waiter_is_woken() -> None:
    interrupt = Interrupt()

    async def wait() -> str:
        return await interrupt

    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        set_interrupt(interrupt, "stopping")
    assert [task.result() for task in waiting] == ["stopping"] * 3


async def test_a_cancelled_waiter_does_not_affect_the_others() -> None:
    interrupt = Interrupt()

    async def wait() -> str:
        return await interrupt

    gone, stays = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    gone.cancel()
    set_interrupt(interrupt, "error")
    assert await stays == "error"
    assert (await asyncio.gather(gone, return_exceptions=True))[0].__class__ is asyncio.CancelledError


def test_a_thread_may_wait() -> None:
    interrupt = Interrupt()
    assert interrupt.wait(timeout=0) is False
    woken = threading.Event()
    thread = threading.Thread(target=lambda: interrupt.wait(30) and woken.set())
    thread.start()
    set_interrupt(interrupt, "taken")
    thread.join(30)
    assert woken.is_set()
    assert interrupt.wait() is True
