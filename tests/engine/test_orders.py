"""Orders: pauses and limits that operators give while the fleet runs (SPEC §19)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.engine.kit import PATIENCE, MakeApp, until
from treadle import Client, work
from treadle.doers import concurrency, rate_limited, unlimited
from treadle.engine.declared_limits import has_limit_for
from treadle.errors import InputError
from treadle.item import Order, WorkerState
from treadle.operate.operator import core_of
from treadle.testing import ManualClock
from treadle.worker_info import WorkerInfo

pytestmark = pytest.mark.every_store

HOUR = 3600


@work(name="plain")
async def plain(n: int) -> int:
    return n


@work(name="other")
async def other(n: int) -> int:
    return n


class Gate:
    """Stops handlers, and lets some of them go on."""

    def __init__(self) -> None:
        self.waiting = 0
        self._free = asyncio.Semaphore(0)

    async def wait(self) -> None:
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def release(self, count: int) -> None:
        for _ in range(count):
            self._free.release()


async def test_a_paused_type_waits_and_others_go_on(make_app: MakeApp) -> None:
    """Also if it is enqueued where a worker has room, and until it is resumed."""
    async with make_app(plain, other) as app:
        await app.by("ann", reason="the provider is down").pause(type="plain")
        assert await app.enqueue(other(0)).result(PATIENCE) == 0  # the worker has claimed since
        waiting = await app.enqueue_many([plain(n) for n in range(3)])
        assert await app.enqueue(other(1)).result(PATIENCE) == 1
        assert {(await each.state()).status for each in waiting} == {"ready"}
        why = await app.why(waiting[0])
        assert why.reasons[0].kind == "paused"
        assert "type plain is paused, by ann" in why.reasons[0].text
        assert why.reasons[0].text.endswith("the provider is down")
        assert why.reasons[0].fix == "treadle resume --type plain"
        (problem,) = await app.problems()
        assert problem.kind == "paused"
        assert "by ann" in problem.text
        await app.resume(type="plain")
        assert [await each.result(PATIENCE) for each in waiting] == [0, 1, 2]


async def test_a_type_and_a_tenant_may_be_paused_for_one_tenant(make_app: MakeApp) -> None:
    async with make_app(plain, other) as app:
        acme = app.tenant("acme")
        await acme.pause(type="plain")
        await app.pause(tenant="beta")
        assert await app.enqueue(other(0)).result(PATIENCE) == 0
        held = [await acme.enqueue(plain(1)), await app.tenant("beta").enqueue(other(1))]
        assert await acme.enqueue(other(2)).result(PATIENCE) == 2
        assert await app.enqueue(plain(3)).result(PATIENCE) == 3
        assert [(await each.state()).status for each in held] == ["ready", "ready"]
        assert [each.text for each in (await app.tenant("beta").why(held[1])).reasons] == [
            "tenant beta is paused"
        ]
        assert [(each.type, each.tenant) for each in await acme.orders()] == [("plain", "acme")]
        with pytest.raises(InputError, match="is not that of this client"):
            await acme.pause(tenant="beta")
        await acme.resume(type="plain")
        await app.tenant("beta").resume()
        assert [await each.result(PATIENCE) for each in held] == [1, 1]


async def test_pauses_and_limits_end_by_themselves(make_timed: MakeApp, clock: ManualClock) -> None:
    """Of a queue, of a type; and a limit."""

    @work(name="limited", doer=rate_limited(1000, HOUR))
    async def limited(n: int) -> int:
        return n

    async with make_timed(plain, limited) as app:
        await app.pause("q", until=60)
        await app.pause(type="plain", until=timedelta(seconds=60))
        await app.set_limit("limited", 1, HOUR, until=60)
        assert await app.enqueue(limited(0)).result(PATIENCE) == 0
        held = [
            await app.enqueue(plain(1)),
            await app.enqueue(limited(2), queue="q"),
            await app.enqueue(limited(3)),
        ]
        await clock.advance(30)
        assert [(await each.state()).status for each in held] == ["ready"] * 3
        await clock.advance(31)
        assert [await asyncio.wait_for(each.result(PATIENCE), PATIENCE) for each in held] == [1, 2, 3]
        assert await app.orders() == []
    with pytest.raises(InputError, match="2,147,483,647"):  # no store counts further
        concurrency(2**31)


async def test_a_limit_is_raised_and_lowered_and_cleared(make_app: MakeApp) -> None:
    """By its name. What the code says holds again when it is cleared."""
    gate = Gate()

    @work(name="limited", doer=concurrency(1))
    async def limited(n: int) -> int:
        await gate.wait()
        return n

    async with make_app(limited) as app:
        handles = await app.enqueue_many([limited(n) for n in range(8)])
        await until(lambda: gate.waiting == 1)
        await app.set_limit("limited", 3)
        await until(lambda: gate.waiting == 3)
        (use,) = await app.limits()
        assert (use.name, use.limit, use.used) == ("limited:slots:all", 3, 3)
        assert use.order is not None
        assert use.code == 1
        await app.set_limit("limited", 2)
        gate.release(2)
        await until(lambda: gate.waiting == 2)
        await asyncio.sleep(0.1)
        assert gate.waiting == 2
        await app.clear_limit("limited")
        gate.release(2)
        await until(lambda: gate.waiting == 1)
        gate.release(100)
        assert [await each.result(PATIENCE) for each in handles] == list(range(8))


async def test_a_type_without_a_limit_is_limited_with_what_runs_of_it(make_app: MakeApp) -> None:
    """What runs when the limit is ordered counts. It goes on, and nothing else starts beside it."""
    gate = Gate()

    @work(name="render")
    async def render(n: int) -> int:
        await gate.wait()
        return n

    async with make_app(render, plain) as app:
        handles = await app.enqueue_many([render(n) for n in range(5)])
        await until(lambda: gate.waiting == 5)
        handles += await app.enqueue_many([render(n) for n in range(5, 12)], delay=0.05)
        await app.set_limit(type="render", limit=2)
        assert await app.enqueue(plain(1)).result(PATIENCE) == 1
        await asyncio.sleep(0.2)
        running = gate.waiting
        gate.release(running - 1)
        await until(lambda: gate.waiting == 2)
        await asyncio.sleep(0.2)
        assert gate.waiting == 2
        (use,) = await app.limits()
        assert (use.name, use.used, use.limit, use.code) == ("type:render:slots:all", 2, 2, None)
        await app.clear_limit(type="render")
        await until(lambda: gate.waiting > 2)
        gate.release(100)
        assert [await each.result(PATIENCE) for each in handles] == list(range(12))
        await until(lambda: not app.active())
    assert all(use.used == 0 for use in await app.limits())


async def test_a_rate_is_changed(make_timed: MakeApp, clock: ManualClock) -> None:
    """Also its window. The limit on what runs at once stays."""
    starts = 0

    @work(name="limited", doer=rate_limited(1000, 1, inner=concurrency(50)))
    async def limited(n: int) -> None:
        nonlocal starts
        starts += 1

    async with make_timed(limited) as app:
        await app.by("ann").set_limit("limited", 2, HOUR)
        await app.enqueue_many([limited(n) for n in range(10)])
        await until(lambda: starts == 2)
        await clock.advance(1)
        assert starts == 2
        (use,) = [use for use in await app.limits() if use.order is not None]
        assert (use.name, use.limit) == (f"limited:fixed_window/{HOUR}:all", 2)
        assert (use.code, use.code_window) == (1000, 1.0)
        await clock.advance(HOUR / 2 + 1)
        assert starts == 2
        await clock.advance(HOUR / 2)
        await until(lambda: starts == 4)
        await app.clear_limit("limited")
        await until(lambda: starts == 10)


async def test_a_limit_that_was_cleared_is_not_reached(make_timed: MakeApp, clock: ManualClock) -> None:
    """What it has counted is in the store until its window is over."""
    starts = 0

    @work(name="refund")
    async def refund() -> None:
        nonlocal starts
        starts += 1

    async with make_timed(refund) as app:
        await app.set_limit(type="refund", limit=1, window=HOUR)
        await app.enqueue_many([refund(), refund()])
        await until(lambda: starts == 1)
        (use,) = await app.limits()
        assert (use.name, use.reached) == (f"type:refund:fixed_window/{HOUR}:all", True)
        await app.clear_limit(type="refund")
        assert await app.limits() == []
        await until(lambda: starts == 2)


@pytest.mark.parametrize("how", [{"name": "limited"}, {"type": "limited"}])
async def test_no_more_start_in_the_first_window_than_was_ordered(
    make_timed: MakeApp, clock: ManualClock, how: dict[str, str]
) -> None:
    """Nor in the next. One limit is listed: that of the code is not in force any more."""
    starts = 0

    @work(name="limited", doer=rate_limited(20, 60) if "name" in how else unlimited())
    async def limited(n: int) -> None:
        nonlocal starts
        starts += 1

    async with make_timed(limited) as app:
        await app.enqueue_many([limited(n) for n in range(5)])
        await until(lambda: starts == 5)
        await app.set_limit(limit=10, window=60, **how)
        await app.enqueue_many([limited(n) for n in range(100)])
        await until(lambda: starts == 15)
        assert [use.limit for use in await app.limits()] == [10]
        await clock.advance(50)
        await asyncio.sleep(0.1)
        assert starts == 15
        await clock.advance(11)
        await until(lambda: starts == 25)
        left = (await app.list(status="ready")).items
        assert (await app.why(left[0].id)).reasons[0].kind == "rate"


async def test_orders_are_obeyed_by_a_worker_that_starts_later(make_app: MakeApp) -> None:
    app = make_app(plain)
    await app.pause(type="plain")
    handle = await app.enqueue(plain(1))
    async with make_app(plain, other) as later:
        assert await later.enqueue(other(1)).result(PATIENCE) == 1
        assert (await handle.state()).status == "ready"
        await app.resume(type="plain")
        assert await handle.result(PATIENCE) == 1


async def test_a_type_that_a_running_worker_learns_obeys_its_orders(make_app: MakeApp) -> None:
    """The worker has read them before."""
    gate = Gate()

    @work(name="late")
    async def late(n: int) -> int:
        return n

    @work(name="narrow")
    async def narrow(n: int) -> int:
        await gate.wait()
        return n

    async with make_app(other) as app:
        await app.pause(type="late")
        await app.set_limit(type="narrow", limit=1)
        assert await app.enqueue(other(0)).result(PATIENCE) == 0
        app.register(late, narrow)
        held = await app.enqueue(late(1))
        handles = await app.enqueue_many([narrow(n) for n in range(3)])
        assert await app.enqueue(other(2)).result(PATIENCE) == 2
        await until(lambda: gate.waiting == 1)
        await asyncio.sleep(0.1)
        assert ((await held.state()).status, gate.waiting) == ("ready", 1)
        await app.resume(type="late")
        assert await held.result(PATIENCE) == 1
        gate.release(3)
        assert [await each.result(PATIENCE) for each in handles] == [0, 1, 2]


async def test_orders_that_cannot_be_given(make_app: MakeApp) -> None:
    @work(name="newest", doer=concurrency(1, on_full="replace"))
    async def newest() -> None: ...

    async with make_app(plain, newest) as app:
        for wrong, call in [
            ("name what to pause", app.pause),
            ("name what to resume", app.resume),
            ("resume a queue or a type", lambda: app.resume("q", type="plain")),
            ("give name='plain'", lambda: app.clear_limit("plain:slots:all")),
            ("give type='plain'", lambda: app.set_limit("type:plain:fixed_window/60:all", 1, 60)),
            ("not both", lambda: app.pause("q", type="plain")),
            ("has passed", lambda: app.pause("q", until=datetime.now(UTC) - timedelta(1))),
            ("has passed", lambda: app.pause("q", until=0)),
            ("1 or more", lambda: app.set_limit("plain", 0)),
            ("say how many", lambda: app.set_limit("plain")),
            ("2,147,483,647", lambda: app.set_limit("plain", 2**31)),
            ("more than 0", lambda: app.set_limit("plain", 1, 0)),
            ("one of them", lambda: app.set_limit("plain", 1, type="plain")),
            ("one of them", app.clear_limit),
            ("on_full", lambda: app.set_limit(type="newest", limit=1)),
            ("whole fleet", lambda: app.tenant("acme").set_limit("plain", 1)),
        ]:
            with pytest.raises(InputError, match=wrong):
                await call()
        assert await app.orders() == []


async def test_an_order_ends_at_an_instant_or_after_seconds(make_app: MakeApp) -> None:
    """A number as large as the time is an instant."""
    app = make_app(plain)
    await app.connect()
    now = await core_of(app).backend.now()
    for until_, ends in [
        (now + 60, now + 60),
        (int(now) + 60, int(now) + 60),
        (datetime.fromtimestamp(now + 60, UTC), now + 60),
        (60, now + 60),
        (timedelta(days=20_000), now + 20_000 * 86_400),
        (1e9 - 1, now + 1e9 - 1),
    ]:
        await app.pause("q", until=until_)
        await app.set_limit(type="plain", limit=1, until=until_)
        for order in await app.orders():
            assert order.until == pytest.approx(ends, abs=20), (until_, order)
    for wrong, text in [
        (now - 60, "has passed: it must be later than now"),
        (-5, "until=-5 has passed"),
        (timedelta(hours=-1), "until=-3600.0 has passed"),
        ("tomorrow", "seconds or a timedelta from now, epoch seconds, or an aware datetime"),
        (datetime.now(), "has no time zone"),  # noqa: DTZ005
        (1e12, "is outside the years 1 to 9999"),
        (float("nan"), "must be finite"),
    ]:
        with pytest.raises(InputError, match=text):
            await app.pause("q", until=wrong)  # type: ignore[arg-type]


async def test_orders_say_whether_they_changed_anything(make_app: MakeApp) -> None:
    async with make_app(plain) as app:
        ann = app.by("ann")
        assert [await ann.pause("q"), await ann.pause("q"), await app.resume("Q")] == [True, False, False]
        assert [await ann.resume("q"), await ann.resume("q")] == [True, False]
        assert [await ann.set_limit(type="plain", limit=n) for n in (4, 4, 5)] == [True, False, True]
        assert await ann.set_limit(type="plain", limit=5, window=60)
        assert [await ann.clear_limit(type="plain"), await app.clear_limit(type="plian")] == [True, False]
        assert await app.orders() == []
        assert await ann.set_limit("plain2", 5)
        assert [await ann.clear_limit("plain2"), await ann.clear_limit("plain2")] == [True, False]
        cleared = [each for each in (await app.audits()).entries if each.verb == "clear_limit"]
        assert [(each.ids, each.count) for each in cleared] == [
            (("plain2",), 0),
            (("plain2",), 1),
            (("plain",), 1),
            (("plain",), 1),
        ]


@pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
async def test_a_limit_of_the_other_kind_is_refused(make_app: MakeApp) -> None:
    """By what the code here says, and live workers of other code."""
    here = rate_limited(100, 1, name="mail")

    @work(name="rated", doer=here)
    async def rated() -> None: ...

    @work(name="slotted", doer=concurrency(3))
    async def slotted() -> None: ...

    @work(name="both", doer=concurrency(3, inner=rate_limited(9, 60)))
    async def both() -> None: ...

    refused = [
        (r"name='mail' limits how many start \(per 1 s\), not how many run at once", "mail", None),
        ("name='slotted' limits how many run at once, not how many start", "slotted", 60),
    ]
    async with make_app(rated, slotted, both, plain) as app:
        other = Client(core_of(app).backend)
        await other.connect()
        for known in (app, other):
            for text, name, window in refused:
                with pytest.raises(InputError, match=text):
                    await known.set_limit(name, 4, window)
            for name, window in (("mail", 60), ("slotted", None), ("both", None), ("both", 60)):
                await known.set_limit(name, 4, window)
        for text, name in (("whose limit is mail", "rated"), ("without a limit", "plain")):
            with pytest.raises(InputError, match=text):
                await app.set_limit(name, 4)
        await other.set_limit("unknown", 4)
        for known in (app, other):
            shown = {(use.order.name, use.known) for use in await known.limits() if use.order}
            assert shown == {("mail", True), ("slotted", True), ("both", True), ("unknown", False)}
    assert not has_limit_for((), [], Order(kind="limit", name="mail", limit=4, window=60))
    earlier = WorkerState("w", 0.0, None, 0, WorkerInfo(limits={"mail:slots:all": 3}))
    assert has_limit_for((), [earlier], Order(kind="limit", name="mail", limit=4, window=60)), "may have one"


async def test_a_manual_lease_obeys_pauses_of_types(make_app: MakeApp) -> None:
    app = make_app(plain, other)
    await app.pause(type="plain")
    await app.enqueue(plain(1))
    assert await app.claim_one(types=["plain"]) is None
    await app.enqueue(other(1))
    found = await app.claim_one(types=["plain", "other"])
    assert found is not None
    assert found.type == "other"
    await found.complete()
    await app.resume(type="plain")
    found = await app.claim_one(types=["plain"])
    assert found is not None
    await found.complete()


async def test_a_manual_lease_of_any_type_obeys_pauses_of_types(make_app: MakeApp) -> None:
    """For all tenants and for one."""
    app = make_app(plain, other)
    await app.pause(type="plain")
    await app.tenant("acme").pause(type="other")
    await app.enqueue(plain(1))
    await app.tenant("acme").enqueue(plain(1))
    await app.tenant("acme").enqueue(other(1))
    assert await app.claim_one() is None
    assert await app.tenant("acme").claim_one() is None
    await app.enqueue(other(2))
    found = await app.claim_one()
    assert found is not None
    assert (found.type, found.tenant) == ("other", "default")
    await found.complete()
    await app.resume(type="plain")
    assert await app.claim_one() is not None


async def test_a_manual_lease_obeys_a_pause_by_another_name_of_its_type(make_app: MakeApp) -> None:
    @work(name="new", aliases=["old"])
    async def renamed() -> None: ...

    app = make_app(renamed)
    await app.pause(type="old")
    await app.enqueue(renamed())
    assert await app.claim_one() is None
    assert await app.claim_one(types=["new"]) is None
