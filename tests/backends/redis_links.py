"""Links to Redis for tests, and scripts to run on them."""

import hashlib
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from msgspec import Struct

from treadle.backends.redis.address import parse_address
from treadle.backends.redis.connector import RedisConnector
from treadle.backends.redis.link import RedisLink


class ScriptOfTest(Struct, frozen=True):
    """A script of a test. Its build for tests is the same."""

    name: str
    text: str
    keys: tuple[str, ...] = ("mark",)
    writes: bool = True

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode()).hexdigest()

    @property
    def source(self) -> "ScriptOfTest":
        return self

    source_for_tests = source


ECHO = ScriptOfTest("echo", "return {KEYS[1], ARGV[1] or '', #ARGV}", writes=False)
COUNT = ScriptOfTest("count", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
ONCE = ScriptOfTest("once", "return redis.call('SETNX', KEYS[1], 1)")
"""Writes only if it is the first."""


@asynccontextmanager
async def linked(url: str, prefix: str = "ns", timeout: float = 3.0) -> AsyncGenerator[RedisLink]:
    """A link that is started."""
    address = parse_address(url)
    link = RedisLink(RedisConnector(address, prefix, timeout=timeout), prefix, replicas=address.replicas)
    await link.start()
    try:
        yield link
    finally:
        await link.stop()


@contextmanager
def within(seconds: float) -> Generator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds
