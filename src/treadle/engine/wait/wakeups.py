"""Wake-ups between processes: what came in is handed on, what happened here is told to others.

Lossy by contract: every listener also polls. In this process nothing depends on a wake coming back: local
listeners are told directly, without I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from treadle.backend import Backend
from treadle.engine.hooks import Hooks
from treadle.engine.tasks import Tasks
from treadle.item import Ref, Wake

PORTION = 150
"""The most ids of one kind in one wake: it has to fit where stores carry signals."""
MOST = 20 * PORTION
"""Of more than this, no list is sent: `everything` says it all."""


class Listener(Protocol):
    def __call__(self, wake: Wake) -> None: ...


class WakeUps:
    """One subscription per process, and one publisher that merges what piles up while it is publishing."""

    def __init__(self, backend: Backend, hooks: Hooks, tasks: Tasks, id: str) -> None:
        self._backend = backend
        self._id = id
        self._hooks = hooks
        self._tasks = tasks
        self._listeners: list[Listener] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._ready = False
        self._items: list[Ref] = []
        self._groups: list[Ref] = []
        self._asking: list[Ref] = []
        self._awaited: list[Ref] = []
        self._times = 0
        """How often there was something to tell since the last wake."""
        self._publishing: asyncio.Task[None] | None = None
        self._enabled = False

    async def open(self) -> None:
        self._enabled = True
        if self._unsubscribe is None:
            self._unsubscribe = await self._backend.subscribe(self._receive)

    def close(self) -> None:
        self._enabled = False
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def listen(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _receive(self, wake: Wake) -> None:
        if wake.sender != self._id:  # what happened here was told here, without a detour
            self._tell(wake)

    def _tell(self, wake: Wake) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(wake)
            except Exception as error:  # noqa: BLE001  one listener's trouble is not another's
                self._hooks.report(error, "signal")

    # -- telling others --------------------------------------------------------------------------------

    def ready(self) -> None:
        """There may be something to claim: here at once, elsewhere as soon as it is published."""
        self._tell(Wake(ready=True))
        self._ready = True
        self._publish()

    def ended(self, items: list[Ref], groups: list[Ref], *, here: bool = False) -> None:
        """These items and groups have ended, or are gone. `here`: this process has to be told as well."""
        if not items and not groups:
            return
        if here:
            self._tell(Wake(items=tuple(items), groups=tuple(groups)))
        if self._enabled:
            known = set(items)
            self._items += items
            self._groups += [group for group in groups if group not in known]
            self._publish()

    def ask(self, groups: list[Ref]) -> None:
        self._asking += groups
        self._publish()

    def answer(self, groups: list[Ref]) -> None:
        self._awaited += groups
        self._publish()

    def _publish(self) -> None:
        self._times += 1
        if self._enabled and (self._publishing is None or self._publishing.done()):
            self._publishing = self._tasks.start(self._run(), "signals")

    async def flush(self) -> None:
        """Return when what was to be told so far has been."""
        if self._publishing is not None:
            await asyncio.wait({self._publishing})

    async def _run(self) -> None:
        while (wake := self._take()) is not None:
            await self._backend.publish(wake)

    def _take(self) -> Wake | None:
        """The next wake to publish: as much as one can name, or that there is too much to name."""
        if not (self._ready or self._items or self._groups or self._asking or self._awaited):
            return None
        if len(self._items) + len(self._groups) > MOST:
            self._items.clear()
            self._groups.clear()
            everything = True
        else:
            everything = False
        wake = Wake(
            sender=self._id,
            ready=self._ready,
            items=_portion(self._items),
            groups=_portion(self._groups),
            everything=everything,
            asking=_portion(self._asking),
            awaited=_portion(self._awaited),
            times=max(1, self._times),
        )
        self._ready = False
        self._times = 0
        return wake


def _portion(pending: list[Ref]) -> tuple[Ref, ...]:
    portion = tuple(pending[:PORTION])
    del pending[:PORTION]
    return portion
