"""Dispatch: from leases to attempts. What can run is handed to its doer, what cannot is settled at once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import msgspec

from treadle.codec import Codec
from treadle.dependency import DEPENDENCY
from treadle.doers import Task
from treadle.doers.base import BaseDoer
from treadle.engine.submit.build_item import PLAIN, read_stored
from treadle.errors import DecodeError, PayloadError
from treadle.item import Demand, Item, Lease, Ref
from treadle.result_plan import NOTHING

from .attempt import AttemptRunner
from .batch import Batches
from .decide import Succeed, judged, undecodable
from .desk import Desk
from .held import BoundType, HeldLease
from .settle import GiveBack, PendingSettlement

PORTION = 500
"""The most that one claim asks for."""
UNSETTLED = 4 * PORTION
"""With so many settlements waiting, nothing new is claimed: the store is slower than the handlers."""


class Dispatcher:
    def __init__(
        self, desk: Desk, runner: AttemptRunner, bounds: Mapping[str, BoundType], doer: BaseDoer, codec: Codec
    ) -> None:
        self._desk = desk
        self._runner = runner
        self._bounds = bounds
        self._doer = doer
        self._codec = codec
        self._place = itertools.count()
        self._batches = Batches(runner, desk, self._start)

    # -- what there is room for ------------------------------------------------------------------------

    def demand(self, empty: Demand) -> Demand | None:
        """`empty`, filled in with what could start now."""
        if len(self._desk.settler) >= UNSETTLED:
            return None
        shared = min(self._doer.available(), PORTION)
        rooms = {name: self._room(bound, shared) for name, bound in self._bounds.items()}
        own = sum(rooms[name] for name, bound in self._bounds.items() if bound.own_doer)
        limit = min(shared + own, PORTION)
        rooms[DEPENDENCY.name] = limit
        avoid = self._doer.avoid().union(*(b.doer.avoid() for b in self._bounds.values() if b.own_doer))
        return _filled(empty, limit, rooms, avoid)

    def _room(self, bound: BoundType, shared: int) -> int:
        room = min(bound.doer.available(), PORTION) if bound.own_doer else shared
        if bound.type.batch is not None:
            return self._batches.room(bound, room)
        threads = self._runner.room(bound.run_in)
        return room if threads is None else min(room, threads)

    # -- what came -------------------------------------------------------------------------------------

    def take(self, leases: tuple[Lease, ...], sent: float) -> None:
        knows, bounds = self._desk.knows, self._bounds
        for lease in leases:
            if knows(lease.token):
                continue
            bound = bounds.get(lease.type)
            if bound is None or lease.verdict is not None:
                self._not_ours(lease)
            else:
                self._take(lease, bound, sent)

    def _not_ours(self, lease: Lease) -> None:
        """What has no handler here to run it."""
        if lease.verdict is not None:
            self._desk.refuse(lease, judged(lease, lease.verdict))
        elif is_gate(lease.type):
            self._open(lease)
        else:
            # Not asked for; whoever has the type will take it.
            self._desk.refuse(lease, GiveBack())

    def _take(self, lease: Lease, bound: BoundType, sent: float) -> None:
        try:
            stored = read_stored(lease.options) if lease.options else PLAIN
            input = bound.type.decode_input(lease.input, self._codec)
        except Exception as error:  # noqa: BLE001  a codec of the user's own; the neighbours must not suffer
            self._desk.refuse(lease, undecodable(error))
            return
        active = HeldLease(lease, bound, input, stored, sent)
        self._desk.take(active)
        if bound.type.batch is not None:
            self._batches.add(active)
        else:
            self._start(bound, active, functools.partial(self._runner.run, active))

    def _open(self, lease: Lease) -> None:
        try:
            self._desk.settle(opened(lease))
        except PayloadError as error:
            self._desk.refuse(lease, undecodable(error))

    def _start(self, bound: BoundType, first: HeldLease, task: Task) -> None:
        """Hand an attempt, or a batch of them that begins with this one, to its doer."""
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
        except Exception as error:  # noqa: BLE001  a doer of the user's own
            self._desk.report(error, f"the doer refused {lease.id}; its lease is given back")
            for active in _attempts(task):
                self._give_back(active, GiveBack(1.0))

    # -- giving back -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Run what batches have collected."""
        self._batches.flush()

    def give_back(self) -> None:
        """Give back what has not started: collected for batches, or waiting in a doer."""
        for active in self._batches.drop():
            self._give_back(active, GiveBack())
        for doer in {self._doer, *(bound.doer for bound in self._bounds.values())}:
            for task in doer.cancel_pending():
                for active in _attempts(task):
                    self._give_back(active, GiveBack())

    def _give_back(self, active: HeldLease, release: GiveBack) -> None:
        if not active.over:
            active.over = True
            self._desk.decided(active, release)


def _attempts(task: Task) -> list[HeldLease]:
    """The attempts that a task handed to a doer is for: the last thing that it was made with."""
    assert isinstance(task, functools.partial)
    last: HeldLease | list[HeldLease] = task.args[-1]
    return last if isinstance(last, list) else [last]


def _filled(empty: Demand, limit: int, rooms: dict[str, int], avoid: frozenset[Ref]) -> Demand:
    return msgspec.structs.replace(empty, limit=limit, types=rooms, avoid=avoid)


_decoder = msgspec.json.Decoder(tuple[Item, ...])


def is_gate(type: str) -> bool:
    return type == DEPENDENCY.name


def opened(lease: Lease) -> PendingSettlement:
    """The settlement of a gate that has been met. `DecodeError` if its works cannot be read."""
    try:
        items = _decoder.decode(lease.input)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DecodeError(str(error)) from error
    return PendingSettlement(
        lease, Succeed(NOTHING), children=tuple(_inheriting(item, lease) for item in items)
    )


def _inheriting(item: Item, lease: Lease) -> Item:
    return msgspec.structs.replace(
        item,
        workflow=item.workflow or lease.workflow,
        workflow_type=item.workflow_type or lease.workflow_type,
    )
