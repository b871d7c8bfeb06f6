"""The program: python program.py, with DJANGO_SETTINGS_MODULE=before or after."""

import time
from datetime import timedelta

import django

django.setup()

from django.db import transaction  # noqa: E402
from django.utils import timezone  # noqa: E402
from shop.tasks import charge, remind  # noqa: E402


def value_of(result):
    while not result.is_finished:
        time.sleep(0.05)
        result.refresh()
    return result.return_value


def main():
    print(value_of(charge.enqueue(7, cents=500)))
    print(value_of(remind.using(run_after=timezone.now() + timedelta(milliseconds=300)).enqueue("ada")))
    with transaction.atomic():
        charge.enqueue(8, cents=500)
        transaction.set_rollback(True)
    with transaction.atomic():
        kept = charge.enqueue(9, cents=500)
    print(value_of(kept))


if __name__ == "__main__":
    main()
