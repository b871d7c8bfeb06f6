"""An app with something to see on every page."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from treadle import Context, Handle, Result, Retry, Treadle, WorkFailed, WorkType, work
from treadle.doers import concurrency

DOWN: set[str] = set()
"""The servers that do not answer."""


@work(name="mail.send", queue="mail", retry=Retry(attempts=1))
async def send(to: str) -> str:
    server = to.partition("@")[2]
    if server in DOWN:
        raise ConnectionError(f"{server} does not answer")
    return f"sent to {to}"


@work(name="media.resize", queue="media", doer=concurrency(2, name="graphics card"))
async def resize(image: str) -> str:
    return image


@work(name="order.reserve")
async def reserve(article: str) -> str:
    return article


@work(name="order.ship")
async def ship(order: int) -> int:
    return order


@work(name="order.place")
async def place(ctx: Context, order: int, articles: list[str]) -> Result[None, str | int]:
    return ctx.queue([reserve(article) for article in articles]).next(ship(order))


async def _export(year: int) -> None: ...


export = work.declare("legacy.export", _export)
"""No worker has its code."""

WORK: list[WorkType[..., Any, Any]] = [send, resize, reserve, ship, place]


def make_app(**settings: Any) -> Treadle:
    app = Treadle(work=WORK, log_failures=False, **{"poll_interval": 0.05, **settings})
    app.schedule("nightly", cron="0 3 * * *", tz="Europe/Paris", run=lambda: send("all@example.com"))
    return app


async def fill(app: Treadle) -> None:
    """Items of every status, in several queues and of two tenants. The worker must be running."""
    DOWN.add("down.example")
    await ended(app, *[await app.enqueue(send(f"{name}@down.example")) for name in ("ada", "bob", "eve")])
    await (
        app.tenant("acme").enqueue(place(17, ["anvil", "bird seed", "magnet"]), workflow="order 17").group(10)
    )
    await ended(app, await app.enqueue(send("ada@example.com")))
    await app.enqueue(send("later@example.com"), delay=3600)
    first = await app.enqueue(ship(1), delay=3600)
    await app.enqueue(ship(2), after=first)
    await app.pause("newsletter")
    await app.enqueue_many([send(f"reader{n}@example.com") for n in range(120)], queue="newsletter")
    await app.enqueue(export(1999))
    await app.cancel(await app.enqueue(ship(3), delay=60))


async def ended(app: Treadle, *handles: Handle[Any, Any]) -> None:
    """Wait until these have ended, well or not."""
    for handle in handles:
        with suppress(WorkFailed):
            await handle.result(10)
