"""Dispatch: from leases to attempts. Items that can run are handed to their doer, others are settled at once.

Also what a claim asks for (`demand`): as much as the doers, threads and batches have room for.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from treadle.bulk_action import BULK_TYPE
from treadle.codec.json_codec import LARGE
from treadle.doers import Task
from treadle.doers.base import KeepDenied
from treadle.doers.permitted import is_over_inside, without_permits
from treadle.engine.core import Core
from treadle.engine.settings import WorkerSettings
from treadle.engine.submit.build_item import NO_OPTIONS, read_stored
from treadle.item import AvoidedLane, Demand, Lease, SharedRoom

from .attempt import AttemptRunner
from .batch import Batches
from .bound_types import BoundTypes
from .built_in import SETTLED_AT_ONCE, ItemsWithoutAttempt
from .decide import GiveBack, is_lost_too_often, judged, unbegun
from .held import UNREAD, BoundType, HeldLease, HeldLeases, attempts_of
from .isolation import LOSSES_BEFORE_TRIAL, Isolation
from .orders import WorkerOrders
from .settle import Settler
from .undecodable import UndecodableItems

PORTION = 500
"""The most that one claim asks for."""
UNSETTLED = 4 * PORTION
"""Settlements waiting, with which nothing new is claimed: the store is slower than the handlers."""


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
        self._now = core.settings.clock.monotonic
        self._types = types
        self._bound = types.by_name
        self.orders = WorkerOrders(core, types, held)
        self._doer = types.doer
        self._held = held
        self.settler = settler
        self._runner = runner
        self.without_attempt = ItemsWithoutAttempt(core, held, settler, undecodable_items)
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
        types, bound_types = self._types, self._bound
        shared = min(self._doer.available(), PORTION)
        pools = self._batches.pool_rooms(types.all) if types.shares_room else {}
        rooms = dict.fromkeys(bound_types, shared)
        for name, bound in bound_types.items():
            if bound.own_doer or not bound.is_plain or bound.doer is not bound.given_doer:
                rooms[name] = self._room(bound, shared, pools)
        own = sum(rooms[bound.name] for bound in types.all if bound.own_doer) if types.has_own_doers else 0
        limit = min(shared + own, PORTION)
        if not self.isolation.is_idle:
            limit = int(min(limit, self.isolation.room()))
        rooms |= dict.fromkeys(SETTLED_AT_ONCE, limit)
        if types.runs_bulk:
            rooms[BULK_TYPE] = 0 if self.without_attempt.runs_bulk else min(limit, 1)
        avoid: dict[str, frozenset[AvoidedLane]] = {}
        if types.has_limits:
            avoid = {name: lanes for name, bound in bound_types.items() if (lanes := bound.doer.avoid())}
        if self.orders.pauses:
            self.orders.leave_out(rooms, avoid)
        self.last_demand = demand = msgspec.structs.replace(
            self._demand,
            limit=limit,
            types=rooms,
            shared=shared_rooms(types.all, pools, rooms) if types.shares_room else (),
            avoid=avoid,
            buffered=types.buffered,
            strict=types.strict,
            fairness=fairness,
            orders=self.orders.version,
        )
        return demand

    def _room(self, bound: BoundType, shared: int, pools: Mapping[str, int]) -> int:
        room = min(bound.doer.available(), PORTION) if bound.own_doer else shared
        if bound.doer is not bound.given_doer:
            room = min(room, bound.doer.available())
        if bound.pooled:
            room = min(room, pools[bound.run_in])
        return room if bound.type.batch is None else self._batches.room(bound, room)

    def could_start(self, type: str, tenant: str) -> bool:
        """Whether an item of this type could start right now, alone."""
        bound = self._bound.get(type)
        if bound is None or bound.type.batch is not None or self.stopping or type in self._types.strict:
            return False
        if not self.orders.may_start(bound, tenant):
            return False
        pools = self._batches.pool_rooms(self._types.all) if bound.pooled else {}
        room = self._room(bound, self._doer.available(), pools)
        return room > 0 and self.isolation.room() > 0

    # -- what was claimed ------------------------------------------------------------------------------

    def take(self, leases: tuple[Lease, ...], sent: float) -> None:
        """Start these, or settle those that cannot run. `sent`: when they were asked for."""
        if self.stopping:
            for lease in leases:
                self.without_attempt.settle(lease, GiveBack())
            return
        held, bound_types = self._held, self._bound
        known, settling = held.by_token, held.without_attempt
        unknown = [lease for lease in leases if lease.token not in known and lease.token not in settling]
        to_run = [lease for lease in unknown if lease.verdict is None and lease.type in bound_types]
        if len(to_run) < len(unknown):
            self.without_attempt.settle_all(
                [lease for lease in unknown if lease.verdict is not None or lease.type not in bound_types]
            )
        received = self._now()
        taken: list[HeldLease] = []
        if not self.isolation.is_idle or [lease for lease in to_run if lease.losses]:
            to_run = self._admit(self._end_lost(to_run))
        for lease in to_run:
            if (one := self._read(lease, bound_types[lease.type], sent, received)) is not None:
                taken.append(one)
        held.take(taken)
        run = self._runner.run
        for one in taken:
            lease, bound = one.lease, one.bound
            if lease.deadline is not None or lease.losses:
                self._run(one)
            elif bound.is_plain:
                self._start(bound, one, functools.partial(run, one))
            else:
                self._start_or_collect(one)

    def _end_lost(self, leases: list[Lease]) -> list[Lease]:
        """End the items that were lost too often. Returns the others."""
        others: list[Lease] = []
        for lease in leases:
            if lease.losses and is_lost_too_often(lease, self._bound[lease.type].retry):
                self.without_attempt.settle(unbegun(lease), judged(lease, "lease_lost"))
            else:
                others.append(lease)
        return others

    def _admit(self, leases: list[Lease]) -> list[Lease]:
        """Give back the items that would run beside too many others. Returns those to run."""
        taken, refused = self.isolation.admit(leases)
        for lease in refused:
            self.without_attempt.settle(lease, GiveBack(self.isolation.delay(lease)))
        return taken

    def _read(self, lease: Lease, bound: BoundType, sent: float, received: float) -> HeldLease | None:
        """The attempt of an item. None: its input or options cannot be read."""
        try:
            stored = read_stored(lease.options) if lease.options else NO_OPTIONS
            large = len(lease.input) >= LARGE
            input = UNREAD if large else bound.arguments.decode(lease.input, bound.codec, bound.upcast)
        except BaseException as error:  # noqa: BLE001  a user's codec may raise anything; go on with the others
            self.without_attempt.leave(lease, error)
            return None
        return HeldLease(lease, bound, input, stored, sent, received)

    def _run(self, held: HeldLease) -> None:
        """Start an item that has a deadline, or was lost before."""
        lease = held.lease
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

    def obey(self) -> None:
        """Obey the orders in force. What waits here goes back: it may be paused, or have other limits."""
        self.give_back()
        self.orders.apply()

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


def _is_over(task: Task) -> bool:
    return all(held.over for held in attempts_of(task))


def shared_rooms(
    types: Sequence[BoundType], pools: Mapping[str, int], rooms: Mapping[str, int]
) -> tuple[SharedRoom, ...]:
    """The rooms of the pools, for types that run there one by one (a batch waits here anyway), and the rooms
    of types with several names."""
    shared: list[SharedRoom] = []
    for run_in, room in pools.items():
        here = [bound for bound in types if bound.run_in == run_in and bound.type.batch is None]
        names = frozenset(name for bound in here for name in bound.names)
        if room > 0 and len(names) > 1:
            shared.append(SharedRoom(names, room))
    for bound in types:
        in_pool = bound.pooled and bound.type.batch is None
        if bound.type.aliases and not in_pool and rooms[bound.name] > 0:
            shared.append(SharedRoom(frozenset(bound.names), rooms[bound.name]))
    return tuple(shared)
