"""Why an item, a queue or a schedule is where it is: every reason, brought about on real stores.

`tests/unit/test_why.py` has the words of each reason. These tests have what a store says in each case.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, MakeBackend, until, until_status
from treadle import Abort, Client, Context, Defer, Result, Retry, Step, Treadle, WorkFailed, group, work
from treadle.backend import Backend
from treadle.cli.fleet import limit_used
from treadle.doers import balanced, concurrency, rate_limited
from treadle.errors import UnsupportedError
from treadle.item import Demand, Heartbeat, Limit, PermitRequest
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store
from treadle.store_metrics import StoreMetrics
from treadle.why import Reason, Why
from treadle.worker_info import WorkerInfo, encode_worker_info

QUICK: dict[str, Any] = {"heartbeat": 0.1}
"""A worker says soon what has changed."""


@work(name="mail.send")
async def send(n: int = 0) -> int:
    return n


@work(name="page.render")
async def render() -> None: ...


@work(name="fails", retry=Retry(attempts=1))
async def fails() -> None:
    raise ValueError("no\x1b[31m good")


def kinds(why: Why) -> list[str]:
    return [reason.kind for reason in why.reasons]


def only(why: Why, kind: str) -> Reason:
    (found,) = [reason for reason in why.reasons if reason.kind == kind]
    return found


async def until_why(ask: Callable[[], Awaitable[Why]], *wanted: str) -> Why:
    """Ask until these are the kinds of the reasons."""
    why = await ask()
    try:
        async with asyncio.timeout(PATIENCE):
            while kinds(why) != list(wanted):
                await asyncio.sleep(0.02)
                why = await ask()
    except TimeoutError:
        assert kinds(why) == list(wanted), why
    return why


async def until_kind(app: Client, id: Any, kind: str) -> Reason:
    """Ask until there is a reason of this kind."""
    why = await app.why(id)
    async with asyncio.timeout(PATIENCE):
        while kind not in kinds(why):
            await asyncio.sleep(0.02)
            why = await app.why(id)
    return only(why, kind)


@pytest.fixture
async def backend(store: MakeBackend) -> AsyncGenerator[Backend]:
    """The store of this test, for workers of other processes."""
    backend = store()
    await backend.open()
    yield backend
    await backend.close()


async def silent_worker(backend: Backend, id: str) -> list[str]:
    """A worker of another version begins what it finds, and is not heard of again. Returns the ids."""
    await backend.beat(Heartbeat(worker=id, lease=60))
    claim = await backend.claim(Demand(worker=id, limit=1))
    await backend.begin(claim.leases)
    return [each.id for each in claim.leases]


# -- waiting for other items, and for a time ----------------------------------------------------------------


async def test_an_item_that_is_not_there(make_app: MakeApp) -> None:
    app = make_app(send)
    await app.tenant("acme").enqueue(send(), id="theirs")
    assert kinds(await app.why("nobody")) == ["unknown"]
    why = await app.tenant("beta").why("theirs")
    assert (why.id, why.status, kinds(why)) == ("theirs", "unknown", ["unknown"])
    assert (await app.why("theirs")).status == "ready"


async def test_a_chain_of_items_is_followed_to_the_one_that_holds_it_up(make_app: MakeApp) -> None:
    app = make_app(send)
    first = await app.enqueue(send(), delay=300, id="first")
    second = await app.enqueue(send(), after=first, id="second")
    await app.enqueue(send(), after=second, id="third")
    why = await app.why("third")
    assert (why.status, kinds(why)) == ("blocked", ["dependency", "dependency", "due_at"])
    assert [reason.about for reason in why.reasons] == ["", "second", "first"]
    due = only(why, "due_at")
    (state,) = await app.get("first")
    assert state is not None
    assert (due.until, due.fix) == (state.due_at, "treadle trigger first")
    assert due.text == "first (mail.send): it was submitted for later, due in 5 min"


async def test_a_long_chain_is_followed_for_twenty_items(make_app: MakeApp) -> None:
    app = make_app(send)
    handle = await app.enqueue(send(), delay=300)
    for _ in range(25):
        handle = await app.enqueue(send(), after=handle)
    assert kinds(await app.why(handle)) == ["dependency"] * 21


async def test_an_id_that_was_never_submitted(make_app: MakeApp) -> None:
    app = make_app(send)
    ready = await app.enqueue(send(), id="ready")
    waiting = await app.enqueue(send(), after=[ready, "never"], expires_in=600)
    why = await app.why(waiting)
    assert kinds(why) == ["not_submitted", "dependency", "deadline", "no_worker"]
    assert only(why, "not_submitted").refs == ("never",)
    assert only(why, "dependency").refs == ("ready",)
    (state,) = await app.get(waiting.id)
    assert state is not None
    assert only(why, "deadline").until == only(why, "not_submitted").until == state.deadline


async def test_a_group_is_followed_to_an_open_member(make_app: MakeApp) -> None:
    @work(name="parent")
    async def parent(ctx: Context) -> Result[None]:
        return ctx.queue(send(1), send(2), delay=300)

    app = make_app(parent, send)
    handle = await app.enqueue(parent(), id="root")
    waiting = await app.enqueue(send(), after=group(handle))
    async with app:
        await until_status(app, "root", "success")
        root, dependent = await app.why("root"), await app.why(waiting)
    assert (root.status, kinds(root)) == ("success", ["ended", "open", "due_at"])
    opened = only(root, "open")
    assert "group root is open: 2 members have not ended" in opened.text
    assert only(root, "due_at").about in opened.refs
    assert kinds(dependent) == ["dependency", "open", "due_at"]
    assert [reason.about for reason in dependent.reasons][1] == "root"


async def test_a_group_that_failed_names_its_first_death(make_app: MakeApp) -> None:
    @work(name="parent")
    async def parent(ctx: Context) -> Result[Any]:
        return ctx.queue(fails()).next(send())

    app = make_app(parent, send, fails)
    async with app:
        handle = await app.enqueue(parent(), id="root")
        waiting = await app.enqueue(send(), after=group(handle))
        await until_status(app, waiting.id, "dead")
        root, dependent = await app.why("root"), await app.why(waiting)
        alone = await app.enqueue(fails(), id="alone")
        await until_status(app, alone.id, "dead")
        assert kinds(await app.why(alone)) == ["ended"]
    assert (root.status, kinds(root)) == ("success", ["ended", "group_failed", "ended"])
    failed = only(root, "group_failed")
    assert "2 members died, first" in failed.text
    assert "(fails): it failed; ValueError: no" in failed.text
    assert failed.fix == "to run what died again: treadle repair root"
    assert root.reasons[2].about == failed.refs[0]
    assert kinds(dependent) == ["ended", "group_failed", "ended"]


async def test_a_nested_group_is_followed_to_an_open_member(make_app: MakeApp) -> None:
    @work(name="outer")
    async def outer(ctx: Context) -> Result[Any]:
        return ctx.group(send(1), delay=300).next(render())

    app = make_app(outer, send, render)
    async with app:
        handle = await app.enqueue(outer())
        await until_status(app, handle.id, "success")
        why = await app.why(handle)
    assert kinds(why)[:2] == ["ended", "open"]
    assert kinds(why)[-1] == "due_at"
    assert "mail.send" in why.reasons[-1].text


async def test_a_failed_attempt_a_deferral_and_a_release(make_app: MakeApp) -> None:
    @work(name="flaky", retry=Retry(attempts=3, base=300, jitter=0))
    async def flaky() -> None:
        raise ValueError("down")

    @work(name="later")
    async def later() -> None:
        raise Defer(delay=300)

    app = make_app(flaky, later, send)
    async with app:
        failed, deferred = await app.enqueue(flaky()), await app.enqueue(later())
        for handle in (failed, deferred):
            await until_status(app, handle.id, "running", "scheduled")
            await until_status(app, handle.id, "scheduled")
        assert "attempt 1 of 3 failed (ValueError: down)" in only(await app.why(failed), "due_at").text
        assert "its handler deferred it" in only(await app.why(deferred), "due_at").text
    given_back = await app.enqueue(send())
    lease = await app.claim_one(types=[send])
    assert lease is not None
    await lease.release(delay=300)
    assert "a worker gave it back" in only(await app.why(given_back), "due_at").text


async def test_a_due_item_that_no_worker_has_claimed(make_app: MakeApp) -> None:
    app = make_app(send)
    handle = await app.enqueue(send(), delay=0.01)
    await until_why(lambda: app.why(handle), "no_worker", "overdue")


# -- pauses and workers -----------------------------------------------------------------------------------


async def test_a_pause_for_all_and_for_one_tenant(make_app: MakeApp) -> None:
    app = make_app(send)
    async with app:
        await app.pause("mail")
        await app.tenant("acme").pause("mail")
        handle = await app.tenant("acme").enqueue(send(), queue="mail")
        why = await app.tenant("acme").why(handle)
        assert [reason.fix for reason in why.reasons] == [
            "treadle resume mail",
            "treadle resume mail --tenant acme",
        ]
        assert set(kinds(why)) == {"paused"}
        await app.resume("mail")
        assert kinds(await app.why(handle)) == ["paused"]
        queue = await app.why_queue("mail")
        assert (queue.status, kinds(queue)) == ("paused", ["paused", "turn"])
        await app.tenant("acme").resume("mail")
        assert await handle.result(PATIENCE) == 0


async def test_no_worker_at_all_and_the_last_one_that_was_seen(make_app: MakeApp, backend: Backend) -> None:
    app = make_app(send)
    handle = await app.enqueue(send(), queue="mail")
    assert only(await app.why(handle), "no_worker").text == "no worker is alive"
    assert kinds(await app.why_queue("mail")) == ["no_worker", "turn"]
    acme = app.tenant("acme")
    assert only(await acme.why(await acme.enqueue(send())), "no_worker").text == "no worker is alive"
    await backend.beat(Heartbeat(worker="w0", lease=0.01))
    assert "the last one, w0, lost its lease" in (await until_kind(app, handle, "no_worker")).text


async def test_a_type_that_no_live_worker_has(make_app: MakeApp) -> None:
    app = make_app(send, render, unknown_type_grace=600)
    other = make_app(render, unknown_type_grace=600)
    async with app:
        pass
    async with other:
        handle = await app.enqueue(send(), queue="mail")
        reason = only(await app.why(handle), "no_worker_for_type")
        assert "does not have mail.send" in reason.text
        assert "the last that had it left" in reason.text
        (state,) = await app.get(handle.id)
        assert state is not None
        assert reason.until is not None
        assert reason.until >= state.queued_at + 599
        queue = await app.why_queue("mail")
        assert kinds(queue) == ["no_worker_for_type", "turn"]
        assert only(queue, "no_worker_for_type").until == reason.until


async def test_a_queue_and_a_tenant_that_no_worker_serves(make_app: MakeApp) -> None:
    app = make_app(send, queues=["mail", "bulk"], tenants=["acme"])
    async with app:
        misspelt = await app.tenant("acme").enqueue(send(), queue="mial")
        reason = only(await app.why(misspelt), "no_worker_for_queue")
        assert "serves bulk, mail" in reason.text
        assert "mail and mial look alike" in reason.text
        assert kinds(await app.why_queue("mial")) == ["no_worker_for_queue", "turn"]
        theirs = await app.tenant("beta").enqueue(send(), queue="mail")
        assert "serves acme" in only(await app.why(theirs), "no_worker_for_tenant").text
        why = await app.tenant("beta").why_queue("mail")
        assert kinds(why) == ["no_worker_for_tenant", "turn"]


async def test_a_worker_that_is_stopping_takes_nothing(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="slow")
    async def slow() -> None:
        await barrier.wait()

    app, observer = make_app(slow, **QUICK), make_app(slow)
    await app.start()
    await app.enqueue(slow())
    await barrier.reached()
    stopping = asyncio.ensure_future(app.stop(drain=PATIENCE))
    handle = await observer.enqueue(slow())
    assert "is stopping" in (await until_kind(observer, handle, "no_worker")).text
    barrier.go.set()
    await stopping


async def test_a_worker_that_says_nothing_about_itself(make_app: MakeApp, backend: Backend) -> None:
    app = make_app(send)
    handle = await app.enqueue(send())
    await backend.beat(Heartbeat(worker="old", lease=60, types=("mail.send",)))
    reason = only(await app.why(handle), "next")
    assert "old says nothing about itself: its queues, tenants and room are not known" in reason.text
    (worker,) = await app.workers()
    assert (worker.id, worker.info) == ("old", None)


# -- limits ----------------------------------------------------------------------------------------------


async def test_a_limit_on_items_at_once(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="slow", doer=concurrency(1, per="tenant"))
    async def slow() -> None:
        await barrier.wait()

    app = make_app(slow, worker_id="w1")
    async with app:
        await app.tenant("acme").enqueue(slow())
        await barrier.reached()
        held = await app.tenant("acme").enqueue(slow())
        reason = await until_kind(app, held, "concurrency")
        assert reason.refs == ("slow:slots:tenant:acme",)
        assert "1 of 1 in use, held by worker w1 (host" in reason.text
        (use,) = await app.tenant("acme").limits()
        assert (use.name, repr(use.used), use.limit) == ("slow:slots:tenant:acme", "1.0", 1)
        assert await app.tenant("beta").limits() == []
        barrier.go.set()


async def test_limits_are_those_of_the_workers(make_app: MakeApp) -> None:
    """Not those of the code that asks, which may be older or newer, or may not know them."""
    barrier = Barrier()

    @work(name="slow", doer=concurrency(2))
    async def slow() -> None:
        await barrier.wait()

    @work(name="slow", doer=concurrency(5))
    async def newer() -> None: ...

    asks, knows_nothing = make_app(newer), make_app()
    async with make_app(slow):
        await asks.enqueue_many([newer(), newer()])
        await until(lambda: barrier.count == 2)
        held = await asks.enqueue(newer())
        reason = await until_kind(asks, held, "concurrency")
        assert "2 of 2 in use" in reason.text
        for app in (asks, knows_nothing):
            (use,) = await app.limits()
            assert (use.used, use.limit, use.reached) == (2, 2, True)
        assert 'treadle_limit_used_ratio{limit="slow:slots:all"} 1' in await StoreMetrics(asks).prometheus()
        barrier.go.set()


async def test_a_limit_of_a_mixed_fleet(make_app: MakeApp) -> None:
    """The code of workers that take no items of the queue says nothing about what holds them back."""
    barrier = Barrier()

    @work(name="slow", queue="gpu", doer=concurrency(4))
    async def old() -> None: ...

    @work(name="slow", queue="gpu", doer=concurrency(2))
    async def new() -> None:
        await barrier.wait()

    elsewhere, here = make_app(old, queues=["mail"]), make_app(new, queues=["gpu"])
    async with elsewhere, here:
        await elsewhere.enqueue_many([old(), old()])
        await until(lambda: barrier.count == 2)
        held = await elsewhere.enqueue(old())
        reason = await until_kind(elsewhere, held, "concurrency")
        assert "2 of 2 in use" in reason.text
        (use,) = await elsewhere.limits()
        assert (use.used, use.limit, use.lowest, use.reached) == (2, 4, 2, False)
        assert limit_used(use) == "2 of 4 (some workers: 2)"
        barrier.go.set()


async def test_a_limit_on_starts(make_app: MakeApp) -> None:
    app = make_app(limited)
    async with app:
        assert await app.enqueue(limited()).result(PATIENCE) is None
        held = await app.enqueue(limited())
        reason = await until_kind(app, held, "rate")
        assert reason.refs == ("limited:token_bucket/600:all",)
        assert reason.until is not None
        assert "1 starts per 10 min are used; the next may start in 10 min" in reason.text


@work(name="limited", doer=rate_limited(1, 600))
async def limited() -> None: ...


async def test_a_strict_lane_is_followed_to_its_holder(make_app: MakeApp) -> None:
    @work(name="strict", doer=concurrency(1, per="lane", strict=True), retry=Retry(base=300, jitter=0))
    async def strict() -> None:
        raise ValueError("down")

    app = make_app(strict)
    async with app:
        first = await app.enqueue(strict(), lane="user:1", id="first")
        await until_status(app, first.id, "scheduled")
        second = await app.enqueue(strict(), lane="user:1")
        why = await until_why(lambda: app.why(second), "lane_held", "due_at")
    assert why.reasons[0].refs == ("first",)
    assert "attempt 1 of 3 failed" in why.reasons[1].text


# -- busy workers ----------------------------------------------------------------------------------------


async def test_full_workers_and_items_that_go_first(make_app: MakeApp, backend: Backend) -> None:
    """The last one was lost twice, too."""
    barrier = Barrier()

    @work(name="slow")
    async def slow() -> None:
        await barrier.wait()

    @work(name="brief")
    async def brief() -> None: ...

    app = make_app(slow, brief, doer=balanced(1), worker_id="w1", **QUICK)
    lost = await app.enqueue(slow(), queue="other")
    for id in ("dead1", "dead2"):
        assert await silent_worker(backend, id) == [lost.id]
        await backend.remove_worker(id)
    await app.pause("other")
    async with app:
        await app.enqueue(slow())
        await barrier.reached()
        await app.resume("other")
        ahead = await app.enqueue(slow())
        behind = await app.enqueue(slow())
        why = await until_why(lambda: app.why(behind), "worker_full", "turn")
        assert "w1 (host" in why.reasons[0].text
        assert "runs 1 of 1" in why.reasons[0].text
        assert "1 item of its line goes first" in why.reasons[1].text
        await until_why(lambda: app.why(ahead), "worker_full")
        assert "2 workers in a row died" in (await until_kind(app, lost, "isolated")).text
        queue = await until_why(lambda: app.why_queue("default"), "turn", "worker_full")
        assert queue.reasons[1].about == ahead.id
        other = await app.enqueue(brief())
        full = await until_kind(app, other, "worker_full")
        assert full.text.endswith("runs 1 of 1; 1 of 1 run slow")
        seen = await app.tenant("default").why(other)
        assert "run slow" not in str(seen)
        barrier.go.set()


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_item_on_trial_keeps_others_waiting(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="slow")
    async def slow() -> None:
        await barrier.wait()

    app = make_app(slow, doer=balanced(4), worker_id="w1", **QUICK)
    lost = await app.enqueue(slow())
    for n in range(4):
        assert await silent_worker(app.backend, f"dead{n}") == [lost.id]
        await app.backend.remove_worker(f"dead{n}")
        await app.trigger([lost.id] if n else [])
    async with app:
        await barrier.reached()
        behind = await app.enqueue(slow())
        reason = await until_kind(app, behind, "trial")
        assert f"takes no other items: {lost.id} is on trial, and runs alone" in reason.text
        assert reason.refs == (lost.id, "w1")
        barrier.go.set()
        await behind.result(PATIENCE)


async def test_back_pressure(make_app: MakeApp) -> None:
    app = make_app(send, backpressure=lambda info: 300, **QUICK)
    async with app:
        handle = await app.enqueue(send())
        why = await until_why(lambda: app.why(handle), "pressed")
        (reason,) = why.reasons
        assert reason.until is not None
        assert reason.until > await app.backend.now() + 200
        assert "claims nothing for 5 min more" in reason.text


async def test_a_hook_that_declines(make_app: MakeApp) -> None:
    app = make_app(send, accept=lambda info: False, **QUICK)
    async with app:
        handle = await app.enqueue(send())
        reason = await until_kind(app, handle, "declined")
        assert "the hook `accept` declines mail.send" in reason.text


DEADLINE = r"it is dead \(undecodable\) in (10 min|9 min \d+ s) at the latest"


async def test_arguments_that_do_not_decode(make_app: MakeApp) -> None:
    @work(name="mail.send")
    async def newer(n: list[int]) -> None: ...

    old, app = make_app(send), make_app(newer, undecodable_grace=600, **QUICK)
    handle = await old.enqueue(send(7))
    async with app:
        reason = await until_kind(app, handle, "undecodable")
        assert "array" in reason.text
        assert re.search(DEADLINE, reason.text)
        assert reason.until is not None
        assert reason.until > await app.backend.now() + 500
        (worker,) = await app.workers()
        assert worker.info is not None
        assert list(worker.info.undecodable) == ["mail.send"]
        assert not any("trigger" in each.fix for each in (await app.why(handle)).reasons)
    async with make_app(newer, undecodable_grace=6000, **QUICK) as restarted:  # the store knows since when
        again = await until_kind(restarted, handle, "undecodable")
        assert re.search(DEADLINE, again.text)
        assert again.until == pytest.approx(reason.until, abs=1.0)


async def test_nothing_in_its_way(make_app: MakeApp, backend: Backend) -> None:
    """A worker that could take it, and does not ask."""
    app = make_app(send)
    handle = await app.enqueue(send())
    await backend.beat(Heartbeat(worker="w1", lease=60, types=("mail.send",), info=b"{}"))
    assert kinds(await app.why(handle)) == ["next"]


# -- doomed, running, ended ------------------------------------------------------------------------------


async def test_doomed_items_and_who_settles_them(make_app: MakeApp) -> None:
    app = make_app(send, fails, queues=["here"])
    async with app:
        cause = await app.enqueue(fails(), queue="here", id="cause")
        waiting = await app.enqueue(send(), after=cause, queue="elsewhere")
        late = await app.enqueue(send(), queue="elsewhere", expires_in=0.01)
        why = await until_why(lambda: app.why(waiting), "doomed", "no_worker_for_queue", "ended")
        assert (why.reasons[0].refs, why.reasons[0].fix) == (("cause",), "treadle requeue cause")
        assert why.reasons[2].about == "cause"
        why = await until_why(lambda: app.why(late), "doomed", "no_worker_for_queue")
        assert "its deadline passed" in why.reasons[0].text


async def test_a_running_item_and_one_that_waits_in_its_worker(make_app: MakeApp) -> None:
    barrier = Barrier()

    @work(name="slow")
    async def slow() -> None:
        await barrier.wait()

    @work.batch(size=10, max_wait=300, name="batched")
    async def batched(numbers: list[int]) -> list[int]:
        return numbers

    app = make_app(slow, batched, worker_id="w1")
    async with app:
        handle = await app.enqueue(slow(), expires_in=600)
        collected = await app.enqueue(batched(1))
        await barrier.reached()
        why = await app.why(handle)
        assert (why.status, kinds(why)) == ("running", ["running", "deadline"])
        assert why.reasons[0].text.startswith("it runs on w1 (host")
        assert ": attempt 1 of 3" in why.reasons[0].text
        await until_status(app, collected.id, "running")
        assert kinds(await app.why(collected)) == ["claimed_ahead"]
        barrier.go.set()


async def test_a_silent_worker_keeps_its_item_until_another_claims(
    make_app: MakeApp, backend: Backend
) -> None:
    app = make_app(send)
    handle = await app.enqueue(send())
    assert await silent_worker(backend, "w0") == [handle.id]
    await backend.beat(Heartbeat(worker="w0", lease=0.01))  # the last
    why = await until_why(lambda: app.why(handle), "lease_lapsed", "no_worker")
    assert "w0, which runs it, has been without a lease for" in why.reasons[0].text
    await app.backend.beat(Heartbeat(worker="w2", lease=60))
    assert kinds(await app.why(handle)) == ["lease_lapsed"]


async def test_an_item_that_ended_its_worker_names_that_one(make_app: MakeApp, backend: Backend) -> None:
    @work(name="poison", retry=Retry(max_losses=0))
    async def poison() -> None: ...

    app = make_app(poison, worker_id="innocent")
    handle = await app.enqueue(poison())
    assert await silent_worker(backend, "w0") == [handle.id]
    await backend.remove_worker("w0")
    async with app:
        await until_status(app, handle.id, "dead")
        reason = only(await app.why(handle), "ended")
    assert "a worker died, or lost the lease, while it ran it: w0" in reason.text
    assert "innocent" not in reason.text
    assert (reason.refs, reason.fix.startswith("it may end the next worker too")) == (("w0",), True)


VICTIM = """
import asyncio, sys
from treadle import Treadle, work

@work(name="hang")
async def hang() -> None:
    print("running", flush=True)
    await asyncio.Event().wait()

async def main() -> None:
    async with Treadle(sys.argv[1], work=[hang], worker_id="victim", lease=1):
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_killed_worker_is_named(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Its process got `kill -9`. The item runs until another worker claims."""
    url = f"sqlite:///{tmp_path / 'work.db'}" if kind == "sqlite" else request.getfixturevalue("prepared_url")

    @work(name="hang")
    async def hang() -> None: ...

    app = Treadle(url, work=[hang])
    handle = await app.enqueue(hang())
    python = asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, url, stdout=asyncio.subprocess.PIPE)
    victim = await python
    try:
        assert victim.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await victim.stdout.readline() == b"running\n"
        assert f"pid {victim.pid})" in (await until_kind(app, handle, "running")).text
    finally:
        victim.kill()
        await victim.wait()
    why = await until_why(lambda: app.why(handle), "lease_lapsed", "no_worker")
    assert f"pid {victim.pid}), which runs it, has been silent for" in why.reasons[0].text
    assert f"pid {victim.pid}), was last seen" in why.reasons[1].text
    await app.close()


async def test_items_that_have_ended(make_app: MakeApp) -> None:
    app = make_app(send, fails, worker_id="w1")
    async with app:
        good, bad = await app.enqueue(send()), await app.enqueue(fails(), id="bad")
        middle = await app.enqueue(send(), after=bad, id="middle")
        last = await app.enqueue(send(), after=middle)
        gone, done = await app.enqueue(send(), delay=300), await app.enqueue(send(), delay=300)
        await app.cancel(gone)
        await app.complete(done, 5)
        for handle in (good, bad, last):
            await until_status(app, handle.id, "success", "dead")
        assert only(await app.why(good), "ended").text.startswith("it succeeded")
        assert "w1" in only(await app.why(good), "ended").text
        assert "by an operator" in only(await app.why(done), "ended").text
        assert "it was cancelled" in only(await app.why(gone), "ended").text
        died = only(await app.why(bad), "ended")
        assert "ValueError: no\\x1b[31m good" in died.text
        assert died.fix.startswith("treadle requeue bad")
        why = await app.why(last)
        assert (why.status, kinds(why)) == ("dead", ["ended", "ended", "ended"])
        assert [reason.about for reason in why.reasons] == ["", "middle", "bad"]
        assert why.reasons[-1].fix.startswith("treadle requeue bad")
        # Those between could not run before it does.
        assert [each.fix for each in why.reasons[:2]] == ["run what died first: treadle requeue bad"] * 2


# -- queues, schedules, tenants ---------------------------------------------------------------------------


async def test_a_queue_without_ready_items_and_one_that_is_not_known(make_app: MakeApp) -> None:
    app = make_app(send)
    async with app:
        await app.enqueue(send(), queue="mail", delay=300)
        why = await app.why_queue("mail")
        assert (why.id, why.status, kinds(why)) == ("mail", "active", ["empty"])
        assert why.reasons[0].text == "nothing in queue mail is ready; also 1 scheduled"
        assert kinds(await app.why_queue("default")) == kinds(await app.why_queue("bulk")) == ["empty"]
        unknown = await app.why_queue("mial")
        assert (unknown.status, kinds(unknown)) == ("unknown", ["unknown"])
        assert "there is mail" in unknown.reasons[0].text


async def test_schedules(make_app: MakeApp) -> None:
    app, other = make_app(send), make_app(send)
    app.schedule("nightly", cron="0 3 * * *", run=send)
    times = [0.01]
    app.schedule("once", next=lambda now: now + times.pop() if times else None, run=send)
    async with app:
        why = await app.schedules.why("nightly")
        assert (why.status, kinds(why)) == ("active", ["not_due"])
        (state,) = [each for each in await app.schedules.list() if each.name == "nightly"]
        assert why.reasons[0].until == state.next_at
        assert kinds(await other.schedules.why("nightly")) == ["not_due"]
        ended = await until_why(lambda: app.schedules.why("once"), "ended")
        assert ended.status == "ended"
        await app.schedules.pause("nightly")
        why = await app.schedules.why("nightly")
        assert (why.status, kinds(why)) == ("paused", ["paused", "not_due"])
        assert kinds(await app.schedules.why("nigthly")) == ["unknown"]
        assert kinds(await app.tenant("acme").schedules.why("nightly")) == ["unknown"]
    why = await other.schedules.why("nightly")
    assert kinds(why) == ["paused", "orphaned", "not_due"]
    assert "no worker is alive" in only(why, "orphaned").text


async def test_a_client_of_one_tenant_sees_the_workers_that_serve_it(make_app: MakeApp) -> None:
    app = make_app(send, worker_id="w1", tenants=["acme"])
    async with app:
        assert [worker.id for worker in await app.workers()] == ["w1"]
        assert [worker.id for worker in await app.tenant("acme").workers()] == ["w1"]
        assert await app.tenant("beta").workers() == []
        assert (await app.tenant("beta").overview()).workers == ()


async def test_a_client_of_one_tenant_learns_nothing_of_the_others(
    make_app: MakeApp, backend: Backend
) -> None:
    """Neither their names, nor what runs for them, nor where the workers run."""
    app = make_app(send, limited, doer=concurrency(1))
    said = WorkerInfo(host="secret-host", pid=7, lease=60.0, tenants=("acme", "secret-tenant"), room=1)
    said = msgspec.structs.replace(said, declined={"mail.send": 12345}, waiting=12345, full=True)
    hidden = WorkerInfo(host="secret-host", tenants=("secret-tenant",))
    for id, info in (("w1", said), ("secret-worker", hidden)):
        beat = Heartbeat(worker=id, lease=60.0, types=("mail.send",), info=encode_worker_info(info))
        await backend.beat(beat)
    await app.tenant("secret-tenant").enqueue(send(), id="secret-item")
    assert (await backend.claim(Demand(worker="secret-worker", limit=1))).leases
    shared = Limit("app:slots:all", 1, 1.0, "slots")
    await backend.take_permits([PermitRequest((shared,))], worker="secret-worker")
    acme, other = app.tenant("acme"), app.tenant("beta")
    own, lost = await acme.enqueue(send()), await other.enqueue(send())
    seen = [
        await acme.workers(),
        await acme.overview(),
        await acme.limits(),
        await acme.problems(max_wait=0),
        await acme.why(own),
        await acme.why_queue("default"),
        await other.workers(),
        await other.overview(),
        await other.why(lost),
        await other.why_queue("default"),
    ]
    for answer in seen:
        assert "secret" not in str(answer)
        assert "12345" not in str(answer)
    (worker,) = await acme.workers()
    assert (worker.running, worker.info) == (
        None,
        WorkerInfo(lease=60.0, tenants=("acme",), room=1, full=True),
    )
    assert "limit app:slots:all: 1 of 1 in use" in only(await acme.why(own), "concurrency").text
    assert only(await other.why(lost), "no_worker_for_tenant").text == "no live worker serves tenant beta"
    blocked = await other.why(await other.enqueue(send(), after=lost))
    followed = only(blocked, "no_worker_for_tenant")
    assert followed.text == f"{lost.id} (mail.send): no live worker serves tenant beta"
    assert followed.about == lost.id
    (seen_by_all,) = [each for each in await app.workers() if each.id == "w1"]
    assert seen_by_all.info == said


async def test_other_workers_of_the_process_have_their_own_doer(make_app: MakeApp) -> None:
    """The limits of the app's doer apply to types that have none of their own."""
    app = make_app(send, doer=rate_limited(1, 600))
    async with app:
        assert await app.enqueue(send()).result(PATIENCE) == 0
        held = await app.enqueue(send())
        assert (await until_kind(app, held, "rate")).refs == ("app:token_bucket/600:all",)


async def test_a_store_that_cannot_explain(make_app: MakeApp) -> None:
    app = Treadle(PortsBackend(memory_queue(), memory_pubsub(), memory_store()), work=[send])
    with pytest.raises(UnsupportedError):
        await app.why("x")
    await app.close()


def test_the_sync_side(tmp_path: Any) -> None:
    app = Treadle(f"sqlite:///{tmp_path / 'work.db'}", work=[send])
    with app.tenant("acme").sync as sync:
        handle = sync.enqueue(send(), delay=300)
        assert kinds(sync.why(handle)) == ["due_at"]
        assert kinds(sync.why_queue("default")) == ["no_worker", "empty"]
        assert kinds(sync.schedules.why("x")) == ["unknown"]
        assert (sync.workers(), sync.limits()) == ([], [])
        assert [count.count for count in sync.overview().counts] == [1]


@work(name="nests")
async def nests(ctx: Context) -> Result[None, Any]:
    return ctx.group(fails()).next(send())


async def test_a_nested_group_does_not_wait_for_itself() -> None:
    async with Treadle(work=[fails, nests, send], log_failures=False) as app:
        handle = await app.enqueue(nests())
        assert await handle.group(partial=True) is None
        (closing,) = (await app.list(type="treadle.group")).items
        why = await app.why(closing.id)
        died = why.reasons[0]
        assert died.text.endswith(": its group has failed")
        assert died.refs == ()
        assert died.fix is not None
        assert died.fix.endswith(f"treadle repair {closing.id}")
        failed = (await app.why(handle)).reasons[1]
        assert f"first {closing.id} (treadle.group): its group has failed; " in failed.text


# ------------------------------------------------------------------------------------------ deaths of steps


async def a_price() -> int:
    return 12


async def a_list_of_prices() -> list[int]:
    return [12]


async def test_a_child_that_died_is_to_run_before_its_parent(make_app: MakeApp) -> None:
    """A requeue of the parent alone would raise the same error: its children are recorded."""
    broken = [True]

    @work(retry=Retry(attempts=1))
    async def paper(n: int) -> int:
        if n == 2 and broken:
            raise ValueError("no paper")
        return n

    @work(retry=Retry(attempts=1))
    async def order(ctx: Context) -> list[int]:
        return [*await ctx.run("papers", paper(1), paper(2))]

    async with make_app(order, paper) as app:
        handle = await app.enqueue(order())
        with pytest.raises(WorkFailed, match="no paper"):
            await handle.result(5)
        (ended, *_) = (await app.why(handle)).reasons
        (child,) = ended.refs
        assert ended.fix == f"run what died first: treadle requeue {child}; then: treadle requeue {handle.id}"
        broken.clear()
        await app.requeue(child)
        await app.handle(child).result(5)
        await app.requeue(handle)
        assert await handle.result(5) == [1, 2]


@pytest.mark.parametrize("then", ["value", "signal"])
async def test_a_step_that_cannot_be_read_is_named(make_app: MakeApp, then: str) -> None:
    """With the command that forgets it."""
    price: Any = a_price

    @work(name="quote", retry=Retry(attempts=1))
    async def quote(ctx: Context) -> None:
        await ctx.step("the price", price)
        await ctx.signal("answer", bool, step="the answer")

    app = make_app(quote)
    handle = await app.enqueue(quote(), id="q-1")
    await app.start()
    await until_status(app, handle.id, "scheduled")
    if then == "value":
        price = a_list_of_prices
    await app.signal(handle, "answer", True if then == "value" else "maybe")
    await until_status(app, handle.id, "dead")
    ended = only(await app.why(handle), "ended")
    if then == "value":
        assert "the code cannot read what its step the price recorded" in ended.text
        assert ended.fix.endswith("again: treadle requeue q-1 --from-step 'the price'")
    else:
        assert "the value of the signal answer is not of the type that its handler waits for" in ended.text
        assert ended.fix == (
            "treadle requeue q-1 --from-step 'the answer'; then send it again: treadle signal q-1 answer JSON"
        )


async def test_steps_that_cannot_work_are_no_bad_result(make_app: MakeApp) -> None:
    @work(retry=Retry(attempts=1))
    async def twice(ctx: Context) -> None:
        await ctx.step("price", a_price)
        await ctx.step("price", a_price)

    app = make_app(twice)
    handle = await app.enqueue(twice())
    await app.start()
    await until_status(app, handle.id, "dead")
    text = only(await app.why(handle), "ended").text
    assert "its handler used steps in a way that cannot work; the last error: StepError" in text


@work(name="refund", retry=Retry(attempts=1))
async def refund(charge: int) -> None:
    if charge:
        raise OSError("the bank is closed")


@pytest.mark.parametrize("charge", [0, 12])
async def test_undos_that_died_are_named(make_app: MakeApp, charge: int) -> None:
    """A requeue would run the step again that was not undone."""

    async def pay() -> int:
        return charge

    @work(retry=Retry(attempts=1))
    async def buy(ctx: Context) -> None:
        await ctx.step(Step("the payment", undo=refund), pay)
        raise Abort("closed")

    app = make_app(buy, refund)
    handle = await app.enqueue(buy(), id="b-1")
    await app.start()
    await until_status(app, handle.id, "dead")
    (undo,) = (await app.list(type="refund")).items
    await until_status(app, undo.id, "dead" if charge else "success")
    ended = only(await app.why(handle), "ended")
    assert "; undos were queued for its step the payment, which a requeue runs again" in ended.text
    if charge:
        assert ended.text.endswith(f"; of these undos died {undo.id} (refund)")
        assert ended.fix.startswith(f"undo it first: treadle requeue {undo.id}; then: treadle requeue b-1")
        assert ended.refs == (undo.id,)
    else:
        assert "undos died" not in ended.text
        assert ended.fix.startswith("treadle requeue b-1")
