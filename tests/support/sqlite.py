"""Helpers for the tests of SqliteBackend: short calls of its verbs, and other processes on the same file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from treadle.backends.sqlite import SqliteBackend
from treadle.item import Claim, Demand, Heartbeat, Item, Lease, Rejected, Settlement, Submission

LONG = 1_000_000.0


def empty_store(path: Path) -> Path:
    """Make a file with empty tables. A copy takes a sixth of the time in which the backend makes a file."""
    path.touch(mode=0o600)
    path.write_bytes(_empty_store())
    return path


@cache
def _empty_store() -> bytes:
    async def make(path: Path) -> None:
        backend = SqliteBackend(path)
        await backend.open()
        await backend.close()

    with TemporaryDirectory() as directory, ThreadPoolExecutor(1) as thread:
        path = Path(directory) / "work.db"
        # In a thread, because the first test that needs it may run in an event loop.
        thread.submit(lambda: asyncio.run(make(path))).result()
        return path.read_bytes()


def item(id: str, **fields: Any) -> Item:
    return Item(id=id, type=fields.pop("type", "work"), input=b"{}", **fields)


async def submit(backend: SqliteBackend, *ids: str, **fields: Any) -> None:
    (answer,) = await backend.submit([Submission(tuple(item(id, **fields) for id in ids))])
    assert not isinstance(answer, Rejected), answer


async def claim(backend: SqliteBackend, worker: str = "w", limit: int = 100) -> Claim:
    await backend.beat(Heartbeat(worker=worker, lease=LONG))
    return await backend.claim(Demand(worker=worker, limit=limit))


async def start(backend: SqliteBackend, id: str) -> Lease:
    await submit(backend, id)
    (lease,) = (await claim(backend)).leases
    return lease


def succeed(lease: Lease) -> Settlement:
    return Settlement(lease=lease, kind="success", result=b"1")


async def status(backend: SqliteBackend, id: str) -> str | None:
    (found,) = await backend.get([id])
    return None if found is None else found.status


async def asked(backend: SqliteBackend, sql: str) -> Any:
    """The answer of the writer's connection to this statement."""
    return await backend._write(lambda tx: tx.value(sql))


def process(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start another process that runs this code as the body of a coroutine, with `backend` open."""
    program = textwrap.dedent(
        """
        import asyncio, itertools, json, os, random, sys, time
        from treadle.backends.sqlite import SqliteBackend
        from treadle.item import *
        path, *arguments = sys.argv[1:]
        def say(text):
            print(text, flush=True)
        async def main():
            backend = SqliteBackend(path)
            await backend.open()
        {body}
            await backend.close()
        asyncio.run(main())
        """
    ).format(body=textwrap.indent(textwrap.dedent(code), "    "))
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def heard(other: subprocess.Popen[str]) -> str:
    assert other.stdout is not None
    return other.stdout.readline().strip()


def finished(other: subprocess.Popen[str]) -> str:
    out, _ = other.communicate(timeout=120)
    assert other.returncode == 0
    return out


async def wait_until(true: Callable[[], Awaitable[bool]], patience: float = 20.0) -> None:
    async with asyncio.timeout(patience):
        while not await true():  # noqa: ASYNC110  it happens in another process, or on the disk
            await asyncio.sleep(0.01)
