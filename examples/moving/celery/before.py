"""Celery. Worker: celery -A before worker. Program: python before.py"""

import os

from celery import Celery, chord

URL = os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0")
app = Celery("before", broker=URL, backend=URL)


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=0.1)
def charge(self, order, cents):
    if self.request.retries == 0:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {self.request.retries + 1}"


@app.task
def remind(customer):
    return f"{customer} reminded"


@app.task
def price(item):
    return 100 * len(item)


@app.task
def total(prices):
    return sum(prices)


def main():
    print(charge.delay(7, cents=500).get(timeout=60))
    print(remind.apply_async(("ada",), countdown=0.2, expires=60).get(timeout=60))
    print("total", chord([price.s("lamp"), price.s("chair")])(total.s()).get(timeout=60))


if __name__ == "__main__":
    main()
