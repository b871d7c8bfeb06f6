"""A backend of your own that passes both contracts.

It stores items in another backend and logs every change.
Run the contracts: pytest examples/third_party_backend.py
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from treadle import MemoryBackend, Treadle, work
from treadle.backend import Backend
from treadle.backends.sqlite import SqliteBackend
from treadle.testing import BackendContract, ManualClock, WorkerContract, WrappedBackend

T = TypeVar("T")
AUDITED = {"submit", "settle", "settle_within", "cancel", "complete", "requeue", "trigger", "delete", "pause"}


class AuditedBackend(WrappedBackend):
    """Calls `inner` and logs every change."""

    def __init__(self, inner: Backend, write: Callable[[str], object]) -> None:
        super().__init__(inner)
        self._write = write

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        outcome = "ok"
        try:
            return await call()
        except BaseException as error:  # cancelled or unavailable: the change may have happened
            outcome = type(error).__name__
            raise
        finally:
            if verb in AUDITED:
                self._write(json.dumps({"verb": verb, "outcome": outcome}))


class AuditedSubject:
    """An empty store for one test case, and its clock."""

    def __init__(self) -> None:
        self.clock, self.log = ManualClock(), list[str]()
        self._store = MemoryBackend(clock=self.clock)
        self.backend = AuditedBackend(self._store, self.log.append)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def another(self) -> Backend:  # a second connection to the same store
        return AuditedBackend(self._store, self.log.append)


@pytest.fixture
def subject() -> AuditedSubject:
    return AuditedSubject()


class TestAuditedBackend(BackendContract): ...  # each verb does what its docstring says


class TestAuditedWorkers(WorkerContract): ...  # the engine works on it


async def main() -> None:
    @work(name="pay")
    async def pay(order: str) -> str:
        return f"paid {order}"

    async with Treadle(AuditedBackend(SqliteBackend("audited.db"), print), work=[pay]) as app:
        print(await app.enqueue(pay("o-1")).result())
        await app.cancel(await app.enqueue(pay("o-2"), delay=3600))


if __name__ == "__main__":
    asyncio.run(main())
