"""Promotes a store, and kills itself with SIGKILL at a step of it: `moving_program.py OLD NEW PREFIX STEP`.
With `back` as the last argument it gives a promotion up.

The steps are the calls of the two stores, from 1 on. With 0 it does all of it, and prints how many steps that
took. A store that this process leaves frozen thaws soon.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from treadle.backend import Backend, Export, Import
from treadle.backends.redis.moving import RedisExport
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.errors import StoreUnavailable
from treadle.operate import promote
from treadle.testing.wrap import WrappedBackend

promote.PORTION = 20
THAW = 0.2


class Steps:
    def __init__(self, last: int) -> None:
        self.last = last
        self.count = 0
        self.frozen: RedisExport | None = None

    async def pass_one(self) -> None:
        self.count += 1
        if self.count == self.last:
            if self.frozen is not None:
                self.frozen._seconds = THAW
                with contextlib.suppress(StoreUnavailable):
                    await self.frozen.read(0)
            os.kill(os.getpid(), signal.SIGKILL)


class KilledExport(Export):
    def __init__(self, inner: Export, steps: Steps) -> None:
        self.inner, self.steps = inner, steps

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        return await self.inner.read(limit)

    async def move(self, move: str, to: str, content: str = "") -> None:
        await self.steps.pass_one()
        await self.inner.move(move, to, content)
        await self.steps.pass_one()

    async def give_back(self, move: str, source: str) -> None:
        await self.steps.pass_one()
        await self.inner.give_back(move, source)
        await self.steps.pass_one()


class KilledImport(Import):
    def __init__(self, inner: Import, steps: Steps) -> None:
        self.inner, self.steps = inner, steps

    async def write(self, records: Sequence[bytes]) -> None:
        await self.inner.write(records)
        await self.steps.pass_one()

    async def finish(self) -> None:
        await self.steps.pass_one()
        await self.inner.finish()
        await self.steps.pass_one()


class KilledStore(WrappedBackend):
    def __init__(self, inner: Backend, steps: Steps) -> None:
        super().__init__(inner)
        self.passed = steps

    @asynccontextmanager
    async def export(self, **how: Any) -> AsyncGenerator[KilledExport]:
        async with self.inner.export(**how) as export:
            if isinstance(export, RedisExport) and how.get("freeze"):
                self.passed.frozen = export
            await self.passed.pass_one()
            yield KilledExport(export, self.passed)
            self.passed.frozen = None

    @asynccontextmanager
    async def import_(self, move: str, source: str = "") -> AsyncGenerator[KilledImport]:
        async with self.inner.import_(move, source) as filled:
            await self.passed.pass_one()
            yield KilledImport(filled, self.passed)

    async def own(self, move: str) -> None:
        await self.passed.pass_one()
        await self.inner.own(move)
        await self.passed.pass_one()

    async def take_back(self, move: str) -> None:
        await self.passed.pass_one()
        await self.inner.take_back(move)
        await self.passed.pass_one()

    async def discard(self, move: str) -> None:
        await self.passed.pass_one()
        await self.inner.discard(move)
        await self.passed.pass_one()


async def main(old: str, new: str, prefix: str, last: str, back: str = "") -> None:
    steps = Steps(int(last))
    stores = [connect(url, prefix=prefix, notify=False, clock=SystemClock()) for url in (old, new)]
    first, second = (KilledStore(store, steps) for store in stores)
    if back:
        await promote.give_up(first, second)
    else:
        await promote.promote(first, second, None, lambda *_: None)
    print(steps.count)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
