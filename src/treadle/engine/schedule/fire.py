"""Fire one occurrence of a schedule, once in the whole fleet.

1. Claim a key that is named after the occurrence. One process gets it. The others look again a little later,
   in case that process dies. This only keeps `run` from being called in every process.
2. Decide whether the occurrence fires and which one is next. Call `run` for the work.
3. The store submits the work and moves on to the next occurrence in one step, if this occurrence is still the
   one that is due. This makes it exactly once. If the answer is lost, the same call is repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.base.callables import raised_by_user
from treadle.base.ids import in_slot, slot_of_text
from treadle.base.timing import to_datetime
from treadle.base.wording import one_line
from treadle.define.work import Work
from treadle.engine.guarded_telemetry import GuardedSubmission, GuardedTelemetry
from treadle.engine.hooks import Hooks
from treadle.engine.settings import Settings
from treadle.engine.submit.build_children import with_traces
from treadle.engine.submit.build_item import ItemBuilder
from treadle.engine.tasks import finish
from treadle.engine.timers import StoreClock
from treadle.item import Fire, Item, Rejected, Submitted
from treadle.logs.lines import INFO, error_text, log_line
from treadle.store.rules.submission import may_change, rejection_error
from treadle.submit_middleware import NewItem, SubmitMiddleware, options_of, submit_through

from .entry import Recurrence, ScheduleEntry
from .occurrence import decide

OnFired: TypeAlias = Callable[[Sequence[Item], Sequence[Item], float], None]
"""Called with the items that were stored, with those that may have changed earlier ones by their keys, and
with the instant at which they were stored, by the store's clock."""


class OccurrenceFirer:
    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        hooks: Hooks,
        items: FiredItems,
        store_clock: StoreClock,
        on_fired: OnFired,
    ) -> None:
        self._backend = backend
        self._hooks = hooks
        self._items = items
        self._store_clock = store_clock
        self._on_fired = on_fired
        self._lease = settings.lease
        self._owner = settings.generate_id()
        self.tolerance = max(settings.lease, 2 * settings.poll_interval)
        """An occurrence that is at most this many seconds late counts as on time."""

    async def fire(self, entry: ScheduleEntry) -> bool:
        """Fire the occurrence that is due. False: another process fires it, or has; look at the store.

        Raises errors of the store and of the user's `next`. Then it is to be called again.
        """
        if entry.pending is None:
            entry.pending = await self._prepare(entry)
        if entry.pending is None:
            return False
        return await finish(self._commit(entry, entry.pending))

    async def _prepare(self, entry: ScheduleEntry) -> Fire | None:
        recurrence, at = entry.recurrence, entry.next_at
        if at is None or not await self._claim(recurrence, at):
            return None
        lateness, until = entry.lateness(at, self._store_clock.now(), self.tolerance)
        next_at, fires = decide(recurrence.timing, at, until, lateness, recurrence.catch_up)
        if lateness == "missed":
            when = f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"
            name = one_line(recurrence.name, 100)
            log_line(INFO, f"schedule {name} was missed at {when}; catch_up={recurrence.catch_up!r}")
        built = await self._items.build(recurrence) if fires else BuiltItems()
        entry.span = built.span
        return Fire(name=recurrence.name, at=at, next_at=next_at, items=built.items, error=built.error)

    async def _claim(self, recurrence: Recurrence, at: float) -> bool:
        # A digest: the name alone may be as long as a key can be.
        digest = hashlib.sha256(recurrence.name.encode()).hexdigest()[:32]
        key = f"treadle:schedule:{digest}:{at!r}"
        return await self._backend.claim_key(key, self._owner, self._lease, tenant=recurrence.tenant)

    async def _commit(self, entry: ScheduleEntry, fire: Fire) -> bool:
        try:
            answer = await self._backend.fire(fire)
            if answer is None and entry.maybe_fired:
                answer = await self._find_submitted(fire)
        except Exception:
            entry.maybe_fired = True
            raise
        entry.pending, entry.maybe_fired = None, False
        span, entry.span = entry.span, None
        if answer is None:
            return False
        if isinstance(answer, Rejected):
            error = rejection_error(answer)
            if span is not None:
                span.end(error)
            self._report(error, f"the work of schedule {fire.name!r} cannot be stored")
            entry.pending = replace(fire, items=(), error=error_text(error))
            return True
        if span is not None:
            span.end()
        stored = [item for item, each in zip(fire.items, answer, strict=True) if not each.existing]
        changing = [item for item, each in zip(fire.items, answer, strict=True) if may_change(item, each)]
        if stored or changing:
            self._on_fired(stored, changing, answer[0].queued_at)
        return _move_on(entry, fire)

    async def _find_submitted(self, fire: Fire) -> tuple[Submitted, ...] | None:
        """This call did not fire it. Find out whether an earlier call did, whose answer was lost."""
        if not fire.items:
            return None
        ids, tenant = [item.id for item in fire.items], fire.items[0].tenant
        states = await self._backend.get(ids, tenant=tenant)
        found = [
            Submitted(state.id, status=state.status, queued_at=state.queued_at)
            for state in states
            if state is not None
        ]
        return tuple(found) if len(found) == len(ids) else None

    def _report(self, error: BaseException, message: str) -> None:
        self._hooks.report(error, "schedule", message)


def _move_on(entry: ScheduleEntry, fire: Fire) -> bool:
    """Note the next occurrence. False if what is known of the store is not what was fired."""
    if entry.stored is None or entry.stored.next_at != fire.at:
        return False
    entry.stored = replace(entry.stored, next_at=fire.next_at, last_at=fire.at)
    return True


class BuiltItems(NamedTuple):
    """What an occurrence is to submit. The span of the submit ends when the store has answered. If another
    process has fired the occurrence, there was no submit, and the span is dropped."""

    items: tuple[Item, ...] = ()
    span: GuardedSubmission | None = None
    error: str = ""
    """What the user's code raised, in a line."""


class FiredItems:
    """Builds what an occurrence of a schedule submits, through the submit middlewares."""

    def __init__(
        self,
        builder: ItemBuilder,
        hooks: Hooks,
        middlewares: Sequence[SubmitMiddleware],
        telemetry: GuardedTelemetry | None,
        *,
        by_root: bool = False,
    ) -> None:
        self._by_root = by_root
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
            item = self._builder.item(work, options, tenant=recurrence.tenant)
            if self._by_root:  # it is stored where its schedule is
                item = replace(item, id=in_slot(item.id, slot_of_text(recurrence.name)))
            built[:] = [item]

        await submit_through(self._middlewares, [new], build)
        return self._traced(recurrence.name, built[0])

    def _traced(self, schedule: str, item: Item) -> BuiltItems:
        span = None if self._telemetry is None else self._telemetry.submission([item], schedule=schedule)
        return BuiltItems((item,) if span is None else with_traces([item], span.traces(1)), span)
