"""Backlog: call `on_backlog` when this worker cannot keep up for a while."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection

from treadle.backend import Backend
from treadle.clock import Clock
from treadle.engine.hooks import Hooks
from treadle.flow_control import BacklogInfo, BacklogWatch, OnBacklog
from treadle.item import Count


class Backlog:
    """Watches whether the worker keeps up.

    behind: whether the last claim filled all the room there was, or there was no room.
    active: how many items the worker has leased.
    types, queues, tenants: those of the worker; None for all.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        hooks: Hooks,
        watch: BacklogWatch,
        hook: OnBacklog,
        *,
        behind: Callable[[], bool],
        active: Callable[[], int],
        types: Callable[[], Collection[str]],
        queues: tuple[str, ...] | None,
        tenants: tuple[str, ...] | None,
        interval: float,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._hooks = hooks
        self._watch = watch
        self._hook = hook
        self._behind, self._active, self._types = behind, active, types
        self._queues, self._tenants = queues, tenants
        self._interval = interval

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(self._wait())
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001  an error of the user's hook changes nothing
                self._hooks.report(error, "hook", "on_backlog failed")

    def _wait(self) -> float:
        due = self._watch.next_at
        return self._interval if due is None else min(self._interval, due - self._clock.monotonic())

    async def run_once(self) -> None:
        behind_for = self._watch.run_once(self._clock.monotonic(), self._behind())
        if behind_for is None:
            return
        ready = await self._count_ready()
        if ready == 0 or not self._behind():
            # It is busy, but no item waits; or it has caught up meanwhile.
            self._watch.run_once(self._clock.monotonic(), False)
            return
        answer = self._hook(BacklogInfo(self._active(), behind_for, ready))
        if inspect.isawaitable(answer):
            await answer

    async def _count_ready(self) -> int | None:
        """How many items this worker could claim; None if the store cannot tell."""
        if "listing" not in self._backend.capabilities:
            return None
        try:
            counts = await self._backend.counts()
        except Exception as error:  # noqa: BLE001  the hook is called without the number
            self._hooks.report(error, "claim", "could not count the backlog")
            return None
        return sum(count.count for count in counts if self._could_claim(count))

    def _could_claim(self, count: Count) -> bool:
        return (
            count.status == "ready"
            and count.type in self._types()
            and (self._queues is None or count.queue in self._queues)
            and (self._tenants is None or count.tenant in self._tenants)
        )
