"""Wake-ups between processes: receive those of others, and publish what happened here.

Wake-ups may be lost: every listener also polls. Listeners in this process are called directly, without I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

from treadle.backend import Backend, answers_at_once
from treadle.engine.hooks import Hooks
from treadle.engine.tasks import Tasks
from treadle.item import Ref, Wake

WakeListener: TypeAlias = Callable[[Wake], None]
Line: TypeAlias = tuple[str, str]
"""A type and a queue. An empty queue stands for every queue."""

PORTION = 150
"""The most ids of one kind in one wake-up: stores limit its size."""
MOST_IDS = 20 * PORTION
"""If more ids than this are to be published, `everything` is sent instead of a list."""
MOST_NAMES = 30
"""If more types or queues than this have something to claim, none is named."""


class WakeUps:
    """One subscription per process, and one publisher. It merges what collects while it is publishing."""

    def __init__(self, backend: Backend, hooks: Hooks, tasks: Tasks, id: str) -> None:
        self._backend = backend
        self._id = id
        self._hooks = hooks
        self._listeners: list[WakeListener] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._ready: set[Line] | None = set()
        """Where there may be something to claim. None: anywhere."""
        self._items: list[Ref] = []
        self._groups: list[Ref] = []
        self._asking: list[Ref] = []
        self._awaited: list[Ref] = []
        self._times = 0
        """How many times something was to be published since the last wake-up."""
        self._publisher: asyncio.Task[None] | None = None
        self._start = tasks.start_at_once if answers_at_once(backend, "publish") else tasks.start
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

    def listen(self, listener: WakeListener) -> Callable[[], None]:
        """Call `listener` with every wake-up. Returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _receive(self, wake: Wake) -> None:
        if wake.sender != self._id:  # listeners here were called directly
            self._call_listeners(wake)

    def _call_listeners(self, wake: Wake) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(wake)
            except Exception as error:  # noqa: BLE001  an error of one listener must not stop the others
                self._hooks.report(error, "signal")

    # -- publishing ------------------------------------------------------------------------------------

    def ready(self, lines: Iterable[Line] | None = None) -> None:
        """There may be something to claim. Listeners here are called at once, others when it is published.

        lines: types and queues that have something to claim. None: any may have."""
        here = None if lines is None else set(lines)
        if here is not None and not here:
            return
        self._call_listeners(_ready_wake(here))
        if here is None or self._ready is None:
            self._ready = None
        else:
            self._ready |= here
        self._publish()

    def ended(self, items: list[Ref], groups: list[Ref], *, here: bool = False) -> None:
        """These items and groups have ended, or are gone. here: call the local listeners too."""
        if not items and not groups:
            return
        if here:
            self._call_listeners(Wake(items=tuple(items), groups=tuple(groups)))
        if self._enabled:
            known = set(items)
            self._items += items
            self._groups += [group for group in groups if group not in known]
            self._publish()

    def ask(self, groups: list[Ref]) -> None:
        """Ask other processes whether they wait for these groups."""
        _add(self._asking, groups)
        self._publish()

    def answer(self, groups: list[Ref]) -> None:
        """Tell other processes that this one waits for these groups."""
        _add(self._awaited, groups)
        self._publish()

    def _publish(self) -> None:
        self._times += 1
        if self._enabled and (self._publisher is None or self._publisher.done()):
            self._publisher = self._start(self._run(), "wake-ups")

    async def flush(self) -> None:
        """Return when everything so far has been published."""
        if self._publisher is not None and not self._publisher.done():
            await asyncio.wait({self._publisher})

    async def _run(self) -> None:
        while (wake := self._next_wake()) is not None:
            await self._backend.publish(wake)

    def _next_wake(self) -> Wake | None:
        """The next wake-up to publish. It names as many ids as fit, or says that there are too many."""
        anywhere = self._ready is None
        if not (anywhere or self._ready or self._items or self._groups or self._asking or self._awaited):
            return None
        ready = _ready_wake(self._ready) if anywhere or self._ready else Wake()
        if len(self._items) + len(self._groups) > MOST_IDS:
            self._items.clear()
            self._groups.clear()
            everything = True
        else:
            everything = False
        wake = Wake(
            sender=self._id,
            ready=ready.ready,
            types=ready.types,
            queues=ready.queues,
            items=_take_portion(self._items) if self._items else (),
            groups=_take_portion(self._groups) if self._groups else (),
            everything=everything,
            asking=_take_portion(self._asking) if self._asking else (),
            awaited=_take_portion(self._awaited) if self._awaited else (),
            times=max(1, self._times),
        )
        self._ready = set()
        self._times = 0
        return wake


def _add(pending: list[Ref], refs: list[Ref]) -> None:
    """Each once, and no more than `MOST_IDS`: another process may ask faster than this one can answer."""
    known = set(pending)
    pending += [ref for ref in dict.fromkeys(refs) if ref not in known][: MOST_IDS - len(pending)]


def _ready_wake(lines: set[Line] | None) -> Wake:
    if lines is None:
        return Wake(ready=True)
    if len(lines) == 1:
        ((type, queue),) = lines
        return Wake(ready=True, types=(type,), queues=(queue,) if queue else ())
    types, queues = {type for type, _ in lines}, {queue for _, queue in lines}
    if "" in queues or len(queues) > MOST_NAMES:
        queues.clear()
    if len(types) > MOST_NAMES:
        types.clear()
    return Wake(ready=True, types=tuple(sorted(types)), queues=tuple(sorted(queues)))


def _take_portion(pending: list[Ref]) -> tuple[Ref, ...]:
    portion = tuple(pending[:PORTION])
    del pending[:PORTION]
    return portion
