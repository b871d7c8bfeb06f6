"""RQ. Worker: rq worker --with-scheduler --url $STORE_URL. Program: python before.py"""

import os
import time
from datetime import timedelta

from redis import Redis
from rq import Queue, Retry, get_current_job

queue = Queue(connection=Redis.from_url(os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0")))


def charge(order, cents):
    attempt = 4 - get_current_job().retries_left
    if attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {attempt}"


def remind(customer):
    return f"{customer} reminded"


def price(item):
    return 100 * len(item)


def total():
    return sum(job.return_value() for job in get_current_job().fetch_dependencies())


def value_of(job):
    while not (job.is_finished or job.is_failed):
        time.sleep(0.05)
    return job.return_value()


def main():
    print(value_of(queue.enqueue(charge, 7, cents=500, retry=Retry(max=3), job_timeout=60)))
    print(value_of(queue.enqueue_in(timedelta(milliseconds=200), remind, "ada")))
    prices = [queue.enqueue(price, item) for item in ("lamp", "chair")]
    print("total", value_of(queue.enqueue(total, depends_on=prices)))


if __name__ == "__main__":
    import before  # RQ stores the module of a function, and workers cannot import __main__

    before.main()
