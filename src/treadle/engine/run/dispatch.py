"""Dispatch: from leases to attempts. Items that can run are handed to their doer, others are settled at once.

Also what a claim asks for (`demand`): as much as the doers, threads and batches have room for.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from treadle.bulk_action import BULK_QUEUE, BULK_TYPE
from treadle.doers import Doer, Task
from treadle.doers.base import BaseDoer, Failing, KeepDenied, WorkerDoers
from treadle.doers.limited import has_strict_lanes
from treadle.doers.on_full import OnFullCalls
from treadle.doers.permitted import is_over_inside, without_permits
from treadle.engine.core import Core
from treadle.engine.hooks import Phase
from treadle.engine.large_values import LARGE
from treadle.engine.registry import AnyType
from treadle.engine.settings import WorkerSettings
from treadle.engine.submit.build_item import NO_OPTIONS, read_stored, retry_of
from treadle.errors import PayloadError
from treadle.item import Demand, Lease

from .attempt import AttemptRunner
from .batch import Batches
from .built_in import SETTLED_AT_ONCE
from .decide import GiveBack, judged, lost_too_often, unbegun
from .held import UNREAD, BoundType, HeldLease, HeldLeases, attempts_of
from .isolation import LOSSES_BEFORE_TRIAL, Isolation
from .lane_limits import add_strict_type, check_batch, prepare_limits
from .rooms import shared_rooms
from .settle import Settler
from .undecodable import UndecodableItems
from .unrun import UnrunItems

PORTION = 500
"""The most that one claim asks for."""
UNSETTLED = 4 * PORTION
"""With so many settlements waiting, nothing new is claimed: the store is slower than the handlers."""
_REPORTS: Final[dict[Failing, tuple[Phase, str]]] = {
    "task": ("hook", "an attempt's task failed"),
    "doer": ("hook", "a doer failed"),
    "permits": ("claim", "could not take or return permits of a limit; will retry"),
}


class BoundTypes:
    """The work types that a worker runs, each bound to its doer.

    on_free: called when a doer has room again, or a type was added.
    on_give_back: called with tasks that a limit holds back.
    on_full: what a limit does that drops or replaces items.
    """

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        on_free: Callable[[], None],
        on_give_back: Callable[[list[Task]], None],
        on_full: OnFullCalls,
    ) -> None:
        self._core = core
        self._worker = worker
        self._on_free = on_free
        self._on_give_back = on_give_back
        self._on_full = on_full
        self._doers = WorkerDoers()
        self.doer = self._doers.of(worker.doer)
        """The doer of the types that have none of their own."""
        self._opened: dict[BaseDoer, None] = {}
        """The doers that are bound, in the order of their binding."""
        self.all: list[BoundType] = []
        self.by_name: dict[str, BoundType] = {}
        """The same types by name. A type with aliases is there under each of them too."""
        self.buffered: frozenset[str] = frozenset()
        """The types whose items may wait here before their handlers begin: see `Demand.buffered`."""
        self.strict: frozenset[str] = frozenset()
        """The types whose lanes are strict: see `Demand.strict`."""
        serves_bulk = worker.queues is None or BULK_QUEUE in worker.queues
        self.runs_bulk = core.run_portion is not None and serves_bulk
        """Whether this worker runs items of bulk actions."""
        self._built_in = (*SETTLED_AT_ONCE, BULK_TYPE) if self.runs_bulk else SETTLED_AT_ONCE

    def open(self) -> None:
        """Bind the worker's doer, and all types that are registered."""
        self._bind(self.doer, "app")
        for type in self._core.registry.types.values():
            self.add(type)

    def add(self, type: AnyType) -> None:
        """Run this type too, if it is among the worker's types and has a handler."""
        core, worker = self._core, self._worker
        names = (type.name, *type.aliases)
        wanted = worker.types is None or not worker.types.isdisjoint(names)
        if not wanted or not type.has_handler or type.name in self.by_name:
            return
        given: Doer = type.options.get("doer", worker.doer)
        doer = self._doers.of(given)
        check_batch(type, doer)
        if has_strict_lanes(given):
            add_strict_type(core, names)
            self.strict |= {*names}
        self._bind(doer, type.name)
        metrics = core.metrics.of(type.name)
        bound = BoundType(
            type, core.item_builder, core.settings, metrics, doer, own_doer=doer is not self.doer
        )
        self.all.append(bound)
        self.by_name.update(dict.fromkeys(names, bound))
        if type.batch is not None or doer.buffers:
            self.buffered |= {*names}
        self._on_free()

    def _bind(self, doer: BaseDoer, name: str) -> None:
        """Bind a doer, unless it is bound: types that share a doer share its binding."""
        if doer in self._opened:
            return
        core = self._core
        prepare_limits(core, doer, self._on_full)
        doer.bind(core.backend, core.settings.clock, self._worker.id, name)
        self._opened[doer] = None
        doer.on_free(self._on_free)
        doer.on_give_back(self._on_give_back)
        doer.on_error(self._report)

    def _report(self, error: Exception, failing: Failing) -> None:
        phase, message = _REPORTS[failing]
        self._core.hooks.report(error, phase, message)

    def has(self, name: str) -> bool:
        """Whether this worker settles items of this type."""
        return name in self.by_name or name in self._built_in

    def names(self) -> tuple[str, ...]:
        """All types that this worker settles: those that are built in need no handler."""
        return (*self.by_name, *self._built_in)

    def doers(self) -> list[BaseDoer]:
        """Each once, always in the same order."""
        return list(self._opened)


class Dispatcher:
    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        types: BoundTypes,
        held: HeldLeases,
        settler: Settler,
        runner: AttemptRunner,
        undecodable_items: UndecodableItems,
        on_room: Callable[[], None],
    ) -> None:
        self._hooks = core.hooks
        self._codec, self._now = core.settings.codec, core.settings.clock.monotonic
        self._types = types
        self._bound = types.by_name
        self._doer = types.doer
        self._held = held
        self.settler = settler
        self._runner = runner
        self._unrun = UnrunItems(core, held, settler, undecodable_items)
        self.yields = undecodable_items.yields
        self._place = itertools.count()
        self._batches = Batches(runner, settler, self._start)
        self.isolation = Isolation(
            types.doer.limit, held, runner.timers, core.settings.lease, self.give_back_one, on_room
        )
        self._demand = Demand(
            worker=worker.id,
            limit=0,
            queues=worker.queues,
            tenants=worker.tenants,
            unknown_grace=core.settings.unknown_type_grace,
        )
        self.last_demand: Demand | None = None
        """What was asked for last."""
        self.stopping = False
        """Whether new leases are given back instead of run."""

    # -- what to claim ---------------------------------------------------------------------------------

    def demand(self, fairness: object) -> Demand | None:
        """Ask for what could start now. None: claim nothing, not even items with a verdict.

        fairness: what the last claim answered.
        """
        if len(self.settler.waiting) >= UNSETTLED:
            return None
        bound_types, all_types = self._bound, self._types.all
        shared = min(self._doer.available(), PORTION)
        pools = self._batches.pool_rooms(all_types)
        rooms = {name: self._room(bound, shared, pools) for name, bound in bound_types.items()}
        own = sum(rooms[bound.name] for bound in all_types if bound.own_doer)
        limit = int(min(shared + own, PORTION, self.isolation.room()))
        rooms |= dict.fromkeys(SETTLED_AT_ONCE, limit)
        if self._types.runs_bulk and not self._unrun.runs_bulk:
            rooms[BULK_TYPE] = min(limit, 1)
        avoid = {name: lanes for name, bound in bound_types.items() if (lanes := bound.doer.avoid())}
        self.last_demand = demand = msgspec.structs.replace(
            self._demand,
            limit=limit,
            types=rooms,
            shared=shared_rooms(all_types, pools, rooms),
            avoid=avoid,
            buffered=self._types.buffered,
            strict=self._types.strict,
            fairness=fairness,
        )
        return demand

    def _room(self, bound: BoundType, shared: int, pools: Mapping[str, int]) -> int:
        room = min(bound.doer.available(), PORTION) if bound.own_doer else shared
        if bound.pooled:
            room = min(room, pools[bound.run_in])
        return room if bound.type.batch is None else self._batches.room(bound, room)

    def could_start(self, type: str) -> bool:
        """Whether an item of this type could start right now, alone."""
        bound = self._bound.get(type)
        if bound is None or bound.type.batch is not None or self.stopping or type in self._types.strict:
            return False
        pools = self._batches.pool_rooms(self._types.all) if bound.pooled else {}
        room = self._room(bound, self._doer.available(), pools)
        return room > 0 and self.isolation.room() > 0

    # -- what was claimed ------------------------------------------------------------------------------

    def take(self, leases: tuple[Lease, ...], sent: float) -> None:
        """Start these, or settle those that cannot run. `sent`: when they were asked for."""
        if self.stopping:
            for lease in leases:
                self._unrun.settle(lease, GiveBack())
            return
        knows, bound_types = self._held.knows, self._bound
        unknown = [lease for lease in leases if not knows(lease.token)]
        to_run = [lease for lease in unknown if lease.verdict is None and lease.type in bound_types]
        if len(to_run) < len(unknown):
            self._unrun.settle_all(
                [lease for lease in unknown if lease.verdict is not None or lease.type not in bound_types]
            )
        received = self._now()
        for lease in self._admit(self._end_lost(to_run)):
            self._take(lease, bound_types[lease.type], sent, received)

    def _end_lost(self, leases: list[Lease]) -> list[Lease]:
        """End the items that were lost too often. Returns the others."""
        if not any(lease.losses for lease in leases):
            return leases
        others: list[Lease] = []
        for lease in leases:
            if lease.losses and _is_lost_too_often(lease, self._bound[lease.type]):
                self._unrun.settle(unbegun(lease), judged(lease, "lease_lost"))
            else:
                others.append(lease)
        return others

    def _admit(self, leases: list[Lease]) -> list[Lease]:
        """Give back the items that would run beside too many others. Returns those to run."""
        taken, refused = self.isolation.admit(leases)
        for lease in refused:
            self._unrun.settle(lease, GiveBack(self.isolation.delay(lease)))
        return taken

    def _take(self, lease: Lease, bound: BoundType, sent: float, received: float) -> None:
        try:
            stored = read_stored(lease.options) if lease.options else NO_OPTIONS
            large = len(lease.input) >= LARGE
            input = UNREAD if large else bound.type.decode_input(lease.input, self._codec)
        except BaseException as error:  # noqa: BLE001  a user's codec may raise anything; go on with the others
            self._unrun.leave(lease, error)
            return
        held = HeldLease(lease, bound, input, stored, sent, received)
        self._held.take(held)
        if lease.deadline is not None:
            self._runner.watch_deadline(held)
        if lease.losses >= LOSSES_BEFORE_TRIAL and self.isolation.is_on_trial(lease):
            self.isolation.start(held, functools.partial(self._start_or_collect, held))
        else:
            self._start_or_collect(held)

    def _start_or_collect(self, held: HeldLease) -> None:
        bound = held.bound
        if bound.type.batch is not None:
            self._batches.add(held)
        else:
            run = self._runner.run_in_pool if bound.pooled else self._runner.run
            self._start(bound, held, functools.partial(run, held))

    def _start(self, bound: BoundType, first: HeldLease, task: Task) -> None:
        """Hand an attempt, or a batch that begins with `first`, to its doer."""
        lease = first.lease
        try:
            bound.doer.submit(
                task,
                lane=lease.lane,
                priority=lease.priority,
                queued_at=lease.queued_at,
                tenant=lease.tenant,
                place=next(self._place),
            )
        except BaseException as error:  # noqa: BLE001  a user's doer may raise anything
            self._hooks.report(error, "hook", f"the doer refused {lease.id}; its lease is given back")
            for held in attempts_of(task):
                self.give_back_one(held, delay=1.0)

    def forget(self, held: HeldLease) -> None:
        """It is over, and never started: its place in a batch or in the doer is free."""
        self._batches.remove(held)
        held.bound.doer.remove(lambda task: is_over_inside(task, _is_over))

    # -- draining and giving back ----------------------------------------------------------------------

    def keep_denied(self, which: KeepDenied) -> None:
        """Set which items wait in the doers although a limit denies them."""
        for doer in self._types.doers():
            doer.keep_denied(which)

    def flush(self) -> None:
        """Run what batches have collected."""
        self._batches.flush()

    async def idle(self) -> None:
        """Return when handlers have ended and are settled."""
        for doer in self._types.doers():
            await doer.idle()
        await self.settler.flush()

    def give_back(self) -> None:
        """Give back what has not started: collected for batches, or waiting in a doer."""
        for held in self._batches.clear():
            self.give_back_one(held)
        self.give_back_waiting()

    def give_back_waiting(self) -> None:
        """Give back what waits in a doer, and the lost item that waits for the others to end."""
        if (held := self.isolation.clear()) is not None:
            self.give_back_one(held)
        for doer in self._types.doers():
            self.give_back_tasks(doer.cancel_pending())

    def give_back_tasks(self, tasks: list[Task], *, limited: bool = False) -> None:
        for task in tasks:
            for held in attempts_of(without_permits(task)):
                self.give_back_one(held, limited=limited)

    def give_back_one(self, held: HeldLease, delay: float = 0.0, *, limited: bool = False) -> None:
        if not held.over:
            held.over = True
            self.settler.decided(held, GiveBack(delay, limited))


def _is_lost_too_often(lease: Lease, bound: BoundType) -> bool:
    try:
        retry = retry_of(read_stored(lease.options), bound.retry)
    except PayloadError:
        return False  # its options cannot be read: it ends for that reason
    return lost_too_often(lease, retry)


def _is_over(task: Task) -> bool:
    return all(held.over for held in attempts_of(task))
