"""Bulk actions: `app.bulk` changes many items in the background, portion by portion."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend
from treadle import Abort, Client, InputError, NotFound, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.bulk_action import (
    BULK_QUEUE,
    BULK_TYPE,
    BULK_WORKFLOW,
    OPERATORS,
    BulkInput,
    BulkOrder,
    BulkState,
    encode_bulk,
)
from treadle.bulk_runner import BulkRunner
from treadle.engine.upkeep.prune import UnservedTypes
from treadle.errors import ConflictError, DefinitionError
from treadle.item import Demand, Filter, Heartbeat, Item, Submission
from treadle.operate.operator import core_of
from treadle.options import UpdateOptions
from treadle.testing import Faults, ManualClock
from treadle.testing.counting import CountingBackend
from treadle.worker_info import WorkerInfo

BAD: set[int] = set()
WAITS: dict[int, asyncio.Event] = {}
"""What the items of these numbers wait for."""


@work(name="ship", keep=600)
async def ship(n: int) -> int:
    if n in BAD:
        raise Abort(ValueError(f"no {n}"))
    if n in WAITS:
        await WAITS[n].wait()
    return n


@pytest.fixture(autouse=True)
def all_good() -> None:
    BAD.clear()
    WAITS.clear()


async def die(app: Client, worker: Treadle, *numbers: int) -> None:
    """Leave dead items behind, which would succeed if they ran again."""
    BAD.update(numbers)
    await app.enqueue_many([ship(n) for n in numbers])
    await worker.worker.drain()
    BAD.clear()


async def ended(app: Client, action: BulkState) -> BulkState:
    await app.handle(action.id).group(PATIENCE, partial=True)
    state = await app.bulk.state(action.id)
    assert state is not None
    return state


async def statuses(app: Client, tenant: str | None = None) -> dict[str, int]:
    found: dict[str, int] = {}
    for count in await app.counts(ended=True):
        if count.type == "ship" and tenant in (None, count.tenant):
            found[count.status] = found.get(count.status, 0) + count.count
    return found


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_two_thousand_dead_items_are_requeued(make_app: MakeApp, sound: None) -> None:
    async with make_app(ship, log_failures=False) as app:
        await die(app, app, *range(2000))
        await app.enqueue(ship(7), delay=600)
        action = await app.bulk.start("requeue", type="ship")
        assert (action.total, action.more, action.where, action.tenant) == (2000, False, "type:ship", None)
        state = await ended(app, action)
        assert (state.state, state.matched, state.changed, state.skipped) == ("done", 2000, 2000, {})
        await app.worker.drain()
        assert await statuses(app) == {"success": 2000, "scheduled": 1}
        assert [each.id for each in await app.bulk.list()] == [action.id]
        assert await app.bulk.state("none") is None
        with pytest.raises(NotFound, match="bulk action"):
            await app.bulk.stop("none")


async def test_a_canary_that_fails_holds_the_others_back(make_app: MakeApp, sound: None) -> None:
    async with make_app(ship, log_failures=False) as app:
        await die(app, app, *range(20))
        BAD.add(1)
        held_back = await ended(app, await app.bulk.start("requeue", type="ship", canary=3))
        assert (held_back.state, held_back.changed, held_back.canary) == ("held_back", 3, 3)
        (guilty,) = held_back.held_back_by
        (item,) = await app.get(guilty.id)
        assert item is not None
        assert (item.status, item.error) == ("dead", "ValueError: no 1")
        assert await statuses(app) == {"dead": 18, "success": 2}
        BAD.clear()
        done = await ended(app, await app.bulk.start("requeue", type="ship", canary=3))
        assert (done.state, done.changed) == ("done", 18)


async def test_a_canary_says_how_many_have_succeeded(make_app: MakeApp, sound: None) -> None:
    """While the others are waited for, and to those who list bulk actions too."""
    async with make_app(ship, log_failures=False) as app:
        await die(app, app, *range(5))
        go_on = WAITS[2] = asyncio.Event()
        action = await app.bulk.start("requeue", type="ship", canary=3)
        assert (action.canary_tried, action.canary_succeeded) == (0, 0)
        async with asyncio.timeout(PATIENCE):
            while (action := (await app.bulk.list())[0]).canary_succeeded < 2:  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.02)
        assert (action.state, action.canary_tried, action.canary_succeeded) == ("canary", 3, 2)
        assert await app.bulk.state(action.id) == action
        go_on.set()
        done = await ended(app, action)
        assert (done.state, done.changed, done.canary_tried) == ("done", 5, 0)


async def test_verbs_and_what_they_skip(make_app: MakeApp, sound: None) -> None:
    async with make_app(ship, log_failures=False) as app:
        await app.enqueue_many([ship(n) for n in range(3)], delay=600)
        later = await app.enqueue(ship(9), delay=600)
        done = await app.enqueue(ship(10))
        await done.result(PATIENCE)
        triggered = await ended(app, await app.bulk.start("trigger", ids=[later, done, "none"]))
        assert (triggered.changed, triggered.skipped) == (1, {"NotFound": 1, "StatusConflict": 1})
        assert triggered.where == "3 named items"
        assert {each.id: each.error for each in triggered.refused} == {
            "none": "NotFound",
            done.id: "StatusConflict",
        }
        await app.worker.drain()
        cancelled = await ended(app, await app.bulk.start("cancel", everything=True))
        assert (cancelled.changed, cancelled.where) == (3, "everything")
        assert await statuses(app) == {"success": 2, "cancelled": 3}
        again = await ended(app, await app.bulk.start("requeue", status="cancelled", type="ship"))
        assert again.changed == 3
        blocked = await app.enqueue(ship(11), after=[done], delay=600)
        deleted = await ended(app, await app.bulk.start("delete", type="ship"))
        # `done` is waited for, and a group that is open is not deleted unless its status is named.
        assert deleted.skipped == {"GroupStillOpen": 1, "ReferencedError": 1}, deleted
        named = await ended(app, await app.bulk.start("delete", ids=[blocked]))
        assert (named.changed, named.skipped) == (0, {"GroupStillOpen": 1})
        later = await app.enqueue(ship(12), delay=600)
        named = await ended(app, await app.bulk.start("delete", ids=[later], open=True))
        assert (named.changed, named.skipped) == (1, {})
        await app.worker.drain()
        opened = await ended(
            app, await app.bulk.start("delete", status=["scheduled", "success"], type="ship")
        )
        assert (opened.state, await statuses(app)) == ("done", {}), (opened, blocked)
        assert (await app.get(triggered.id)) != [None]  # actions leave other actions alone


@pytest.mark.parametrize(
    ("args", "where", "message"),
    [
        (["requeu"], {"type": "ship"}, "did you mean 'requeue'?"),
        (["requeue"], {}, "everything=True"),
        (["requeue"], {"type": None}, "everything=True"),
        (["requeue"], {"status": []}, "everything=True"),
        (["requeue"], {"status": set()}, "everything=True"),
        (["requeue"], {"status": iter(())}, "everything=True"),
        (["requeue"], {"typ": "ship"}, "there is no filter 'typ': did you mean 'type'?"),
        (["requeue"], {"status": "ready"}, "only dead or cancelled items can be requeued"),
        (["cancel"], {"status": "dead"}, "only open items can be cancelled"),
        (["requeue"], {"ids": ["a"], "type": "ship"}, "ids exclude filters"),
        (["requeue"], {"ids": []}, "must name at least one"),
        (["requeue"], {"ids": [str(n) for n in range(10_001)]}, "may name 10,000"),
        (["requeue"], {"type": "ship", "rate": 0}, "rate"),
        (["requeue"], {"type": "ship", "rate": 1e-300}, "one item per hour"),
        (["requeue"], {"type": "ship", "rate": "50/s"}, "rate='50/s' must be a number"),
        (["requeue"], {"type": "ship", "rate": float("inf")}, "must be finite"),
        (["requeue"], {"type": "ship", "canary": -1}, "canary"),
        (["delete"], {"type": "ship", "canary": 5}, "not for delete"),
        (["cancel"], {"type": "ship", "open": True}, "not for cancel"),
    ],
)
async def test_bad_input_is_refused(args: list[Any], where: dict[str, Any], message: str) -> None:
    app = Treadle("memory://")
    with pytest.raises(InputError) as refused:
        await app.bulk.start(*args, **where)
    assert message in str(refused.value)
    await app.close()


async def test_a_rate_spreads_the_portions(make_timed: MakeApp, clock: ManualClock) -> None:
    async with make_timed(ship, log_failures=False) as app:
        await die(app, app, *range(8))
        await clock.advance(1)  # what is submitted at the instant of the start is left out
        action = await app.bulk.start("requeue", type="ship", rate=2)
        changed: list[int] = []
        for _ in range(4):
            await app.worker.drain()
            state = await app.bulk.state(action.id)
            assert state is not None
            changed.append(state.changed)
            await clock.advance(1)
        assert changed == [2, 4, 6, 8]
        await app.worker.drain()
        (state,) = await app.bulk.list()
        assert state.state == "done"
        # One that waits for its next portion is stopped at once.
        await die(app, app, *range(8, 12))
        await clock.advance(1)
        action = await app.bulk.start("requeue", type="ship", rate=1)
        await app.worker.drain()
        stopped = await app.bulk.stop(action.id)
        assert (stopped.state, stopped.changed) == ("stopped", 1)
        assert (await app.bulk.stop(action.id)) == stopped


async def test_between_two_portions_it_does_not_wait_for_anyone(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """A worker that serves it claims the next portion soon: no reason to run it elsewhere."""
    app = make_timed(ship)
    await app.enqueue_many([ship(n) for n in range(3)], delay=86_400)
    await clock.advance(1)
    action = await app.bulk.start("cancel", type="ship", rate=1)
    await BulkRunner(app).run_once()
    said = msgspec.json.encode(WorkerInfo(host="box", pid=7, lease=60.0))
    await app.backend.beat(Heartbeat(worker="w1", lease=60.0, types=(BULK_TYPE,), info=said))
    for seconds, waits in ((0.5, ""), (1.0, ""), (90.0, "no worker is alive")):
        await clock.advance(seconds)
        state = await app.bulk.state(action.id)
        assert state
        assert (state.state, state.changed) == ("running", 1)
        assert state.waits.startswith(waits) if waits else state.waits == ""


async def test_a_deadline_is_no_reason_to_wait(make_timed: MakeApp, clock: ManualClock) -> None:
    """A worker serves it. The first portion has a deadline: the day in which it must begin."""
    app = make_timed(ship)
    await app.enqueue(ship(1), delay=86_400)
    await clock.advance(1)
    said = msgspec.json.encode(WorkerInfo(host="box", pid=7, lease=60.0))
    await app.backend.beat(Heartbeat(worker="w1", lease=60.0, types=(BULK_TYPE,), info=said))
    assert (await app.bulk.start("cancel", type="ship")).waits == ""


async def test_it_does_not_begin_after_a_day(
    make_timed: MakeApp, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_timed(ship, queues=["mail"])
    await app.start()
    item = await app.enqueue(ship(1), delay=10 * 86_400)
    await clock.advance(1)  # what is submitted at the instant of the start is left out
    action = await app.bulk.start("cancel", type="ship")
    assert "does not have treadle.bulk" in action.waits
    await clock.advance(3_600)
    await UnservedTypes(core_of(app)).run_once()
    assert "Start a worker that serves all queues, or run `treadle bulk run`" in caplog.text
    await clock.advance(86_401)
    await BulkRunner(app).run_once()
    late = await app.bulk.state(action.id)
    assert late is not None
    assert (late.state, late.changed) == ("failed", 0)
    assert (late.error or "").startswith("DeadlineExceeded")
    assert (await item.state()).status == "scheduled"


async def test_stop_counts_the_portion_that_runs(make_faulty: MakeApp, faults: Faults) -> None:
    async with make_faulty(ship, log_failures=False) as app:
        await die(app, app, *range(600))
        held = faults.hold("requeue")
        action = await app.bulk.start("requeue", type="ship")
        await held.reached()
        state = await app.bulk.state(action.id)
        assert state is not None
        assert state.state == "running"
        claimed = faults.hold("claim_key", when="after")  # that of `stop`
        stopping = asyncio.ensure_future(app.bulk.stop(action.id))
        await claimed.reached()
        claimed.release()
        held.release()
        stopped = await asyncio.wait_for(stopping, PATIENCE)
        assert (stopped.state, stopped.changed, stopped.matched) == ("stopped", 500, 500)
        await app.worker.drain()
        assert await statuses(app) == {"success": 500, "dead": 100}


async def test_a_portion_that_fails_is_tried_again(make_faulty: MakeApp, faults: Faults) -> None:
    async with make_faulty(ship, log_failures=False) as app:
        await die(app, app, *range(3))
        failing = faults.fail("requeue", error=lambda: RuntimeError("no"), times=1)
        done = await ended(app, await app.bulk.start("requeue", type="ship"))
        assert (done.state, done.changed, failing.hits) == ("done", 3, 1)
        await app.worker.drain()
        await app.enqueue(ship(1), delay=600)
        (portion,) = (await app.list(type=BULK_TYPE)).items
        assert portion.failures == 1


async def test_nobody_gets_more_rights_by_a_forged_input(make_app: MakeApp, sound: None) -> None:
    async with make_app(ship, log_failures=False, undecodable_grace=0) as app:
        ana, bob = app.tenant("ana"), app.tenant("bob")
        await die(ana, app, 1, 2)
        await die(bob, app, 3)
        # A client of one tenant changes its own items only.
        with pytest.raises(InputError, match="bound to 'ana'"):
            await ana.bulk.start("requeue", tenant="bob")
        own = await ended(ana, await ana.bulk.start("requeue", ids=[*(await bob.list()).items, "none"]))
        assert (own.tenant, own.changed, own.skipped) == ("ana", 0, {"NotFound": 2})
        assert await bob.bulk.state(own.id) is None
        assert await bob.bulk.list() == []
        # The input says whatever it likes: the tenant of the item counts.
        order = BulkOrder(verb="requeue", about="", where=Filter(tenant="bob", status=("dead",)))
        forged = Item("forged", BULK_TYPE, encode_bulk(BulkInput(order=order)), "ana", BULK_QUEUE)
        broken = Item("broken", BULK_TYPE, b"[]", "ana", BULK_QUEUE, workflow=BULK_WORKFLOW)
        await app.backend.submit([Submission((forged,)), Submission((broken,))])
        await app.worker.drain()
        state = await ana.bulk.state("broken")
        assert state is not None
        assert (state.state, "Expected `object`" in str(state.error)) == ("failed", True)
        assert await statuses(app, "bob") == {"dead": 1}
        assert await statuses(app, "ana") == {"success": 2}
        # Nor can a user submit one, or be the tenant that may change everything.
        with pytest.raises(InputError, match=r"app\.bulk\.start"):
            ana.enqueue(BULK_TYPE, {"order": {}})
        with pytest.raises(DefinitionError, match="built-in type"):
            app.register(work(name=BULK_TYPE)(die))
        with pytest.raises(InputError, match="reserved"):
            app.tenant(OPERATORS)
        # An operator changes the items of all tenants, or of one.
        await die(ana, app, 4, 5)
        one = await ended(app, await app.bulk.start("requeue", tenant="bob"))
        assert (one.tenant, one.changed, one.where) == (None, 1, "tenant:bob")
        assert (await ended(app, await app.bulk.start("requeue", everything=True))).changed == 2
        assert [each.id for each in await ana.bulk.list()] == ["broken", own.id]
        assert len(await app.bulk.list()) == 4


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_process_without_workers_runs_it(make_app: MakeApp, store: MakeBackend, sound: None) -> None:
    async with make_app(ship, log_failures=False) as app:
        await die(app, app, *range(700))
    # A worker of one queue does not run it.
    async with make_app(ship, queues=["mail"]) as restricted, Client(store()) as client:
        action = await client.bulk.start("requeue", type="ship")
        await restricted.worker.drain()
        state = await client.bulk.state(action.id)
        assert state is not None
        assert state.state == "waiting"
        assert "treadle.bulk" in state.waits
        running = asyncio.ensure_future(BulkRunner(client).run())
        try:
            assert (await ended(client, action)).changed == 700
            later = await ended(client, await client.bulk.start("cancel", type="ship"))  # a wake-up tells it
            assert later.changed == 700
        finally:
            running.cancel()
        # A manual lease of any type is never one of a bulk action.
        await client.bulk.start("requeue", status="cancelled", type="ship")
        lease = await client.claim_one()
        assert lease is not None
        assert lease.type == "ship"
        await lease.release()


async def test_the_audit_says_who_started_and_stopped_it(make_app: MakeApp, sound: None) -> None:
    async with make_app(ship, log_failures=False) as app:
        await die(app, app, *range(3))
        ana = app.by("ana", reason="the shop is back", address="10.0.0.7")
        action = await ana.bulk.start("requeue", type="ship", rate=1)
        assert (action.actor, action.reason) == ("ana", "the shop is back")
        with pytest.raises(ConflictError, match=action.id):  # one at a time
            await ana.bulk.start("cancel", type="ship")
        await app.by("bob").bulk.start("trigger", type="ship")
        await app.worker.drain()
        portions = (await app.audits(bulk=action.id)).entries
        assert (portions[-1].verb, portions[-1].count, portions[-1].actor) == ("requeue", 1, "ana")
        assert portions[-1] in (await app.tenant("default").audits()).entries
        stopped = await ana.bulk.stop(action.id)
        assert stopped.state == "stopped"
        first, _, last = reversed((await app.audits()).entries)
        assert (first.verb, first.actor, first.about, first.ids, first.tenant) == (
            "bulk requeue",
            "ana",
            "type:ship",
            (action.id,),
            None,
        )
        assert (last.verb, last.ids, last.tenant, last.address) == (
            "bulk stop",
            (action.id,),
            None,
            "10.0.0.7",
        )
        await ana.bulk.start("cancel", type="ship")


async def test_reads_do_not_depend_on_how_many_actions_are_open() -> None:
    counting = CountingBackend(MemoryBackend())
    async with Client(counting) as app:
        runner = BulkRunner(app)
        await app.pause(BULK_QUEUE)
        counted: list[Counter[str]] = []
        for count in (1, 9):
            for n in range(count):
                await app.tenant(f"shop{n}").bulk.start("cancel", type="ship", rate=1)
                await app.bulk.start("cancel", type="ship", rate=1)
            counting.reset()
            assert {each.state for each in await app.bulk.list()} == {"waiting"}
            assert (counting.total("list", "group", "get"), counting.total()) == (3, 3)
            counting.reset()
            assert await runner.run_once() == 5.0
            counted.append(counting.calls)
        assert counted[0] == counted[1]
        # Another tenant uses the id of an action: each gets its own.
        await app.resume(BULK_QUEUE)
        await app.enqueue_many([ship(n) for n in range(3)], delay=600)
        action = await app.bulk.start("cancel", type="ship", rate=0.001)
        await app.tenant("ana").enqueue(ship(1), id=action.id)
        await runner.run_once()
        found = {each.id: each for each in await app.bulk.list()}
        assert (found.pop(action.id).changed, {each.state for each in found.values()}) == (1, {"done"})


VICTIM = """
import asyncio, sys
from treadle import Client
from treadle.bulk_runner import BulkRunner
from treadle.testing import Faults, FaultyBackend
from treadle.backends.sqlite import SqliteBackend

async def main():
    faults = Faults()
    held = faults.hold("settle", skip=1)  # the second portion is changed, and not settled
    client = Client(FaultyBackend(SqliteBackend(sys.argv[1]), faults))
    running = asyncio.ensure_future(BulkRunner(client).run())
    await held.reached()
    print("changed", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.usefixtures("processes")
async def test_it_goes_on_after_a_kill(tmp_path: Path) -> None:
    file = str(tmp_path / "work.db")
    url = f"sqlite:///{file}"
    async with Treadle(url, work=[ship], log_failures=False) as app:
        await die(app, app, *range(1200))
    client = Client(url)
    action = await client.bulk.start("requeue", type="ship")
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, file], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert victim.stdout is not None
        assert (await asyncio.to_thread(victim.stdout.readline)).strip() == "changed"
        victim.kill()
        running = asyncio.ensure_future(BulkRunner(client).run())
        state = await ended(client, action)
        running.cancel()
        # The items of the portion that was cut off are open again, and are not counted.
        assert (state.state, state.changed) == ("done", 700)
        assert await statuses(client) == {"ready": 1200}
    finally:
        victim.kill()
        victim.communicate()
        await client.close()


async def test_a_flood_is_parked_and_what_has_started_stays(make_app: MakeApp, sound: None) -> None:
    app = make_app(ship)
    await app.connect()
    handles = await app.enqueue_many([ship(n) for n in range(600)])
    other = await app.enqueue(ship(5), queue="mail")
    # One was begun, and waits again: an update refuses it.
    await app.backend.beat(Heartbeat(worker="w1", lease=60.0, types=("ship",)))
    (begun,) = (await app.backend.claim(Demand(worker="w1", limit=1, queues=("default",)))).leases
    await app.backend.begin([begun])
    await app.backend.remove_worker("w1")
    ann = app.by("ann", reason="flood")
    changes: UpdateOptions = {"queue": "parked", "priority": -5}
    action = await ann.bulk.start("update", queue="default", changes=changes)
    assert (action.total, action.asked) == (600, "priority=-5 queue=parked for queue:default")
    await BulkRunner(app).run(until_done=True)
    state = await ended(app, action)
    assert (state.state, state.changed, state.skipped) == ("done", 599, {"NotUpdatable": 1})
    found = Counter((item.queue, item.priority) for item in (await app.list(type="ship", limit=1000)).items)
    assert found == {("parked", -5): 599, ("mail", 0): 1, ("default", 0): 1}
    states = {item.id: item for item in await app.get([handles[7], other, begun]) if item is not None}
    assert (states[other.id].queue, states[begun.id].queue) == ("mail", "default")
    (entry,) = [each for each in (await app.audits()).entries if each.verb == "bulk update"]
    assert (entry.actor, entry.reason, entry.about) == ("ann", "flood", action.asked)
    portions = (await app.audits(bulk=action.id)).entries
    assert {each.about for each in portions} == {action.asked}
    assert sum(each.count for each in portions) == 599


async def test_an_update_says_what_is_wrong_with_it(make_app: MakeApp) -> None:
    app = make_app(ship)
    with pytest.raises(InputError, match="nothing to change"):
        await app.bulk.start("update", type="ship")
    with pytest.raises(InputError, match="changes"):
        await app.bulk.start("cancel", type="ship", changes={"queue": "slow"})
    with pytest.raises(InputError, match="only items that have not started"):
        await app.bulk.start("update", status="running", changes={"queue": "slow"})


async def test_an_update_has_a_canary_too(make_app: MakeApp, sound: None) -> None:
    """Items that another queue runs go there only if the first of them succeed."""
    async with make_app(ship, log_failures=False, queues=["slow", BULK_QUEUE]) as app:
        await app.enqueue_many([ship(n) for n in range(5)])
        BAD.add(1)
        held = await ended(
            app, await app.bulk.start("update", queue="default", changes={"queue": "slow"}, canary=2)
        )
        assert (held.state, held.changed) == ("held_back", 2)
        BAD.clear()
        done = await ended(
            app, await app.bulk.start("update", queue="default", changes={"queue": "slow"}, canary=2)
        )
        assert (done.state, done.changed) == ("done", 3)
        await app.worker.drain()
        assert await statuses(app) == {"success": 4, "dead": 1}
