"""Claims have a connection of their own. A claim still returns after the calls whose items it leases."""

import asyncio
from pathlib import Path

import pytest

from tests.support.redis_proxy import RedisProxy
from treadle.backends.redis import RedisBackend, link
from treadle.item import Demand, ErrorInfo, Heartbeat, Item, Lease, Settlement, Submission

WORK = 0
"""The first connection of a backend: submissions and settlements go through it."""
LATE = 0.1
"""Seconds by which the answer to a call is late."""


def failed(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="retry", failure=ErrorInfo("ValueError", "no"), ran=0.0)


async def test_a_settlement_is_answered_before_the_claim_of_what_it_released(valkey_url: str) -> None:
    """Else the second attempt of an item is told of before the failure of the first."""
    place, _, number = valkey_url.partition("?db=")
    answered: list[str] = []
    async with RedisProxy(Path(place.partition("://")[2])) as proxy:
        backend = RedisBackend(f"redis://127.0.0.1:{proxy.port}/{number}", notify=False)
        await backend.open()
        await backend.submit([Submission((Item("i1", "a", b"", attempts=None),))])
        await backend.beat(Heartbeat(worker="w", lease=60.0))
        (first,) = (await backend.claim(Demand(worker="w", limit=1))).leases
        await backend.settle([failed(first)])  # the server has the script from now on
        (second,) = (await backend.claim(Demand(worker="w", limit=1))).leases

        async def settle() -> None:
            await backend.settle([failed(second)])
            answered.append("settle")

        async def claim() -> None:
            (again,) = (await backend.claim(Demand(worker="w", limit=1))).leases
            assert (again.id, again.attempt) == ("i1", 3)
            answered.append("claim")

        proxy.hold(WORK)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(settle())
            await proxy.holding.wait()
            claiming = tasks.create_task(claim())
            await asyncio.wait([claiming], timeout=LATE)
            proxy.release()
        await backend.close()
    assert answered == ["settle", "claim"]


async def test_a_claim_does_not_wait_for_long(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of the other calls may hang."""
    monkeypatch.setattr(link, "ORDER_SECONDS", 0.01)
    place, _, number = valkey_url.partition("?db=")
    async with RedisProxy(Path(place.partition("://")[2])) as proxy:
        backend = RedisBackend(f"redis://127.0.0.1:{proxy.port}/{number}", notify=False)
        await backend.open()
        await backend.submit([Submission((Item("i1", "a", b""),))])
        await backend.beat(Heartbeat(worker="w", lease=60.0))
        proxy.hold(WORK)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(backend.submit([Submission((Item("i2", "a", b""),))]))
            await proxy.holding.wait()
            assert len((await backend.claim(Demand(worker="w", limit=2))).leases) == 2
            proxy.release()
        await backend.close()
