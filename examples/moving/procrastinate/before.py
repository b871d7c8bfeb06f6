"""Procrastinate.

Tables: python -m procrastinate --app=before.app schema --apply
Worker: python -m procrastinate --app=before.app worker. Program: python before.py
"""

import asyncio
import os

import procrastinate
import psycopg
from procrastinate.exceptions import AlreadyEnqueued

URL = os.environ.get("STORE_URL", "postgresql://127.0.0.1/shop")
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL), import_paths=["before"])


@app.task(name="ship", queue="parcels", retry=3, pass_context=True)
async def ship(context, order):
    attempt = 1 + context.job.attempts
    if attempt == 1:
        raise ConnectionError("no lorry")
    async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
        await connection.execute(
            "insert into parcels values (%s)", [f"order {order} shipped at attempt {attempt}"]
        )


async def main():
    async with app.open_async(), await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
        await connection.execute("create table if not exists parcels (text text)")
        await ship.configure(lock="lorry-1").defer_async(order=7)
        later = ship.configure(lock="lorry-1", queueing_lock="order-8", schedule_in={"milliseconds": 500})
        await later.defer_async(order=8)
        try:
            await later.defer_async(order=8)
        except AlreadyEnqueued:
            print("order 8 is waiting already")
        for text in await shipped(connection, 2):
            print(text)


async def shipped(connection, count):
    """Procrastinate keeps no results: look for what the tasks have written."""
    while True:
        rows = await (await connection.execute("select text from parcels order by text")).fetchall()
        if len(rows) == count:
            return [text for (text,) in rows]
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
