"""Stores to measure: a real PostgreSQL with fsync on, SQLite files with synchronous=FULL, memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

from treadle.backend import Backend

KINDS = ("memory", "sqlite", "postgres")

_numbers = count()


class Stores:
    """Fresh stores of each kind, as many as are asked for."""

    def __init__(self, directory: Path, server: str | None) -> None:
        self._directory = directory
        self._server = server

    @asynccontextmanager
    async def fresh(self, kind: str) -> AsyncGenerator[str]:
        """The address of an empty store, gone when the block ends."""
        if kind == "memory":
            yield "memory://"
        elif kind == "sqlite":
            path = self._directory / f"{next(_numbers)}.db"
            yield f"sqlite:///{path}"
            for file in self._directory.glob(f"{path.name}*"):
                if file.is_file():
                    file.unlink()
        else:
            async with self._database() as url:
                yield url

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
    """A directory for files, and the server if it is needed."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as files, _server("postgres" in kinds) as url:
        yield Stores(Path(files), url)


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


def backend(url: str) -> Backend:
    from treadle.clock import SystemClock
    from treadle.connect import connect

    return connect(url, clock=SystemClock())


Opener = Callable[[str], Backend]
