"""Workers of different kinds on one store: an item starts at once on the worker that can run it.

The poll takes longer than a case waits: only wake-ups can start an item in time.
"""

from __future__ import annotations

from typing import Any

from treadle.app import Treadle
from treadle.define.decorators import work
from treadle.doers import balanced

from .fleet import PATIENCE, Apps, Checkpoint
from .subject import needs

POLL = 3 * PATIENCE
ITEMS = 20


@work(name="mixed_one")
async def one(n: int) -> int:
    return n


@work(name="mixed_two")
async def two(n: int) -> int:
    return n


class EngineMixedFleetCases:
    async def _app(self, fleet: Apps, *types: Any, **settings: Any) -> Treadle:
        return await fleet.app(*types, poll_interval=POLL, **settings)

    async def test_an_item_starts_at_once_beside_workers_of_other_types(self, fleet: Apps) -> None:
        """Also if other apps than the two workers submit it."""
        for _ in range(2):
            await self._app(fleet, one)
        worker = await self._app(fleet, two)
        producer = await fleet.idle(one, two)
        for n in range(ITEMS):
            submitted_by = (producer, worker)[n % 2]
            assert await submitted_by.enqueue(two(n)).result(PATIENCE) == n
            assert await submitted_by.enqueue(one(n)).result(PATIENCE) == n

    async def test_an_item_starts_at_once_beside_full_workers(self, fleet: Apps) -> None:
        """The full workers have its type."""
        checkpoint = Checkpoint()

        @work(name="mixed_hold")
        async def hold() -> None:
            await checkpoint.arrive()

        full = [await self._app(fleet, hold, two, doer=balanced(1)) for _ in range(2)]
        for app in full:
            await app.enqueue(hold())
        await checkpoint.reached()
        await self._app(fleet, two)
        producer = await fleet.idle(two)
        for n in range(ITEMS):
            assert await producer.enqueue(two(n)).result(PATIENCE) == n
        checkpoint.open()

    async def test_an_item_starts_at_once_when_its_worker_has_room_again(self, fleet: Apps) -> None:
        """Workers without the type have seen it meanwhile."""
        checkpoint = Checkpoint()

        @work(name="mixed_hold")
        async def hold() -> None:
            await checkpoint.arrive()

        worker = await self._app(fleet, hold, two, doer=balanced(1))
        others = [await self._app(fleet, one) for _ in range(2)]
        held = await worker.enqueue(hold())
        await checkpoint.reached()
        waiting = [await others[0].enqueue(two(n)) for n in range(5)]
        assert await others[0].enqueue(one(1)).result(PATIENCE) == 1
        checkpoint.open()
        await held.result(PATIENCE)
        assert [await handle.result(PATIENCE) for handle in waiting] == list(range(5))

    @needs("order")
    async def test_an_item_starts_at_once_beside_restricted_workers(self, fleet: Apps) -> None:
        """They run the type, but in another queue, or for another tenant."""
        await self._app(fleet, two, queues=["other"])
        await self._app(fleet, two, tenants=["other"])
        worker = await self._app(fleet, two, queues=["bulk"], tenants=["acme"])
        for n in range(ITEMS):
            handle = await worker.tenant("acme").enqueue(two(n), queue="bulk")
            assert await handle.result(PATIENCE) == n

    @needs("operating")
    async def test_items_of_a_resumed_queue_start_at_once(self, fleet: Apps) -> None:
        """On the worker that has their type."""
        await self._app(fleet, one)
        worker = await self._app(fleet, two)
        producer = await fleet.idle(one, two)
        for n in range(5):
            await producer.pause("bulk")
            paused = await producer.enqueue(two(n), queue="bulk")
            assert await producer.enqueue(one(n)).result(PATIENCE) == n
            assert await worker.enqueue(two(n)).result(PATIENCE) == n
            await producer.resume("bulk")
            assert await paused.result(PATIENCE) == n
