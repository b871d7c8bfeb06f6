"""`update`: items that have not started run at another time, or in another place (SPEC §18)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp
from treadle import InputError, NotFound, Treadle, UnsupportedError, work
from treadle.errors import ConflictError, NotUpdatable
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store


@work(name="echo")
async def echo(text: str) -> str:
    return text


async def test_an_item_that_becomes_due_runs_at_once(make_app: MakeApp) -> None:
    """The update wakes a worker that sleeps."""
    async with make_app(echo, poll_interval=60) as app:
        handle = await app.enqueue(echo("a"), delay=3600)
        assert await app.update(handle, run_at=0) == 1
        assert await handle.result(PATIENCE) == "a"


async def test_an_item_of_another_queue_runs_at_once(make_app: MakeApp) -> None:
    """A worker of the new queue is woken."""
    async with make_app(echo, poll_interval=60, queues=["a"]) as app:
        handle = await app.enqueue(echo("a"), queue="b")
        assert await app.update([handle], queue="a") == 1
        assert await handle.result(PATIENCE) == "a"


async def test_all_that_can_be_changed(make_app: MakeApp) -> None:
    """What is not given stays."""
    app = make_app(echo)
    handles = [await app.enqueue(echo("a"), delay=60, deadline=9e9) for _ in range(2)]
    assert await app.update(handles, run_at=8e9, priority=2, lane="l", queue="q") == 2
    for handle in handles:
        state = await handle.state()
        assert (state.due_at, state.priority, state.lane, state.queue) == (8e9, 2, "l", "q")
        assert state.deadline == 9e9
    await app.update(handles[0], deadline=None, lane="")
    state = await handles[0].state()
    assert (state.deadline, state.lane, state.queue) == (None, "", "q")


async def test_all_or_none(make_app: MakeApp) -> None:
    """The error names the item that has started, and its status."""
    barrier = Barrier()

    @work(name="slow")
    async def slow() -> None:
        await barrier.wait()

    async with make_app(slow, echo) as app:
        running = await app.enqueue(slow())
        await barrier.reached()
        waiting = await app.enqueue(echo("a"), delay=60)
        with pytest.raises(NotUpdatable) as refused:
            await app.update([waiting, running], priority=5)
        assert isinstance(refused.value, ConflictError)
        assert (refused.value.id, refused.value.status) == (running.id, "running")
        with pytest.raises(NotFound):
            await app.update([waiting.id, "missing"], priority=5)
        assert (await waiting.state()).priority == 0
        barrier.go.set()


async def test_a_tenant_updates_its_own_items(make_app: MakeApp) -> None:
    """Those of others do not exist for it."""
    app = make_app(echo)
    mine = await app.tenant("a").enqueue(echo("a"), delay=60)
    assert await app.tenant("a").update(mine, priority=1) == 1
    with pytest.raises(NotFound):
        await app.tenant("b").update(mine, priority=1)
    assert await app.update(mine, priority=2) == 1


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({}, InputError, "nothing to change"),
        ({"run_at": None}, InputError, "nothing to change"),
        ({"priority": "high"}, InputError, "priority"),
        ({"queue": ""}, InputError, "queue"),
        ({"run_at": "soon"}, InputError, "run_at"),
        ({"delay": 5}, TypeError, "update has no option 'delay'"),
    ],
)
async def test_mistakes_are_named(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    """Before the store is asked."""
    app = Treadle(work=[echo])
    with pytest.raises(error, match=text):
        await app.update("x", **changes)


async def test_ports_refuse_an_update() -> None:
    """They have no such verb."""
    app = Treadle(PortsBackend(memory_queue(), memory_pubsub(), memory_store()), work=[echo])
    with pytest.raises(UnsupportedError, match="updates"):
        await app.update("x", priority=1)
