"""Records over several stores: statistics and samples are at home, runs of schedules where the schedules
are. What is at home is about all stores: a read of one of them gets nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from treadle.backend import chosen_store, store_name
from treadle.base.timing import Clock
from treadle.errors import BackendError, StoreUnavailable, message_of
from treadle.item import OPEN
from treadle.item_facts import Overview, total
from treadle.records import MINUTE, BacklogSample, ScheduleRun, Stat, StatsBy, StoreState

from .member import Member
from .places import TenantPlaces
from .read import Answers

SOON: Final = 0.25
"""Seconds to wait for home's clock before another store is asked."""
PATIENCE: Final = 5.0
"""Seconds to wait for each store to say how it stands."""


class ManyRecords:
    def __init__(self, places: TenantPlaces, answers: Answers, clock: Clock) -> None:
        self._places = places
        self._answers = answers
        self._monotonic = clock.monotonic

    async def add_stats(self, stats: Sequence[Stat]) -> None:
        await self._places.home.call("add_stats", stats)

    async def stats(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        by: StatsBy = "time",
        type: str | None = None,
        queue: str | None = None,
    ) -> Sequence[Stat]:
        if chosen_store() is not None:
            return []
        found: Sequence[Stat] = await self._places.home.call(
            "stats", since, until=until, step=step, by=by, type=type, queue=queue
        )
        return found

    async def put_samples(self, samples: Sequence[BacklogSample]) -> None:
        await self._places.home.call("put_samples", samples)

    async def samples(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        queues: Sequence[str] | None = None,
    ) -> Sequence[BacklogSample]:
        if chosen_store() is not None:
            return []
        found: Sequence[BacklogSample] = await self._places.home.call(
            "samples", since, until=until, step=step, queues=queues
        )
        return found

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        parts: list[Sequence[ScheduleRun]] = await self._answers.of_all("schedule_runs", count=count)
        return sorted((run for part in parts for run in part), key=lambda run: run.name)

    async def now(self) -> float:
        """Home's clock. If home does not answer soon: that of another store, which should show the same."""
        members = sorted(self._places.members, key=lambda member: member is not self._places.home)
        tasks: list[asyncio.Task[float]] = []
        error: BaseException | None = None
        while tasks or members:
            if members:
                tasks.append(asyncio.ensure_future(members.pop(0).call("now")))
            patience = SOON if members else None
            await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            done = [task for task in tasks if task.done()]
            tasks = [task for task in tasks if not task.done()]
            for task in done:
                if (failed := task.exception()) is None:
                    _leave(tasks)
                    return task.result()
                if not isinstance(failed, StoreUnavailable):
                    raise failed
                error = error or failed
        raise error or self._places.home.refusal()

    async def stores(self) -> Sequence[StoreState]:
        """How each store stands. One that does not answer is not left out."""
        states = await asyncio.gather(*(self._state(member) for member in self._places.members))
        times = [state for state in states if state[1] is not None]
        home = next((now for state, now in times if state.home), None)
        return [_with_skew(state, now, home) for state, now in states]

    async def _state(self, member: Member) -> tuple[StoreState, float | None]:
        address, home = store_name(member.backend), member is self._places.home
        sent = self._monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                now: float = await member.call("now")
                took = self._monotonic() - sent
                overview: Overview = await member.call("overview", quick=True)
        except (BackendError, TimeoutError) as error:
            why = message_of(error) or f"no answer within {PATIENCE:g} s"
            return StoreState(name=member.name, address=address, home=home, answers=False, error=why), None
        counts = overview.counts
        open, estimated = total(count for count in counts if count.status in OPEN)
        ready, _ = total(count for count in counts if count.status == "ready")
        dead, _ = total(count for count in counts if count.status == "dead")
        state = StoreState(
            name=member.name,
            address=address,
            home=home,
            took=took,
            open=open,
            ready=ready,
            dead=dead,
            estimated=estimated,
        )
        return state, now - took / 2 - sent


def _with_skew(state: StoreState, ahead: float | None, home: float | None) -> StoreState:
    return state if ahead is None or home is None else replace(state, skew=ahead - home)


def _leave(tasks: Iterable[asyncio.Task[float]]) -> None:
    """No one waits for these."""
    for task in tasks:
        task.cancel()
