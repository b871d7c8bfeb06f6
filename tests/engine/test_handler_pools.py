"""Sync handlers wait for a thread or a process before they begin, and share those of their worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, MakeApp, MakeBackend, Seen, advance_alive, failure, until
from treadle import InputError, Retry, Treadle, Worker, WorkType, work
from treadle.backends.memory import MemoryBackend
from treadle.events import Expired, Failed, Started
from treadle.item import Claim, Demand
from treadle.testing import ManualClock
from treadle.testing.wrap import WrappedBackend

LONG = 600.0


class Blocks:
    """Blocks handlers in threads until the test says `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began: list[str] = []

    def wait(self, name: str) -> None:
        self.began.append(name)
        self.go.wait(PATIENCE)


@pytest.fixture
def blocks() -> Generator[Blocks]:
    blocks = Blocks()
    yield blocks
    blocks.go.set()


def slow_and_quick(blocks: Blocks) -> tuple[WorkType[[], None, None], WorkType[[], None, None]]:
    """A type whose handler blocks its thread, and one that only notes that it began."""

    @work(name="slow")
    def slow() -> None:
        blocks.wait("slow")

    @work(name="quick")
    def quick() -> None:
        blocks.began.append("quick")

    return slow, quick


class Generous(WrappedBackend):
    """Hands out more items than there are threads, as a backend may that ignores `Demand.shared`."""

    async def claim(self, demand: Demand) -> Claim:
        return await super().claim(msgspec.structs.replace(demand, shared=()))


@work(name="plain")
async def plain() -> None: ...


async def test_types_share_the_threads(make_app: MakeApp, blocks: Blocks) -> None:
    """No more items are leased than can begin. Each type was given the room of all threads."""

    @work(name="one")
    def one() -> None:
        blocks.wait("one")

    @work(name="two")
    def two() -> None:
        blocks.wait("two")

    @work(name="three")
    def three() -> None:
        blocks.wait("three")

    async with make_app(one, two, three, plain, threads=4) as app:
        handles = await app.enqueue_many([type() for type in (one, two, three) for _ in range(5)])
        await until(lambda: len(blocks.began) == 4)
        for _ in range(3):  # the worker goes on to claim for its other types
            await app.enqueue(plain()).result(PATIENCE)
        assert len([lease for lease in app.active() if lease.type != "plain"]) == 4
        blocks.go.set()
        for handle in handles:
            await handle.result(PATIENCE)
    assert len(blocks.began) == 15


async def test_batches_lease_no_more_than_their_threads_can_take(make_app: MakeApp, blocks: Blocks) -> None:
    """Besides the batches that run, items wait for the next one at most."""

    @work.batch(size=2, max_wait=LONG, name="pairs")
    def pairs(numbers: list[int]) -> list[int]:
        blocks.wait("pairs")
        return numbers

    async with make_app(pairs, plain, threads=2) as app:
        handles = await app.enqueue_many([pairs(n) for n in range(20)])
        await until(lambda: len(blocks.began) == 2)
        for _ in range(3):
            await app.enqueue(plain()).result(PATIENCE)
        assert len([lease for lease in app.active() if lease.type == "pairs"]) == 4
        blocks.go.set()
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(20))


async def test_a_timeout_does_not_count_the_wait_for_a_thread(blocks: Blocks) -> None:
    """The attempt failed before its handler began. The handler then ran for it, beside the retry."""
    clock, seen = ManualClock(), Seen()

    @work(name="slow")
    def slow() -> None:
        blocks.wait("slow")

    @work(name="quick", timeout=5, retry=AT_ONCE)
    def quick() -> None:
        blocks.began.append("quick")

    @work.batch(size=1, name="batch", timeout=5, retry=AT_ONCE)
    def batch(numbers: list[int]) -> list[int]:
        blocks.began.append("batch")
        return numbers

    backend = Generous(MemoryBackend(clock=clock))
    app = Treadle(backend, work=[slow, quick, batch], threads=1, clock=clock, on_event=seen)
    handles = await app.enqueue_many([slow(), quick(), batch(1)])
    async with app:
        await until(lambda: blocks.began and len(app.active()) == 3)
        await advance_alive(app, clock, 12)
        assert [event.type for event in seen.of(Started)] == ["slow"]
        blocks.go.set()
        for handle in handles:
            await handle.result(PATIENCE)
    assert (sorted(blocks.began), seen.of(Failed)) == (["batch", "quick", "slow"], [])


async def test_an_item_that_expires_while_it_waits_for_a_thread_does_not_run(
    make_app: MakeApp, store: MakeBackend, blocks: Blocks
) -> None:
    """It ends at its deadline. Its handler does not run later."""
    seen = Seen()

    slow, quick = slow_and_quick(blocks)
    backend = Generous(store())
    async with make_app(slow, quick, backend=backend, threads=1, on_event=seen) as app:
        handle, late = await app.enqueue(slow()), await app.enqueue(quick(), expires_in=0.3)
        await seen.until(Expired, late.id)
        blocks.go.set()
        await handle.result(PATIENCE)
        assert (await failure(late.result(PATIENCE))).reason == "expired"
        assert await app.enqueue(quick()).result(PATIENCE) is None
    assert blocks.began == ["slow", "quick"]


async def test_stop_gives_back_an_item_that_waits_for_a_thread(
    make_app: MakeApp, store: MakeBackend, blocks: Blocks
) -> None:
    """Its handler does not begin any more, and no attempt is counted."""

    slow, quick = slow_and_quick(blocks)
    app = make_app(slow, quick, backend=Generous(store()), threads=1)
    handles = await app.enqueue_many([slow(), quick()])
    await app.start()
    await until(lambda: blocks.began and len(app.active()) == 2)
    await app.stop(drain=0)
    other = make_app(slow, quick)
    state = await other.handle(handles[1].id).state()
    assert (state.status, state.history, blocks.began) == ("ready", (), ["slow"])


async def test_a_thread_that_outlives_its_attempt_is_used_when_it_ends(
    make_app: MakeApp, blocks: Blocks
) -> None:
    """The worker claims at once, and not when it polls. The timeout leaves time to begin: a
    handler that has not begun occupies no thread."""

    @work(name="hangs", timeout=0.5, retry=Retry(attempts=1))
    def hangs() -> None:
        blocks.wait("hangs")

    @work(name="quick")
    def quick() -> int:
        return 1

    async with make_app(hangs, quick, plain, threads=1, poll_interval=LONG) as app:
        assert (await failure(app.enqueue(hangs()).result(PATIENCE))).error_type == "AttemptTimeout"
        assert blocks.began == ["hangs"]
        handle = await app.enqueue(quick())
        await app.enqueue(plain()).result(PATIENCE)
        assert (await handle.state()).status == "ready"
        blocks.go.set()
        assert await handle.result(PATIENCE) == 1


# ------------------------------------------------------------------------------------------------- processes


def _wait_for(path: str) -> None:
    until = time.monotonic() + PATIENCE
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.005)


@work(name="first", run_in="process")
def first_in_process(path: str) -> int:
    _wait_for(path)
    return 1


@work(name="second", run_in="process", timeout=PATIENCE)
def second_in_process() -> int:
    return 2


@pytest.mark.usefixtures("processes")
async def test_types_share_the_processes(tmp_path: Path) -> None:
    app = Treadle(MemoryBackend(), work=[first_in_process, second_in_process, plain], processes=1)
    first, second = await app.enqueue_many([first_in_process(str(tmp_path / "go")), second_in_process()])
    async with app:
        for _ in range(3):
            await app.enqueue(plain()).result(PATIENCE)
        assert len([lease for lease in app.active() if lease.type != "plain"]) == 1
        (tmp_path / "go").touch()
        assert (await first.result(PATIENCE), await second.result(PATIENCE)) == (1, 2)


# --------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("option", ["threads", "processes"])
@pytest.mark.parametrize("count", [0, -1, "4", 1.5, True])
def test_numbers_of_threads_and_processes_are_checked(option: str, count: Any) -> None:
    """With none, sync items waited for ever. With text, the worker claimed nothing at all."""
    settings: dict[str, Any] = {option: count}
    with pytest.raises(InputError, match=f"{option}=.* must be a whole number, 1 or more"):
        Treadle(MemoryBackend(), **settings)
    with pytest.raises(InputError, match=option):
        Worker(Treadle(MemoryBackend()), **settings)


def test_the_number_of_threads_is_needed() -> None:
    none: Any = None
    with pytest.raises(InputError, match="threads"):
        Treadle(MemoryBackend(), threads=none)
