"""The connections of Django around handlers."""

from __future__ import annotations

import threading
from typing import Any

from django.db import connections

from tests.contrib.django.conftest import task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Order
from tests.contrib.django.test_backend import PATIENCE, ended
from treadle import Context, Treadle, work
from treadle.contrib.django import app as django_app


def test_a_connection_is_not_kept_after_a_task(worker: Treadle, database: str) -> None:
    for _ in range(3):
        assert ended(worker, tasks.count_orders.enqueue(database)).return_value == 0
    assert [is_closed for _, is_closed in tasks.seen] == [True] * 3


def test_an_async_task_has_a_connection_of_its_own(worker: Treadle, database: str) -> None:
    assert ended(worker, tasks.count_orders_async.enqueue(database)).return_value == 0


def test_a_connection_that_the_server_has_closed_is_replaced(postgres_database: str) -> None:
    # It would be kept for ever.
    connections.settings[postgres_database]["CONN_MAX_AGE"] = None
    connections.settings[postgres_database]["CONN_HEALTH_CHECKS"] = True

    @work
    def count(ctx: Context, alias: str) -> int:
        cut.append(connections[alias])
        return Order.objects.using(alias).count()

    @work
    def close(alias: str) -> None:
        connections[alias].close()

    cut: list[Any] = []
    app = django_app(database=postgres_database, work=[count, close], threads=1)
    with app.sync:
        assert app.sync.enqueue(count(postgres_database)).result(timeout=PATIENCE) == 0
        with connections[postgres_database].cursor() as cursor:
            cursor.execute("select pg_terminate_backend(%s)", [cut[0].connection.info.backend_pid])
        assert app.sync.enqueue(count(postgres_database)).result(timeout=PATIENCE) == 0
        assert cut[0] is cut[1], "it was the same thread"
        app.sync.enqueue(close(postgres_database)).result(timeout=PATIENCE)


@work
def where(alias: str) -> tuple[str, bool]:
    closed = connections[alias].connection is None
    Order.objects.using(alias).count()
    return threading.current_thread().name, closed


@work
async def where_async(alias: str) -> int:
    return await Order.objects.using(alias).acount()


def test_work_of_the_app_of_a_project(database: str) -> None:
    app = django_app(database=database, work=[where, where_async], threads=1)
    with app.sync:
        for _ in range(2):
            name, closed = app.sync.enqueue(where(database)).result(timeout=PATIENCE)
            assert (name, closed) == ("treadle handler", True)
        assert app.sync.enqueue(where_async(database)).result(timeout=PATIENCE) == 0


def test_an_app_elsewhere(sqlite_database: str) -> None:
    app = django_app("memory://", work=[where])
    with app.sync:
        assert app.sync.enqueue(where(sqlite_database)).result(timeout=PATIENCE)[1]


def test_a_setting_of_a_task_backend(sqlite_database: str) -> None:
    with task_settings(database=sqlite_database, keep=5, threads=3) as _:
        assert ended_quickly(sqlite_database)


def ended_quickly(database: str) -> bool:
    from tests.contrib.django.conftest import backend_of

    app = backend_of().app
    with app.sync:
        return ended(app, tasks.count_orders.enqueue(database)).status == "SUCCESSFUL"
