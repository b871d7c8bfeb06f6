"""Kept reads: many who look at a page cost one read."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from treadle import Client, Treadle
from treadle.backends.memory import MemoryBackend
from treadle.dashboard import Access, dashboard
from treadle.dashboard.live import KEPT_SECONDS, KeptReads
from treadle.errors import StoreUnavailable
from treadle.testing.counting import CountingBackend


async def test_those_who_ask_at_once_share_a_read_which_is_kept_for_a_second() -> None:
    now, begun = 0.0, 0
    reads = KeptReads(lambda: now)
    go_on = asyncio.Event()

    async def read() -> object:
        nonlocal begun
        begun += 1
        await go_on.wait()
        return begun

    asking = [asyncio.ensure_future(reads.get("page", read)) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()  # one who leaves does not end it for the others
    go_on.set()
    assert await asyncio.gather(*asking[1:]) == [1] * 49
    assert await reads.get("page", read) == 1
    assert await reads.get("another", read) == 2
    now += KEPT_SECONDS
    assert await reads.get("page", read) == 3
    reads.forget()
    assert await reads.get("page", read) == 4


async def test_an_error_is_shared_and_kept_too() -> None:
    """A store in trouble is not asked more often."""
    now, begun = 0.0, 0
    reads = KeptReads(lambda: now)

    async def read() -> object:
        nonlocal begun
        begun += 1
        raise StoreUnavailable("it is away")

    for count in (1, 1, 2):
        with pytest.raises(StoreUnavailable):
            await reads.get("page", read)
        assert begun == count
        now += KEPT_SECONDS * 0.6


async def test_fifty_tabs_cost_one_read() -> None:
    store = CountingBackend(MemoryBackend())
    site = dashboard(Client(store), access=lambda _: Access(actor="ana"))
    transport = httpx.ASGITransport(site)
    async with Treadle(store), httpx.AsyncClient(transport=transport, base_url="http://x") as browser:
        await browser.get("/queues")
        store.reset()
        answers = await asyncio.gather(*(browser.get("/", headers={"x-fragment": "main"}) for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert 0 < store.total() <= 6
