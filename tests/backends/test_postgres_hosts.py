"""PostgreSQL: several hosts in one URL, some of which are gone without a sign."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests.backends.postgres_store import opened
from tests.support.proxy import Proxy
from treadle.backends.postgres import PostgresBackend, connection, connector, link
from treadle.backends.postgres.connector import hosts_of
from treadle.errors import BackendError, StoreUnavailable
from treadle.item import Wake
from treadle.testing.contract.wakeups import WakeRecorder

TIMEOUT = 1.6
"""Seconds that connecting may take: half of them for each host."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is gone is noticed fast."""
    monkeypatch.setattr(link, "LATE", 0.3)
    monkeypatch.setattr(link, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(connector, "SIGN_OF_LIFE_SECONDS", 0.4)
    monkeypatch.setattr(connection, "AWAY_SECONDS", 0.4)


@contextmanager
def soon(seconds: float) -> Generator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def of_both(first: Proxy, second: Proxy) -> str:
    """A URL with the hosts of both."""
    place = second.url.partition("@")[2].partition("/")[0]
    head, _, tail = first.url.rpartition("/")
    return f"{head},{place}/{tail}"


@asynccontextmanager
async def two_ways(url: str) -> AsyncGenerator[tuple[Proxy, Proxy]]:
    """Two ways to one server."""
    async with Proxy(url) as first, Proxy(url) as second:
        yield first, second


async def test_the_first_host_is_gone(prepared_url: str) -> None:
    """It has a part of the time only. The host that answered comes first from then on."""
    async with two_ways(prepared_url) as (first, second):
        first.stall()
        async with opened(of_both(first, second), notify=False, connect_timeout=TIMEOUT) as backend:
            with soon(TIMEOUT / 2):
                await asyncio.gather(*(backend.now() for _ in range(8)))
        first.resume()


async def test_all_hosts_are_gone(prepared_url: str) -> None:
    """That takes no longer than with one host."""
    async with two_ways(prepared_url) as (first, second):
        first.stall()
        second.stall()
        backend = PostgresBackend(of_both(first, second), connect_timeout=TIMEOUT)
        with soon(TIMEOUT + 1), pytest.raises(StoreUnavailable):
            await backend.open()
        first.resume()
        second.resume()


@pytest.mark.usefixtures("impatient")
async def test_the_host_in_use_goes(prepared_url: str) -> None:
    """Calls go to the other host, which gives signs of life all the time. So does the listener."""
    async with (
        two_ways(prepared_url) as (first, second),
        opened(of_both(first, second), connect_timeout=TIMEOUT) as backend,
    ):
        recorder = WakeRecorder()
        await backend.subscribe(recorder)
        first.stall()
        with soon(5):
            await until_it_answers(backend)
            await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))
        await backend.publish(Wake(items=(("t", "after"),)))
        await recorder.wait_for({("t", "after")})
        first.resume()


async def until_it_answers(backend: PostgresBackend) -> None:
    while True:
        try:
            await backend.now()
        except BackendError:
            continue
        return


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u:p%40@a/db", []),
        ("postgresql://u@a,b:1,[::1]:2,c/db", [("a", 5432), ("b", 1), ("::1", 2), ("c", 5432)]),
        ("postgresql:///db?host=a,/run/pg&port=1,2", [("a", 1), ("/run/pg", 2)]),
        ("postgresql:///db?host=a,b&port=7", [("a", 7), ("b", 7)]),
        ("postgresql:///db", []),
        ("postgresql://u@a,b:x/db", []),
        ("postgresql:///db?host=a,b&port=1,2,3", []),
    ],
)
def test_the_hosts_of_a_url(url: str, hosts: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """None if there is one, or if it is for the driver to say what they are."""
    monkeypatch.delenv("PGPORT", raising=False)
    assert hosts_of(url) == hosts
