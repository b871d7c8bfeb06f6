"""SAQ. Worker: saq before.settings. Program: python before.py"""

import asyncio
import os
import time

from saq import Queue

queue = Queue.from_url(os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"))


async def startup(ctx):
    ctx["currency"] = "EUR"


async def charge(ctx, *, order, cents):
    attempt = ctx["job"].attempts
    if attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} {ctx['currency']} charged at attempt {attempt}"


async def remind(ctx, *, customer):
    return f"{customer} reminded"


async def price(ctx, *, item):
    return 100 * len(item)


async def total(ctx, *, items):
    return sum(await queue.map("price", [{"item": item} for item in items], timeout=60))


settings = {"queue": queue, "functions": [charge, remind, price, total], "startup": startup}


async def main():
    await queue.connect()
    print(await queue.apply("charge", order=7, cents=500, retries=4, retry_delay=0.1, timeout=60))
    reminder = {"customer": "ada", "key": "remind-ada", "scheduled": int(time.time()) + 1}
    job = await queue.enqueue("remind", **reminder)
    again = await queue.enqueue("remind", **reminder)
    print("enqueued again:", again is not None)
    await job.refresh(until_complete=60)
    print(job.result)
    print("total", await queue.apply("total", items=["lamp", "chair"], timeout=60))
    await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(main())
