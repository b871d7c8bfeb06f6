"""The tasks of a shop."""

import threading
from typing import Any

from django.db import connections

from tests.contrib.django.shop.models import Order

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


class OutOfStock(Exception):
    """A class whose path has to be found again."""


seen: list[Any] = []
"""What tasks have seen. Tests clear it."""


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def add_async(a: int, b: int = 0) -> int:
    return a + b


@task(takes_context=True)
def attempt(context: Any, failures: int) -> list[Any]:
    if context.attempt <= failures:
        raise OutOfStock(f"attempt {context.attempt}")
    return [context.attempt, context.task_result.id, len(context.task_result.errors)]


@task
def echo(value: Any = None) -> Any:
    return value


@task
def bad_value() -> Any:
    seen.append("ran")
    return lambda: True


@task
def leave() -> None:
    raise SystemExit("enough")


@task
def count_orders(alias: str) -> int:
    connection = connections[alias]
    seen.append((threading.current_thread().name, connection.connection is None))
    return Order.objects.using(alias).count()


@task
async def count_orders_async(alias: str) -> int:
    return await Order.objects.using(alias).acount()


@task
def enqueue_another(number: int) -> str:
    return str(add.enqueue(number, 1).id)


@task
def count_here(alias: str) -> int:
    """As `count_orders`, in the transaction of a test."""
    seen.append(threading.current_thread())
    return Order.objects.using(alias).count()
