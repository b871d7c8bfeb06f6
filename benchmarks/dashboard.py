"""How long the server takes for each page of the dashboard, beside a million ended items; and what many open
tabs cost."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from collections.abc import Callable

import httpx
from rich.progress import Progress

from benchmarks.measure import Stopwatch, percentile
from benchmarks.operate import ERRORS, PORTIONS, QUEUES, STRANGE, TENANTS, TYPES, filled, mark_of
from benchmarks.stores import Stores
from treadle import Client
from treadle.backend import Backend
from treadle.dashboard import Access, dashboard
from treadle.item import Filter, Order
from treadle.records import HOUR, MINUTE, QUARTER, BacklogSample, Stat
from treadle.testing.counting import CountingBackend

CALLS = 40
PROMISE = 100.0
"""Milliseconds, p95."""
TABS, TAB_SECONDS = 50, 5
BROWSER = {"accept": "text/html"}

PageFigures = dict[str, tuple[float, float, float]]


async def pages(
    stores: Stores, kinds: tuple[str, ...], ended: int, open: int, calls: int = CALLS
) -> dict[str, tuple[PageFigures, float]]:
    """By kind: p50 and p95 of each page in milliseconds and its reads of the store, and the reads per second
    that the open tabs cost."""
    found: dict[str, tuple[PageFigures, float]] = {}
    for kind in kinds:
        if kind == "memory":
            continue
        async with filled(stores, kind, ended, open) as filling:
            store, waiting = filling.store, filling.waiting
            await _count_a_day(store)
            await _sample_a_month(store)
            await _order(store)
            for status in ("success", "dead"):
                waiting[status] = [one.id for one in (await store.list(Filter(status=(status,)))).items]
            counting = CountingBackend(store)
            async with _visitor(counting) as visitor:
                figures = await _measure(visitor, counting, _addresses(waiting), calls, kind)
                found[kind] = figures, await _open_tabs(visitor, counting)
    return found


def _visitor(store: Backend) -> httpx.AsyncClient:
    site = dashboard(Client(store), access=lambda _: Access(actor="bench", can="all"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://bench", headers=BROWSER)


async def _count_a_day(store: Backend) -> None:
    """Statistics of a day, as workers would have left them: 34,560 rows."""
    now = await store.now() // MINUTE * MINUTE
    draw = random.Random(3)
    for start in range(0, 1440, 60):
        await store.add_stats(
            [
                Stat(
                    at=now - minute * MINUTE,
                    type=type,
                    queue=QUEUES[type.partition(".")[0]],
                    started=40,
                    succeeded=draw.randrange(30, 40),
                    failed=draw.randrange(5),
                    dead=draw.randrange(2),
                )
                for minute in range(start, start + 60)
                for type in TYPES
            ]
        )


async def _sample_a_month(store: Backend) -> None:
    """Samples of a day by minutes and quarters and of a month by hours, as workers would have left them."""
    now = await store.now()
    for step, count in ((MINUTE, 1440), (QUARTER, 96), (HOUR, 720)):
        for start in range(0, count, 240):
            await store.put_samples(
                [
                    BacklogSample(
                        at=(now // step - n) * step, step=step, queue=queue, ready=1000.0 + n, running=20.0
                    )
                    for n in range(start, min(start + 240, count))
                    for queue in ("", *{*QUEUES.values()})
                ]
            )


async def _order(store: Backend) -> None:
    """Limits and pauses of some types, tenants and queues."""
    for type in TYPES[:8]:
        await store.order(Order(kind="limit", type=type, limit=5, reason="the API is slow"))
        await store.order(Order(kind="limit", type=type, limit=100, window=60.0))
    for tenant in TENANTS[:4]:
        await store.order(Order(kind="pause", tenant=tenant, queue="nightly"))
    await store.order(Order(kind="pause", type=TYPES[9]))


def _addresses(waiting: dict[str, list[str]]) -> dict[str, Callable[[], str]]:
    draw = random.Random(2)
    mark = mark_of(TYPES[0], ERRORS[0])
    cases: dict[str, Callable[[], str]] = {
        "overview": lambda: "/",
        "overview, 24 h": lambda: "/?span=24h",
        "overview of a tenant": lambda: f"/?tenant={draw.choice(TENANTS)}",
        "items, newest": lambda: "/items",
        "items, ready": lambda: "/items?q=status:ready",
        "items, of a type": lambda: f"/items?q=type:{draw.choice(TYPES)}",
        "items, of a type that no item has": lambda: "/items?q=type:none.such",
        "items, ended, of a rare type": lambda: f"/items?q=status:success+type:{STRANGE[0]}",
        "items, by a field of the input": lambda: "/items?q=input.order:17",
        "items, dead under a release": lambda: (
            f"/items?q=status:dead+release:2026.{draw.randrange(1, PORTIONS)}"
        ),
        "items, of a release": lambda: f"/items?q=release:2026.{draw.randrange(1, PORTIONS)}",
        "items, of a release that none has": lambda: "/items?q=release:none",
        "items, held": lambda: "/items?q=held:true",
        "items, of a workflow": lambda: f"/items?q=workflow:order-{draw.randrange(200)}",
        "dead": lambda: "/dead",
        "dead of a mark": lambda: f"/dead/{mark}",
        "groups": lambda: "/groups",
        "groups, failed": lambda: "/groups?outcome=failed",
        "groups, of a type": lambda: f"/groups?type={draw.choice(TYPES)}",
        "groups, of a type that none has": lambda: "/groups?type=none.such",
        "workflows": lambda: "/workflows",
        "workflows, failed": lambda: "/workflows?outcome=failed",
        "workflows, of a type that none has": lambda: "/workflows?type=none.such",
        "workflow": lambda: f"/workflows/order-{draw.randrange(200)}",
        "queues": lambda: "/queues",
        "queue": lambda: f"/queues/{draw.choice([*QUEUES.values()])}",
        "queue, 24 h": lambda: f"/queues/{draw.choice([*QUEUES.values()])}?span=24h",
        "queue, 30 d": lambda: f"/queues/{draw.choice([*QUEUES.values()])}?span=30d",
        "types": lambda: "/types",
        "type": lambda: f"/types/{draw.choice(TYPES)}",
        "workers": lambda: "/workers",
        "schedules": lambda: "/schedules",
        "limits": lambda: "/limits",
        "tenants": lambda: "/tenants",
        "bulk": lambda: "/bulk",
        "audit": lambda: "/audit",
        "ask before a bulk action": lambda: "/act/requeue?q=status:dead",
        "ask before an update": lambda: f"/act/update?q=type:{draw.choice(TYPES)}",
        "ask before a hold": lambda: f"/act/hold?q=queue:{draw.choice([*QUEUES.values()])}",
        "counts of the menu": lambda: "/menu",
    }
    for status, ids in waiting.items():

        def item(ids: list[str] = ids) -> str:
            return f"/items/{draw.choice(ids)}"

        cases[f"item, {status}"] = item
    return cases


async def _measure(
    visitor: httpx.AsyncClient,
    counting: CountingBackend,
    cases: dict[str, Callable[[], str]],
    calls: int,
    kind: str,
) -> PageFigures:
    """The cases take turns. A parameter that means nothing makes each a page of its own, which is read."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    reads: dict[str, list[int]] = {name: [] for name in cases}
    number = itertools.count()
    with Progress(transient=True) as progress:
        task = progress.add_task(f"{kind}, pages", total=calls)
        for n in range(-2, calls):
            for name, address in cases.items():
                path = address()
                path += f"{'&' if '?' in path else '?'}n={next(number)}"
                counting.reset()
                with Stopwatch() as watch:
                    answer = await visitor.get(path)
                if answer.status_code != 200:
                    raise RuntimeError(f"{path} was answered with {answer.status_code}: {answer.text[:500]}")
                if n >= 0:
                    taken[name].append(watch.seconds * 1000)
                    reads[name].append(counting.total())
            progress.update(task, completed=max(0, n))
    return {
        name: (statistics.median(each), percentile(each, 0.95), statistics.median(reads[name]))
        for name, each in taken.items()
    }


async def _open_tabs(visitor: httpx.AsyncClient, counting: CountingBackend) -> float:
    """How many times per second the overview is read, while many tabs ask for it twice a second each."""

    async def tab() -> None:
        for _ in range(2 * TAB_SECONDS):
            await visitor.get("/", headers={"x-fragment": "main"})
            await asyncio.sleep(0.5)

    counting.reset()
    with Stopwatch() as watch:
        await asyncio.gather(*(tab() for _ in range(TABS)))
    return counting.calls["overview"] / watch.seconds
