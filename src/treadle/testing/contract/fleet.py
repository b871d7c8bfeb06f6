"""Apps: several apps on one store, like several processes; and a checkpoint inside their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.app import Treadle
from treadle.errors import WorkFailed
from treadle.item import ItemState

from .subject import Subject

PATIENCE = 20.0
"""Seconds to wait for something that should happen at once. After that the case fails."""

SETTINGS: dict[str, Any] = {"poll_interval": 0.02, "lease": 10.0, "drain": PATIENCE}


class Apps:
    """Apps that share the subject's store, each on its own connection. The fixture stops them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._apps: list[Treadle] = []

    async def idle(self, *work: Any, **settings: Any) -> Treadle:
        """Connect an app that runs no worker."""
        app = Treadle(await self.subject.another(), work=work, **{**SETTINGS, **settings})
        self._apps.append(app)
        await app.connect()
        return app

    async def app(self, *work: Any, **settings: Any) -> Treadle:
        """Start an app that runs a worker."""
        app = await self.idle(*work, **settings)
        await app.start()
        return app

    async def stop(self) -> None:
        for app in self._apps:
            await app.stop(drain=0)


class Checkpoint:
    """A point in a handler: the case waits until it is reached, and decides when the handler goes on."""

    def __init__(self) -> None:
        self.arrivals = 0
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    async def arrive(self) -> None:
        self.arrivals += 1
        self._reached.set()
        await self._open.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()

    def open(self) -> None:
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()


async def failure(awaitable: Awaitable[object]) -> WorkFailed:
    """The error that waiting for an item raises."""
    try:
        value = await awaitable
    except WorkFailed as error:
        return error
    raise AssertionError(f"expected a failure, got the value {value!r}")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return when the condition holds. It polls, because the store announces no such event."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


async def until_status(app: Treadle, id: str, *statuses: str) -> ItemState:
    """Return the item when it has one of these statuses."""
    found: list[ItemState] = []

    async def reached() -> bool:
        (state,) = await app.get([id])
        found[:] = [] if state is None else [state]
        return state is not None and state.status in statuses

    await until(reached)
    return found[0]
