"""arq. Worker: arq before.WorkerSettings. Program: python before.py"""

import asyncio
import os

from arq import Retry, create_pool
from arq.connections import RedisSettings

SETTINGS = RedisSettings.from_dsn(os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"))


async def startup(ctx):
    ctx["currency"] = "EUR"


async def charge(ctx, order, cents):
    if ctx["job_try"] == 1:
        raise Retry(defer=0.1)
    return f"order {order}: {cents} {ctx['currency']} charged at attempt {ctx['job_try']}"


async def remind(ctx, customer):
    return f"{customer} reminded"


async def price(ctx, item):
    return 100 * len(item)


async def total(ctx, items):
    jobs = [await ctx["redis"].enqueue_job("price", item) for item in items]
    return sum([await job.result(timeout=60) for job in jobs])


class WorkerSettings:
    functions = (charge, remind, price, total)
    redis_settings = SETTINGS
    on_startup = startup
    max_tries = 4


async def main():
    pool = await create_pool(SETTINGS)
    job = await pool.enqueue_job("charge", 7, cents=500, _job_id="order-7")
    again = await pool.enqueue_job("charge", 7, cents=500, _job_id="order-7")
    print("enqueued again:", again is not None)
    print(await job.result(timeout=60))
    print(await (await pool.enqueue_job("remind", "ada", _defer_by=0.2)).result(timeout=60))
    print("total", await (await pool.enqueue_job("total", ["lamp", "chair"])).result(timeout=60))
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(main())
