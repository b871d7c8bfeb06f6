"""PostgreSQL: the network drops everything and closes nothing."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests.backends.postgres_store import opened
from tests.support.pooler import Pooler
from tests.support.proxy import Proxy
from treadle import StoreUnavailable, Treadle, WaitTimeout, work
from treadle.backends.postgres import PostgresBackend, connection, connector, link
from treadle.engine import store_retry
from treadle.item import Wake
from treadle.testing.contract.wakeups import WakeRecorder

SOON = 4.0
"""Three seconds, as documented, and one for a busy machine."""


@work(name="echo")
async def echo(n: int) -> int:
    return n


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is noticed four times as fast."""
    monkeypatch.setattr(link, "LATE", 0.3)
    monkeypatch.setattr(link, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(connector, "SIGN_OF_LIFE_SECONDS", 0.4)
    monkeypatch.setattr(connection, "AWAY_SECONDS", 0.4)
    monkeypatch.setattr(store_retry, "CALLER_SECONDS", 0.4)


@contextmanager
def soon(seconds: float = SOON) -> Generator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@asynccontextmanager
async def behind_proxy(url: str) -> AsyncGenerator[tuple[Treadle, Proxy]]:
    """An app that is connected through a proxy, without a worker."""
    async with Proxy(url) as proxy:
        app = Treadle(PostgresBackend(proxy.url, notify=False, connect_timeout=1), work=[echo])
        await app.enqueue(echo(0))
        try:
            yield app, proxy
        finally:
            with soon():
                await app.close()
            proxy.resume()


async def test_an_enqueue_raises_in_three_seconds(prepared_url: str) -> None:
    """With a connection, and without one. Nothing is lost when the network is back."""
    async with behind_proxy(prepared_url) as (app, proxy):
        proxy.stall()
        for _ in range(2):
            with soon(), pytest.raises(StoreUnavailable):
                await app.enqueue(echo(1))
        proxy.resume()
        with soon():
            assert (await (await app.enqueue(echo(2))).state()).status == "ready"


@pytest.mark.usefixtures("impatient")
async def test_many_readers_raise_in_three_seconds(prepared_url: str) -> None:
    """Also those that wait for one of the connections; and a wait keeps its own time limit."""
    async with behind_proxy(prepared_url) as (app, proxy):
        handle = await app.enqueue(echo(1))
        proxy.stall()
        with soon():
            reads = asyncio.gather(*(app.get([handle.id]) for _ in range(50)), return_exceptions=True)
            with soon(1.5), pytest.raises(WaitTimeout):
                await handle.result(timeout=1)
            assert {type(each) for each in await reads} == {StoreUnavailable}


@pytest.mark.usefixtures("impatient")
async def test_a_slow_statement_is_not_ended(prepared_url: str) -> None:
    """The server answers on another connection, so the statement goes on."""
    async with Proxy(prepared_url) as proxy, opened(proxy.url, notify=False) as backend:
        assert await backend._calls.value("select 1 from pg_sleep(1.5)") == 1


@pytest.mark.usefixtures("impatient")
async def test_a_slow_link_is_not_away(prepared_url: str) -> None:
    """Connecting takes longer than a sign of life usually may. The user has told so, by `connect_timeout`."""
    async with Proxy(prepared_url) as proxy, opened(proxy.url, notify=False, connect_timeout=4) as backend:
        proxy.connecting_takes = 0.8
        assert await backend._calls.value("select 1 from pg_sleep(2)") == 1
        assert backend._calls.pool._failed is None


@pytest.mark.usefixtures("impatient")
async def test_a_busy_pooler_is_not_away(prepared_url: str) -> None:
    """It lets clients log in. Their statements wait until a connection to the server is free."""
    async with (
        Pooler(prepared_url, servers=1) as pooler,
        opened(pooler.url, notify=False, prepare=False, connect_timeout=1.6) as backend,
    ):
        assert await backend._calls.value("select 1 from pg_sleep(1.5)") == 1
        assert backend._calls.pool._failed is None


@pytest.mark.usefixtures("impatient")
async def test_a_worker_comes_back_within_a_lease(prepared_url: str) -> None:
    """It claims again, and hears of new work again."""
    async with Proxy(prepared_url) as proxy, Treadle(prepared_url, work=[]) as client:
        app = Treadle(
            PostgresBackend(proxy.url, connect_timeout=0.8), work=[echo], lease=10, poll_interval=30
        )
        client.register(echo)
        async with app:
            assert await app.enqueue(echo(1)).result(timeout=10) == 1
            proxy.stall()
            with pytest.raises(StoreUnavailable):
                await app.enqueue(echo(2))
            proxy.resume()
            with soon(10):
                assert await client.enqueue(echo(3)).result(timeout=10) == 3


@pytest.mark.usefixtures("impatient")
async def test_the_listener_comes_back(prepared_url: str) -> None:
    """As soon as a call finds that the server gives no sign of life."""
    async with Proxy(prepared_url) as proxy, opened(proxy.url, connect_timeout=0.8) as backend:
        recorder = WakeRecorder()
        await backend.subscribe(recorder)
        proxy.stall()
        with pytest.raises(StoreUnavailable):
            await backend.now()
        proxy.resume()
        await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))
        await backend.publish(Wake(items=(("t", "after"),)))
        await recorder.wait_for({("t", "after")})
