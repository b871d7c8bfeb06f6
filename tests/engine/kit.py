"""What the engine's tests share: events to wait for, gates to hold handlers at, chance without chance."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from treadle import ItemState, Retry, Treadle, WorkFailed
from treadle.backend import Backend
from treadle.events import Event, ItemEvent

E = TypeVar("E")

MakeApp = Callable[..., Treadle]
MakeBackend = Callable[[], Backend]

PATIENCE = 15.0
"""Far more than anything here takes: a test that waits so long has failed."""

AT_ONCE = Retry(base=0, jitter=0)
"""Retries without a wait."""


class Steady(random.Random):
    """Always draws the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


class Gate:
    """A handler that passes says that it has started, and waits until it may go on."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.count = 0

    async def passing(self) -> None:
        self.count += 1
        self.started.set()
        await self.go.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.started.wait()


class Seen:
    """An `on_event` that remembers, and that can be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def names(self, id: str | None = None) -> list[str]:
        """The classes of the events about items (about one, if given), in order."""
        return [
            type(event).__name__
            for event in self.events
            if isinstance(event, ItemEvent) and id in (None, event.id)
        ]

    def of(self, cls: type[E], id: str | None = None) -> list[E]:
        return [
            event
            for event in self.events
            if isinstance(event, cls) and (id is None or getattr(event, "id", None) == id)
        ]

    async def until(self, cls: type[E], id: str | None = None, count: int = 1) -> E:
        """The event number `count` of this class (about one item, if given), once it is there."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.of(cls, id)) < count:
                self._changed.clear()
                await self._changed.wait()
        return found[count - 1]


class Errors:
    """An `on_error` that remembers, and that can be waited for."""

    def __init__(self) -> None:
        self.seen: list[tuple[BaseException, str]] = []
        self._changed = asyncio.Event()

    def __call__(self, error: BaseException, phase: str) -> None:
        self.seen.append((error, phase))
        self._changed.set()

    def phases(self) -> list[str]:
        return [phase for _, phase in self.seen]

    async def until(self, phase: str) -> BaseException:
        async with asyncio.timeout(PATIENCE):
            while phase not in self.phases():
                self._changed.clear()
                await self._changed.wait()
        return next(error for error, each in self.seen if each == phase)


async def until_status(app: Treadle, id: str, *statuses: str) -> ItemState:
    """The item, once it is in one of these states. For states that no event tells of."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (state,) = await app.get([id])
            if state is not None and state.status in statuses:
                return state
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    """Return once it holds. For what no event tells of."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  whatever it asks of tells nobody
            await asyncio.sleep(0.005)


async def failure(awaitable: Any) -> WorkFailed:
    """What waiting for it raises."""
    try:
        value = await awaitable
    except WorkFailed as error:
        return error
    raise AssertionError(f"it ended well, with {value!r}")


@contextlib.contextmanager
def no_new_tasks() -> Iterator[None]:
    """What happens inside leaves no asyncio task behind."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left, left
