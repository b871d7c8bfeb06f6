"""The demo of the dashboard: a shop that is never quiet. Some of its work fails, some waits, some dies.

    make demo-web

It prints a link that works once. Everything is in one SQLite file, which is new each time. Ctrl-C ends it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Annotated, Any

from treadle import Abort, Backend, Client, Context, Result, Retry, Secret, Treadle, WorkType, work
from treadle.doers import balanced, concurrency, rate_limited

FILE = Path(".demo/web.db")
TENANTS = ("acme", "globex", "initech")
GOODS: list[str] = ["anvil", "rocket skates", "giant magnet", "bird seed", "earthquake pills"]
ROWS: list[dict[str, Any]] = [
    {"price": "12,50"},
    {"price": "9.99", "rate": 1.1},
    {"price": "-"},
    {"name": "magnet"},
]
RARE = random.Random(7)
"""Decides what goes wrong."""


# ------------------------------------------------------------------------------------------------ the work


@work(
    name="payment.charge",
    queue="payments",
    doer=rate_limited(8, window=1.0, per="tenant", name="payment provider"),
    retry=Retry(attempts=4, base=0.5, max=4.0),
)
async def charge(order: int, amount: float, card: Annotated[str, Secret]) -> str:
    """The provider allows eight calls per second for each customer of ours, and is not always there."""
    await asyncio.sleep(RARE.uniform(0.05, 0.3))
    if RARE.random() < 0.15:
        raise ConnectionError("the payment provider closed the connection")
    if RARE.random() < 0.05:
        raise Abort(f"card declined for order {order}")
    return f"paid {amount:.2f}"


@work(name="stock.reserve", queue="stock")
async def reserve(order: int, article: str) -> str:
    await asyncio.sleep(RARE.uniform(0.02, 0.4))
    return f"{article} for order {order}"


@work(name="order.ship", queue="stock")
async def ship(ctx: Context, order: int) -> str:
    """Runs once everything is paid and reserved."""
    await ctx.results(reserve)
    await asyncio.sleep(0.2)
    return f"parcel {order}-{ctx.id[-4:]}"


@work(name="mail.send", queue="mail", retry=Retry(attempts=3, base=0.3, max=1.0))
async def send_mail(to: str, subject: str) -> None:
    await asyncio.sleep(RARE.uniform(0.02, 0.1))
    if to.endswith(".invalid"):
        raise LookupError(f"no mail server for {to.partition('@')[2]}")
    if RARE.random() < 0.05:
        raise TimeoutError("the mail server did not answer within 10 s")


@work(name="order.place")
async def place(
    ctx: Context, order: int, articles: list[str], card: Annotated[str, Secret]
) -> Result[None, str | None]:
    """Fan out to the payment and the stock, then ship, then tell the customer."""
    first = [charge(order, 19.5 * len(articles), card), *(reserve(order, article) for article in articles)]
    tell = send_mail(f"customer{order % 40}@example.com", f"Order {order} is on its way")
    return ctx.queue(first).next(ship(order)).next(tell)


@work(name="media.resize", queue="media", doer=concurrency(2, name="graphics card"))
async def resize(image: str, width: int) -> str:
    """Two at once in the whole fleet."""
    await asyncio.sleep(RARE.uniform(0.5, 2.0))
    return image.replace(".jpg", f"-{width}.jpg")


@work(name="import.row", queue="imports", retry=Retry(attempts=1))
async def import_row(file: str, row: dict[str, Any]) -> float:
    return parse_price(row)


def parse_price(row: dict[str, Any]) -> float:
    """Rows of partners are not always what they should be."""
    price = float(row["price"].replace(",", "."))
    return round(price * float(row.get("rate", 1)), 2)


@work(name="search.index", queue="search", timeout=2.0, retry=Retry(attempts=2, base=0.2))
async def index(article: str) -> int:
    await asyncio.sleep(30 if article == "giant magnet" and RARE.random() < 0.2 else 0.2)
    return len(article)


@work(name="report.daily", queue="reports")
async def report(region: str) -> dict[str, Any]:
    await asyncio.sleep(1.0)
    return {"region": region, "orders": RARE.randint(100, 900), "revenue": RARE.randint(1000, 90_000)}


@work(name="rates.fetch", queue="reports")
async def fetch_rates() -> dict[str, float]:
    await asyncio.sleep(0.1)
    return {"EUR": 1.0, "USD": 1.09, "GBP": 0.86}


async def _export(year: int) -> None: ...


export = work.declare("legacy.export", _export)
"""No worker has its code any more."""

WORK: list[WorkType[..., Any, Any]] = [
    charge,
    reserve,
    ship,
    send_mail,
    place,
    resize,
    import_row,
    index,
    report,
    fetch_rates,
]


def make_app(backend: str | Backend, **settings: Any) -> Treadle:
    """The shop on this store."""
    made = Treadle(backend, work=WORK, doer=balanced(12), log_failures=False, **settings)
    made.schedule("exchange rates", every=15, run=fetch_rates)
    made.schedule("report of Europe", cron="0 3 * * 1-5", tz="Europe/Paris", run=lambda: report("Europe"))
    made.schedule("report of Japan", cron="30 1 * * *", tz="Asia/Tokyo", run=lambda: report("Japan"))
    return made


# ----------------------------------------------------------------------------------------- what keeps it busy


async def begin(client: Client) -> None:
    """What is there from the start: a backlog, work for later, a paused queue, work that no worker can do."""
    await client.enqueue_many([resize(f"photo-{n:03}.jpg", 1200) for n in range(60)], lane="catalogue")
    await client.enqueue_many([index(article) for article in GOODS * 4])
    await client.enqueue(report("Antarctica"), delay=3600)
    await client.enqueue(export(1999))
    await client.enqueue_many(
        [send_mail(f"reader{n}@example.com", "Our autumn catalogue") for n in range(250)], queue="newsletter"
    )
    await client.pause("newsletter")
    await client.schedules.pause("report of Japan")


async def serve_customers(client: Client, number: int) -> None:
    """One moment in the life of the shop."""
    tenant = client.tenant(RARE.choices(TENANTS, weights=(6, 3, 1))[0])
    articles = RARE.sample(GOODS, RARE.randint(1, 4))
    await tenant.enqueue(
        place(number, articles, f"4000 0000 0000 {number % 10_000:04}"), workflow=f"order {number}"
    )
    if number % 3 == 0:
        await tenant.enqueue(send_mail(f"lost{number}@nowhere.invalid", "We miss you"))
    if number % 2 == 0:
        row = RARE.choice(ROWS)
        await tenant.enqueue(import_row(f"partner-{number % 4}.csv", row))
    if number % 5 == 0:
        await client.enqueue(resize(f"article-{number}.jpg", 640), lane="shop", priority=5)
        await client.enqueue(index(RARE.choice(GOODS)))


async def keep_busy(client: Client) -> None:
    """A customer every now and then, for ever."""
    number = 1000
    while True:
        await serve_customers(client, number)
        number += 1
        await asyncio.sleep(RARE.uniform(0.1, 0.6))


# ------------------------------------------------------------------------------------------------- running


async def main() -> None:
    FILE.parent.mkdir(exist_ok=True)
    for name in ("", "-wal", "-shm"):
        FILE.with_name(FILE.name + name).unlink(missing_ok=True)
    async with app:
        await begin(app)
        # The dashboard is a process of its own, as it would be in production.
        dashboard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "treadle", "web", "examples.demo_web:app", "--port", "0")
        )
        busy = asyncio.create_task(keep_busy(app))
        try:
            await asyncio.wait([busy, asyncio.create_task(dashboard.wait())], return_when="FIRST_COMPLETED")
        finally:
            busy.cancel()
            if dashboard.returncode is None:
                dashboard.terminate()
            await dashboard.wait()
            await app.stop(drain=0)


app = make_app(f"sqlite:///{FILE}")
"""For `treadle web`, and for the command line beside it: `treadle status --app examples.demo_web:app`."""

if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("\nThe shop is closed.")
