"""An app that outlives its event loop, that is carried into a forked process, or is used while it closes."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.engine.kit import PATIENCE, MakeApp, until
from treadle import Client, Stopped, Treadle, Worker, work
from treadle.backend import Backend
from treadle.doers import balanced


@work
async def add(a: int, b: int) -> int:
    return a + b


@work
async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def make(store: Callable[[], Backend], **settings: Any) -> Treadle:
    types = [add, wait_for_ever]
    return Treadle(store(), work=types, poll_interval=0.05, lease=5, doer=balanced(4), **settings)


# -- a second event loop -------------------------------------------------------------------------------------


@pytest.fixture
def nothing_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.usefixtures("nothing_logged")
def test_an_app_starts_anew_on_a_second_event_loop(store: Callable[[], Backend]) -> None:
    """`asyncio.run` again and again, without a close. Items stay. Handlers that ran on a closed loop do not
    count as running."""
    app = make(store)
    ids: list[str] = []

    async def use(n: int) -> None:
        for id in ids:
            assert await app.handle(id).result(PATIENCE) == 2
        await app.start()
        assert app.worker.running
        assert await app.enqueue(add(n, 1)).result(PATIENCE) == n + 1
        handle = await app.enqueue(add(1, 1))
        assert await handle.result(PATIENCE) == 2
        ids.append(handle.id)
        stuck = await app.enqueue(wait_for_ever())
        await until(lambda: len(app.active()) == 1)
        await stuck.cancel()

    for n in range(6):
        asyncio.run(use(n))
        assert not app.worker.running
    asyncio.run(app.stop())


@pytest.mark.usefixtures("nothing_logged")
def test_an_app_that_was_stopped_starts_anew_on_a_second_event_loop(store: Callable[[], Backend]) -> None:
    """Callers wait long enough for the reader of results to wait too, on both loops."""
    app = make(store)

    @app.work(name="pause")
    async def pause() -> str:
        await asyncio.sleep(0.1)
        return "done"

    async def use() -> None:
        await asyncio.gather(app.start(), app.start())
        async with app:
            handles = await app.enqueue_many([pause(), pause()])
            assert await asyncio.gather(*(handle.result(PATIENCE) for handle in handles)) == ["done"] * 2

    for _ in range(3):
        asyncio.run(use())


@pytest.mark.usefixtures("nothing_logged")
def test_a_client_on_many_loops_leaves_no_connections(prepared_url: str) -> None:
    """Neither one app on many loops, nor an app for each loop."""
    with psycopg.connect(prepared_url, autocommit=True) as db:
        count = "select count(*) from pg_stat_activity where datname = current_database()"
        app = Treadle(prepared_url, work=[add])
        apps = [app] * 8 + [Treadle(prepared_url, work=[add]) for _ in range(4)]
        for each in apps:

            async def use(each: Treadle = each) -> None:
                await each.enqueue(add(1, 2))

            asyncio.run(use())
        deadline = time.monotonic() + PATIENCE  # the server ends a session after its client has left
        while (row := db.execute(count).fetchone()) and row[0] > 1 + 2 * 5:
            assert time.monotonic() < deadline, "of each app those of its last loop at most"
            time.sleep(0.01)
        for each in {id(each): each for each in apps}.values():
            asyncio.run(each.close())


def test_an_app_in_use_on_another_loop_is_refused(store: Callable[[], Backend]) -> None:
    app = make(store)
    app.sync.enqueue(add(1, 2))

    async def use() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await app.enqueue(add(1, 2))

    asyncio.run(use())
    app.sync.close()


# -- a fork --------------------------------------------------------------------------------------------------


class Forked:
    """A child process that runs a function and sends back what it returns."""

    def __init__(self, function: Callable[[], Any]) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            try:
                answer = function()
            except BaseException:  # noqa: BLE001  for the parent
                answer = traceback.format_exc()
            os.write(writer, pickle.dumps(answer))
            os._exit(0)
        os.close(writer)
        self._reader = reader

    def answer(self) -> Any:
        """What the function returned. A child that hangs is killed."""
        ready, _, _ = select.select([self._reader], [], [], 2 * PATIENCE)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        with os.fdopen(self._reader, "rb") as file:
            data = file.read()
        os.waitpid(self.pid, 0)
        assert ready, "the forked process hangs"
        return pickle.loads(data)


@pytest.mark.every_store
@pytest.mark.usefixtures("processes")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_an_app_starts_anew_in_a_forked_process(store: Callable[[], Backend]) -> None:
    """As under `gunicorn --preload`, after the first use, with a worker that runs. Each process has a worker
    of its own. The parent goes on as if nothing had happened."""
    app = make(store)
    app.sync.start()
    app.sync.enqueue(add(1, 2)).result(timeout=PATIENCE)

    def child() -> Any:
        app.sync.start()
        values = [app.sync.enqueue(add(n, n)).result(timeout=PATIENCE) for n in range(3)]
        worker = app.worker.id
        app.sync.stop()
        return values, worker

    children = [Forked(child) for _ in range(2)]
    assert app.sync.enqueue(add(2, 2)).result(timeout=PATIENCE) == 4
    (values, first), (others, second) = [each.answer() for each in children]
    assert values == others == [0, 2, 4]
    assert len({first, second, app.worker.id}) == 3
    assert app.sync.enqueue(add(3, 3)).result(timeout=PATIENCE) == 6
    app.sync.stop()


@pytest.mark.every_store
@pytest.mark.usefixtures("processes")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_writes_on_after_its_parent_has_closed(store: Callable[[], Backend]) -> None:
    """A SQLite connection that was opened beside inherited ones would hold no lock: the last close of the
    parent would remove the log into which the child writes."""
    app = make(store)
    if type(app.backend).__name__ == "MemoryBackend":
        pytest.skip("memory is not shared with a forked process")
    app.sync.enqueue(add(0, 0))
    go_reader, go_writer = os.pipe()
    opened_reader, opened_writer = os.pipe()

    def child() -> Any:
        ids = [app.sync.enqueue(add(0, 1)).id]
        os.write(opened_writer, b".")
        os.read(go_reader, 1)
        return [*ids, app.sync.enqueue(add(0, 2)).id]

    forked = Forked(child)
    os.read(opened_reader, 1)
    app.sync.close()
    os.write(go_writer, b".")
    ids = forked.answer()
    assert isinstance(ids, list), ids
    assert all(app.sync.get(ids))
    app.sync.close()
    for end in (go_reader, go_writer, opened_reader, opened_writer):
        os.close(end)


# -- while it closes -----------------------------------------------------------------------------------------


async def test_an_enqueue_while_the_app_closes_is_refused(make_app: MakeApp) -> None:
    """At once, at every step of the close, and nothing is stored."""
    app = make_app(add)
    for step in range(12):
        await app.enqueue(add(1, 2))
        closing = asyncio.ensure_future(app.close())
        for _ in range(step + 1):
            await asyncio.sleep(0)
        late = add(2, 2)
        if closing.done():
            break
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Stopped):
                await app.enqueue(late)
            with pytest.raises(Stopped):
                await app.enqueue(late).result()
            await asyncio.gather(closing, app.close())
        assert await app.get([late.id]) == [None]


@pytest.mark.usefixtures("nothing_logged")
async def test_a_close_stops_the_worker_first(make_app: MakeApp) -> None:
    """As the end of `async with` does. The store was closed under the worker."""
    started = asyncio.Event()

    @work(name="pause")
    async def pause() -> str:
        started.set()
        await asyncio.sleep(0.1)
        return "done"

    app = make_app(pause)
    await app.start()
    handle = await app.enqueue(pause())
    await started.wait()
    await app.close()
    assert not app.worker.running
    assert (await app.handle(handle.id).state()).result == "done"


@pytest.mark.usefixtures("nothing_logged")
async def test_a_client_that_closes_stops_its_workers(store: Callable[[], Backend]) -> None:
    client = Client(store(), work=[add])
    workers = [Worker(client), Worker(client)]
    for worker in workers:
        await worker.start()
    assert await client.enqueue(add(1, 2)).result(PATIENCE) == 3
    await client.close()
    assert not any(worker.running for worker in workers)


@pytest.mark.usefixtures("nothing_logged")
def test_a_sync_close_stops_the_worker_first(store: Callable[[], Backend]) -> None:
    app = make(store)
    app.sync.start()
    assert app.sync.enqueue(add(1, 2)).result(PATIENCE) == 3
    app.sync.close()
    assert not app.worker.running


def test_calls_from_threads_while_the_app_closes_end(store: Callable[[], Backend]) -> None:
    """Each is answered, or raises `Stopped`. What raised is not stored."""
    app = make(store)
    stored: list[str] = []
    refused: list[str] = []
    other: list[BaseException] = []

    def enqueue() -> None:
        for n in range(40):
            one = add(n, n)
            try:
                app.sync.enqueue(one)
                stored.append(one.id)
            except Stopped:
                refused.append(one.id)
            except BaseException as error:  # noqa: BLE001  it is shown below
                other.append(error)

    threads = [threading.Thread(target=enqueue, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        app.sync.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert other == []
    assert all(app.sync.get(stored))
    assert not any(app.sync.get(refused))
    app.sync.close()
