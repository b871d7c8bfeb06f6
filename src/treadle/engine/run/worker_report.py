"""Worker report: what a worker says about itself in its heartbeats, for operators: `WorkerInfo`.

It goes with the first heartbeat, with the next one after it has changed, and now and then. Nothing of it is
written per item, and it takes no call to the store of its own.
"""

from __future__ import annotations

import math
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import msgspec

from treadle.base import VERSION
from treadle.bulk_action import BULK_TYPE
from treadle.engine.core import Core
from treadle.engine.declared_limits import rates_of, slots_of
from treadle.engine.settings import WorkerSettings
from treadle.item import Lease
from treadle.worker_info import MOST_BLOCKAGES, Blockage, BlockingItem, UndecodableType, WorkerInfo

from .attempt import AttemptRunner
from .bound_types import BoundTypes
from .dispatch import Dispatcher
from .held import HeldLeases
from .undecodable import UndecodableItems

OFTEN: Final = 5.0
"""Seconds between two changes that are sent, or half a lease if that is less."""
REPEAT: Final = 60.0
"""Seconds after which it is sent again: another connection may have registered the worker without it."""
MOST_TYPES: Final = 100
"""Types that are named at most."""
RECENT: Final = 600.0
"""Seconds for which a blockage that is over is said."""
MOST_BLOCKING: Final = 5
"""Items of a batch that are named."""
MOST_SCHEDULES: Final = 100
"""If there are more schedules, none is named."""


class WorkerReport:
    """Makes the info of one worker, and knows whether it has to be sent."""

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        types: BoundTypes,
        held: HeldLeases,
        runner: AttemptRunner,
        dispatcher: Dispatcher,
        undecodable: UndecodableItems,
    ) -> None:
        self._store_clock = core.store_clock
        self._scheduler = core.scheduler
        self._monotonic = core.settings.clock.monotonic
        self._types = types
        self._held = held
        self._pools = runner.pools
        self._declines = runner.declines
        self._dispatcher = dispatcher
        self._undecodable = undecodable
        self._limits = dict(sorted(slots_of(core).items())[:MOST_TYPES])
        rates = rates_of(core)
        self._rates = None if len(rates) > MOST_TYPES else rates
        self._every = min(OFTEN, core.settings.lease / 2)
        self._fixed = WorkerInfo(
            host=host_name(),
            pid=os.getpid(),
            version=VERSION,
            release=core.settings.release,
            lease=core.settings.lease,
            heartbeat=core.settings.heartbeat,
            queues=worker.queues,
            tenants=worker.tenants,
            unknown_type_grace=core.settings.unknown_type_grace,
        )
        self._pressed_until: float | None = None
        """By the monotonic clock."""
        self._sent: tuple[float, WorkerInfo] | None = None
        """What was sent last, and when, by the monotonic clock. None: nothing is in the store."""
        self._blockages: deque[tuple[float, Blockage]] = deque(maxlen=MOST_BLOCKAGES)
        """When they ended, by the monotonic clock, and what they were."""
        self._wait_until = -math.inf
        """No change is sent before. The first change does not wait: a worker has room, and then has not."""

    async def open(self) -> None:
        """Learn the store's clock. Before the first heartbeat."""
        await self._store_clock.refresh()
        self._fixed = msgspec.structs.replace(
            self._fixed, started_at=self._store_clock.now(), limits=self._limits, rates=self._rates
        )

    def press(self, seconds: float) -> None:
        """Back-pressure: nothing is claimed for so long."""
        self._pressed_until = self._monotonic() + seconds

    def blocked(self, since: float, by: Sequence[Lease]) -> WorkerInfo | None:
        """What was sent last, and that the event loop has been blocked since then, by the monotonic clock.
        None: nothing was sent. A thread calls it."""
        if self._sent is None:
            return None
        at = round(self._store_clock.at(since), 3)
        return msgspec.structs.replace(self._sent[1], blocked_since=at, blocked_by=_blocking(by))

    def note_blockage(self, since: float, until: float, by: Sequence[Lease]) -> None:
        """The event loop was blocked from `since` to `until`, by the monotonic clock."""
        began, ended = (round(self._store_clock.at(each), 3) for each in (since, until))
        self._blockages.append((until, Blockage(began, ended, _blocking(by))))

    def _recent_blockages(self) -> tuple[Blockage, ...]:
        oldest = self._monotonic() - RECENT
        while self._blockages and self._blockages[0][0] < oldest:
            self._blockages.popleft()
        return tuple(each for _, each in self._blockages)

    def forget(self) -> None:
        """The store may not have it: it is sent again."""
        self._sent = None

    def due(self) -> WorkerInfo | None:
        """What the next heartbeat has to say. None: nothing new, or not yet."""
        if self._sent is None:
            return self.info()
        (at, last), now = self._sent, self._monotonic()
        if now < self._wait_until and last.draining == self._dispatcher.stopping:
            return None
        info = self.info()
        return info if info != last or now - at >= REPEAT else None

    def sent(self, info: WorkerInfo, at: float) -> None:
        """A heartbeat with this info was answered. at: when it was sent, by the monotonic clock."""
        if self._sent is not None:
            self._wait_until = at + self._every
        self._sent = (at, info)

    def info(self) -> WorkerInfo:
        """What there is to say now."""
        pressed, demand = self._pressed_until, self._dispatcher.last_demand
        if pressed is not None and pressed <= self._monotonic():
            pressed = self._pressed_until = None
        full = demand is not None and demand.limit <= 0
        rooms: Mapping[str, int] = {} if demand is None or demand.types is None else demand.types
        none_left = (name for name, room in rooms.items() if not room and name != BULK_TYPE)
        full_types = tuple(sorted(none_left))[:MOST_TYPES]
        # Not exact to the last digit: the same instant has to look the same in the next heartbeat.
        pressed_until = None if pressed is None else round(self._store_clock.at(pressed), 3)
        return msgspec.structs.replace(
            self._fixed,
            room=self._types.doer.limit,
            rooms=self._rooms(),
            full=full,
            full_types=() if full else full_types,
            trial=self._dispatcher.isolation.binding(self._store_clock.at),
            pressed_until=pressed_until,
            declined=self._declines.last_minute(self._monotonic()),
            undecodable=self._undecodable_types(),
            waiting=sum(not held.started and not held.over for held in self._held.by_token.values()),
            blockages=self._recent_blockages(),
            draining=self._dispatcher.stopping,
            schedules=self._schedules(),
        )

    def _undecodable_types(self) -> dict[str, UndecodableType]:
        types = self._undecodable.by_type(self._store_clock.at)
        return dict(sorted(types.items())[:MOST_TYPES])

    def _schedules(self) -> tuple[str, ...] | None:
        names = self._scheduler.entries
        return tuple(sorted(names)) if len(names) <= MOST_SCHEDULES else None

    def _rooms(self) -> dict[str, int | None]:
        rooms: dict[str, int | None] = {}
        for bound in self._types.all:
            if not (bound.own_doer or bound.pooled) or len(rooms) >= MOST_TYPES:
                continue
            limits = [bound.doer.limit] if bound.own_doer else []
            limits += [self._pools.size(bound.run_in)] if bound.pooled else []
            known = [limit for limit in limits if limit is not None]
            rooms.update(dict.fromkeys(bound.names, min(known, default=None)))
        return rooms


def _blocking(leases: Sequence[Lease]) -> tuple[BlockingItem, ...]:
    return tuple(BlockingItem(each.id, each.type, each.tenant) for each in leases[:MOST_BLOCKING])


@cache
def host_name() -> str:
    """The name of this machine."""
    return socket.gethostname()[:255]
