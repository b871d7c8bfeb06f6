"""The system cannot start threads for sync handlers."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engine.kit import PATIENCE, MakeApp, until_status
from treadle import Context, Retry, work
from treadle.engine.run import attempt, built_in, decide


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No thread for a handler, a process or a large input can be started while it is set. Items that were not
    started are tried again soon."""
    for module in (decide, built_in, attempt):
        monkeypatch.setattr(module, "NOT_STARTED_DELAY", 0.1)
    short, start = threading.Event(), threading.Thread.start

    def start_if_possible(self: threading.Thread) -> None:
        if short.is_set() and self.name.startswith(("treadle handler", "treadle-process", "asyncio_")):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_if_possible)
    return short


async def test_items_wait_until_threads_can_be_started(
    make_app: MakeApp, shortage: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """No attempt is counted. Each handler runs once: it ran once more for each attempt that had failed."""
    runs: list[tuple[int, int]] = []

    @work(name="sync", retry=Retry(attempts=1))
    def sync(ctx: Context, n: int) -> int:
        runs.append((n, ctx.attempt))
        return n

    shortage.set()
    async with make_app(sync) as app:
        handles = await app.enqueue_many([sync(n) for n in range(3)])
        for handle in handles:
            await until_status(app, handle.id, "scheduled")
        shortage.clear()
        assert [await handle.result(PATIENCE) for handle in handles] == [0, 1, 2]
        states = [await handle.state() for handle in handles]
    assert sorted(runs) == [(n, 1) for n in range(3)]
    assert {(state.attempt, state.failures, state.losses) for state in states} == {(1, 0, 0)}
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "can't start new thread" in line


async def test_a_thread_that_runs_takes_the_calls_of_those_that_could_not_start(
    make_app: MakeApp, shortage: threading.Event
) -> None:
    first, go = threading.Event(), threading.Event()

    @work(name="sync", retry=Retry(attempts=1))
    def sync(n: int) -> int:
        first.set()
        go.wait(PATIENCE)
        return n

    async with make_app(sync) as app:
        handles = [await app.enqueue(sync(0))]
        await asyncio.to_thread(first.wait, PATIENCE)
        shortage.set()
        handles += await app.enqueue_many([sync(n) for n in (1, 2)])
        for handle in handles:
            await until_status(app, handle.id, "running")
        go.set()
        assert [await handle.result(PATIENCE) for handle in handles] == [0, 1, 2]
        assert {(await handle.state()).attempt for handle in handles} == {1}


@pytest.mark.parametrize("in_batches", [False, True])
async def test_items_wait_until_large_inputs_can_be_read(
    make_app: MakeApp, shortage: threading.Event, in_batches: bool
) -> None:
    """They are read in threads. No attempt is counted."""

    @work(name="length", retry=Retry(attempts=1))
    async def length(text: str) -> int:
        return len(text)

    @work.batch(name="lengths", size=2, max_wait=0.1, retry=Retry(attempts=1))
    async def lengths(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    large = "x" * 100_000
    async with make_app(length, lengths) as app:
        handle = await app.enqueue(lengths(large) if in_batches else length(large))
        assert await handle.result(PATIENCE) == len(large)  # what else needs threads has them now
        shortage.set()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
        handle = await app.enqueue(lengths(large) if in_batches else length(large))
        await until_status(app, handle.id, "scheduled")
        shortage.clear()
        assert await handle.result(PATIENCE) == len(large)
        assert (await handle.state()).attempt == 1


@pytest.mark.usefixtures("processes")
async def test_items_wait_until_a_process_can_be_watched(
    make_app: MakeApp, shortage: threading.Event
) -> None:
    """A thread watches each process of a handler."""
    shortage.set()
    async with make_app(doubled, processes=1) as app:
        handle = await app.enqueue(doubled(2))
        await until_status(app, handle.id, "scheduled")
        shortage.clear()
        assert await handle.result(PATIENCE) == 4
        assert (await handle.state()).attempt == 1


@work(name="doubled", run_in="process", retry=Retry(attempts=1))
def doubled(n: int) -> int:
    return 2 * n
