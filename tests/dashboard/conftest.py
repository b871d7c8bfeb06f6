"""Fixtures for tests of the dashboard over ASGI: an app on every native backend, and visitors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dashboard.compiled import compiled_once
from tests.support.tiers import memory_and_one_of
from treadle import Treadle
from treadle.backend import Backend
from treadle.dashboard import Access, dashboard

BACKENDS = memory_and_one_of("sqlite", "postgres", "redis")
HOST = "http://dashboard.example"
FROM_HERE = {"sec-fetch-site": "same-origin"}
"""What a browser says of a form of the dashboard's own pages."""
AS_JSON = {"accept": "application/json"}

MakeApp = Callable[..., Treadle]
Visitor = Callable[..., httpx.AsyncClient]


@pytest.fixture(scope="package", autouse=True)
def templates() -> Iterator[None]:
    with compiled_once():
        yield


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    """A function that makes backends. They share one store, which belongs to this test."""
    return make_store(request.param, request, tmp_path)


@pytest.fixture
def memory_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    """The same in memory, for what does not depend on the store."""
    return make_store("memory", request, tmp_path)


def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    if kind == "memory":
        from treadle.backends.memory import MemoryBackend

        shared = MemoryBackend()
        return lambda: shared
    if kind == "sqlite":
        from tests.support.sqlite import empty_store
        from treadle.backends.sqlite import SqliteBackend

        file = empty_store(tmp_path / "work.db")
        return lambda: SqliteBackend(file)
    if kind == "redis":
        from treadle.backends.redis import RedisBackend

        place = request.getfixturevalue("valkey_url")
        return lambda: RedisBackend(place)
    from treadle.backends.postgres import PostgresBackend

    url = request.getfixturevalue("warm_url")
    return lambda: PostgresBackend(url)


@pytest.fixture
async def make_app() -> AsyncGenerator[MakeApp]:
    """Make apps on a store, and stop them at the end of the test."""
    apps: list[Treadle] = []

    def make(store: Callable[[], Backend], *work: Any, **settings: Any) -> Treadle:
        app = Treadle(store(), work=work, poll_interval=0.05, **settings)
        apps.append(app)
        return app

    yield make
    for app in apps:
        await app.stop(drain=0)


@pytest.fixture
async def visitor() -> AsyncGenerator[Visitor]:
    """`visitor(app, can=..., tenants=...)`: a browser that is signed in. With `access=` or `headers=`,
    another one."""
    async with AsyncExitStack() as stack:

        def visit(
            app: Treadle,
            can: Any = "all",
            *,
            actor: str = "ann",
            tenants: Any = None,
            payloads: bool = True,
            access: Any = None,
            headers: dict[str, str] | None = None,
            **options: Any,
        ) -> httpx.AsyncClient:
            given = Access(actor=actor, can=can, tenants=tenants, payloads=payloads)
            web = dashboard(app, access=access or (lambda request: given), **options)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(web),
                base_url=HOST,
                headers=FROM_HERE if headers is None else headers,
            )
            stack.push_async_callback(client.aclose)
            return client

        yield visit
