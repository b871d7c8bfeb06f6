"""The floors on Redis: our own connection, with the simplest scripts that any such queue needs.

No kinds, no fairness, no fencing, no groups, no counts. An item is a field of a hash. Ready ids are a list,
leased ones a hash, results another. The server, and how often it syncs, are those of the backend.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from hiredis import ReplyError

from benchmarks.floors import INPUT, RESULT
from benchmarks.measure import Stopwatch
from treadle.backends.redis.address import parse_address
from treadle.backends.redis.connection import RedisConnection
from treadle.backends.redis.connector import RedisConnector

_CHANNEL: Final = b"{floor}:wake"
_WORKER: Final = b"worker-of-a-usual-length"

_SUBMIT: Final = """
local ids = {}
for i = 1, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
redis.call('HSET', KEYS[1], unpack(ARGV))
redis.call('LPUSH', KEYS[2], unpack(ids))
"""
_SUBMIT_AND_TELL: Final = _SUBMIT + "redis.call('PUBLISH', KEYS[5], '')\n"
_CLAIM: Final = """
local ids = redis.call('RPOP', KEYS[2], ARGV[1])
if not ids then return {} end
local leased = {}
for i = 1, #ids do leased[2 * i - 1], leased[2 * i] = ids[i], ARGV[2] end
redis.call('HSET', KEYS[3], unpack(leased))
return {ids, redis.call('HMGET', KEYS[1], unpack(ids))}
"""
_SETTLE: Final = """
local results = {}
for i = 2, #ARGV do results[2 * i - 3], results[2 * i - 2] = ARGV[i], ARGV[1] end
redis.call('HDEL', KEYS[3], unpack(ARGV, 2))
redis.call('HSET', KEYS[4], unpack(results))
"""
_KEYS: Final = (b"{floor}:item", b"{floor}:ready", b"{floor}:leased", b"{floor}:result", _CHANNEL)


class _Floor:
    """Runs the scripts on one connection."""

    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection

    async def run(self, script: str, *args: Any) -> Any:
        sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self.connection.call(b"EVALSHA", sha, len(_KEYS), *_KEYS, *args)
        except ReplyError:  # the server does not know it yet
            return await self.connection.call(b"EVAL", script, len(_KEYS), *_KEYS, *args)


@asynccontextmanager
async def _connected(url: str, on_push: Callable[[list[Any]], None] | None = None) -> AsyncGenerator[_Floor]:
    connection = await RedisConnector(parse_address(url), "floor", timeout=3.0).connect(on_push)
    try:
        yield _Floor(connection)
    finally:
        await connection.close()


async def submit(url: str, count: int, batch: int = 1000) -> float:
    """Items per second, in bulk."""
    async with _connected(url) as floor:
        with Stopwatch() as watch:
            for start in range(0, count, batch):
                ids = range(start, min(start + batch, count))
                await floor.run(_SUBMIT, *(part for i in ids for part in (f"{i:032x}", INPUT)))
        return count / watch.seconds


async def submit_singly(url: str, count: int) -> float:
    async with _connected(url) as floor:
        with Stopwatch() as watch:
            for i in range(count):
                await floor.run(_SUBMIT, f"one{i:029x}", INPUT)
        return count / watch.seconds


async def drain(url: str, count: int, batch: int = 500) -> float:
    """Claim and settle on two connections. The next claim runs during a settle."""
    async with _connected(url) as claims, _connected(url) as settles:
        with Stopwatch() as watch:
            settling: asyncio.Task[Any] | None = None
            while found := await claims.run(_CLAIM, batch, _WORKER):
                if settling is not None:
                    await settling
                settling = asyncio.create_task(settles.run(_SETTLE, RESULT, *found[0]))
            if settling is not None:
                await settling
        return count / watch.seconds


async def notified(url: str, times: int) -> list[float]:
    """Milliseconds from before a submit until a listener, woken by it, has claimed it."""
    woken = asyncio.Event()
    taken: list[float] = []
    async with (
        _connected(url) as submits,
        _connected(url, lambda _: woken.set()) as listens,
        _connected(url) as claims,
    ):
        await listens.connection.call(b"SUBSCRIBE", _CHANNEL)
        for i in range(times + 10):
            await asyncio.sleep(0.003)
            woken.clear()
            start = time.perf_counter()
            await submits.run(_SUBMIT_AND_TELL, f"woken{i:027x}", INPUT)
            await woken.wait()
            ids, _ = await claims.run(_CLAIM, 1, _WORKER)
            taken.append((time.perf_counter() - start) * 1000)
            await claims.run(_SETTLE, RESULT, *ids)
    return taken[10:]
