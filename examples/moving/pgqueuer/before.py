"""PgQueuer.

Tables: pgq --pg-dsn $STORE_URL install
Worker: python before.py worker. Program: python before.py
"""

import asyncio
import json
import os
import sys
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.errors import DuplicateJobError, RetryRequested
from pgqueuer.queries import Queries

URL = os.environ.get("STORE_URL", "postgresql://127.0.0.1/shop")


async def work():
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @pgq.entrypoint("ship", concurrency_limit=1)
    async def ship(job):
        order = json.loads(job.payload)["order"]
        attempt = 1 + job.attempts
        if attempt == 1:
            raise RetryRequested(reason="no lorry")
        text = f"order {order} shipped at attempt {attempt}"
        writing = await asyncpg.connect(URL)
        await writing.execute("insert into parcels values ($1)", text)
        await writing.close()

    await pgq.run()


async def main():
    connection = await asyncpg.connect(URL)
    await connection.execute("create table if not exists parcels (text text)")
    queries = Queries(AsyncpgDriver(connection))
    await queries.enqueue("ship", b'{"order": 7}')
    later = {"execute_after": timedelta(milliseconds=500), "dedupe_key": "order-8"}
    await queries.enqueue("ship", b'{"order": 8}', **later)
    try:
        await queries.enqueue("ship", b'{"order": 8}', **later)
    except DuplicateJobError:
        print("order 8 is waiting already")
    for text in await shipped(connection, 2):
        print(text)
    await connection.close()


async def shipped(connection, count):
    """PgQueuer keeps no results: look for what the jobs have written."""
    while len(rows := await connection.fetch("select text from parcels order by text")) < count:
        await asyncio.sleep(0.05)
    return [row["text"] for row in rows]


if __name__ == "__main__":
    asyncio.run(work() if sys.argv[1:] == ["worker"] else main())
