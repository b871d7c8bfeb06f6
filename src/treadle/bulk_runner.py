"""Bulk runner: runs bulk actions in a process without workers, such as a dashboard.

    runner = BulkRunner(client)
    await runner.run()          # until cancelled

Several may run at once, beside workers: each portion is run by one of them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from treadle.bulk_action import BULK_QUEUE, BULK_TYPE, BULK_WORKFLOW
from treadle.bulk_read import open_portions, read_actions
from treadle.engine.timers import first_of
from treadle.errors import BackendError
from treadle.item import Filter, Wake
from treadle.manual_lease import claim_one
from treadle.operator import Operator, core_of, tenant_of

LOOK_EVERY: Final = 5.0
"""Seconds between two looks for bulk actions, if no wake-up comes."""
NEWEST: Final = 20
"""So many bulk actions are looked at."""
LEASE: Final = 30.0


class BulkRunner:
    """Runs the portions of bulk actions: those of the client's tenant, or of all."""

    def __init__(self, client: Operator) -> None:
        self._core = core_of(client)
        self._tenant = tenant_of(client)

    async def run_once(self) -> float | None:
        """Run all portions that are due. Returns the seconds until the next one is due. None: none waits."""
        await self._core.connect()
        last: str | None = None
        while True:
            portion, due = await self._next()
            if portion is None or due > 0:
                return None if portion is None else due
            if portion == last:  # it was not handed out: its queue is paused, or another process has it
                return LOOK_EVERY
            last = portion
            await claim_one(
                self._core, tenant=self._tenant, types=(BULK_TYPE,), queues=(BULK_QUEUE,), lease=LEASE
            )

    async def _next(self) -> tuple[str | None, float]:
        """The portion that is due first, by its id, and in how many seconds it is."""
        backend = self._core.backend
        where = Filter(tenant=self._tenant, workflow=BULK_WORKFLOW, type=BULK_TYPE)
        roots = (await backend.list(where, limit=NEWEST)).items
        groups = await read_actions(backend, roots)
        waiting = [
            portion
            for (tenant, id), group in groups.items()
            if group.open
            for portion in await open_portions(backend, tenant, id)
            if portion.status != "running"
        ]
        if not waiting:
            return None, 0.0
        first = min(waiting, key=lambda portion: portion.due_at)
        return first.id, 0.0 if first.status == "ready" else first.due_at - await backend.now()

    async def run(self) -> None:
        """Run bulk actions until cancelled."""
        wake = asyncio.Event()

        def receive(message: Wake) -> None:
            if message.ready and (not message.types or BULK_TYPE in message.types):
                wake.set()

        await self._core.connect()
        unlisten = self._core.wakeups.listen(receive)
        try:
            while True:
                wake.clear()
                due: float | None = None
                try:
                    due = await self.run_once()
                except BackendError as error:
                    self._core.hooks.report(error, "claim", "could not run bulk actions; trying again")
                wait = LOOK_EVERY if due is None else min(max(due, 0.01), LOOK_EVERY)
                await first_of(wake, self._core.settings.clock, wait)
        finally:
            unlisten()
