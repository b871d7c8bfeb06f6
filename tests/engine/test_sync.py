"""The app for code that is not async (SPEC §4): Flask views, Django views, scripts."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.engine.kit import AT_ONCE, PATIENCE
from treadle import Client, Context, NotFound, Retry, Treadle, UnsupportedError, WorkFailed, work
from treadle.backend import Backend


@work
async def add(a: int, b: int) -> int:
    return a + b


@work
async def fail() -> None:
    raise ValueError("no")


@pytest.fixture
def app(store: Callable[[], Backend]) -> Iterator[Treadle]:
    app = Treadle(store(), work=[add, fail], poll_interval=0.05, retry=AT_ONCE)
    yield app
    app.sync.stop(drain=0)


_others: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _count_own_threads() -> None:
    """An app of a test before this one may not have been collected yet."""
    _others.clear()
    _others.update(threading.enumerate())


def threads() -> set[str]:
    """The threads of `app.sync` that this test has started."""
    return {
        each.name for each in threading.enumerate() if each.name == "treadle sync" and each not in _others
    }


def test_enqueue_and_wait_without_await(app: Treadle) -> None:
    app.sync.start()
    assert app.sync.enqueue(add(1, 2)).result(timeout=PATIENCE) == 3
    assert app.sync.enqueue(add.name, {"a": 3, "b": 4}).group(timeout=PATIENCE) == 7
    handles = app.sync.enqueue_many([add(n, n) for n in range(3)])
    assert [handle.result(timeout=PATIENCE) for handle in handles] == [0, 2, 4]
    with pytest.raises(WorkFailed, match="no"):
        app.sync.enqueue(fail(), delay=0, retry=None).result(timeout=PATIENCE)


def test_an_app_that_is_not_started_only_produces(app: Treadle) -> None:
    handle = app.sync.enqueue(add(1, 2), key="one")
    assert handle.state().status == "ready"
    assert app.sync.enqueue(add(1, 2), key="one").existing
    assert app.sync.cancel(handle.id) == 1
    (state,) = app.sync.get(handle.id)
    assert state is not None
    assert state.status == "cancelled"
    with pytest.raises(NotFound):
        app.sync.handle("missing").state()


def test_stop_ends_the_worker_and_the_loop(app: Treadle) -> None:
    app.sync.start()
    app.sync.start()
    assert app.worker.running
    assert threads()
    app.sync.stop()
    app.sync.stop()
    assert not app.worker.running
    assert not threads()


def test_close_stops_the_worker_first(app: Treadle) -> None:
    app.sync.start()
    app.sync.close()
    assert not app.worker.running
    assert not threads()


def test_an_app_can_be_started_again(app: Treadle) -> None:
    for n in range(2):
        app.sync.start()
        assert app.sync.enqueue(add(n, n)).result(timeout=PATIENCE) == 2 * n
        app.sync.stop()


async def test_sync_calls_work_from_threads_of_a_running_app(store: Callable[[], Backend]) -> None:
    async with Treadle(store(), work=[add]) as app:
        call = asyncio.to_thread(lambda: app.sync.enqueue(add(1, 2)).result(timeout=PATIENCE))
        assert await call == 3
        app.sync.close()  # the loop belongs to the caller and goes on
        assert await app.enqueue(add(2, 2)).result() == 4


async def test_sync_calls_on_the_event_loop_are_refused(store: Callable[[], Backend]) -> None:
    async with Treadle(store(), work=[add]) as app:
        with pytest.raises(RuntimeError, match="would block the event loop"):
            app.sync.enqueue(add(1, 2))


async def test_sync_calls_work_from_a_handler_in_a_thread(store: Callable[[], Backend]) -> None:
    @work(name="outer")
    def outer(ctx: Context, n: int) -> int:
        return app.sync.enqueue(add(n, 1)).result(timeout=PATIENCE)

    async with Treadle(store(), work=[add, outer]) as app:
        assert await app.enqueue(outer(1)).result(timeout=PATIENCE) == 2


async def test_sync_calls_are_refused_on_the_event_loop_of_the_app() -> None:
    """They would wait for themselves. On another loop they only block it."""
    async with Treadle(work=[add]) as app:
        for method, call in (
            ("enqueue", lambda: app.sync.enqueue(add(1, 2))),
            ("pause", lambda: app.sync.pause("mail")),
            ("list", app.sync.dead.list),
        ):
            with pytest.raises(RuntimeError, match=rf"would block .* it runs on: use await {method}\("):
                call()
    other = Treadle(work=[add])
    assert other.sync.enqueue(add(1, 2)).state().status == "ready"
    other.sync.close()
    assert not threads()


def test_operators_work_without_await(app: Treadle) -> None:
    handle = app.sync.enqueue(add(1, 2), workflow="w", delay=60)
    (by_workflow,) = app.sync.workflow("w")
    assert by_workflow.id == handle.id
    assert [item.id for item in app.sync.list("scheduled").items] == [handle.id]
    assert [count.count for count in app.sync.counts()] == [1]
    assert (app.sync.hold(handle.id), app.sync.unhold([handle.id])) == (1, 1)
    app.sync.trigger(handle.id)
    assert handle.state().status == "ready"
    app.sync.complete(handle.id, 8)
    assert handle.result(timeout=PATIENCE) == 8
    group = app.sync.group(handle.group_id)
    assert group is not None
    assert group.value == 8
    assert app.sync.delete(handle.group_id) == 1
    app.sync.pause("mail")
    app.sync.resume("mail")


def test_dead_letters_work_without_await(app: Treadle) -> None:
    with app.sync:
        handle = app.sync.enqueue(fail(), retry=Retry(attempts=1))
        with pytest.raises(WorkFailed, match="no"):
            handle.result(timeout=PATIENCE)
        assert [item.id for item in app.sync.dead.list().items] == [handle.id]
        assert app.sync.dead.requeue(handle.id) == 1
        with pytest.raises(WorkFailed, match="no"):
            handle.result(timeout=PATIENCE)
        assert app.sync.dead.delete() == 1
    assert not app.worker.running
    assert not threads()


def test_leases_and_schedules_work_without_await(app: Treadle) -> None:
    handle = app.sync.enqueue(add(1, 2))
    lease = app.sync.claim_one(lease=30)
    assert lease is not None
    assert (lease.id, lease.type, lease.input, lease.attempt) == (handle.id, add.name, {"a": 1, "b": 2}, 1)
    lease.renew()
    lease.complete(3)
    assert handle.result(timeout=PATIENCE) == 3
    assert app.sync.claim_one() is None

    schedule = app.sync.schedule("often", every=3600, run=lambda: add(4, 4))
    assert schedule.next_at is not None
    with app.sync:
        triggered = app.sync.schedules.trigger("often")
        assert triggered is not None
        assert triggered.result(timeout=PATIENCE) == 8
        assert [each.name for each in app.sync.schedules.list()] == ["often"]
        schedule.pause()
        assert app.sync.schedules.list()[0].paused
        schedule.cancel()
        assert app.sync.schedules.list() == []


def test_tenants_share_the_loop_of_their_app(app: Treadle) -> None:
    acme = app.tenant("acme").sync
    handle = acme.enqueue(add(1, 2))
    assert len(threads()) == 1
    assert app.sync.tenant("acme").get(handle.id)[0] is not None
    assert app.tenant("other").sync.get(handle.id) == [None]
    assert [item.tenant for item in acme.list().items] == ["acme"]
    app.sync.start()
    assert handle.result(timeout=PATIENCE) == 3
    acme.close()
    assert not threads()


def test_a_client_has_a_sync_side(store: Callable[[], Backend]) -> None:
    client = Client(store(), work=[add])
    with client.sync as sync:
        handle = sync.enqueue(add(1, 2))
        assert sync.handle(handle.id).state().status == "ready"
    assert not threads()


def test_call_takes_coroutines_and_enqueues(app: Treadle) -> None:
    app.sync.start()
    handle = app.sync.call(app.enqueue(add(1, 2)))
    assert app.sync.call(handle.result(timeout=PATIENCE)) == 3
    assert app.sync.call(app.enqueue(add(2, 2)).result(timeout=PATIENCE)) == 4
    assert app.sync.call(handle) == 3
    with pytest.raises(TypeError, match="takes a coroutine or an enqueue, as in"):
        app.sync.call(add(1, 2))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:enqueue.*never awaited:RuntimeWarning")
def test_call_refuses_an_enqueue_with_a_connection(tmp_path: Path) -> None:
    app = Treadle(f"sqlite:///{tmp_path}/work.db", work=[add])
    with (
        closing(sqlite3.connect(tmp_path / "work.db")) as db,
        pytest.raises(ValueError, match=r"use app\.sync\.enqueue\(\.\.\., tx=connection\)"),
    ):
        app.sync.call(app.enqueue(add(1, 2), tx=db))


# -- in a transaction of the caller ------------------------------------------------------------------------


def test_a_submit_in_a_sqlite_transaction_runs_in_the_callers_thread(tmp_path: Path) -> None:
    """A connection can be used only by its own thread."""
    app = Treadle(f"sqlite:///{tmp_path}/work.db", work=[add])
    app.sync.start()
    db = sqlite3.connect(tmp_path / "work.db", isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")
        handle = app.sync.enqueue(add(1, 2), tx=db)
        with pytest.raises(NotFound):
            handle.state()
        db.execute("COMMIT")
        assert handle.result(timeout=PATIENCE) == 3

        db.execute("BEGIN IMMEDIATE")
        (gone,) = app.sync.enqueue_many([add(1, 2)], tx=db)
        db.execute("ROLLBACK")
        with pytest.raises(NotFound):
            gone.state()
    finally:
        db.close()
        app.sync.stop()


def test_a_submit_in_a_postgres_transaction_runs_in_the_callers_thread(warm_url: str) -> None:
    app = Treadle(warm_url, work=[add])
    app.sync.start()
    try:
        with psycopg.connect(warm_url) as db:
            used = OneThread(db)
            handle = app.sync.enqueue(add.name, {"a": 1, "b": 2}, tx=used)
            with pytest.raises(NotFound):
                handle.state()
            db.commit()
            assert handle.result(timeout=PATIENCE) == 3
            gone = app.sync.enqueue(add(1, 2), tx=used)
            db.rollback()
            with pytest.raises(NotFound):
                gone.state()
    finally:
        app.sync.stop()


class OneThread:
    """A connection that only its own thread may use, like Django's."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._thread = threading.get_ident()

    def cursor(self) -> psycopg.Cursor:
        assert threading.get_ident() == self._thread
        return self._connection.cursor()


def test_memory_has_no_transactions() -> None:
    app = Treadle(work=[add])
    with pytest.raises(UnsupportedError):
        app.sync.enqueue(add(1, 2), tx=object())
    app.sync.close()


@pytest.mark.parametrize("connect", [asyncpg.connect, psycopg.AsyncConnection.connect])
def test_a_connection_of_an_async_driver_is_refused(warm_url: str, connect: Callable[[str], Any]) -> None:
    app = Treadle(warm_url, work=[add])
    with asyncio.Runner() as runner:
        db = runner.run(connect(warm_url))
        try:
            with pytest.raises(ValueError, match="of a driver that is not async"):
                app.sync.enqueue(add(1, 2), tx=db)
        finally:
            app.sync.close()
            runner.run(db.close())
