"""Samples: look once a minute how much is due in each queue, in one process of the fleet, and keep it.

Each process that has a worker wakes up soon after a minute has begun. The first one that claims the minute
looks. A minute whose process is killed meanwhile has no sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from treadle.backend import Backend
from treadle.bulk_action import OPERATORS
from treadle.engine.hooks import Hooks
from treadle.engine.settings import Settings
from treadle.engine.timers import StoreClock
from treadle.item import TELL_TYPE, Count
from treadle.item_facts import Overview, counts_by
from treadle.records import HOUR, MINUTE, MOST_SAMPLED, QUARTER, BacklogSample
from treadle.store.rules.records import begin_of

SPREAD: Final = 3.0
"""Seconds over which the processes of a fleet wake up."""
CLAIMED: Final = 2.0 * MINUTE
"""Seconds for which a minute stays claimed."""


class BacklogSampler:
    """Takes the samples. All workers of a process share it."""

    def __init__(self, backend: Backend, settings: Settings, hooks: Hooks, store_clock: StoreClock) -> None:
        self._backend = backend
        self._clock = settings.clock
        self._hooks = hooks
        self._store_clock = store_clock
        self._minute = 0.0
        """The last one that this process has tried to claim."""
        self._stored: dict[tuple[int, float], list[BacklogSample]] = {}
        """If it has got the last one: what it has stored since then, by step and begin."""
        self._overview: tuple[Overview, float] | None = None
        """The last one that it has read, and when."""
        self.enabled = settings.statistics and backend.capabilities >= {"recording", "watching"}

    async def run(self, worker: str) -> None:
        """Take samples until cancelled."""
        late = SPREAD * crc32(worker.encode()) / 2**32
        now = self._clock.now()  # of this machine: the store is asked when the first minute has begun
        while True:
            await self._clock.sleep(begin_of(now, MINUTE) + MINUTE + late - now)
            try:
                await self._store_clock.refresh()
                if self._hooks.outage.since is None:
                    await self.run_once(begin_of(self._store_clock.now(), MINUTE), worker)
                now = self._store_clock.now()
            except Exception as error:  # noqa: BLE001  a sample is no reason to stop
                self._report(error)
                now = self._clock.now()

    async def run_once(self, minute: float, owner: str) -> None:
        """Take the sample of a minute, if no other process does."""
        if minute == self._minute:
            return
        known = self._stored if minute == self._minute + MINUTE else {}
        self._minute, self._stored = minute, {}
        backend, key = self._backend, f"treadle.sample:{minute:.0f}"
        if not await backend.claim_key(key, owner, CLAIMED, tenant=OPERATORS):
            return
        overview = await backend.overview()
        self._overview = overview, self._clock.monotonic()
        new = samples_of(overview, minute)
        stored = {(MINUTE, minute): new}
        for step in (QUARTER, HOUR):
            at = begin_of(minute, step)
            before = known.get((step, at))
            if before is None and at < minute:
                before = list(await backend.samples(at, until=at + step, step=step))
            stored[step, at] = merged(before or (), new, at, step)
        await backend.put_samples([each for rows in stored.values() for each in rows])
        self._stored = stored

    def overview(self) -> Overview | None:
        """What this process has read in the last minute, if it has: others need not read it again."""
        if self._overview is None or self._clock.monotonic() - self._overview[1] > MINUTE + SPREAD:
            return None
        return self._overview[0]

    def _report(self, error: Exception) -> None:
        self._hooks.report(error, "claim", "could not take a sample of the backlog: a minute is missing")


def samples_of(overview: Overview, at: float) -> list[BacklogSample]:
    """A sample of each queue in which something is due, those with the most first, and one of all queues."""
    due = [each for each in overview.counts if each.status in ("ready", "running") and each.type != TELL_TYPE]
    by_queue = counts_by(due, "queue")
    oldest = {each.queue: max(0.0, overview.now - each.oldest_ready) for each in overview.ages}

    def sample(queue: str, own: Sequence[Count], waited: float) -> BacklogSample:
        return BacklogSample(
            at=at,
            queue=queue,
            ready=sum(each.count for each in own if each.status == "ready"),
            running=sum(each.count for each in own if each.status == "running"),
            oldest=waited,
            estimated=any(each.estimated for each in own),
        )

    queues = [sample(queue, own, oldest.get(queue, 0.0)) for queue, own in by_queue.items()]
    queues.sort(key=lambda each: (-each.depth, each.queue))
    return [sample("", due, max(oldest.values(), default=0.0)), *queues[:MOST_SAMPLED]]


def merged(
    stored: Iterable[BacklogSample], new: Sequence[BacklogSample], at: float, step: int
) -> list[BacklogSample]:
    """The samples of a quarter or an hour, with those of one more minute. A queue that is not there was
    empty."""
    before, now = {each.queue: each for each in stored}, {each.queue: each for each in new}
    seen = before[""].samples if "" in before else 0
    empty = BacklogSample(at=at)
    found: list[BacklogSample] = []
    for queue in sorted({*before, *now}):
        old, last = before.get(queue, empty), now.get(queue, empty)
        found.append(
            BacklogSample(
                at=at,
                step=step,
                queue=queue,
                samples=seen + 1,
                ready=(old.ready * seen + last.ready) / (seen + 1),
                running=(old.running * seen + last.running) / (seen + 1),
                oldest=max(old.oldest, last.oldest),
                estimated=old.estimated or last.estimated,
            )
        )
    return found
