"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle import Context, Result, Retry, Treadle, work


@asynccontextmanager
async def lifespan() -> AsyncGenerator[dict[str, str]]:
    yield {"currency": "EUR"}


@work(retry=Retry(attempts=4, base=0.1))
async def charge(ctx: Context, order: int, cents: int) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} {ctx.resources['currency']} charged at attempt {ctx.attempt}"


@work
async def remind(customer: str) -> str:
    return f"{customer} reminded"


@work
async def price(item: str) -> int:
    return 100 * len(item)


@work
async def add_up(ctx: Context) -> int:
    return sum(await ctx.results(price))


@work
async def total(ctx: Context, items: list[str]) -> Result[None, int]:
    return ctx.queue([price(item) for item in items]).next(add_up())  # no job waits for others


app = Treadle(
    os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"),
    work=[charge, remind, price, add_up, total],
    lifespan=lifespan,
)


async def main() -> None:
    print(await app.enqueue(charge(7, cents=500)).result(timeout=60))
    handle = await app.enqueue(remind("ada"), delay=0.5, key="remind-ada")
    again = await app.enqueue(remind("ada"), delay=0.5, key="remind-ada")
    print("enqueued again:", not again.existing)
    print(await handle.result(timeout=60))
    print("total", await app.enqueue(total(["lamp", "chair"])).group(timeout=60))


async def run() -> None:
    await main()
    await app.close()


if __name__ == "__main__":
    asyncio.run(run())
