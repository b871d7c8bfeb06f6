"""A worker that someone asks to stop: `app.drain_worker`."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from treadle import Treadle, Worker, work
from treadle.events import WorkerStopping
from treadle.item import Heartbeat

MakeApp = Callable[..., Treadle]


async def test_a_worker_that_is_asked_to_stop_lets_its_handlers_end(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """It starts nothing more, and is gone from the store. Started again, it works."""
    begun, go_on, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @work
    async def wait() -> str:
        begun.set()
        await go_on.wait()
        return "ended"

    def note_stop(event: object) -> None:
        if isinstance(event, WorkerStopping):
            stopping.set()

    app = make_app(wait, worker_id="w", lease=1.0, on_event=note_stop)
    caplog.set_level(logging.INFO, "treadle")
    running = asyncio.ensure_future(app.worker.run())
    handle = await app.enqueue(wait())
    await begun.wait()
    assert await app.by("ann@example.org", reason="a deploy").drain_worker("w")
    assert not await app.drain_worker("none")
    await stopping.wait()
    later = await app.enqueue(wait())
    go_on.set()
    await running
    assert (await handle.state()).result == "ended"
    assert (await later.state()).status == "ready"
    assert [worker.id for worker in await app.workers()] == []
    assert "worker w was asked to stop by ann@example.org (a deploy)" in caplog.messages
    assert not app.worker.running
    await app.start()
    assert await later == "ended"
    assert app.worker.running


async def test_a_request_to_stop_is_for_one_worker(make_app: MakeApp) -> None:
    """Not for a later worker with the same id, if the first one has died. And a client of one tenant cannot
    stop workers that serve others."""
    app = make_app(lease=1.0)
    await app.connect()
    await app.backend.beat(Heartbeat(worker="w", lease=1000.0))
    await app.drain_worker("w")
    first = Worker(app, id="w")
    await first.start()
    own = Worker(app, id="own", tenants=["acme"])
    await own.start()
    running = asyncio.ensure_future(own.run())
    tenant = app.tenant("acme")
    assert not await tenant.drain_worker("w")
    assert await tenant.by("ann").drain_worker("own")
    await running  # its heartbeat was later than that of the first
    assert first.running
    assert [(entry.verb, entry.tenant) for entry in (await tenant.audits()).entries] == [
        ("drain_worker", "acme")
    ]
    await first.stop()
