"""Fired items: what an occurrence of a schedule submits. They go through the submit middlewares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.callables import raised_by_user
from treadle.engine.guarded_telemetry import GuardedTelemetry
from treadle.engine.hooks import Hooks
from treadle.engine.submit.build_item import ItemBuilder
from treadle.engine.submit.carry import with_traces
from treadle.item import Item
from treadle.submit_middleware import NewItem, SubmitMiddleware, options_of, submit_through
from treadle.work import Work

from .entry import Recurrence


class FiredItems:
    def __init__(
        self,
        builder: ItemBuilder,
        hooks: Hooks,
        middlewares: Sequence[SubmitMiddleware],
        telemetry: GuardedTelemetry | None,
    ) -> None:
        self._builder = builder
        self._hooks = hooks
        self._middlewares = middlewares
        self._telemetry = telemetry

    async def build(self, recurrence: Recurrence) -> tuple[Item, ...]:
        """The items of one occurrence. None if the user's code raises, which is reported: the schedule goes
        on without them."""
        try:
            work = await recurrence.make_work()
            return () if work is None else (await self._build(recurrence, work),)
        except BaseException as error:
            if not raised_by_user(error):
                raise
            what = f"run of schedule {recurrence.name!r} failed: nothing is submitted this time"
            self._hooks.report(error, "schedule", what)
            return ()

    async def _build(self, recurrence: Recurrence, work: Work[Any, Any]) -> Item:
        new, built = NewItem(work, recurrence.tenant, recurrence.options), list[Item]()

        async def build() -> None:
            options = options_of(new) if self._middlewares else recurrence.options
            built[:] = [self._builder.item(work, options, tenant=recurrence.tenant)]

        await submit_through(self._middlewares, [new], build)
        return self._traced(recurrence.name, built[0])

    def _traced(self, schedule: str, item: Item) -> Item:
        span = None if self._telemetry is None else self._telemetry.submission([item], schedule=schedule)
        if span is None:
            return item
        with span:
            return with_traces([item], span.traces(1))[0]
