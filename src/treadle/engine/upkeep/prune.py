"""Prune: remove ended items after their retention, in small portions; and report problems of the store.

Every worker does so, and more often while there is much to remove. (One worker removes 40,000 items a second
from PostgreSQL. Larger portions would be little faster, and hold locks for longer.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.backend import Inspected, placed
from treadle.base.wording import duration, one_line, plural
from treadle.bulk_action import BULK_TYPE
from treadle.engine.core import Core
from treadle.item import TELL_TYPE
from treadle.item_facts import Overview, UnservedType
from treadle.logs.lines import WARNING, Seldom, log_line

INTERVAL = 30.0
BUSY_INTERVAL = 1.0
"""The pause after at least a portion was removed."""
PORTION = 1000


class Pruner:
    def __init__(self, core: Core) -> None:
        self._backend = core.backend
        several = placed(core.backend)
        self._interval = INTERVAL * (1 if several is None else len(several.backends))
        """Each call goes to all stores."""
        self._clock = core.settings.clock
        self._hooks = core.hooks
        self.unserved = UnservedTypes(core)

    async def run(self) -> None:
        """Prune until cancelled."""
        inspected = self._clock.monotonic()
        busy = False
        while True:
            await self._clock.sleep(min(BUSY_INTERVAL, self._interval) if busy else self._interval)
            busy = await self._try(self._prune, "could not prune; will retry")
            if self._clock.monotonic() - inspected >= self._interval:
                inspected = self._clock.monotonic()
                await self._try(self.inspect, "could not ask the store for its problems; will retry")
                await self._try(self.unserved.run_once, "could not ask for types that no worker has")

    async def _try(self, action: Callable[[], Awaitable[bool]], failed: str) -> bool:
        try:
            return await action()
        except Exception as error:  # noqa: BLE001  items that stay too long are no reason to stop
            self._hooks.report(error, "claim", failed)
            return False

    async def _prune(self) -> bool:
        """Prune. Returns whether there was much to remove."""
        return await self.run_once() >= PORTION

    async def run_once(self) -> int:
        """Remove all that may go. Returns how many items that were."""
        total = pruned = await self._backend.prune(PORTION)
        while pruned >= PORTION:
            await self._clock.sleep(0)
            pruned = await self._backend.prune(PORTION)
            total += pruned
        return total

    async def inspect(self) -> bool:
        """Report what the store finds wrong with itself. Returns whether there is something."""
        problems = await self._backend.inspect() if isinstance(self._backend, Inspected) else ()
        for problem in problems:
            self._hooks.report(problem, "claim", "the store reports a problem")
        return bool(problems)


AGAIN = 3600.0
"""Seconds until a type is named again."""
MOST_NAMED = 20
"""The most types that are named at once."""


class UnservedTypes:
    """Logs that items wait whose type no live worker has. Once for each type, then rarely."""

    def __init__(self, core: Core) -> None:
        self._backend = core.backend
        self._samples = core.samples
        self._seldom = Seldom(AGAIN, core.settings.clock.monotonic)

    async def run_once(self) -> bool:
        """Ask the store, and log what is new. Returns whether there is something."""
        if "watching" not in self._backend.capabilities:
            return False
        overview = self._samples.overview() or await self._backend.overview(quick=True)
        for each in overview.unserved[:MOST_NAMED]:
            if each.type != TELL_TYPE and self._seldom.occurrence(each.type) is not None:
                _log(each, overview)
        return bool(overview.unserved)


def _log(unserved: UnservedType, overview: Overview) -> None:
    now, count = overview.now, unserved.count
    of_type = (each for each in overview.counts if (each.type, each.status) == (unserved.type, "ready"))
    many = any(each.estimated for each in of_type)
    items = "many ready items" if many else plural(count, "ready item")
    since = (
        ""
        if unserved.since is None
        else f", and none has had it for {duration(max(0.0, now - unserved.since))}"
    )
    wait = "waits" if count == 1 and not many else "wait"
    fix = "Start a worker that has it, or name it in aliases= of its new type"
    if unserved.type == BULK_TYPE:
        fix = "Start a worker that serves all queues, or run `treadle bulk run`"
    log_line(
        WARNING,
        f"no live worker has the type {one_line(unserved.type, 100)}{since}: {items} {wait}. {fix}",
        {"type": unserved.type},
    )
