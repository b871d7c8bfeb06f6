"""taskiq. Worker: taskiq worker before:broker. Program: python before.py"""

import asyncio
import os
from typing import Annotated

from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0")
broker = (
    RedisStreamBroker(URL, consumer_id="0")
    .with_result_backend(RedisAsyncResultBackend(URL))
    .with_middlewares(SimpleRetryMiddleware())
)


def currency() -> str:
    return "EUR"


@broker.task(retry_on_error=True, max_retries=4)
async def charge(
    order: int,
    cents: int,
    context: Annotated[Context, TaskiqDepends()],
    unit: Annotated[str, TaskiqDepends(currency)],
) -> str:
    attempt = 1 + int(context.message.labels.get("_retries", 0))
    if attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} {unit} charged at attempt {attempt}"


@broker.task
async def price(item: str) -> int:
    return 100 * len(item)


async def value_of(task):
    return (await task.wait_result(timeout=60)).return_value


async def main():
    await broker.startup()
    print(await value_of(await charge.kiq(7, cents=500)))
    tasks = [await price.kiq(item) for item in ("lamp", "chair")]
    print("total", sum([await value_of(task) for task in tasks]))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
