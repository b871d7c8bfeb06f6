"""Begin: tell the store that handlers begin, for leases that have not begun with their claim.

These are items that waited here (for their batch, for a permit) and items that were lost before. If this
process dies before their handlers begin, they count no loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from treadle.engine.combine import Combiner
from treadle.engine.core import Core
from treadle.engine.tasks import finish
from treadle.item import Lease, Loss

from .settle import BACKOFF


class BeginRequest(msgspec.Struct, eq=False):
    leases: Sequence[Lease]
    answer: asyncio.Future[Mapping[int, Loss]]


class Beginner:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._combiner = Combiner(self._write, core.tasks, name="begin")

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        """Say that these begin. Returns the tokens that are lost: their handlers must not run."""
        waiting = [lease for lease in leases if not lease.begun]
        if not waiting:
            return {}
        answer: asyncio.Future[Mapping[int, Loss]] = asyncio.get_running_loop().create_future()
        self._combiner.add(BeginRequest(waiting, answer))
        return await answer

    async def _write(self, batch: list[BeginRequest]) -> None:
        tries = 0
        while batch := [request for request in batch if not request.answer.done()]:
            leases = [lease for request in batch for lease in request.leases]
            try:
                lost = await finish(self._core.backend.begin(leases))
            except Exception as error:  # noqa: BLE001  the handlers wait until the store answers
                tries += 1
                self._core.hooks.report(error, "claim", f"could not begin {len(leases)} item(s)")
                draw = self._core.settings.random.random
                await self._core.settings.clock.sleep(BACKOFF.delay(tries, draw))
                continue
            for request in batch:
                if not request.answer.done():
                    request.answer.set_result(lost)
