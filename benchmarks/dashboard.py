"""How long the server takes for each page of the dashboard, beside a million ended items; and what many open
tabs cost.

`python -m benchmarks.dashboard fill URL` fills a store, which stays. With `measure` in place of `fill` it
measures the pages of such a store: wall clock and, with a server on this machine, processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import httpx
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.measure import Stopwatch, percentile
from benchmarks.operate import (
    ENDED,
    ERRORS,
    OPEN,
    PORTIONS,
    QUEUES,
    STRANGE,
    TENANTS,
    TYPES,
    WORKERS,
    Filling,
    alive,
    filled,
    mark_of,
)
from benchmarks.stores import Stores, backend
from benchmarks.valkey import server_pid
from treadle import Client
from treadle.backend import Backend
from treadle.dashboard import Access, dashboard
from treadle.item import Filter, Order, Status
from treadle.records import HOUR, MINUTE, QUARTER, BacklogSample, Stat
from treadle.testing.counting import CountingBackend

CALLS, MOST_CALLS = 40, 200
PROMISE = 100.0
"""Milliseconds, p95."""
TABS, TAB_SECONDS = 50, 5
BROWSER = {"accept": "text/html"}
SAME_WORK = "(the same work each time)"

HELD = 20
"""Items of each tenant."""
STATUSES: tuple[Status, ...] = ("ready", "scheduled", "blocked", "running", "success", "dead")

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
            await _record(filling.store)
            await _hold(filling.store)
            counting = CountingBackend(filling.store)
            async with _visitor(counting) as visitor:
                cases = _addresses(await _ids(filling.store))
                figures, _ = await _measure(visitor, counting, cases, calls, kind)
                found[kind] = figures, await _open_tabs(visitor, counting)
    return found


async def _record(store: Backend) -> None:
    await _count_a_day(store)
    await _sample_a_month(store)
    await _order(store)


async def _hold(store: Backend) -> None:
    """Hold some items of each tenant."""
    for tenant in TENANTS:
        some = await store.list(Filter(tenant=tenant, status=("scheduled",)), limit=HELD)
        await store.hold([each.id for each in some.items], tenant=tenant)


async def _ids(store: Backend) -> dict[str, list[str]]:
    """Some items in each status."""
    return {
        status: [one.id for one in (await store.list(Filter(status=(status,)))).items] for status in STATUSES
    }


def _visitor(store: Backend) -> httpx.AsyncClient:
    site = dashboard(Client(store), access=lambda _: Access(actor="bench", can="all"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://bench", headers=BROWSER)


async def _count_a_day(store: Backend) -> None:
    """Statistics of a day, as workers would have left them: 34,560 rows. What is there stays."""
    now = await store.now() // MINUTE * MINUTE
    counted = max((each.at for each in await store.stats(now - 86_400.0)), default=0.0)
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
                if now - minute * MINUTE > counted
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
    servers: Sequence[psutil.Process] = (),
    seconds: float = math.inf,
) -> tuple[PageFigures, dict[str, float]]:
    """Also the processor time of this process and of servers, in milliseconds, the mean by case. The cases
    take turns, until the seconds are over. A parameter that means nothing makes each a page of its own, which
    is read. The last case is work that is always the same: how much its times differ is the machine's doing.
    """
    stop_at = time.monotonic() + seconds
    taken: dict[str, list[float]] = {name: [] for name in (*cases, SAME_WORK)}
    busy = dict.fromkeys(taken, 0.0)
    reads: dict[str, list[int]] = {name: [] for name in taken}
    number = itertools.count()
    with Progress(transient=True) as progress:
        task = progress.add_task(f"{kind}, pages", total=calls)
        for n in range(-2, calls):
            if time.monotonic() >= stop_at and n > 0:
                calls = n
                break
            for name, address in cases.items():
                path = address()
                path += f"{'&' if '?' in path else '?'}n={next(number)}"
                counting.reset()
                begun = _processor_time(servers)
                with Stopwatch() as watch:
                    answer = await visitor.get(path)
                if answer.status_code != 200:
                    raise RuntimeError(f"{path} was answered with {answer.status_code}: {answer.text[:500]}")
                if n >= 0:
                    taken[name].append(watch.seconds * 1000)
                    reads[name].append(counting.total())
                    busy[name] += _processor_time(servers) - begun
            begun = time.process_time()
            with Stopwatch() as watch:
                _do_same_work()
            if n >= 0:
                taken[SAME_WORK].append(watch.seconds * 1000)
                reads[SAME_WORK].append(0)
                busy[SAME_WORK] += time.process_time() - begun
            progress.update(task, completed=max(0, n))
    figures = {
        name: (statistics.median(each), percentile(each, 0.95), statistics.median(reads[name]))
        for name, each in taken.items()
    }
    return figures, {name: each * 1000 / calls for name, each in busy.items()}


def _do_same_work() -> None:
    """About as long as a slow page."""
    for _ in range(500):
        json.loads(json.dumps(list(range(200))))


def _processor_time(servers: Sequence[psutil.Process]) -> float:
    """Seconds of this process, of servers, and of what these have started and runs. The servers' are counted
    in hundredths of a second: only a mean says something."""
    found = time.process_time()
    for server in servers:
        for process in (server, *server.children()):
            with contextlib.suppress(psutil.NoSuchProcess):  # PostgreSQL ends what cleaned its tables
                times = process.cpu_times()
                found += times.user + times.system
    return found


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


# -- stores that stay --------------------------------------------------------------------------------------


async def fill(url: str, ended: int, open: int) -> None:
    """Fill an empty store."""
    store = backend(url)
    await store.open()
    try:
        kind = "postgres" if url.startswith("postgres") else url.partition(":")[0]
        await Filling(store, url, kind, ended, open).fill()
        await _record(store)
        await _hold(store)
    finally:
        await store.close()


async def measure(url: str, calls: int, only: str, seconds: float = math.inf) -> None:
    """Print how long each page takes whose name contains a text, in a store that `fill` has filled. No turn
    of all pages begins after `seconds`."""
    store = backend(url)
    await store.open()
    try:
        await _record(store)
        for n in range(WORKERS):
            await alive(store, f"worker{n}")
        counting, servers = CountingBackend(store), await _servers(url)
        cases = {name: each for name, each in _addresses(await _ids(store)).items() if only in name}
        async with _visitor(counting) as visitor:
            figures, busy = await _measure(visitor, counting, cases, calls, url, servers, seconds)
    finally:
        await store.close()
    table = Table("page", "p50 ms", "p95 ms", "processor ms", "reads")
    for name, (p50, p95, reads) in figures.items():
        table.add_row(name, f"{p50:.1f}", f"{p95:.1f}", f"{busy[name]:.1f}", f"{reads:g}")
    Console(width=100).print(table)


async def _servers(url: str) -> list[psutil.Process]:
    """The server of a store, on this machine."""
    if url.startswith("sqlite"):
        return []
    if url.startswith("redis"):
        return [psutil.Process(server_pid(url))]
    connection: Any = await asyncpg.connect(url)
    try:
        file = await connection.fetchval("select pg_read_file('postmaster.pid')")
        return [psutil.Process(int(file.split()[0]))]
    finally:
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.dashboard", description=__doc__)
    parser.add_argument("what", choices=("fill", "measure"))
    parser.add_argument("url")
    parser.add_argument("--ended", type=int, default=ENDED)
    parser.add_argument("--open", type=int, default=OPEN)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--only", default="", help="pages whose name contains this")
    given = parser.parse_args()
    if given.what == "fill":
        asyncio.run(fill(given.url, given.ended, given.open))
    else:
        asyncio.run(measure(given.url, given.calls, given.only))


if __name__ == "__main__":
    main()
