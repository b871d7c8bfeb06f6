"""Calls of treadle.contrib.celery that type checkers refuse."""

from tests.typing.celery_tasks import add, total

add.delay("1")  # E: wrong type
add.delay()  # E: missing
add.delay(1, c=2)  # E: unknown keyword
total.delay(1)  # E: wrong type
add.apply_async((1,), countdown="soon")  # E: wrong type
add.apply_async((1,), countdwn=5)  # E: unknown option
text: str = add.delay(1).get()  # E: it is an int
