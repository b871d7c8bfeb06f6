"""SharedStore: the programs of one store, and what happens to all of them alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from msgspec.structs import replace

from tests.tenancy.backend_program import LONG, BackendProgram, Exchange, by_id, comparable
from tests.tenancy.conftest import EmptyStore
from treadle.item import Demand, Heartbeat, Lease, Settlement

ROUNDS = 60
COMMON = "common"
"""A worker that serves every tenant."""


class SharedStore:
    """The same seed gives the same events, for one program or for two."""

    def __init__(self, store: EmptyStore, programs: Sequence[BackendProgram], seed: int) -> None:
        self._store = store
        self._backend = store.backend
        self._programs = programs
        self._rng = random.Random(f"fate {seed}")

    async def run(self, rounds: int = ROUNDS) -> None:
        events = {
            self._step_each: 12,
            self._pass_time: 3,
            self._serve_all: 3,
            self._submit_for_all: 1,
            self._prune: 1,
        }
        for _ in range(rounds):
            happens = self._rng.choices(list(events), weights=list(events.values()))[0]
            await happens()
            await self._use_stolen_tokens()
            await asyncio.gather(*(program.read_everything() for program in self._programs))

    async def _step_each(self) -> None:
        """Each program makes one call, concurrently."""
        await self._find_due()
        await asyncio.gather(*(program.step() for program in self._programs))

    async def _pass_time(self) -> None:
        """Advance the clock."""
        await self._store.advance(self._rng.choice((2.0, 10.0, 40.0)))
        await self._backend.beat(Heartbeat(worker=COMMON, lease=LONG))
        await self._find_due()

    async def _find_due(self) -> None:
        """A claim for no tenant finds due items, expired items and dead workers, so that it does not matter
        which tenant claims first. PostgreSQL skips an item that another claim is just finding."""
        await self._backend.claim(Demand(worker=COMMON, limit=0, tenants=("none",)))

    async def _serve_all(self) -> None:
        """One worker claims for all tenants in one call and settles in one call."""
        await self._backend.beat(Heartbeat(worker=COMMON, lease=LONG))
        found = await self._backend.claim(Demand(worker=COMMON, limit=1000))
        for program in self._programs:
            mine = [lease for lease in found.leases if lease.tenant == program.tenant]
            program.exchanges.append(("served", comparable(by_id(mine))))
            program.leases += by_id(mine)
        ends = [program.settlements() for program in self._programs]
        await self._settle_together(ends)

    async def _settle_together(self, ends: Sequence[Sequence[Settlement]]) -> None:
        settled = await self._backend.settle([each for some in ends for each in some])
        outcomes = iter(settled.outcomes)
        for program, some in zip(self._programs, ends, strict=True):
            mine = [next(outcomes) for _ in some]
            effects = (*settled.effects.released, *settled.effects.ended_groups)
            my_effects = by_id([each for each in effects if each.tenant == program.tenant])
            program.exchanges.append((f"settled {comparable(some)}", comparable([mine, my_effects])))

    async def _submit_for_all(self) -> None:
        """One call submits for all tenants."""
        new = [program.submissions() for program in self._programs]
        answers = iter(await self._backend.submit([each for some in new for each in some]))
        for program, some in zip(self._programs, new, strict=True):
            mine = [next(answers) for _ in some]
            program.exchanges.append((f"received {comparable(some)}", comparable(mine)))
            program.submitted(mine)

    async def _prune(self) -> None:
        await self._backend.prune(1000)

    async def _use_stolen_tokens(self) -> None:
        """Tokens of another tenant must have no effect."""
        for program in self._programs:
            for other in self._programs:
                if other is not program and other.leases:
                    await self._settle_with_stolen_token(replace(other.leases[-1], tenant=program.tenant))

    async def _settle_with_stolen_token(self, lease: Lease) -> None:
        (outcome,) = (await self._backend.settle([Settlement(lease=lease, kind="cancelled")])).outcomes
        assert outcome.verb == "stale", f"the token of another tenant was accepted: {outcome}"
        # Some stores look at the token alone: this worker has it, and renews what it holds anyway.
        await self._backend.beat(Heartbeat(worker=COMMON, lease=LONG, held=[lease]))


def compare(alone: list[Exchange], together: list[Exchange]) -> None:
    """Fail at the first difference."""
    for number, (expected, found) in enumerate(zip(alone, together, strict=False)):
        if found != expected:  # no assert: pytest would show every difference
            raise AssertionError(
                f"answer {number} depends on another tenant: {found[0]}\n"
                f"alone:    {expected}\ntogether: {found}"
            )
    assert len(alone) == len(together)
