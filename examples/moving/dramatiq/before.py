"""Dramatiq. Worker: dramatiq before. Program: python before.py"""

import os

import dramatiq
from dramatiq import group, pipeline
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

URL = os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0")
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=3, min_backoff=100, store_results=True)
def charge(order, cents):
    attempt = 1 + CurrentMessage.get_current_message().options.get("retries", 0)
    if attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {attempt}"


@dramatiq.actor(store_results=True)
def remind(customer):
    return f"{customer} reminded"


@dramatiq.actor(store_results=True)
def price(item):
    return 100 * len(item)


@dramatiq.actor(store_results=True)
def with_tax(cents):
    return cents + cents // 5


def main():
    print(charge.send(7, cents=500).get_result(block=True, timeout=60_000))
    print(remind.send_with_options(args=("ada",), delay=200).get_result(block=True, timeout=60_000))
    taxed = pipeline([price.message("lamp"), with_tax.message()]).run()
    print("with tax", taxed.get_result(block=True, timeout=60_000))
    prices = group([price.message(item) for item in ("lamp", "chair")]).run()
    print("total", sum(prices.get_results(block=True, timeout=60_000)))


if __name__ == "__main__":
    main()
