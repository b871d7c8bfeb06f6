"""Bulk runner: runs bulk actions in a process without workers, such as a dashboard.

    runner = BulkRunner(client)
    await runner.run()          # until cancelled

Several may run at once, beside workers: each portion is run by one of them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from treadle.bulk_action import BULK_QUEUE, BULK_TYPE, BULK_WORKFLOW
from treadle.engine.timers import first_of
from treadle.errors import BackendError
from treadle.item import Filter, Wake
from treadle.manual_lease import claim_one
from treadle.operate.bulk_states import open_portions
from treadle.operate.operator import Operator, core_of, tenant_of
from treadle.store.reads import group_refs

LOOK_EVERY: Final = 5.0
"""Seconds between two looks for bulk actions, if no wake-up comes."""
NEWEST: Final = 50
"""Bulk actions that are looked at."""
LEASE: Final = 30.0


class BulkRunner:
    """Runs the portions of bulk actions: those of the client's tenant, or of all."""

    def __init__(self, client: Operator) -> None:
        self._core = core_of(client)
        self._tenant = tenant_of(client)

    async def run_once(self) -> float | None:
        """Run all portions that are due. Returns the seconds until it should be called again. None: there is
        no bulk action that has not ended."""
        await self._core.connect()
        last: set[str] | None = None
        while True:
            due, wait = await self._look()
            if not due or due == last:  # not handed out: another process runs it, or its queue is paused
                return wait
            last = due
            await claim_one(
                self._core, tenant=self._tenant, types=(BULK_TYPE,), queues=(BULK_QUEUE,), lease=LEASE
            )

    async def _look(self) -> tuple[set[str], float | None]:
        """The portions that a claim may hand out, and when to look again. A portion that runs is among them:
        if its process has died, the claim frees it."""
        backend = self._core.backend
        where = Filter(tenant=self._tenant, workflow=BULK_WORKFLOW, type=BULK_TYPE)
        roots = (await backend.list(where, limit=NEWEST)).items
        groups = await group_refs(backend, [(root.tenant, root.id) for root in roots])
        portions = await open_portions(backend, groups)
        now = await backend.now()
        due: set[str] = set()
        wait: float | None = None
        for ref, group in groups.items():
            if not group.open:
                continue
            portion, left = portions.get(ref), LOOK_EVERY  # no portion: it has ended meanwhile
            if portion is not None and portion.status == "scheduled":
                left = portion.due_at - now
            if portion is not None and (portion.status != "scheduled" or left <= 0):
                due.add(portion.id)
            wait = min(LOOK_EVERY if wait is None else wait, left if left > 0 else LOOK_EVERY)
        return due, wait

    async def run(self, *, until_done: bool = False) -> None:
        """Run bulk actions until cancelled, or until there is none that has not ended."""
        wake = asyncio.Event()

        def receive(message: Wake) -> None:
            if message.ready and (not message.types or BULK_TYPE in message.types):
                wake.set()

        await self._core.connect()
        unlisten = self._core.wakeups.listen(receive)
        try:
            while True:
                wake.clear()
                wait: float | None = LOOK_EVERY
                try:
                    wait = await self.run_once()
                except BackendError as error:
                    self._core.hooks.report(error, "claim", "could not run bulk actions; trying again")
                if wait is None and until_done:
                    return
                await first_of(wake, self._core.settings.clock, LOOK_EVERY if wait is None else wait)
        finally:
            unlisten()
