"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import asyncio
import os

import asyncpg

from treadle import Context, Retry, Treadle, work
from treadle.doers import concurrency

URL = os.environ.get("STORE_URL", "postgresql://127.0.0.1/shop")


@work(name="ship", retry=Retry(attempts=4, base=0), doer=concurrency(1))
async def ship(ctx: Context, order: int) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("no lorry")
    text = f"order {order} shipped at attempt {ctx.attempt}"
    async with ctx.transaction() as connection:  # the row and the end of the item, together or not at all
        await connection.execute("insert into parcels_after values ($1)", text)
    return text


app = Treadle(URL, work=[ship])


async def main() -> None:
    connection = await asyncpg.connect(URL)
    await connection.execute("create table if not exists parcels_after (text text)")
    first = await app.enqueue(ship(7))
    second = await app.enqueue(ship(8), delay=0.5, key="order-8")
    again = await app.enqueue(ship(8), delay=0.5, key="order-8")
    if again.existing:
        print("order 8 is waiting already")
    for handle in (first, second):
        await handle.result(timeout=60)
    for row in await connection.fetch("select text from parcels_after order by text"):
        print(row["text"])
    await connection.close()


async def run() -> None:
    await main()
    await app.close()


if __name__ == "__main__":
    asyncio.run(run())
