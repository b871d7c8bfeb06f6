"""The doer that a user gives is a pattern: every worker has a doer of its own (SPEC §6, §17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, until, until_status
from tests.engine.test_doers_in_engine import OneByOne
from treadle import Client, MemoryBackend, Treadle, Worker, work
from treadle.doers import Doer, balanced, concurrency, oldest, priority, rate_limited, unlimited
from treadle.errors import LifecycleError


class OneByOneEach(OneByOne):
    """It makes a doer for each worker."""

    def of_worker(self) -> OneByOne:
        return OneByOne()


DOERS: dict[str, Callable[[], Doer]] = {
    "unlimited": unlimited,
    "balanced": lambda: balanced(1, buffer=5),
    "priority": lambda: priority(1, buffer=5),
    "oldest": lambda: oldest(1, buffer=5),
    "rate_limited": lambda: rate_limited(100, 1),
    "concurrency": lambda: concurrency(1),
    "inner": lambda: concurrency(100, inner=balanced(1, buffer=5)),
    "own": OneByOneEach,
    "inner own": lambda: concurrency(100, inner=OneByOneEach()),
}

each_doer = pytest.mark.parametrize("doer", [pytest.param(make, id=name) for name, make in DOERS.items()])
each_place = pytest.mark.parametrize("place", ["type", "worker"])


def waiting_type(barrier: Barrier, **options: Any) -> Any:
    @work(name="waiting", **options)
    async def waiting(n: int) -> int:
        await barrier.wait()
        return n

    return waiting


@each_doer
@each_place
async def test_two_apps_with_one_doer_do_not_meet(doer: Callable[[], Doer], place: str) -> None:
    """The first stops. The items of the second wait, run and end as if it were alone."""
    barrier, given = Barrier(), doer()
    type_ = waiting_type(barrier, **({"doer": given} if place == "type" else {}))
    settings: dict[str, Any] = {"doer": given} if place == "worker" else {}
    async with (
        Treadle(MemoryBackend(), work=[type_], **settings) as one,
        Treadle(MemoryBackend(), work=[type_], **settings) as two,
    ):
        handles = await two.enqueue_many([type_(n) for n in range(4)])
        await barrier.reached()
        async with asyncio.timeout(PATIENCE):
            await one.stop()
        barrier.go.set()
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(4))
        await until(lambda: not two.active())


@each_doer
async def test_two_workers_of_a_client_have_a_doer_each(doer: Callable[[], Doer]) -> None:
    """The first stops. The second runs what it holds, and its drain returns."""
    barrier = Barrier()
    type_ = waiting_type(barrier, doer=doer())
    async with (
        Client(MemoryBackend(), work=[type_]) as client,
        Worker(client, queues=["none"]) as a,
        Worker(client) as b,
    ):
        handles = await client.enqueue_many([type_(n) for n in range(4)])
        await barrier.reached()
        async with asyncio.timeout(PATIENCE):
            await a.stop()
            barrier.go.set()
            await b.drain()
        assert [(await handle.state()).status for handle in handles] == ["success"] * 4
        assert b.active() == []


@each_doer
@each_place
def test_a_doer_serves_one_event_loop_after_another(doer: Callable[[], Doer], place: str) -> None:
    """`asyncio.run` again and again: a handler that the first loop left behind takes no room in the next."""
    given = doer()
    barriers: list[Barrier] = []

    @work(name="job", **({"doer": given} if place == "type" else {}))  # type: ignore[call-overload,misc]
    async def job(n: int) -> int:
        await barriers[-1].wait()
        return n

    async def run(*, left_behind: bool) -> None:
        barriers.append(Barrier())
        settings: dict[str, Any] = {"doer": given} if place == "worker" else {}
        app = Treadle(MemoryBackend(), work=[job], **settings)
        await app.start()
        handles = await app.enqueue_many([job(n) for n in range(1 if left_behind else 3)])
        await barriers[-1].reached()
        if left_behind:
            return
        barriers[-1].go.set()
        assert [await handle.result(PATIENCE) for handle in handles] == [0, 1, 2]
        await app.close()

    asyncio.run(run(left_behind=True))
    asyncio.run(run(left_behind=False))
    asyncio.run(run(left_behind=False))


def sharing() -> Iterator[Any]:
    """Pairs of doers that are one doer, or have one inside."""
    shared = balanced(1)
    yield pytest.param(shared, shared, id="balanced")
    for inner in (shared, OneByOne()):
        name = type(inner).__name__
        limited = concurrency(9, inner=inner)
        yield pytest.param(inner, limited, id=f"{name} and its limit")
        yield pytest.param(limited, rate_limited(99, inner=inner), id=f"{name} of two limits")


@pytest.mark.parametrize(("first", "second"), list(sharing()))
@each_place
async def test_types_of_a_worker_that_share_a_doer_share_its_room(
    first: Doer, second: Doer, place: str
) -> None:
    barrier, running, peak = Barrier(), [0], [0]

    async def count() -> None:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        await barrier.wait()
        running[0] -= 1

    @work(name="one", **({"doer": first} if place == "type" else {}))  # type: ignore[call-overload,misc]
    async def one() -> None:
        await count()

    @work(name="two", doer=second)
    async def two() -> None:
        await count()

    settings: dict[str, Any] = {"doer": first} if place == "worker" else {}
    async with Treadle(MemoryBackend(), work=[one, two], **settings) as app:
        handles = await app.enqueue_many([one(), two(), one(), two()])
        await barrier.reached()
        await asyncio.sleep(0.02)
        barrier.go.set()
        for handle in handles:
            await handle.result(PATIENCE)
    assert peak[0] == 1


@pytest.mark.parametrize("inner", [False, True])
async def test_a_users_doer_serves_one_worker_at_a_time(inner: bool) -> None:
    """Without `of_worker` a second worker does not start, and the first goes on. Once that has stopped, the
    second may start."""
    barrier = Barrier()
    barrier.go.set()
    type_ = waiting_type(barrier, doer=concurrency(9, inner=OneByOne()) if inner else OneByOne())
    one, two = (Treadle(MemoryBackend(), work=[type_], worker_id=id) for id in ("w1", "w2"))
    await one.start()
    with pytest.raises(LifecycleError, match="already serves worker 'w1'"):
        await two.start()
    assert await one.enqueue(type_(1)).result(PATIENCE) == 1
    await one.stop()
    async with two:
        assert await two.enqueue(type_(2)).result(PATIENCE) == 2


async def test_a_doer_without_a_hash_can_be_shared() -> None:
    class Unhashable(OneByOne):
        __hash__ = None  # type: ignore[assignment]

    barrier = Barrier()
    barrier.go.set()
    type_ = waiting_type(barrier, doer=Unhashable())
    async with Treadle(MemoryBackend(), work=[type_]) as app:
        assert await app.enqueue(type_(1)).result(PATIENCE) == 1


@pytest.mark.parametrize("stops", [False, True])
async def test_items_with_permits_wait_beside_others_in_one_doer(stops: bool) -> None:
    """One doer is a type's own, and the inner one of a limit. An item that is cancelled there, or a stop,
    leaves the others sound, and no permit is lost."""
    barrier, shared = Barrier(), balanced(1, buffer=10)
    direct = waiting_type(barrier, doer=shared)

    @work(name="limited", doer=concurrency(3, inner=shared))
    async def limited(n: int) -> int:
        return n

    backend = MemoryBackend()
    async with Treadle(backend, work=[direct, limited], poll_interval=0.05) as app:
        await app.enqueue(direct(0))
        await barrier.reached()
        handles = [await app.enqueue(limited(n)) for n in range(3)]
        handles += [await app.enqueue(direct(n)) for n in range(3)]
        for handle in handles:
            await until_status(app, handle.id, "running")
        await handles[-1].cancel()
        await handles[0].cancel()
        if stops:
            stopping = asyncio.create_task(app.worker.stop(drain=PATIENCE))
            for handle in handles[1:-1]:
                await until_status(app, handle.id, "ready")
            barrier.go.set()
            await stopping
            await app.worker.start()
        barrier.go.set()
        assert [await handle.result(PATIENCE) for handle in handles[1:-1]] == [1, 2, 0, 1]
        more = [await app.enqueue(limited(n)) for n in range(4)]
        assert [await handle.result(PATIENCE) for handle in more] == [0, 1, 2, 3]
