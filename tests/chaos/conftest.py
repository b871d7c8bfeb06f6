"""Stores for chaos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.chaos.stores import PostgresStore, RedisStore
from tests.support import postgres
from tests.support.run import OWN
from tests.support.valkey import ValkeyServer


@pytest.fixture
def postgres_store(run_directory: Path) -> Iterator[PostgresStore]:
    """A server that only this test uses, because it is restarted."""
    home = Path(mkdtemp(prefix=OWN, dir=run_directory))
    home.chmod(0o755)
    url = postgres.start(home, forgetful=False, settings={"wal_writer_delay": "10s"})  # it loses claims
    try:
        yield PostgresStore(url, home)
    finally:
        postgres.stop(home)


@pytest.fixture
def redis_store(valkey_home: Path) -> Iterator[RedisStore]:
    """The same. It forgets nothing that it has answered."""
    server = ValkeyServer(
        valkey_home / "valkey-chaos", settings={"appendonly": "yes", "appendfsync": "always"}
    )
    server.start()
    try:
        yield RedisStore(server.url, server)
    finally:
        server.kill()
