"""Unserved types: log that items wait whose type no live worker has. Once for each type, then rarely."""

from __future__ import annotations

from treadle.base.wording import duration, one_line, plural
from treadle.bulk_action import BULK_TYPE
from treadle.engine.core import Core
from treadle.engine.seldom import Seldom
from treadle.item_facts import Overview, UnservedType
from treadle.logs.lines import WARNING, log_line

AGAIN = 3600.0
"""Seconds until a type is named again."""
MOST_NAMED = 20
"""The most types that are named at once."""


class UnservedTypes:
    def __init__(self, core: Core) -> None:
        self._backend = core.backend
        self._seldom = Seldom(AGAIN, core.settings.clock.monotonic)

    async def run_once(self) -> bool:
        """Ask the store, and log what is new. Returns whether there is something."""
        if "watching" not in self._backend.capabilities:
            return False
        overview = await self._backend.overview(quick=True)
        for each in overview.unserved[:MOST_NAMED]:
            if self._seldom.occurrence(each.type) is not None:
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
