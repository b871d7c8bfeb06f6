"""Fleet: apps on one store, as many processes would be; and a gate to hold their handlers at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.app import Treadle
from treadle.errors import WorkFailed
from treadle.item import ItemState

from .subject import Subject

PATIENCE = 20.0
"""Seconds to wait for what should come at once: a case that waits so long has failed."""

SETTINGS: dict[str, Any] = {"poll_interval": 0.02, "lease": 10.0, "drain": PATIENCE}


class Fleet:
    """Apps that share the subject's store, each on a connection of its own. Stopped when the case ends."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._apps: list[Treadle] = []

    async def idle(self, *work: Any, **settings: Any) -> Treadle:
        """An app that is connected and does not run."""
        app = Treadle(await self.subject.another(), work=work, **{**SETTINGS, **settings})
        self._apps.append(app)
        await app.connect()
        return app

    async def app(self, *work: Any, **settings: Any) -> Treadle:
        """An app that runs."""
        app = await self.idle(*work, **settings)
        await app.start()
        return app

    async def stop(self) -> None:
        for app in self._apps:
            await app.stop(drain=0)


class Checkpoint:
    """A handler that passes says so, and waits until it may go on."""

    def __init__(self) -> None:
        self.passed = 0
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    async def passing(self) -> None:
        self.passed += 1
        self._reached.set()
        await self._open.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()

    def open(self) -> None:
        self._open.set()


async def failure(awaitable: Awaitable[object]) -> WorkFailed:
    """What waiting for it raises."""
    try:
        value = await awaitable
    except WorkFailed as error:
        return error
    raise AssertionError(f"it ended well, with {value!r}")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return once it holds: for what happens in a store, which tells nobody."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(0.01)


async def until_status(app: Treadle, id: str, *statuses: str) -> ItemState:
    """The item, once it is in one of these states."""
    found: list[ItemState] = []

    async def there() -> bool:
        (state,) = await app.get([id])
        found[:] = [] if state is None else [state]
        return state is not None and state.status in statuses

    await until(there)
    return found[0]
