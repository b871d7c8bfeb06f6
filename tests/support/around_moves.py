"""Around the moves of a store: each call of a mover to it passes through one method, `around`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

from treadle.backend import Giving, TenantMoves
from treadle.records import TenantMark
from treadle.testing.wrap import passed_on

T = TypeVar("T")


class Around(Protocol):
    """What is told of each call."""

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T: ...


class AroundGiving(Giving):
    def __init__(self, inner: Giving, outer: Around) -> None:
        self.inner = inner
        self.around = outer.around

    read = passed_on(Giving.read)
    commit = passed_on(Giving.commit)


class AroundMoves(TenantMoves):
    """The moves of a store that reads nothing ahead."""

    def __init__(self, inner: TenantMoves, outer: Around) -> None:
        self.inner = inner
        self.outer = outer
        self.around = outer.around

    put_mark = passed_on(TenantMoves.put_mark)
    stage = passed_on(TenantMoves.stage)
    staged = passed_on(TenantMoves.staged)
    receive = passed_on(TenantMoves.receive)

    def give(self, tenant: str, mark: TenantMark) -> AbstractAsyncContextManager[Giving]:
        return self._give(tenant, mark)

    @asynccontextmanager
    async def _give(self, tenant: str, mark: TenantMark) -> AsyncGenerator[Giving]:
        async with self.inner.give(tenant, mark) as giving:
            yield AroundGiving(giving, self.outer)
