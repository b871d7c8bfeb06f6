"""Queues, types, workers, schedules, limits and tenants, as visitors see them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import httpx
import pytest

from tests.dashboard.conftest import AS_JSON, MakeApp, Visitor
from treadle import Context, Result, Retry, Treadle, work
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.dashboard.addresses import segment
from treadle.dashboard.charts import nice_duration
from treadle.dashboard.views.types import signature_of
from treadle.doers import concurrency
from treadle.item import (
    Demand,
    Fire,
    Heartbeat,
    Item,
    Limit,
    PermitRequest,
    Schedule,
    Submission,
    WorkerState,
)
from treadle.records import BacklogSample, Stat
from treadle.store.fleet import Fleet
from treadle.worker_info import Blockage, BlockingItem, WorkerInfo, encode_worker_info

HOSTILE = "<img src=x onerror=alert(1)>é/../%2F \"q'"
"""A name of a queue, a lane, a tenant and a schedule."""
PAGES = ("/queues", "/types", "/workers", "/schedules", "/limits", "/tenants")
OF_FLEET = ("/workers", "/schedules", "/tenants")


class Shop:
    """An app with a worker whose handlers wait, and items in every state."""

    def __init__(self, store: Callable[[], Backend], make_app: MakeApp) -> None:
        self.go_on, self.ticked, self.started = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)

        @work(name="pay.charge", queue=HOSTILE, doer=concurrency(2, per="tenant"), retry=Retry(attempts=1))
        async def charge(order: int, note: str = "<b>") -> None:
            """Charge a card <script>."""
            self.started.release()
            await self.go_on.wait()

        @work(name="treadle_like.report", retry=Retry(attempts=5, base=2, jitter=0))
        async def report() -> None: ...

        @work(name="tick")
        async def tick() -> None:
            self.ticked.set()

        async def sync(n: int) -> None: ...

        self.charge, self.report, self.tick = charge, report, tick
        self.legacy = work.declare("legacy.sync", sync, queue="legacy")
        self.worker, self.producer = make_app(store, charge, report, tick), make_app(store, self.legacy)
        self.app = Treadle(store(), work=[charge, report, tick, self.legacy])
        """What the dashboard shows."""

    async def open(self) -> None:
        worker = self.worker
        worker.schedule("nightly", cron="0 3 * * 1-5", tz="Europe/Paris", run=self.report)
        worker.schedule(HOSTILE, every=3600, run=self.report)
        worker.schedule("tick", every=3600, start=time.time() + 2, run=self.tick)
        await worker.start()
        await self.app.connect()
        await worker.schedules.pause(HOSTILE)
        for order in range(2):
            await worker.tenant("acme").enqueue(self.charge(order), lane=HOSTILE)
        await worker.tenant(HOSTILE).enqueue(self.charge(9))
        for _ in range(3):
            await self.started.acquire()
        await self.producer.tenant("acme").enqueue(self.legacy(1), lane=HOSTILE)
        await worker.pause("legacy")
        await worker.tenant("acme").pause("legacy")
        await self.ticked.wait()
        while (await worker.list("running", type="tick")).items:  # noqa: ASYNC110  its end is being stored
            await asyncio.sleep(0.01)
        await self._count(worker)

    async def _count(self, app: Treadle) -> None:
        minute = (await app.backend.now()) // 60 * 60
        run = (0,) * 8 + (10,)
        counted = {"started": 12, "succeeded": 9, "failed": 3, "dead": 2, "wait": run, "run": run}
        stats = [Stat(at=minute, type="pay.charge", queue=HOSTILE, **counted)]
        await app.backend.add_stats(
            [*stats, Stat(at=minute, type="treadle.group", queue="default", started=1)]
        )


@pytest.fixture
async def shop(store: Callable[[], Backend], make_app: MakeApp) -> Any:
    shop = Shop(store, make_app)
    await shop.open()
    yield shop
    shop.go_on.set()
    await shop.app.close()


async def json_of(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(path, headers=AS_JSON)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def text_of(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


QUEUE = f"/queues/{segment(HOSTILE)}"
ALL = (*PAGES, QUEUE, "/queues/legacy", "/types/pay.charge", "/types/legacy.sync")


async def test_every_page_for_every_visitor(shop: Shop, visitor: Visitor) -> None:
    operator, reader = visitor(shop.app), visitor(shop.app, "read")
    tenant, nobody = visitor(shop.app, tenants=["acme"]), visitor(shop.app, access=lambda request: None)
    for path in ALL:
        text = await text_of(operator, path)
        assert "<img" not in text
        assert "<script>." not in text
        seen = await text_of(reader, path)
        assert re.findall(r'<form method="post" action="([^"]*)"', seen) == ["/settings"]
        assert "/drain" not in seen
        assert "/cancel" not in seen
        assert (await nobody.get(path)).status_code == 403
        theirs = await tenant.get(path, headers=AS_JSON)
        if path in OF_FLEET:
            assert theirs.status_code == 404
        else:
            assert theirs.status_code == 200, theirs.text
            shown = json.dumps(theirs.json())
            info = (await shop.app.workers())[0].info
            assert info is not None
            assert f'"{info.host}"' not in shown
            assert f'"tenant": {json.dumps(HOSTILE)}' not in shown
    for path in ("/queues/none", "/types/none", "/types/treadle.group", "/types/treadle.dependency"):
        assert (await operator.get(path)).status_code == 404


async def test_what_the_pages_say(shop: Shop, visitor: Visitor) -> None:
    operator = visitor(shop.app)
    queues = {each["queue"]: each for each in (await json_of(operator, "/queues"))["queues"]}
    assert {name: queues[HOSTILE][name]["count"] for name in ("ready", "running")} == {
        "ready": 0,
        "running": 3,
    }
    assert queues[HOSTILE]["worker_count"] == 1
    assert queues[HOSTILE]["rate"]["failed"] == 3
    assert queues[HOSTILE]["rate"]["run_p95"] > 0
    assert (queues["legacy"]["paused"], queues["legacy"]["paused_for"]) == (True, ["acme"])

    queue = await json_of(operator, QUEUE)
    assert queue["throughput"]["started"] == 12
    assert [(each["owner"], each["tenant"]) for each in queue["limits"]] == [
        ("pay.charge", "acme"),
        ("pay.charge", HOSTILE),
    ]
    legacy = await json_of(operator, "/queues/legacy")
    (line,) = legacy["lines"]
    assert (line["tenant"], line["lane"], line["count"]) == ("acme", HOSTILE, 1)
    assert "paused" in {each["kind"] for each in legacy["reasons"]}

    types = {each["type"]: each for each in (await json_of(operator, "/types"))["types"]}
    assert set(types) == {"pay.charge", "treadle_like.report", "legacy.sync", "tick"}
    assert types["legacy.sync"]["unserved"]["count"] == 1
    assert (types["legacy.sync"]["code"], types["legacy.sync"]["worker_count"]) == ("declared", 0)
    facts = (await json_of(operator, "/types/pay.charge"))["facts"]
    assert facts["signature"] == "(order: int, note: str = '<b>') -> None"
    assert facts["docstring"] == "Charge a card <script>."
    assert facts["options"]["doer"] == "at most 2 at once per tenant in the whole fleet"
    assert facts["options"]["retry"] == "no retry: 1 attempt"
    report = (await json_of(operator, "/types/treadle_like.report"))["facts"]["options"]
    assert report["retry"] == "5 attempts, waits from 2 s times 2 each, up to 30 s"

    workers = await json_of(operator, "/workers")
    (worker,) = workers["workers"]
    assert (worker["state"], worker["running"], workers["states"]) == ("alive", 3, {"alive": 1})
    assert {each["type"] for each in worker["items"]} == {"pay.charge"}
    assert len(worker["items"]) == 3

    schedules = {each["name"]: each for each in (await json_of(operator, "/schedules"))["schedules"]}
    assert schedules["nightly"]["words"] == "weekdays at 3:00 Europe/Paris"
    assert len(schedules["nightly"]["next"]) == 5
    assert (schedules[HOSTILE]["state"], schedules[HOSTILE]["next"]) == ("paused", [])
    (run,) = schedules["tick"]["runs"]
    assert run["status"] in ("running", "success")
    assert f'href="/items/{run["id"]}"' in await text_of(operator, "/schedules")

    limits = await json_of(operator, "/limits")
    assert [each["reached"] for each in limits["limits"]] == [True, False]
    first = limits["limits"][0]
    assert (first["tenant"], first["used"], first["limit"], first["per"]) == ("acme", 2, 2, "tenant")
    assert first["holders"][0]["count"] == 2
    assert first["holders"][0]["worker"] == worker["id"]

    tenants = {each["tenant"]: each for each in (await json_of(operator, "/tenants"))["tenants"]}
    assert (tenants["acme"]["running"]["count"], tenants["acme"]["ready"]["count"]) == (2, 1)
    assert tenants["acme"]["paused_queues"] == ["legacy"]
    assert 'href="/?tenant=acme"' in await text_of(operator, "/tenants")


async def test_what_can_be_done(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    shop = Shop(memory_store, make_app)
    await shop.open()
    operator, one = visitor(shop.app), visitor(shop.app, {"resume"})
    id = (await shop.app.workers())[0].id
    pages = {
        path: await text_of(operator, path) for path in (*PAGES, QUEUE, "/queues/legacy", "/types/pay.charge")
    }
    for path, action in (
        ("/queues", "/queues/legacy/resume"),
        ("/queues", f"{QUEUE}/pause"),
        (QUEUE, f"{QUEUE}/pause"),
        ("/queues/legacy", "/queues/legacy/resume"),
        ("/queues/legacy", "/queues/legacy/resume?tenant=acme"),
        ("/workers", f"/workers/{id}/drain"),
        ("/schedules", "/schedules/nightly/pause"),
        ("/schedules", "/schedules/nightly/cancel"),
        ("/schedules", f"/schedules/{segment(HOSTILE)}/resume"),
        ("/types/pay.charge", "/types/pay.charge/enqueue"),
    ):
        assert re.search(f'(?:href|action)="{re.escape(action)}"', pages[path]), (path, action)
    assert "1 limit reached" not in await text_of(operator, "/")
    await shop.worker.tenant("acme").enqueue(shop.charge(3))
    waits = '<a href="/limits">1 limit reached</a>, so items wait for it'
    assert waits in await text_of(visitor(shop.app), "/")
    # It can be run where its code is.
    assert "/schedules/nightly/trigger" not in pages["/schedules"]
    assert "This process does not have its code" in pages["/schedules"]
    assert "/schedules/nightly/trigger" in await text_of(visitor(shop.worker), "/schedules")
    assert "/pause" not in await text_of(one, "/queues")
    assert "/queues/legacy/resume" in await text_of(one, "/queues")
    info = encode_worker_info(WorkerInfo(host="far", pid=7, lease=60))
    for number in range(120):
        await shop.worker.backend.beat(Heartbeat(worker=f"w{number:03}", lease=60, info=info))
    first = await text_of(visitor(shop.app), "/workers")
    assert first.count(">far:7<") == 100
    assert '<a rel="next" href="/workers?page=2">next</a>' in first
    assert (await text_of(operator, "/workers?page=2")).count(">far:7<") == 20
    for path in ("/queues?page=9", "/types?span=24h", "/workers?page=x", "/queues?tenant=acme"):
        await text_of(operator, path)
    assert (await operator.get("/types?span=7d")).status_code == 404
    shop.go_on.set()


def test_workers_that_need_an_operator_come_first() -> None:
    from treadle.dashboard.views.workers import ORDER, worker_row

    info = WorkerInfo(host="h", pid=1, lease=30, waiting=2)
    workers = [
        WorkerState("live", 130.0, ("a", "treadle.group"), 5, info),
        WorkerState("silent", 90.0, None, 1, None),
    ]
    fleet = Fleet(workers, 100.0)
    live, silent = (worker_row(fleet, each) for each in workers)
    assert (live.running, live.waiting, live.beat_at, live.types) == (3, 2, 100.0, ["a"])
    assert (silent.standing, silent.beat_at, silent.types, silent.host) == ("silent", None, None, "")
    assert ORDER.index("silent") < ORDER.index("alive")


async def test_a_tenant_is_told_nothing_of_what_others_use(
    memory_store: Any, make_app: MakeApp, visitor: Visitor
) -> None:
    shop = Shop(memory_store, make_app)
    await shop.producer.tenant("acme").enqueue(shop.legacy(1))
    await shop.producer.tenant("other").enqueue(shop.legacy(1), queue="theirs")
    done = await shop.producer.tenant("acme").enqueue(shop.report(), queue="reports")
    await shop.producer.tenant("acme").complete(done.id, None)
    async with shop.worker:
        acme = visitor(shop.worker, tenants=["acme"])
        types = await json_of(acme, "/types")
        assert [each["type"] for each in types["types"]] == ["legacy.sync"]
        queues = await json_of(acme, "/queues")
        assert [each["queue"] for each in queues["queues"]] == ["legacy"]
        (worker,) = await shop.worker.workers()
        all_tenants = visitor(shop.worker)
        for path in ("/queues/legacy", "/types/treadle_like.report"):
            assert (await json_of(acme, path))["workers"] == []
            assert "1 worker<" in await text_of(acme, path)
            assert worker.id in await text_of(all_tenants, path)
        assert worker.id not in await text_of(acme, "/types/treadle_like.report")
        assert (await acme.get("/queues/reports")).status_code == 200  # all its items have ended
        for path in ("/types/pay.charge", "/queues/theirs", QUEUE):
            assert (await acme.get(path)).status_code == 404, path
            assert (await all_tenants.get(path)).status_code == 200, path


async def test_a_run_that_failed_is_no_skipped_one(make_app: MakeApp, visitor: Visitor) -> None:
    """The page says what it raised, to those who see payloads."""
    app = make_app(MemoryBackend)
    await app.connect()
    await app.backend.put_schedule(Schedule(name="odd", next_at=1000.0))
    await app.backend.fire(Fire(name="odd", at=1000.0, next_at=2000.0))
    await app.backend.fire(Fire(name="odd", at=2000.0, next_at=None, error="ValueError: for ann@example.org"))
    text = await text_of(visitor(app), "/schedules")
    assert "1 failed" in text
    assert "1 skipped" in text
    assert text.count("ValueError: for ann@example.org") == 1
    (row,) = (await json_of(visitor(app), "/schedules"))["schedules"]
    assert [run["error"] for run in row["runs"]] == ["", "ValueError: for ann@example.org"]
    blind = visitor(app, payloads=False)
    assert "ann@example.org" not in await text_of(blind, "/schedules")
    assert "ann@example.org" not in str(await json_of(blind, "/schedules"))
    assert "1 failed" in await text_of(blind, "/schedules")


async def test_the_item_that_blocks_a_worker_is_marked(make_app: MakeApp, visitor: Visitor) -> None:
    """Also what blocked it a while ago."""
    app = make_app(MemoryBackend)
    await app.connect()
    backend, now = app.backend, await app.backend.now()
    earlier = Blockage(now - 90, now - 60, (BlockingItem("before", "send", "default"),))
    info = WorkerInfo(
        blocked_since=now - 20,
        blocked_by=(BlockingItem("guilty", "send", "default"),),
        blockages=(earlier, Blockage(now - 50, now - 45, earlier.items), Blockage(now - 30, now - 25)),
    )
    await backend.submit([Submission(tuple(Item(id=id, type="send", input=b"") for id in ("a", "guilty")))])
    await backend.beat(Heartbeat(worker="w", lease=60, info=encode_worker_info(info)))
    await backend.begin((await backend.claim(Demand(worker="w", limit=2))).leases)
    text = await text_of(visitor(app), "/workers")
    assert text.count("blocks the event loop") == 1
    assert text.index("/items/guilty") < text.index("blocks the event loop") < text.index("/items/a")
    assert "was blocked 3 times, for 40 s in all, last " in text
    assert text.count("was blocked") == 1
    assert "/items/before" in text
    assert "/drain" in text[: text.index("heartbeat</th>") + 2500]
    (worker,) = (await json_of(visitor(app), "/workers"))["workers"]
    assert [(item["id"], item["blocks"]) for item in worker["items"]] == [("guilty", True), ("a", False)]
    assert worker["info"]["blocked_by"] == [{"id": "guilty", "type": "send", "tenant": "default"}]


async def test_a_worker_under_load_shows_its_types_and_five_items(
    make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(MemoryBackend)
    await app.connect()
    backend = app.backend
    items = [Item(id=f"i{n}", type="send" if n < 8 else "rare", input=b"") for n in range(9)]
    await backend.submit([Submission(tuple(items))])
    info = WorkerInfo(blocked_since=1.0, blocked_by=(BlockingItem("unread", "odd", "default"),))
    await backend.beat(Heartbeat(worker="w", lease=60, info=encode_worker_info(info)))
    await backend.begin((await backend.claim(Demand(worker="w", limit=9))).leases)
    text = await text_of(visitor(app), "/workers")
    assert re.findall(r'data-id="(\w+)"', text) == ["unread", "i0", "i1", "i2", "i3"]
    assert re.findall(r"/types/(\w+)\">\w+</a> <b>(\d+)</b>", text) == [
        ("send", "8"),
        ("odd", "1"),
        ("rare", "1"),
    ]
    assert "5 more, begun later" in text
    (worker,) = (await json_of(visitor(app), "/workers"))["workers"]
    assert len(worker["items"]) == 10


def test_a_signature_names_what_treadle_gives_as_users_import_it() -> None:
    async def made(ctx, day): ...  # type: ignore[no-untyped-def]

    made.__annotations__ = {"ctx": Context, "day": date, "return": Result[None, dict[str, int]]}
    assert signature_of(work(name="made")(made)) == "(day: datetime.date) -> Result[None, dict[str, int]]"


# ------------------------------------------------------------------------------------------------ backlog


async def test_a_queue_shows_whether_it_drains_and_how_it_was(
    store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    """With charts of depth and oldest wait. Visitors of single tenants see no rates."""

    @work(name="echo")
    async def echo(n: int) -> None: ...

    app = make_app(store, echo)
    await app.connect()
    await app.tenant("acme").enqueue_many([echo(n) for n in range(60)], queue="mail")
    minute = (await app.backend.now()) // 60 * 60
    ago = range(30)
    samples = [
        BacklogSample(at=minute - n * 60, queue=queue, ready=60 + 5 * n, oldest=90.0 * n)
        for n in ago
        for queue in ("", "mail")
    ]
    await app.backend.put_samples(samples)
    await app.backend.add_stats(
        [Stat(at=minute - n * 60, type="echo", queue="mail", succeeded=20) for n in ago]
    )
    client = visitor(app)
    page = (await client.get("/queues/mail")).text
    rates = ("drains in 12 min", "arrivals 15/min", "ends 20/min")
    for said in (*rates, "ready, up to 205", "oldest wait, up to 43 min 30 s"):
        assert said in page, said
    assert page.count('<div class="chart">') == 3
    found = (await client.get("/queues/mail", headers=AS_JSON)).json()
    assert found["backlog"]["drains_in_seconds"] == 720
    assert found["history"]["points"][-1]["ready"] == 60
    assert len(found["history"]["points"]) == 30
    for span in ("24h", "30d"):  # there are no samples of quarters and hours
        assert "There is no sample of this time" in (await client.get(f"/queues/mail?span={span}")).text
    listed = (await client.get("/queues")).text
    assert "drains in 12 min" in listed
    own = await visitor(app, tenants=["acme"]).get("/queues/mail?tenant=acme", headers=AS_JSON)
    assert (own.json()["backlog"]["ends_per_minute"], own.json()["history"]) == (None, None)


def test_the_top_of_a_chart_of_times_is_a_round_time() -> None:
    tops = [nice_duration(each) for each in (0, 1.5, 3, 45, 61, 700, 3601, 50_000, 100_000, 500_000)]
    assert tops == [2, 2, 10, 60, 120, 1200, 7200, 86_400, 172_800, 6 * 86_400]


async def test_a_limit_is_told_only_if_items_wait_for_it(visitor: Visitor) -> None:
    @work(name="refund", doer=concurrency(1))
    async def refund() -> None: ...

    @work(name="other")
    async def other() -> None: ...

    app = Treadle(MemoryBackend(), work=[refund, other])
    await app.connect()
    limit = Limit("refund:slots:all", 1, 1.0, "slots")
    await app.backend.beat(Heartbeat(worker="w1", lease=60.0, types=("refund", "other")))
    await app.backend.take_permits([PermitRequest((limit,), 1)], worker="w1")
    await app.enqueue_many([other()])
    await app.enqueue(refund(), delay=3600)
    assert "1 limit reached" not in await text_of(visitor(app), "/")
    await app.enqueue(refund())
    assert "1 limit reached" in await text_of(visitor(app), "/")
    await app.close()
