"""Shutdown: let handlers end, then give back what did not end in time.

A thread cannot be stopped. An item whose handler still runs in a thread is not given back: it keeps its
lease, so that no other worker runs it beside that thread, and is settled when the thread has ended (see
`Runtime`).
"""

from __future__ import annotations

import asyncio

from treadle.engine.store_retry import wait_briefly

from .attempt import CANCEL_GRACE, AttemptRunner
from .dispatch import Dispatcher
from .held import HeldLease, HeldLeases
from .loops import NEW_WORK, WorkerLoops


class Shutdown:
    def __init__(
        self, loops: WorkerLoops, held: HeldLeases, dispatcher: Dispatcher, runner: AttemptRunner
    ) -> None:
        self._loops = loops
        self._held = held
        self._dispatcher = dispatcher
        self._runner = runner
        self.left: list[HeldLease] = []
        """The attempts that were left behind in threads."""

    async def run(self, drain: float) -> None:
        """Wait up to `drain` seconds for handlers to end. Then, even if the wait was cut short, give back
        what they were running."""
        self._dispatcher.stopping = True
        try:
            await self._wind_down(drain)
        finally:
            await self.give_back()

    async def _wind_down(self, drain: float) -> None:
        await self._loops.end_schedules()
        await self._loops.end(*NEW_WORK)
        self._dispatcher.give_back_waiting()  # it would not be started any more
        self._dispatcher.keep_denied("none")
        self._dispatcher.flush()
        for held in self._held.all():
            self._runner.interrupt(held, "stopping")
        # In real time: a shutdown must end even where a test owns the clock.
        idle = asyncio.ensure_future(self._dispatcher.idle())
        try:
            await asyncio.wait({idle}, timeout=drain)
        finally:
            idle.cancel()

    async def give_back(self) -> None:
        """Give back what did not start, and what did not end in time."""
        await self._loops.end(*NEW_WORK)  # they would claim what is given back
        self._dispatcher.give_back()
        unfinished = self._held.unfinished()
        for held in unfinished:
            self._runner.interrupt(held, "stopping")  # not done yet if the wait was cut short
        unfinished = self._leave_threads(unfinished)
        running = {task for held in unfinished if (task := (held.batch or held).task) is not None}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_GRACE)
        for held in unfinished:
            self._dispatcher.give_back_one(held)
        # Over a slow link it takes many round trips. Heartbeats go on meanwhile.
        await wait_briefly(self._dispatcher.settler.flush(), lambda: len(self._held.tokens()))

    def _leave_threads(self, unfinished: list[HeldLease]) -> list[HeldLease]:
        """Leave the items behind whose handlers run in threads. Returns the others."""
        self._runner.pools.stop()
        self.left = [held for held in unfinished if held.runs_in_thread]
        return [held for held in unfinished if held not in self.left]
