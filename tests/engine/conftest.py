"""Apps to test with, on every native backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Treadle
from treadle.backend import Backend

BACKENDS = ["memory", "sqlite", "postgres"]

FAST: dict[str, Any] = {"poll_interval": 0.05, "lease": 5.0}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    """Makes backends on one store, this test's own: as many processes would."""
    if request.param == "memory":
        from treadle.backends.memory import MemoryBackend

        shared = MemoryBackend()
        return lambda: shared
    if request.param == "sqlite":
        from treadle.backends.sqlite import SqliteBackend

        return lambda: SqliteBackend(tmp_path / "work.db")
    from treadle.backends.postgres import PostgresBackend

    url = request.getfixturevalue("postgres_url")
    return lambda: PostgresBackend(url)


@pytest.fixture
async def make_app(store: Callable[[], Backend]) -> AsyncGenerator[Callable[..., Treadle]]:
    """Makes apps on this test's store, and stops them at its end."""
    apps: list[Treadle] = []

    def make(*work: Any, **settings: Any) -> Treadle:
        app = Treadle(settings.pop("backend", None) or store(), work=work, **{**FAST, **settings})
        apps.append(app)
        return app

    yield make
    for app in apps:
        await app.stop(drain=0)
