"""An app on a bad day: every page has something to show, in the states that look different."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from tests.browser.site import Site
from tests.browser.stock import ended
from treadle import Abort, Context, Result, Retry, Treadle, WorkType, work
from treadle.dashboard.addresses import segment
from treadle.doers import concurrency, rate_limited
from treadle.item import Demand, Heartbeat
from treadle.records import MINUTE, Stat
from treadle.worker_info import Blockage, BlockingItem, WorkerInfo, encode_worker_info

log = logging.getLogger("shop.payments")
QUEUES = ("default", "mail", "media", "payments", "reports")
FAR = "f" * 32
"""A worker of another machine."""


@work(
    name="payment.charge",
    queue="payments",
    retry=Retry(attempts=1),
    doer=rate_limited(100, 60, name="bank"),
)
async def charge(order: int) -> None:
    log.error("the bank has answered 500 for order %s", order)
    await _ask_bank(3)


async def _ask_bank(times: int) -> None:
    if times:
        await _ask_bank(times - 1)
    raise Abort("the bank does not answer")


@work(name="order.ship")
async def ship(order: int) -> int:
    return order


@work(name="order.place")
async def place(ctx: Context, order: int) -> Result[None, int]:
    return ctx.queue([charge(order), ship(order)]).next(ship(order))


@work(name="order.approve")
async def approve(ctx: Context, order: int) -> None:
    await ctx.step("reserve", _reserve, order)
    await ctx.signal("approved", str)


async def _reserve(order: int) -> int:
    return order


@work(name="media.resize", queue="media", doer=concurrency(2, name="graphics card"))
async def resize(image: str) -> str:
    return image


@work(name="mail.send", queue="mail")
async def send(to: str) -> str:
    return to


@work(name="report.large", queue="reports")
async def report(region: str) -> str:
    return region


WORK: list[WorkType[..., Any, Any]] = [charge, ship, place, approve, resize, send, report]


def make_app() -> Treadle:
    app = Treadle(work=WORK, queues=QUEUES, release="v2", log_failures=False, poll_interval=0.05)
    app.schedule("nightly", cron="0 3 * * *", tz="Europe/Paris", run=lambda: send("all@example.com"))
    return app


async def fill(app: Treadle) -> None:
    """The worker of the app must be running."""
    ada = app.by("ada@example.com", reason="the bank asked for it")
    acme = app.tenant("acme")
    await ended(app, *[await acme.enqueue(place(n), workflow=f"order {n}") for n in range(4)])
    await ended(app, *await acme.enqueue_many([charge(n) for n in range(10, 14)]))
    await acme.enqueue(place(9), workflow="order 9", id="order-9")
    await app.enqueue(approve(1), id="waits")
    await app.enqueue(ship(1), after="waits", id="after")
    await ada.pause("mail")
    await ada.pause(type="report.large", until=7200)
    await ada.pause("media", tenant="acme")
    await ada.pause(tenant="globex")
    await ada.set_limit("graphics card", 1, until=3600)
    await ada.set_limit(type="order.ship", limit=50, window=60.0)
    await app.enqueue_many([send(f"reader{n}@example.com") for n in range(8)])
    await app.enqueue_many([report(f"region {n}") for n in range(2)])
    await app.enqueue(ship(2), delay=3600, id="later")
    await app.enqueue(ship(3), delay=3600, id="held")
    await ada.hold("held")
    await app.cancel(await app.enqueue(ship(4), delay=60, id="cancelled"))
    await ada.bulk.start("requeue", type="payment.charge", status="dead", rate=0.1)
    await _blocked_worker(app)


async def _blocked_worker(app: Treadle) -> None:
    """A worker under load: one of its items blocks it. Earlier ones of this type were lost."""
    backend, now = app.backend, await app.backend.now()
    known = WorkerInfo(host="far.example.com", pid=4711, lease=600, release="v1", room=8)
    await backend.beat(Heartbeat(worker=FAR, lease=600, info=encode_worker_info(known)))
    await app.enqueue_many([resize(f"photo-{n}.jpg") for n in range(9)], queue="far")
    leases = (await backend.claim(Demand(worker=FAR, limit=8, queues=("far",)))).leases
    await backend.begin(leases)
    guilty = BlockingItem(leases[0].id, leases[0].type, leases[0].tenant)
    earlier = Blockage(now - 90, now - 60, (guilty,))
    blocked = replace(known, blocked_since=now - 12, blocked_by=(guilty,), blockages=(earlier,))
    await backend.beat(Heartbeat(worker=FAR, lease=600, info=encode_worker_info(blocked)))
    minute = now // MINUTE * MINUTE
    await backend.add_stats([Stat(at=minute, type=resize.name, queue="media", started=9, lost=3)])


def pages(site: Site) -> Iterator[str]:
    """One page of each kind."""
    app, acme = site.app, site.app.tenant("acme")
    (dead,) = site.call(acme.list(type=charge.name, status="dead", limit=1)).items
    mark, bulk = site.call(app.dead.marks())[0].mark, site.call(app.bulk.list())[0].id
    yield from ("/", "/items", "/dead", "/groups", "/workflows", "/queues", "/types", "/workers")
    yield from ("/schedules", "/limits", "/tenants", "/audit", "/bulk", f"/bulk/{bulk}")
    yield from (f"/dead/{segment(mark)}", "/items?q=nonsense:1", f"/items/{dead.id}?of=acme", "/items/waits")
    yield from ("/items/nothing", "/queues/mail", "/types/report.large", "/types/order.place/enqueue")
    yield from ("/groups/order-9?of=acme", "/workflows/order%209?of=acme")
    yield from (f"/items/{dead.id}/{verb}?of=acme" for verb in ("edit", "delete"))
    yield from ("/items/later/complete", "/items/later/update", "/items/waits/signal")
    yield from ("/schedules/nightly/cancel", f"/workers/{FAR}/drain", "/act/requeue?q=status:dead")


def others(_: Site) -> Iterator[str]:
    """Pages of the same kinds, about something else."""
    yield from ("/?tenant=acme", "/items?q=release:v2", "/items?q=type:none", "/items/held", "/items/after")
    yield from ("/queues/media", "/queues/far", "/types/order.ship")
    asked = {"delete": "status:dead", "cancel": "queue:mail", "hold": "queue:mail", "update": "queue:mail"}
    asked |= {"trigger": "status:scheduled", "unhold": "held:true"}
    yield from (f"/act/{verb}?q={where}" for verb, where in asked.items())
