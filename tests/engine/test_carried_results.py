"""Results in wake-ups: what another process has run is answered without a read, on stores that carry it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, MakeBackend, failure, until
from treadle import Client, Context, Result, Retry, work
from treadle.backend import Backend, carries_results
from treadle.item import Wake, WakeResult
from treadle.testing import CountingBackend

pytestmark = pytest.mark.every_store

LARGE = 20_000


@work(name="plus_one")
async def plus_one(n: int) -> int:
    return n + 1


@work(name="nothing")
async def nothing() -> int | None:
    return None


@work(name="text")
async def text(size: int) -> str:
    return "x" * size


@work(name="broken", retry=Retry(attempts=1))
async def broken() -> int:
    raise ValueError("broken")


@work(name="children")
async def children(ctx: Context) -> Result[None, int]:
    return ctx.queue(plus_one(6))


@pytest.fixture
def make_client(store: MakeBackend) -> Callable[[], tuple[Client, CountingBackend]]:
    """A client whose calls are counted, and that does not poll."""

    def make() -> tuple[Client, CountingBackend]:
        counted = CountingBackend(store())
        return Client(counted, work=[plus_one, nothing, text, broken], poll_interval=600), counted

    return make


MakeClient = Callable[[], tuple[Client, CountingBackend]]


def reads(backend: Backend) -> int:
    """How many reads an item takes that a wake-up tells of."""
    return 0 if carries_results(backend) else 1


async def test_a_result_of_another_process_takes_no_read(make_app: MakeApp, make_client: MakeClient) -> None:
    client, counted = make_client()
    async with make_app(plus_one, nothing), client:
        await client.enqueue(plus_one(0)).result(PATIENCE)
        counted.reset()
        assert await client.enqueue(plus_one(1)).result(PATIENCE) == 2
        assert await client.enqueue(nothing()).result(PATIENCE) is None
        assert await client.enqueue(plus_one(2)).group(PATIENCE) == 3
        assert counted.calls["ended"] == 3 * reads(counted)


async def test_a_handle_reads_once_before_it_waits(make_app: MakeApp, make_client: MakeClient) -> None:
    """The item may have ended before. Then no wake-up comes."""
    client, counted = make_client()
    barrier = Barrier()

    @work(name="plus_one")
    async def slow(n: int) -> int:
        await barrier.wait()
        return n + 1

    async with make_app(slow), client:
        handle = await client.enqueue(plus_one(1))
        counted.reset()
        waiting = [asyncio.ensure_future(wait) for wait in (handle.result(PATIENCE), handle.group(PATIENCE))]
        await barrier.reached()
        await until(lambda: counted.sizes["ended"])
        barrier.go.set()
        assert await asyncio.gather(*waiting) == [2, 2]
        assert counted.calls["ended"] == 2, "nobody had told the worker that somebody waits"


async def test_results_are_carried_only_if_a_process_waits(
    make_app: MakeApp, make_client: MakeClient, store: MakeBackend
) -> None:
    client, counted = make_client()
    other, seen = store(), list[Wake]()
    await other.open()
    await other.subscribe(seen.append)

    def carried() -> list[bool]:
        return [bool(wake.results) for wake in seen if wake.items]

    async with make_app(plus_one), client:
        await client.enqueue(plus_one(1))
        await until(carried)
        assert carried() == [False]
        seen.clear()
        async with asyncio.timeout(PATIENCE):
            while carried() != [bool(carries_results(counted))]:
                # A worker that hears too late that a process waits carries the next result.
                seen.clear()
                await client.enqueue(plus_one(2)).result(PATIENCE)
                await until(carried)
    await other.close()


async def test_a_large_result_is_read(make_app: MakeApp, make_client: MakeClient) -> None:
    client, _ = make_client()
    async with make_app(text), client:
        sizes = [1, 400, LARGE, 499, 501, 2]
        found = await asyncio.gather(*[client.enqueue(text(size)).result(PATIENCE) for size in sizes])
        assert [len(each) for each in found] == sizes


async def test_a_failure_is_read(make_app: MakeApp, make_client: MakeClient) -> None:
    client, _ = make_client()
    async with make_app(broken), client:
        error = await failure(client.enqueue(broken()).result(PATIENCE))
        assert (error.reason, error.error_type) == ("exhausted", "ValueError")


async def test_many_results_arrive(make_app: MakeApp, make_client: MakeClient) -> None:
    """More than one wake-up can name."""
    client, _ = make_client()
    async with make_app(plus_one), client:
        found = await asyncio.gather(*[client.enqueue(plus_one(n)).result(PATIENCE) for n in range(400)])
        assert found == list(range(1, 401))


async def test_a_group_with_other_members_is_read(make_app: MakeApp, store: MakeBackend) -> None:
    """The result of its root is carried, and does not end the group."""
    client = Client(store(), work=[children, plus_one], poll_interval=600)
    async with make_app(children, plus_one), client:
        handle = await client.enqueue(children())
        _, whole = await asyncio.gather(handle.result(PATIENCE), handle.group(PATIENCE))
        assert whole == 7


async def test_the_result_of_an_earlier_item_with_the_same_id_is_ignored(
    make_app: MakeApp, make_client: MakeClient, store: MakeBackend
) -> None:
    """A wake-up may come late: the item was removed, and its id is used again."""
    client, counted = make_client()
    other = store()
    async with client:
        waiting = asyncio.ensure_future(client.enqueue(plus_one(1), id="again").result(PATIENCE))
        await other.open()
        ref = ("default", "again")
        await until(lambda: ref in client._core.waiters.items.queued_at)  # pyright: ignore[reportPrivateUsage]
        counted.reset()
        await other.publish(
            Wake(sender="other", items=(ref,), results=(WakeResult("plus_one", 1.0, b"99", ends_group=True),))
        )
        await until(lambda: counted.sizes["ended"])
        async with make_app(plus_one):
            assert await waiting == 2
