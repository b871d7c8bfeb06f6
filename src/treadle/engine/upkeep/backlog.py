"""Backlog: call `on_backlog` when this worker cannot keep up for a while."""

from __future__ import annotations

from collections.abc import Callable, Container, Sized

from treadle.engine.core import Core
from treadle.engine.hooks import ignored
from treadle.engine.settings import WorkerSettings
from treadle.flow_control import BacklogInfo, BacklogWatch, OnBacklog
from treadle.item import Count


class Backlog:
    """Watches whether the worker keeps up.

    behind: whether the last claim filled all the room there was, or there was no room.
    held: the items that the worker has leased, by token.
    types: the work types that it runs, by name.
    """

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        hook: OnBacklog,
        *,
        behind: Callable[[], bool],
        held: Sized,
        types: Container[str],
    ) -> None:
        self._backend = core.backend
        self._clock = core.settings.clock
        self._hooks = core.hooks
        self._watch = BacklogWatch(worker.backlog_after, worker.backlog_every)
        self._worker = worker
        self._hook = hook
        self._behind, self._held, self._types = behind, held, types
        self._interval = core.settings.poll_interval

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(self._wait())
            await self.run_once()

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
        info = BacklogInfo(len(self._held), behind_for, ready)
        await self._hooks.ask(self._hook, "on_backlog", info, ignored, None)

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
            and count.type in self._types
            and (self._worker.queues is None or count.queue in self._worker.queues)
            and (self._worker.tenants is None or count.tenant in self._worker.tenants)
        )
