"""An enqueue in a transaction of Django: the item exists if and only if the block commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.db import IntegrityError, connections, transaction

from tests.contrib.django.conftest import backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Order
from tests.contrib.django.test_backend import ended
from treadle import InputError, Treadle
from treadle.contrib.django import TreadleBackend
from treadle.contrib.django.backend import PendingSubmit
from treadle.contrib.django.django_api import TaskResultDoesNotExist, task_enqueued
from treadle.contrib.django.stores import is_store, postgres_url


class Undo(Exception):
    """Rolls a transaction back."""


def exists(id: str) -> bool:
    try:
        return backend_of().get_result(id).id == id
    except TaskResultDoesNotExist:
        return False


@pytest.fixture
def enqueued() -> Iterator[list[str]]:
    """The ids that `task_enqueued` has named."""
    ids: list[str] = []

    def note(task_result: object, **_: object) -> None:
        ids.append(task_result.id)  # type: ignore[attr-defined]

    task_enqueued.connect(note)  # type: ignore[attr-defined]
    yield ids
    task_enqueued.disconnect(note)  # type: ignore[attr-defined]


def test_a_commit_stores_both(backend: TreadleBackend, database: str, enqueued: list[str]) -> None:
    with transaction.atomic(using=database):
        Order.objects.using(database).create(number=1)
        result = tasks.add.enqueue(1)
        assert not exists(result.id), "it is only in the transaction"
        assert (result.enqueued_at, enqueued) == (None, [])

    assert exists(result.id)
    assert enqueued == [result.id]
    assert result.enqueued_at is not None
    assert Order.objects.using(database).count() == 1
    assert backend.get_result(result.id) == result


def test_a_rollback_undoes_both(backend: TreadleBackend, database: str, enqueued: list[str]) -> None:
    with suppress(Undo), transaction.atomic(using=database):
        Order.objects.using(database).create(number=1)
        result = tasks.add.enqueue(1)
        raise Undo

    assert not exists(result.id)
    assert (result.enqueued_at, enqueued) == (None, [])
    assert Order.objects.using(database).count() == 0
    assert backend.app.sync.list().items == ()


def test_a_savepoint_undoes_what_was_enqueued_in_it(backend: TreadleBackend, database: str) -> None:
    with transaction.atomic(using=database):
        kept = tasks.add.enqueue(1)
        with suppress(Undo), transaction.atomic(using=database):
            undone = tasks.add.enqueue(2)
            raise Undo
        late = tasks.add.enqueue(3)

    assert [exists(each.id) for each in (kept, undone, late)] == [True, False, True]


def test_a_failed_statement_undoes_it(backend: TreadleBackend, database: str) -> None:
    with suppress(IntegrityError), transaction.atomic(using=database):
        result = tasks.add.enqueue(1)
        Order.objects.using(database).create(id=1, number=1)
        Order.objects.using(database).create(id=1, number=1)
    assert not exists(result.id)


def test_a_worker_runs_it_after_the_commit(worker: Treadle, database: str) -> None:
    with transaction.atomic(using=database):
        result = tasks.count_orders.enqueue(database)
        Order.objects.using(database).create(number=1)
    assert ended(worker, result).return_value == 1


def test_an_enqueue_outside_of_a_transaction_is_stored_at_once(
    backend: TreadleBackend, database: str
) -> None:
    Order.objects.using(database).create(number=1)
    assert exists(tasks.add.enqueue(1).id)


def test_a_transaction_without_autocommit_counts_too(backend: TreadleBackend, database: str) -> None:
    transaction.set_autocommit(False, using=database)
    try:
        Order.objects.using(database).create(number=1)
        result = tasks.add.enqueue(1)
        transaction.rollback(using=database)
    finally:
        transaction.set_autocommit(True, using=database)
    assert not exists(result.id)


async def test_a_key_in_two_transactions(backend: TreadleBackend, database: str) -> None:
    # In a thread: Django refuses its connections on an event loop.
    from asgiref.sync import sync_to_async

    def enqueue() -> tuple[str, str, str]:
        task = tasks.add.using(key="order 1")
        with transaction.atomic(using=database):
            first, second = task.enqueue(1), task.enqueue(2)
        return first.id, second.id, task.enqueue(3).id

    assert len(set(await sync_to_async(enqueue)())) == 1
    await sync_to_async(connections.close_all)()


# -- elsewhere, and after the commit -------------------------------------------------------------------


def test_another_store_waits_for_the_commit(database: str, enqueued: list[str]) -> None:
    with task_settings(url="memory://"):
        with transaction.atomic(using=database):
            result = tasks.add.using(database=database).enqueue(1)
            assert result.enqueued_at is None
            assert not exists(result.id)
            assert enqueued == []
        assert exists(result.id)
        assert enqueued == [result.id]
        assert backend_of().get_result(result.id) == result

        with suppress(Undo), transaction.atomic(using=database):
            undone = tasks.add.using(database=database).enqueue(1)
            raise Undo
        assert not exists(undone.id)


def test_on_commit_if_it_is_asked_for(database: str) -> None:
    with task_settings(database=database, transaction="on_commit"):
        with transaction.atomic(using=database):
            Order.objects.using(database).create(number=1)
            result = tasks.add.enqueue(1)
            assert result.enqueued_at is None
        assert exists(result.id)


def test_now_if_it_is_asked_for(postgres_database: str) -> None:
    with task_settings(database=postgres_database, transaction="now"):
        with suppress(Undo), transaction.atomic(using=postgres_database):
            result = tasks.add.enqueue(1)
            raise Undo
        assert exists(result.id)


def test_a_transaction_of_another_database_is_no_matter(sqlite_database: str, postgres_database: str) -> None:
    with task_settings(database=sqlite_database), transaction.atomic(using=postgres_database):
        assert exists(tasks.add.enqueue(1).id)


def test_a_task_may_name_the_database_that_decides(sqlite_database: str, postgres_database: str) -> None:
    with task_settings(database=sqlite_database):
        task = tasks.add.using(database=postgres_database)
        with suppress(Undo), transaction.atomic(using=postgres_database):
            undone = task.enqueue(1)
            raise Undo
        with transaction.atomic(using=postgres_database):
            waiting = task.enqueue(1)
            assert not exists(waiting.id)
        assert (exists(undone.id), exists(waiting.id)) == (False, True)


def test_the_same_transaction_of_another_database_is_refused(
    sqlite_database: str, postgres_database: str
) -> None:
    with task_settings(database=sqlite_database, transaction="same"):
        backend_of().app.sync.connect()
        with transaction.atomic(using=postgres_database), pytest.raises(InputError, match="PostgreSQL"):
            tasks.add.using(database=postgres_database).enqueue(1)


def test_the_store_of_an_app_is_recognised(sqlite_database: str, postgres_database: str) -> None:
    path = connections[sqlite_database].settings_dict["NAME"]
    url = postgres_url(connections[postgres_database].settings_dict)
    apps = {
        sqlite_database: Treadle(f"sqlite:///{path}"),
        postgres_database: Treadle(url),
        "default": Treadle(),
    }
    for name, app in apps.items():
        for alias in apps:
            assert is_store(alias, app.backend) == (alias == name != "default")


def test_a_url_of_a_database_of_django_is_in_its_transactions(postgres_database: str) -> None:
    with task_settings(url=postgres_url(connections[postgres_database].settings_dict)):
        assert backend_of().database == postgres_database
        with suppress(Undo), transaction.atomic(using=postgres_database):
            result = tasks.add.enqueue(1)
            waiting = [type(each[1]) for each in connections[postgres_database].run_on_commit]
            assert PendingSubmit not in waiting, "it is in the transaction"
            raise Undo
        assert not exists(result.id)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "", "PORT": ""}, "postgresql:///shop"),
        (
            {"NAME": "a/b", "USER": "ann@x", "PASSWORD": "p:w/d", "HOST": "db", "PORT": 5433},
            "postgresql://ann%40x:p%3Aw%2Fd@/a%2Fb?host=db&port=5433",
        ),
        (
            {
                "NAME": "shop",
                "USER": "ann",
                "PASSWORD": "",
                "HOST": "/run/pg",
                "PORT": "",
                "OPTIONS": {"sslmode": "require", "pool": True},
            },
            "postgresql://ann@/shop?sslmode=require&host=%2Frun%2Fpg",
        ),
    ],
)
def test_the_url_of_a_database(settings: dict[str, object], url: str) -> None:
    assert postgres_url(settings) == url
