"""Wake-ups between processes: receive those of others, and publish what happened here.

Wake-ups may be lost: every listener also polls. Listeners in this process are called directly, without I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from treadle.backend import Backend, answers_at_once, begins_at_once, carries_results, wake_portion
from treadle.base.timing import Clock
from treadle.engine.hooks import Hooks
from treadle.engine.tasks import Tasks
from treadle.item import Ref, Wake, WakeResult

WakeListener: TypeAlias = Callable[[Wake], None]
Line: TypeAlias = tuple[str, str]
"""A type and a queue. An empty queue stands for every queue."""

MOST_IDS = 3000
"""If more ids than this are to be published, `everything` is sent instead of a list."""
RESULT_BYTES = 10
"""The most bytes of results in one wake-up, for each id that it may have."""
WANTED_SECONDS = 60.0
"""After a process said that it waits for items, it gets results for so long."""
MOST_NAMES = 30
"""If more types or queues than this have something to claim, none is named."""


class WakeUps:
    """One subscription per process, and one publisher. It merges what collects while it is publishing.

    waits: whether this process waits for items, or did lately.
    """

    def __init__(
        self,
        backend: Backend,
        hooks: Hooks,
        tasks: Tasks,
        id: str,
        clock: Clock,
        waits: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._id = id
        self._clock = clock
        self._waits = waits
        self._wanted_until = 0.0
        """Until then another process has use for results."""
        self._hooks = hooks
        self._listeners: list[WakeListener] = []
        self._claiming: list[WakeListener] = []
        """Those of them that want to know when there may be something to claim."""
        self._unsubscribe: Callable[[], None] | None = None
        self._ready: set[Line] | None = set()
        """Where there may be something to claim. None: anywhere."""
        self._items: list[Ref] = []
        self._results: dict[Ref, WakeResult] = {}
        """The results of some of these items."""
        self._groups: list[Ref] = []
        self._asking: list[Ref] = []
        self._awaited: list[Ref] = []
        self._streams: list[Ref] = []
        self._times = 0
        """How many times something was to be published since the last wake-up."""
        self._publisher: asyncio.Task[None] | None = None
        self._tasks = tasks
        self._begins: Callable[[], bool] = begins_at_once(backend, "publish") or (lambda: False)
        if answers_at_once(backend, "publish"):
            self._begins = lambda: True
        self._enabled = False
        self._carries_results = carries_results(backend)
        self._portion = wake_portion(backend)

    async def open(self) -> None:
        self._enabled = True
        if self._unsubscribe is None:
            self._unsubscribe = await self._backend.subscribe(self._receive)

    def close(self) -> None:
        self._enabled = False
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    @property
    def takes_results(self) -> bool:
        """Whether results of items that have ended are of use to another process. (To send them all the same
        took a fifteenth of a worker's processor time in a drain.)"""
        return (
            self._carries_results
            and self._clock.monotonic() < self._wanted_until
            and self._enabled
            and len(self._items) <= MOST_IDS
        )

    def listen(self, listener: WakeListener, *, claims: bool = True) -> Callable[[], None]:
        """Call `listener` with every wake-up. Returns a function that ends it.

        claims: whether it wants to know when there may be something to claim, and nothing else."""
        lists = (self._listeners, self._claiming) if claims else (self._listeners,)
        for each in lists:
            each.append(listener)

        def stop() -> None:
            for each in lists:
                if listener in each:
                    each.remove(listener)

        return stop

    def _receive(self, wake: Wake) -> None:
        if wake.sender != self._id:  # listeners here were called directly
            if wake.waits:
                self._wanted_until = self._clock.monotonic() + WANTED_SECONDS
            self._call(self._listeners, wake)

    def _call(self, listeners: list[WakeListener], wake: Wake) -> None:
        for listener in tuple(listeners):
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
        if self._claiming:
            self._call(self._claiming, _ready_wake(here))
        if here is None or self._ready is None:
            self._ready = None
        else:
            self._ready |= here
        self._publish()

    def ended(
        self,
        items: list[Ref],
        groups: list[Ref],
        *,
        here: bool = False,
        results: Mapping[Ref, WakeResult] | None = None,
        more: bool = False,
    ) -> None:
        """These items and groups have ended, or are gone. here: call the local listeners too. results: those
        of some of these items. more: a call of `ready` follows, so that both are published together."""
        if not items and not groups:
            return
        if here:
            self._call(self._listeners, Wake(items=tuple(items), groups=tuple(groups)))
        if self._enabled:
            known = set(items)
            self._items += items
            if results:
                self._results.update(results)
            self._groups += [group for group in groups if group not in known]
            if not more:
                self._publish()

    def ask(self, groups: list[Ref]) -> None:
        """Ask other processes whether they wait for these groups."""
        _add(self._asking, groups)
        self._publish()

    def answer(self, groups: list[Ref]) -> None:
        """Tell other processes that this one waits for these groups."""
        _add(self._awaited, groups)
        self._publish()

    def emitted(self, item: Ref) -> None:
        """The stream of this item has new chunks. Listeners here are called at once."""
        self._call(self._listeners, Wake(streams=(item,)))
        _add(self._streams, [item])
        self._publish()

    def _publish(self) -> None:
        self._times += 1
        if self._enabled and (self._publisher is None or self._publisher.done()):
            start = self._tasks.start_at_once if self._begins() else self._tasks.start
            self._publisher = start(self._run(), "wake-ups")

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
        named = self._items or self._groups or self._asking or self._awaited or self._streams
        if not (anywhere or self._ready or named):
            return None
        ready = _ready_wake(self._ready) if anywhere or self._ready else Wake()
        if len(self._items) + len(self._groups) > MOST_IDS:
            self._items.clear()
            self._groups.clear()
            everything = True
        else:
            everything = False
        portion = self._portion
        items = _take(self._items, portion) if self._items else ()
        results = self._take_results(items) if self._results else ()
        wake = Wake(
            sender=self._id,
            ready=ready.ready,
            types=ready.types,
            queues=ready.queues,
            items=items,
            results=results,
            groups=_take(self._groups, portion) if self._groups else (),
            everything=everything,
            asking=_take(self._asking, portion) if self._asking else (),
            awaited=_take(self._awaited, portion) if self._awaited else (),
            streams=_take(self._streams, portion) if self._streams else (),
            times=max(1, self._times),
            waits=self._carries_results and self._waits(),
        )
        self._ready = set()
        self._times = 0
        return wake

    def _take_results(self, items: tuple[Ref, ...]) -> tuple[WakeResult | None, ...]:
        """The results of these items, as many as may go into one wake-up."""
        if not items:
            self._results.clear()
            return ()
        take, left = self._results.pop, RESULT_BYTES * self._portion
        results = [take(ref, None) for ref in items]
        for n, result in enumerate(results):
            if result is not None:
                left -= len(result.result or b"")
                if left < 0:
                    return tuple(results[:n])
        return tuple(results)


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


def _take(pending: list[Ref], count: int) -> tuple[Ref, ...]:
    """Remove the first of these."""
    taken = tuple(pending[:count])
    del pending[:count]
    return taken
