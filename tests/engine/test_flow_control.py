"""Accept, backpressure, backlogs, queues and unhandled groups (SPEC §6, §7, §17)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, Errors, MakeApp, MakeBackend, Seen, failure, until
from treadle import (
    Abort,
    AcceptInfo,
    BacklogInfo,
    BackpressureInfo,
    Client,
    Context,
    Result,
    UnhandledGroup,
    Worker,
    adaptive_delay,
    work,
)
from treadle.doers import priority
from treadle.events import GroupDone


@work
async def value(n: int) -> int:
    return n


@work(name="ping")
async def ping(ctx: Context) -> str:
    return ctx.worker_id


@work(name="pong")
async def pong(ctx: Context) -> str:
    return ctx.worker_id


# --------------------------------------------------------------------------------------------------- accept


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_accept_leaves_items_to_other_workers(make_app: MakeApp, kind: str) -> None:
    """T41, §17: Two apps on one store accept one type each. A waiter gets both results. No attempt is
    counted."""
    infos: list[AcceptInfo] = []

    def only(name: str) -> Any:
        def accept(info: AcceptInfo) -> bool:
            infos.append(info)
            return info.type == name

        async def accept_later(info: AcceptInfo) -> bool:
            return accept(info)

        return accept if kind == "sync" else accept_later

    async with (
        make_app(ping, pong, worker_id="a", accept=only("ping")) as app,
        make_app(ping, pong, worker_id="b", accept=only("pong")),
    ):
        handles = [await app.enqueue(type_()) for type_ in (ping, pong) * 3]
        assert [await handle.result(PATIENCE) for handle in handles] == ["a", "b"] * 3
        states = [await handle.state() for handle in handles]
        assert {(state.attempt, state.history) for state in states} == {(1, ())}
    assert {(info.attempt, info.input is not None) for info in infos} == {(1, True)}


async def test_accept_is_called_for_each_item_of_a_batch(make_app: MakeApp) -> None:
    """§6: Declined items are left to other workers. The batch runs with the rest."""
    calls: list[tuple[str, list[int]]] = []

    def batch(worker: str) -> Any:
        @work.batch(name="double", size=4, max_wait=0.02)
        async def double(numbers: list[int]) -> list[int]:
            calls.append((worker, sorted(numbers)))
            return [2 * n for n in numbers]

        return double

    def only(rest: int) -> Any:
        return lambda info: next(iter(info.input.values())) % 2 == rest

    even, odd = batch("even"), batch("odd")
    async with make_app(even, accept=only(0)) as app, make_app(odd, accept=only(1)):
        handles = await app.enqueue_many([even(n) for n in range(8)])
        assert [await handle.result(PATIENCE) for handle in handles] == [2 * n for n in range(8)]
    assert all(n % 2 == (worker == "odd") for worker, numbers in calls for n in numbers)


async def test_a_declined_item_is_offered_again(make_app: MakeApp) -> None:
    """§17: After `poll_interval`, also to the same worker."""
    asked: list[float] = []

    def accept(info: AcceptInfo) -> bool:
        asked.append(time.monotonic())
        return len(asked) > 3

    async with make_app(value, accept=accept, poll_interval=0.05) as app:
        handle = await app.enqueue(value(1))
        assert await handle.result(PATIENCE) == 1
        assert (await handle.state()).attempt == 1
    assert len(asked) == 4
    assert asked[-1] - asked[0] >= 0.12


async def test_an_accept_that_raises_declines_and_is_reported(make_app: MakeApp) -> None:
    """§13, §17."""
    errors = Errors()

    def accept(info: AcceptInfo) -> bool:
        if not errors.seen:
            raise KeyError("accept")
        return True

    async with make_app(value, accept=accept, on_error=errors) as app:
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
    assert errors.phases() == ["hook"]


# --------------------------------------------------------------------------------------------- back-pressure


async def test_backpressure_delays_claims(make_app: MakeApp) -> None:
    """T42: While it returns seconds, the worker does not claim. None and 0 let it claim. It may be async."""
    infos: list[BackpressureInfo] = []
    closed = [True]

    async def pressure(info: BackpressureInfo) -> float | None:
        infos.append(info)
        return 0.03 if closed[0] else None

    async with make_app(value, backpressure=pressure) as app:
        handle = await app.enqueue(value(1))
        await until(lambda: len(infos) >= 3)
        assert (await handle.state()).status == "ready"
        closed[0] = False
        assert await handle.result(PATIENCE) == 1
        assert infos[0].metrics is app.metrics
        assert infos[0].active == 0


async def test_a_backpressure_that_raises_pauses_one_poll_interval(make_app: MakeApp) -> None:
    """T42, §17: The error is reported, and the worker recovers."""
    errors = Errors()
    calls: list[int] = []

    def pressure(info: BackpressureInfo) -> None:
        calls.append(1)
        if len(calls) <= 2:
            raise OSError("no reading")

    async with make_app(value, backpressure=pressure, on_error=errors, poll_interval=0.02) as app:
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
    assert errors.phases() == ["hook", "hook"]


async def test_adaptive_delay_slows_down_and_recovers(make_app: MakeApp) -> None:
    """T43: Each failed attempt counts, also if it is retried."""
    healthy = [False]
    delay = adaptive_delay(base=0.02, factor=2, max=0.08, types=["flaky"])

    @work(name="flaky", retry=AT_ONCE)
    async def flaky() -> None:
        if not healthy[0]:
            raise OSError("down")

    async with make_app(flaky, value, backpressure=delay) as app:
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
        assert delay.delay == 0
        await failure(app.enqueue(flaky()).result(PATIENCE))
        await until(lambda: delay.delay > 0)
        healthy[0] = True
        await app.enqueue(flaky()).result(PATIENCE)
        await until(lambda: delay.delay == 0)


# -------------------------------------------------------------------------------------------------- backlog


async def test_on_backlog_is_called_until_the_worker_has_caught_up(make_app: MakeApp) -> None:
    """T53: Eight ready items, two at once."""
    barrier = Barrier()
    infos: list[BacklogInfo] = []

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    app = make_app(
        held,
        doer=priority(2),
        poll_interval=0.01,
        on_backlog=infos.append,
        backlog_after=0.05,
        backlog_every=0.02,
    )
    async with app:
        handles = await app.enqueue_many([held() for _ in range(8)])
        await until(lambda: len(infos) >= 3)
        assert all(info.active == 2 and info.ready == 6 for info in infos)
        assert infos[0].behind_for >= 0.05
        assert infos[0].behind_for < infos[1].behind_for < infos[2].behind_for
        barrier.go.set()
        for handle in handles:
            await handle.result(PATIENCE)
        await app.worker.drain()
        heard = len(infos)
        await asyncio.sleep(0.1)
        assert len(infos) == heard


async def test_on_backlog_is_not_called_while_no_item_waits(make_app: MakeApp) -> None:
    """§6: The worker is fully busy."""
    barrier = Barrier()
    infos: list[BacklogInfo] = []

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    settings: dict[str, Any] = {"doer": priority(1), "poll_interval": 0.01, "backlog_after": 0.03}
    async with make_app(held, value, on_backlog=infos.append, **settings) as app:
        handle = await app.enqueue(held())
        # Blocked and scheduled items are not a backlog.
        await app.enqueue(value(1), after=handle)
        await app.enqueue(value(1), delay=60)
        await barrier.reached()
        await asyncio.sleep(0.15)
        assert not infos
        await app.enqueue(value(2))
        await until(lambda: bool(infos))
        assert infos[0].ready == 1
        await asyncio.sleep(0.1)
        assert len(infos) == 1
        barrier.go.set()


async def test_an_on_backlog_that_raises_is_reported(make_app: MakeApp) -> None:
    """T53: The worker goes on. The hook may be async."""
    barrier, errors = Barrier(), Errors()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    async def broken(info: BacklogInfo) -> None:
        raise KeyError("hook")

    settings: dict[str, Any] = {"doer": priority(1), "poll_interval": 0.01, "backlog_after": 0.02}
    async with make_app(held, on_backlog=broken, on_error=errors, **settings) as app:
        handles = await app.enqueue_many([held(), held()])
        await errors.until("hook")
        barrier.go.set()
        for handle in handles:
            await handle.result(PATIENCE)


# --------------------------------------------------------------------------------------------------- queues


async def test_a_worker_claims_only_its_queues_and_types(store: MakeBackend) -> None:
    """§6: `queues=` and `types=`."""
    client = Client(store(), work=[ping, pong], poll_interval=0.05, lease=5)
    async with client:
        bulk = Worker(client, id="bulk", queues=["bulk"])
        mail = Worker(client, id="mail", queues=["default"], types=[ping])
        rest = Worker(client, id="rest", queues=["default"], types=["pong"])
        async with bulk, mail, rest:
            assert await client.enqueue(ping(), queue="bulk").result(PATIENCE) == "bulk"
            assert await client.enqueue(pong(), queue="bulk").result(PATIENCE) == "bulk"
            assert await client.enqueue(ping()).result(PATIENCE) == "mail"
            assert await client.enqueue(pong()).result(PATIENCE) == "rest"
            lost = await client.enqueue(ping(), queue="unserved")
            assert (await lost.state()).status == "ready"


# --------------------------------------------------------------------------------------- unhandled groups


async def test_a_group_without_a_waiter_is_reported_once(make_app: MakeApp) -> None:
    """T48, §7: With its value and its members."""
    infos: list[UnhandledGroup] = []
    child = value(7)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(child)

    async with make_app(root, value, on_unhandled_group=infos.append, unhandled_grace=0.02) as app:
        handle = await app.enqueue(root())
        await until(lambda: bool(infos))
        await asyncio.sleep(0.1)
    assert infos == [UnhandledGroup(handle.id, 7, {handle.id: "success", child.id: "success"})]


async def test_a_group_with_a_waiter_or_without_a_value_is_not_reported(make_app: MakeApp) -> None:
    """T48, A14: The waiter may be here or in another process, and wait for the group or for its root."""
    infos: list[UnhandledGroup] = []
    seen = Seen()

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    hooks: dict[str, Any] = {"on_unhandled_group": infos.append, "unhandled_grace": 0.2}
    async with make_app(value, bad, on_event=seen, **hooks) as app, make_app(value) as other:
        assert await app.enqueue(value(1)).group(PATIENCE) == 1
        assert await app.enqueue(value(2)).result(PATIENCE) == 2
        later = await app.enqueue(value(3), delay=0.1)
        assert await other.handle(later.id).group(PATIENCE) == 3
        dead = await app.enqueue(bad())
        await seen.until(GroupDone, dead.id)
        await asyncio.sleep(0.3)
    assert infos == []


async def test_an_unhandled_group_is_reported_once_in_the_fleet(make_app: MakeApp) -> None:
    """§7: Two apps have the hook, and one of them calls it."""
    infos: list[UnhandledGroup] = []
    hooks: dict[str, Any] = {"on_unhandled_group": infos.append, "unhandled_grace": 0.02}
    async with make_app(value, **hooks) as app, make_app(value, **hooks):
        for n in range(5):
            await app.enqueue(value(n))
        await until(lambda: len(infos) >= 5)
        await asyncio.sleep(0.1)
    assert sorted(info.result for info in infos) == [0, 1, 2, 3, 4]


async def test_an_on_unhandled_group_that_raises_is_reported(make_app: MakeApp) -> None:
    """§13: The hook may be async."""
    errors = Errors()

    async def broken(info: UnhandledGroup) -> None:
        raise KeyError("hook")

    hooks: dict[str, Any] = {"on_unhandled_group": broken, "unhandled_grace": 0.01, "on_error": errors}
    async with make_app(value, **hooks) as app:
        await app.enqueue(value(1))
        assert isinstance(await errors.until("hook"), KeyError)
