"""Pruning: how much at a time, how often, and what is reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from tests.engine.kit import until
from treadle import MemoryBackend, Treadle, work
from treadle.backends.many import ManyStores
from treadle.engine.upkeep import prune
from treadle.errors import BackendError
from treadle.testing import ManualClock, WrappedBackend

T = TypeVar("T")


class Recording(WrappedBackend):
    """Records the portions that are asked for. Asked for its problems, it fails."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryBackend(clock=clock))
        self.portions: list[int] = []
        self.inspected = 0

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb == "prune":
            self.portions.append(args[0])
        return await call()

    async def inspect(self) -> Sequence[BackendError]:
        self.inspected += 1
        raise BackendError("no answer")


@work(name="echo", keep=1)
async def echo(n: int) -> int:
    return n


async def test_much_is_removed_at_short_intervals(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And a failure to inspect the store is not called a failure to prune."""
    monkeypatch.setattr(prune, "PORTION", 10)
    backend = Recording(clock)
    async with Treadle(backend, work=[echo], clock=clock) as app:
        for handle in await app.enqueue_many([echo(n) for n in range(35)]):
            await handle.result(10)
        await clock.advance(prune.INTERVAL)
        await until(lambda: backend.inspected)
        assert backend.portions == [10, 10, 10, 10]
        await clock.advance(prune.BUSY_INTERVAL)
        await until(lambda: len(backend.portions) == 5)
        await clock.advance(prune.BUSY_INTERVAL)
        assert (backend.portions[4:], backend.inspected) == ([10], 1)
        await clock.advance(prune.INTERVAL)
        await until(lambda: backend.inspected == 2)
        assert backend.portions[4:] == [10, 10]
    assert "could not ask the store for its problems" in caplog.text
    assert "could not prune" not in caplog.text


async def test_many_stores_are_pruned_more_rarely(clock: ManualClock) -> None:
    """Each call goes to all of them."""
    stores = [Recording(clock) for _ in range(6)]
    many = ManyStores({f"s{n}": each for n, each in enumerate(stores)}, by="root", clock=clock)
    async with Treadle(many, work=[echo], clock=clock) as app:
        await (await app.enqueue(echo(1))).result(10)
        await clock.advance(5 * prune.INTERVAL)
        assert [each.portions for each in stores] == [[]] * 6
        await clock.advance(prune.INTERVAL)
        await until(lambda: all(each.inspected for each in stores))
        assert [len(each.portions) for each in stores] == [1] * 6
