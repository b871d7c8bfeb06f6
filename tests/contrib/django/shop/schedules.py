"""The tasks of a shop that recur."""

from tests.contrib.django.shop import tasks
from treadle.contrib.django import task_schedule

add_books = tasks.add.using(queue_name="books")
NIGHTLY = task_schedule("nightly", add_books, args=[1], kwargs={"b": 2}, cron="0 3 * * *")
OFTEN = task_schedule("often", tasks.add_async, args=[1], every=0.05)
SCHEDULES = [NIGHTLY, OFTEN]
