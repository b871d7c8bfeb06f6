"""Observer: the methods of a client that say how things stand, and why."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from treadle.backend import Placed, check_capable, no_such_store, only_store, placed
from treadle.base.callables import check_list
from treadle.base.ids import check_id, check_name, id_of
from treadle.base.timing import Duration, Instant, instant, seconds
from treadle.define.option_checks import check_count, check_page_size
from treadle.engine.core import Core
from treadle.engine.timers import StoreClock
from treadle.errors import InputError
from treadle.item import AuditNote, WorkerState
from treadle.item_facts import MAX_WAIT, LimitUse, Overview
from treadle.options import HasId
from treadle.records import (
    HOUR,
    MINUTE,
    AuditPage,
    BacklogSample,
    BalanceBy,
    Line,
    MovedTenant,
    QueueBacklog,
    RebalancePlan,
    Related,
    Stat,
    StatsBy,
    StoreState,
)
from treadle.store.audit_note import check_recording
from treadle.store.fleet import Fleet
from treadle.why import Why

from .filters import check_tenant
from .tenant_view import read_orders, read_overview, seen_limits, seen_workers

if TYPE_CHECKING:
    from treadle.problems import Problem

    from .item_json import Values
    from .store_look import StoreLook
    from .webhook import OnProblem


class Observer:
    """Reads how the store stands: for one tenant, or for all if it has no tenant."""

    _core: Core
    _tenant: str | None

    def connect(self) -> Coroutine[Any, Any, None]:
        """Open the backend. All methods do it when they need it. Idempotent."""
        return self._core.connect()

    @property
    def values(self) -> Values:
        """What items and groups hold, as JSON values without secrets: `app.values.item(state)`."""
        from .item_json import Values  # few programs need it

        return Values(self._core.registry)

    @property
    def store_clock(self) -> StoreClock:
        """The clock of the store, as far as it is known: `now()`. `await refresh()` asks for it, at most once
        a minute."""
        return self._core.store_clock

    async def why(self, id: str | HasId) -> Why:
        """Say why an item is where it is: the most binding reason first, and what to do about it. If it waits
        for other items, the reasons of the first one that is not blocked follow. For the root of a group that
        has ended: which members keep the group open."""
        id = id_of(id)
        await self._begin_read()
        from .why import why_item  # few programs need it

        return await why_item(self._core, id, self._tenant)

    async def why_queue(self, name: str, *, overview: Overview | None = None) -> Why:
        """Say why the items of a queue wait: whether it is paused, whether a worker serves it, and the
        reasons of the item that has waited for the longest time.

        overview: what `overview()` of this client has just returned. Then it is not read again. A client of
            one tenant reads it again all the same: it is told less than the reasons need.
        """
        check_name(name, field="queue")
        await self._begin_read()
        from .why import why_queue  # few programs need it

        return await why_queue(self._core, name, self._tenant, None if self._tenant else overview)

    async def workers(self) -> list[WorkerState]:
        """Return the workers that have a lease in the store, lapsed or not, by id. `info` is what each says
        about itself. A client of one tenant gets those that serve the tenant. It is told which types and
        queues they serve and whether they have room, but not where they run, or whom else they serve."""
        await self._core.connect()
        workers = seen_workers(await self._core.backend.workers(), self._tenant)
        return sorted(workers, key=lambda worker: worker.id)

    async def limits(
        self, names: Sequence[str] | None = None, *, count: int = 500, overview: Overview | None = None
    ) -> list[LimitUse]:
        """Return how far the fleet-wide limits are used that are in use now, by name: those named, or the
        first `count`; and those that were ordered (`set_limit`), with the order and what the code says. The
        store does not know how much `slots` allow: live workers say what their code has, or else the code of
        the type does, if it is here. A client of one tenant gets no limits of other tenants, and is not told
        who holds those that all share.

        overview: what `overview()` of this client has just returned. Then orders and workers are not read
            again. A client of one tenant reads the workers again all the same.
        """
        if names is not None:
            names = check_list(names, "names", "'mail'")
        await self._begin_read()
        from treadle.engine.declared_limits import uses_in_force  # few programs need it

        found = seen_limits(await self._core.backend.limits(names, count=count), self._tenant)
        orders = await read_orders(self._core.backend, self._tenant) if overview is None else overview.orders
        asks = any(use.limit is None for use in found) or any(each.name is not None for each in orders)
        fleet = await self._live(overview) if asks else []
        shown = uses_in_force(self._core, found, fleet, orders)
        wanted = shown if names is None else [use for use in shown if use.name in names]
        return sorted(wanted, key=lambda use: use.name)

    def has_limit(self, name: str) -> bool:
        """Whether the code of this app has a limit of this name, as the store names it or as `set_limit`
        does. One that is in use and that it does not have is of earlier code, or of another app."""
        from treadle.doers.limit_rules import owner_and_window
        from treadle.engine.declared_limits import declared_limits, declared_rule  # as above

        declared = declared_limits(self._core)
        owners = {owner_and_window(start)[0] for start in declared}
        return name in owners or declared_rule(declared, name) is not None

    async def _live(self, overview: Overview | None) -> list[WorkerState]:
        if overview is not None and self._tenant is None:
            return Fleet(overview.workers, overview.now).taking
        from treadle.engine.declared_limits import live_workers  # few programs need it

        return await live_workers(self._core.backend)

    async def overview(
        self, *, quick: bool = False, brief: bool = False, store: str | None = None
    ) -> Overview:
        """Return how the store stands: what waits, since when, who works. Counts are exact for about a
        million items. Where there are more, `Count.estimated` says so: it does not take longer then.

        quick: count for some hundredths of a second: tens of thousands of items. Where there are more, counts
            of which there is much are estimates.
        brief: count only what there is little of. Counts that say `estimated` may be much too low, and others
            are left out: for callers that know them from `counts()`.
        store: only what this one of several stores has.
        """
        await self._begin_read()
        with in_store(self._core, store):
            overview = await read_overview(self._core.backend, self._tenant, quick=quick, brief=brief)
        return msgspec.structs.replace(overview, workers=seen_workers(overview.workers, self._tenant))

    async def lines(self, queue: str, *, count: int = 200, cap: int = 1000) -> list[Line]:
        """Return up to `count` lines of a queue that have ready items, by tenant and lane: how many, up to
        `cap` of each, since when the first one waits, and which it is."""
        check_name(queue, field="queue")
        for value, field in ((count, "count"), (cap, "cap")):
            check_count(value, field)
        await self._begin_read()
        return list(await self._core.backend.lines(queue, tenant=self._tenant, count=count, cap=cap))

    async def related(self, id: str | HasId, *, count: int = 100) -> Related | None:
        """Return up to `count` children of an item, and as many items that wait, or waited, for it or for
        its group. None for an unknown id."""
        id = id_of(id)
        check_count(count, "count")
        await self._begin_read()
        return await self._core.backend.related(id, tenant=self._tenant, count=count)

    async def problems(
        self, max_wait: Duration = MAX_WAIT, quick: bool = False, *, store: str | None = None
    ) -> list[Problem]:
        """Return what a person should look at, the most urgent first: what `treadle status` shows.

        max_wait: how long a ready item may wait, in seconds or as a `timedelta`.
        quick: look at no more than the 10,000 oldest open items for those that wait for ids that were never
            submitted.
        store: only those of what this one of several stores has. Types that die now are not known of one.
        """
        return list((await self.look(max_wait, quick, store=store)).problems)

    async def watch_problems(self, receiver: OnProblem | None = None, *, once: bool = False) -> bool:
        """Tell a receiver of problems until cancelled, in a process without workers, as workers do whose app
        has `on_problem`. Any number of processes tell it once of each change.

        receiver: a `Webhook`, or a function that takes a `ProblemChange`. None: `on_problem` of the app. A
            `Webhook` with the URL of that one signs as that one does, and has its other settings, unless it
            has its own.
        once: look once, tell what there is to tell, and return. False if the receiver did not take a message,
            then or before, which is told again later.
        """
        from .tell import ProblemWatch  # few programs need it
        from .webhook import Webhook

        given, own = self._core.on_problem if receiver is None else receiver, self._core.on_problem
        if given is None:
            raise InputError(
                "say whom to tell: on_problem= of the app, or a receiver", parameters=("receiver",)
            )
        await self._core.connect()
        if isinstance(given, Webhook) and isinstance(own, Webhook):
            given = given.like(own)
        watch = ProblemWatch(self._core, self._tenant, given)
        if not once:
            await watch.run()
        await watch.run_once()
        return await watch.is_delivered()

    async def look(
        self,
        max_wait: Duration = MAX_WAIT,
        quick: bool = False,
        *,
        overview: Overview | None = None,
        store: str | None = None,
    ) -> StoreLook:
        """Return all that `treadle status` shows, by at most six reads: the overview, the workers, the
        problems and the schedules. The arguments are those of `problems`.

        overview: what `overview()` of this client, with the same `store`, has just returned. Then it is not
            read again.
        """
        longest = seconds(max_wait, field="max_wait")
        await self._begin_read()
        from .store_look import look_at  # few programs need it

        with in_store(self._core, store):
            return await look_at(self._core, self._tenant, longest, quick=quick, given=overview)

    async def statistics(
        self,
        since: Instant,
        until: Instant | None = None,
        step: int = MINUTE,
        by: StatsBy = "time",
        type: str | None = None,
        queue: str | None = None,
    ) -> list[Stat]:
        """Return what the workers of all processes counted from `since` on, before `until`: attempts, how
        they ended, and how long items waited and ran. Workers add what they counted about every 10 seconds.

        step: seconds for which counts are summed up: a multiple of 60, from an hour on one of 3,600. Hours
            are kept for 90 days, minutes and quarters of an hour for a day. The longer the step, the less is
            read: 60, 900 and 3,600 are stored as they are. Steps without counts are left out.
        by: `time` gives one Stat for each step, `type` or `queue` one for each of them and the whole time.
        type, queue: only what was counted for these.

        A client of one tenant gets nothing: statistics are not kept by tenant.
        """
        begin = instant(since, field="since")
        end = None if until is None else instant(until, field="until")
        _check_step(step)
        if by not in get_args(StatsBy):
            raise InputError.of("by", by, f"does not exist: it is one of {', '.join(get_args(StatsBy))}")
        for name, field in ((type, "type"), (queue, "queue")):
            if name is not None:
                check_name(name, field=field)
        await begin_read(self._core, "recording")
        if self._tenant is not None:
            return []
        backend = self._core.backend
        return list(await backend.stats(begin, until=end, step=step, by=by, type=type, queue=queue))

    async def backlogs(self, *, overview: Overview | None = None) -> list[QueueBacklog]:
        """Return what is due in each queue, since when, how many items come and end in a minute, and so
        whether it grows or when it is drained: for queues that have ready or running items, or had some in
        the last minutes, by name. A client of one tenant gets its items without the rates.

        overview: what `overview()` of this client has just returned. Then it is not read again.
        """
        await self._begin_read()
        from .backlog import read_backlogs  # few programs need it

        backend = self._core.backend
        given = await read_overview(backend, self._tenant) if overview is None else overview
        return await read_backlogs(backend, given, rates=self._tenant is None)

    async def backlog_history(
        self,
        since: Instant,
        until: Instant | None = None,
        step: int = MINUTE,
        queue: str | None = None,
    ) -> list[BacklogSample]:
        """Return how much was due from `since` on, before `until`, by time: in a queue, or in all together.
        The fleet looks once a minute while a worker runs. Steps in which it has not are left out.

        step: as for `statistics`. Depths are averages, waits the longest of a step.

        A client of one tenant gets nothing: samples are not kept by tenant.
        """
        begin = instant(since, field="since")
        end = None if until is None else instant(until, field="until")
        _check_step(step)
        if queue is not None:
            check_name(queue, field="queue")
        await begin_read(self._core, "recording")
        if self._tenant is not None:
            return []
        from .backlog import read_history  # few programs need it

        return await read_history(self._core.backend, queue or "", begin, end, step)

    async def audits(self, bulk: str | None = None, limit: int = 100, cursor: str | None = None) -> AuditPage:
        """Return who changed what, newest first: the changes made with a client that `by(...)` returned. The
        portions of bulk actions are left out, unless the id of the action is given. `cursor` continues after
        an earlier page. A client of one tenant gets the changes of the tenant."""
        if bulk is not None:
            check_id(bulk, field="bulk")
        check_page_size(limit, cursor)
        check_recording(self._core.backend)
        await self._core.connect()
        return await self._core.backend.audits(tenant=self._tenant, bulk=bulk, limit=limit, cursor=cursor)

    async def _begin_read(self) -> None:
        await begin_read(self._core)


class Placements:
    """Says which store has what, if the app has several."""

    _core: Core
    _tenant: str | None
    _note: AuditNote | None

    @property
    def stores_away(self) -> tuple[str, ...]:
        """The names of the stores that did not answer the last call of this process."""
        several = placed(self._core.backend)
        return () if several is None else several.away

    async def stores(self) -> list[StoreState]:
        """Return how each store stands: its name and address, whether it answers, its clock and its backlog.
        One that does not answer is not left out."""
        several = await self._several()
        return list(await several.stores())

    async def place(self, tenant: str, store: str | None = None) -> str:
        """Give a tenant its store, before it has anything. Returns the name of its store: another one, if it
        has that already.

        store: its name. None: the store that the tenant would get with its first item.
        """
        check_tenant(tenant)
        several = await self._several()
        return await several.place(tenant, store)

    async def move_tenant(
        self,
        tenant: str,
        to: str,
        *,
        source: str | None = None,
        resume: bool = False,
        freeze: float = 10.0,
        skew: float = 1.0,
        progress: Callable[[int], object] = int,
    ) -> MovedTenant:
        """Move a tenant to another store while clients and workers go on. A worker that runs an item of it
        settles the item there.

        to: the name of the new store.
        source: the name of the store that has it. None: whichever has.
        resume: go on with a move that has begun, and whose process has died.
        freeze: the most seconds for which others may have to wait to write in the old store.
        skew: seconds by which the clocks of the two stores may differ.
        """
        check_tenant(tenant)
        several = await self._several()
        return await several.move_tenant(
            tenant,
            to,
            source=source,
            resume=resume,
            freeze=freeze,
            skew=skew,
            note=self._note,
            progress=progress,
        )

    async def give_up_move(self, tenant: str) -> bool:
        """End a move of a tenant that has begun and is not decided: the tenant stays where it is. Returns
        False if there is none."""
        check_tenant(tenant)
        several = await self._several()
        return await several.give_up_move(tenant)

    async def accept_store(self, name: str) -> None:
        """Let an empty store take the place of one that has lost its data for good. All stores must answer.

        What was in it is lost: its items, keys, schedules and audit; with home also limits, pauses and
        statistics. Tenants that are in other stores stay there. Call it on an app that has not started.

        name: of the store.
        """
        await self._unopened().accept_store(name)
        await self._core.connect()

    async def plan_rebalance(
        self, *, most: int = 10, tolerance: float = 0.1, by: BalanceBy = "items"
    ) -> RebalancePlan:
        """Say which tenants should move so that the stores have as much as each other: what brings most
        first. It moves none: `move_tenant` does. A store that does not answer raises `StoreUnavailable`.

        most: the number of moves.
        tolerance: by how much the fullest store may have more than the emptiest, as a part of what each would
            have.
        by: what is evened out: all items, which takes time in proportion to how many are kept, or the open
            ones. Of these there are estimates where there are many.
        """
        several = await self._several()
        return await several.plan_rebalance(most=most, tolerance=tolerance, by=by)

    async def _several(self) -> Placed:
        several = self._unopened()
        await self._core.connect()
        return several

    def _unopened(self) -> Placed:
        several = placed(self._core.backend)
        if several is None:
            raise no_such_store()
        if self._tenant is not None:
            raise InputError("a client of one tenant is not told of stores: call it on the app")
        return several


def _check_step(step: object) -> None:
    if type(step) is not int or step < MINUTE or step % (MINUTE if step < HOUR else HOUR):
        raise InputError.of("step", step, "must be a multiple of 60 seconds, from an hour on one of 3600")


def in_store(core: Core, store: str | None) -> AbstractContextManager[None]:
    """In this block, reads are of this one of several stores. None: of all."""
    check_store(core, store)
    return only_store(store)


def check_store(core: Core, store: str | None) -> None:
    """`InputError` if the app has no store of this name."""
    if store is not None:
        several = placed(core.backend)
        known = () if several is None else several.backends
        if store not in known:
            raise no_such_store(store, known)


async def begin_read(core: Core, capability: str = "watching") -> None:
    """Open the backend, for a read that not all backends have."""
    check_capable(core.backend, capability)
    await core.connect()
