"""Huey. Worker: huey_consumer before.huey. Program: python before.py"""

import os

from huey import RedisHuey
from huey.api import chord
from huey.exceptions import TaskException

huey = RedisHuey("before", url=os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"))


@huey.task(retries=3, context=True)
def charge(order, cents, task=None):
    attempt = 4 - task.retries
    if attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {attempt}"


@huey.task()
def remind(customer):
    return f"{customer} reminded"


@huey.task()
def price(item):
    return 100 * len(item)


@huey.task()
def with_tax(cents):
    return cents + cents // 5


@huey.task()
def total(prices):
    return sum(prices)


def value_of(result):
    while True:
        try:
            return result.get(blocking=True, timeout=60)
        except TaskException:  # of one attempt: another may follow
            result.reset()


def main():
    print(value_of(charge(7, cents=500)))
    print(remind.schedule(("ada",), delay=0.2).get(blocking=True, timeout=60))
    taxed = huey.enqueue(price.s("lamp").then(with_tax))
    print("with tax", taxed.get(blocking=True, timeout=60)[-1])
    added = huey.enqueue(chord([price.s(item) for item in ("lamp", "chair")], total.s()))
    print("total", added.callback.get(blocking=True, timeout=60))


if __name__ == "__main__":
    import before  # Huey stores the module of a function, and the consumer does not know __main__

    before.main()
