"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle import Context, Retry, Treadle, work


@asynccontextmanager
async def lifespan() -> AsyncGenerator[dict[str, str]]:
    yield {"currency": "EUR"}


@work(retry=Retry(attempts=4, base=0))
async def charge(ctx: Context, order: int, cents: int) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} {ctx.resources['currency']} charged at attempt {ctx.attempt}"


@work
async def price(item: str) -> int:
    return 100 * len(item)


app = Treadle(
    os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"), work=[charge, price], lifespan=lifespan
)


async def main() -> None:
    print(await app.enqueue(charge(7, cents=500)).result(timeout=60))
    handles = await app.enqueue_many([price(item) for item in ("lamp", "chair")])
    print("total", sum([await handle.result(timeout=60) for handle in handles]))


async def run() -> None:
    await main()
    await app.close()


if __name__ == "__main__":
    asyncio.run(run())
