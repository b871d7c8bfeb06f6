"""Workers that die, types that no worker has, and bodies that cannot be read (SPEC §5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, Seen, failure, until, until_status
from treadle import Context, Retry, Treadle, work
from treadle.events import Dead, LeaseLost
from treadle.item import Item, Submission
from treadle.testing import ManualClock


@work
async def value(n: int) -> int:
    return n


async def store_raw(app: Treadle, **fields: Any) -> str:
    """Store an item as another program might store it."""
    item = Item(**{"id": app._core.settings.generate_id(), "type": value.name, "input": b"{}", **fields})
    await app.connect()
    await app.backend.submit([Submission((item,))])
    app._core.wakeups.ready()
    return item.id


# ---------------------------------------------------------------------------------------------- dead workers


async def test_the_items_of_a_dead_worker_run_again(make_app: MakeApp) -> None:
    """§5: The attempt is spent, and the item is ready at once. The dead worker's result is refused."""
    barrier, seen = Barrier(), Seen()

    @work(name="held")
    async def held(ctx: Context) -> str:
        if ctx.attempt == 1:
            await barrier.wait()
        return f"{ctx.worker_id} {ctx.attempt}"

    dead = make_app(held, worker_id="dead", on_event=seen, lease=60)
    async with dead:
        handle = await dead.enqueue(held())
        await barrier.reached()
        async with make_app(held, worker_id="alive") as alive:
            # What a lapsed lease, or a supervisor that saw the process end, comes to.
            await dead.worker._runtime.loops.end("renew", "claim")  # type: ignore[union-attr]
            assert await alive.backend.remove_worker("dead") == 1
            assert await alive.handle(handle.id).result(PATIENCE) == "alive 2"
            barrier.go.set()
            await seen.until(LeaseLost, handle.id)
            state = await alive.handle(handle.id).state()
            assert (state.result, state.attempt, state.worker) == ("alive 2", 2, "alive")
            assert [(each.error_type, each.worker) for each in state.history] == [("LeaseLost", "dead")]


async def test_other_workers_notice_a_lapsed_lease(make_timed: MakeApp, clock: ManualClock) -> None:
    """§5: The dead worker only stops its heartbeats."""
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        if ctx.attempt == 1:
            await barrier.wait()
        return ctx.attempt

    dead = make_timed(held, lease=10)
    await dead.start()
    handle = await dead.enqueue(held())
    await barrier.reached()
    runtime = dead.worker._runtime
    assert runtime is not None
    await runtime.loops.end("renew", "claim")
    async with make_timed(held, lease=1000, heartbeat=100) as alive:
        await clock.advance(11)
        assert await alive.handle(handle.id).result(PATIENCE) == 2
    barrier.go.set()


async def test_an_item_whose_workers_die_too_often_ends_dead(make_app: MakeApp) -> None:
    """A6: `max_losses` losses are allowed. After one more the item is dead with `lease_lost` and does not run
    again. Losses are not failures."""
    barriers = [Barrier() for _ in range(3)]
    started: list[int] = []

    @work(name="poison", retry=Retry(attempts=1, max_losses=2))
    async def poison(ctx: Context) -> None:
        started.append(ctx.attempt)
        await barriers[ctx.attempt - 1].wait()

    handle = await make_app(poison).enqueue(poison())
    apps = [make_app(poison, worker_id=f"w-{n}") for n in range(4)]
    for n, barrier in enumerate(barriers):
        await apps[n].start()
        if n == 2:
            # The second loss in a row has a backoff.
            await until_status(apps[n], handle.id, "scheduled", "running")
            await apps[n].trigger(handle.id)
        await barrier.reached()
        await apps[n].worker._runtime.loops.end("renew", "claim")  # type: ignore[union-attr]
        assert await apps[n].backend.remove_worker(f"w-{n}") == 1
    async with apps[3] as app:
        await until_status(app, handle.id, "scheduled", "dead")
        await app.trigger(handle.id)
        error = await failure(app.handle(handle.id).result(PATIENCE))
        assert (error.reason, error.attempts) == ("lease_lost", 3)
        state = await app.handle(handle.id).state()
        assert (state.failures, state.losses) == (0, 3)
    assert started == [1, 2, 3]


# -------------------------------------------------------------------------------------------- unknown types


async def test_an_unknown_type_waits_for_a_worker_that_has_it(make_app: MakeApp) -> None:
    """T40, §5, §1: A worker without the type does not fail it."""

    @work(name="rare")
    async def rare() -> str:
        return "done"

    async with make_app(value) as app:
        handle = await app.enqueue(rare())
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
        state = await handle.state()
        assert (state.status, state.attempt) == ("ready", 0)
        counts = {(count.type, count.status): count.count for count in await app.counts()}
        assert counts["rare", "ready"] == 1
        async with make_app(rare):
            assert await handle.result(PATIENCE) == "done"


async def test_an_item_of_an_unknown_type_is_dead_after_the_grace(make_app: MakeApp) -> None:
    """T40, A8: `unknown_type_grace`. The reason is `unknown_type`."""
    async with make_app(value, unknown_type_grace=0.1) as app:
        id = await store_raw(app, type="ghost")
        error = await failure(app.handle(id).result(PATIENCE))
        assert (error.reason, error.attempts) == ("unknown_type", 0)
        assert "ghost" in error.error


async def test_a_worker_that_only_declares_a_type_does_not_fail_its_items(make_app: MakeApp) -> None:
    """§1."""
    declared = work.declare("math.neg", negation)
    async with make_app(declared, value) as app:
        handle = await app.enqueue(declared(4))
        assert await app.enqueue(value(1)).result(PATIENCE) == 1
        assert (await handle.state()).status == "ready"

        handled = work.declare("math.neg", negation)

        @handled.handler
        async def negate(n: int) -> int:
            return -n

        async with make_app(handled):
            assert await handle.result(PATIENCE) == -4


def negation(n: int) -> int: ...


# ------------------------------------------------------------------------------------------ unreadable bodies


@pytest.mark.parametrize(
    "body",
    [b"not json", b"{bad json", b"", b"[]", b'{"n": "seven"}', b"{}", b'{"n": 1, "m": 2}', b"\xff\x00"],
)
async def test_an_unreadable_body_is_dead_and_kept(make_app: MakeApp, body: bytes) -> None:
    """T40, §5: The reason is `undecodable`. There is no retry, and the body is kept."""
    seen = Seen()
    async with make_app(value, on_event=seen, undecodable_grace=0) as app:
        id = await store_raw(app, input=body, attempts=5)
        error = await failure(app.handle(id).result(PATIENCE))
        assert (error.reason, error.attempts) == ("undecodable", 1)
        (state,) = await app.get([id])
        assert state is not None
        assert state.input == body
        # Who waits may read the end in the store before the process that stored it has announced it.
        await until(lambda: seen.names(id) == ["Failed", "Dead", "GroupDone"])
        assert [item.id for item in (await app.dead.list(reason="undecodable")).items] == [id]


async def test_unreadable_options_make_the_item_dead(make_app: MakeApp) -> None:
    """§5: The reason is `undecodable`."""
    async with make_app(value, undecodable_grace=0) as app:
        id = await store_raw(app, input=b'{"n": 1}', options=b"\x00\x01 nonsense")
        assert (await failure(app.handle(id).result(PATIENCE))).reason == "undecodable"


async def test_a_dead_item_can_be_requeued_for_code_that_can_read_it(make_app: MakeApp) -> None:
    """§5."""

    @work(name="versioned")
    async def old(n: int) -> int:
        return n

    @work(name="versioned")
    async def new(n: int, unit: str = "m") -> str:
        return f"{n} {unit}"

    async with make_app(old, undecodable_grace=0) as app:
        id = await store_raw(app, type="versioned", input=b'{"n": 3, "unit": "km"}')
        assert (await failure(app.handle(id).result(PATIENCE))).reason == "undecodable"
    async with make_app(new) as app:
        assert await app.dead.requeue([id]) == 1
        assert await app.handle(id).result(PATIENCE) == "3 km"


async def test_a_death_without_an_attempt_has_an_event(make_app: MakeApp) -> None:
    """§13: `Dead`, with the reason."""
    seen = Seen()
    async with make_app(value, on_event=seen, unknown_type_grace=0.05) as app:
        id = await store_raw(app, type="ghost")
        event = await seen.until(Dead, id)
        assert (event.reason, event.type, event.attempt) == ("unknown_type", "ghost", 0)
