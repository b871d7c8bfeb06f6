"""Fired items: what an occurrence of a schedule submits. They go through the submit middlewares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.base.callables import raised_by_user
from treadle.define.work import Work
from treadle.engine.guarded_telemetry import GuardedSubmission, GuardedTelemetry
from treadle.engine.hooks import Hooks
from treadle.engine.submit.build_item import ItemBuilder
from treadle.engine.submit.carry import with_traces
from treadle.item import Item
from treadle.logs.lines import error_text
from treadle.submit_middleware import NewItem, SubmitMiddleware, options_of, submit_through

from .entry import Recurrence


class BuiltItems(NamedTuple):
    """What an occurrence is to submit. The span of the submit ends when the store has answered. If another
    process has fired the occurrence, there was no submit, and the span is dropped."""

    items: tuple[Item, ...] = ()
    span: GuardedSubmission | None = None
    error: str = ""
    """What the user's code raised, in a line."""


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

    async def build(self, recurrence: Recurrence) -> BuiltItems:
        """The items of one occurrence. There are none if the user's code raises, which is reported: the
        schedule goes on without them."""
        try:
            work = await recurrence.make_work()
            return BuiltItems() if work is None else await self._build(recurrence, work)
        except BaseException as error:
            if not raised_by_user(error):
                raise
            what = f"run of schedule {recurrence.name!r} failed: nothing is submitted this time"
            self._hooks.report(error, "schedule", what)
            return BuiltItems(error=error_text(error))

    async def _build(self, recurrence: Recurrence, work: Work[Any, Any]) -> BuiltItems:
        new, built = NewItem(work, recurrence.tenant, recurrence.options), list[Item]()

        async def build() -> None:
            options = options_of(new) if self._middlewares else recurrence.options
            built[:] = [self._builder.item(work, options, tenant=recurrence.tenant)]

        await submit_through(self._middlewares, [new], build)
        return self._traced(recurrence.name, built[0])

    def _traced(self, schedule: str, item: Item) -> BuiltItems:
        span = None if self._telemetry is None else self._telemetry.submission([item], schedule=schedule)
        return BuiltItems((item,) if span is None else with_traces([item], span.traces(1)), span)
