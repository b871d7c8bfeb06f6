"""What really runs: handlers, their processes and threads. The rules that the engine must keep for them:

| R1 | no handler begins after the deadline of its item, or long after its item has ended |
| R2 | no worker begins an item of a type, queue or tenant that it does not serve |
| R3 | a plain item begins promptly while a worker has room for it, whatever other types wait for; a limited
       one begins as soon as its own limit allows |
| R4 | an item is not given away while its thread lives |
| R5 | a concurrency limit is never exceeded, and no limited item begins without a permit |
| R6 | an item lost more than once runs beside ever fewer others for a while, and one that was lost begins
       only after the store knows of it; one
       that had not begun counts no loss |

R1 and R3 to R5 need strict timing: without it a lease may be lost while its handler runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.simulation.loop import Process
from tests.simulation.plan import LEASE
from tests.simulation.program import BATCHES, CONCURRENT, IN_THREADS, LIMITED, PER_LANE, STRICT
from tests.simulation.reference import ReferenceItem, ReferenceStore, must
from treadle import Treadle
from treadle.backends.many.member import inner
from treadle.engine.run.held import HeldLease
from treadle.events import Started
from treadle.item import GROUP_TYPE, JOIN_TYPE, Item, Lease, PermitReply, PermitRequest, Ref, Settlement

PROMPT = 1.0
"""Seconds in which a plain item starts. A poll takes longer."""
USUAL_LIMIT = 200
"""What counts as the limit of a worker without one."""
TOLD = 3.0
"""Seconds after which a worker knows that an item has ended: a heartbeat and a round trip."""


class SimWorker(NamedTuple):
    """A worker and what it serves. None means everything."""

    process: Process
    app: Treadle
    types: frozenset[str] | None
    queues: Sequence[str] | None
    tenants: Sequence[str] | None
    most: int | None
    """How many items it runs at once."""
    born: float
    """When it was started, by the store's clock."""

    def serves(self, item: Item) -> bool:
        return (
            (self.types is None or item.type in self.types or item.type in (GROUP_TYPE, JOIN_TYPE))
            and (self.queues is None or item.queue in self.queues)
            and (self.tenants is None or item.tenant in self.tenants)
        )

    def running(self) -> list[HeldLease]:
        """The attempts in it whose handlers run."""
        runtime = self.app.worker._runtime
        return [] if runtime is None else [held for held in runtime.held.unfinished() if held.started]

    @property
    def may_run(self) -> bool:
        """Whether a handler runs in it, or would run before it stops. What a limit holds back does not."""
        runtime = self.app.worker._runtime
        unfinished = [] if runtime is None else runtime.held.unfinished()
        return any(held.started or held.bound.name not in LIMITED for held in unfinished)


class Run(NamedTuple):
    """A handler that runs. until: when its thread ends."""

    ref: Ref
    token: int
    process: Process
    until: float

    def alive(self, now: float) -> bool:
        return now < self.until and not self.process.dead


class HandlerChecks:
    def __init__(
        self, reference: ReferenceStore, now: Callable[[], float], cover: Callable[[str], None]
    ) -> None:
        self._reference = reference
        self._now = now
        self._cover = cover
        self.strict_timing = True
        """No pauses, no clock jumps, a store that answers: no excuse for anything that is late."""
        self.prompt = False
        """Every wake-up arrives, and every worker has room: no excuse for a start by the poll."""
        self.workers: dict[str, SimWorker] = {}
        self._threads: dict[Ref, Run] = {}
        self._running: list[tuple[str, Process]] = []
        self._permits: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._resumed: dict[str | None, float] = {}
        """By queue. None: of a type or a tenant."""
        self._given_back: Counter[tuple[str, str, int]] = Counter()
        """How often an item was given back, by tenant, id and losses."""
        self._rated: list[float] = []
        """When items of the type `rated` began. It may start two per second."""

    # -- what happens --------------------------------------------------------------------------------------

    def resumed(self, queue: str | None, now: float) -> None:
        self._resumed[queue] = now

    def killed(self, worker: str) -> bool:
        return worker in self.workers and self.workers[worker].process.dead

    def take_permits(self, requests: Sequence[PermitRequest], replies: Sequence[PermitReply]) -> None:
        for request, reply in zip(requests, replies, strict=True):
            for limit in request.limits:
                self._permits[limit.name.partition(":")[0]] += reply.count
            self._cover("a permit was given" if reply.count else "a permit was denied")

    def block(self, ref: Ref, process: Process, seconds: float) -> None:
        """A thread of this process runs the item for so long."""
        token = self._reference.items[ref].token
        self._threads[ref] = Run(ref, token, process, self._now() + seconds)
        self._cover("a thread began")

    def threads_of(self, process: Process) -> list[Run]:
        now = self._now()
        return [run for run in self._threads.values() if run.process is process and run.alive(now)]

    @contextmanager
    def running(self, ref: Ref, process: Process) -> Generator[None]:
        """A handler of a type with a concurrency limit runs in this block (R5)."""
        entry = (self._limit_key(ref), process)
        self._running.append(entry)
        self._check_concurrency(ref)
        try:
            yield
        finally:
            self._running.remove(entry)

    # -- the rules -----------------------------------------------------------------------------------------

    def started(self, worker: SimWorker, event: Started) -> None:
        expected = self._reference.items.get((event.tenant, event.id))
        if expected is None or worker.process.dead:
            return
        now = self._now()
        if any(inner(held.lease.token) == expected.token for held in worker.running()):
            expected.started_token = expected.token  # not that of a lease that was lost meanwhile
        self._check_served(worker, expected)
        self._check_permit(expected)
        self._check_isolation(worker, expected)
        if not self.strict_timing:
            return
        self._check_in_time(expected, now)
        if self.prompt and (expected.starts == 1 or expected.woken) and expected.ready_at is not None:
            self._check_prompt(expected, now)
        if expected.item.type in CONCURRENT and expected.item.type in IN_THREADS:
            self._check_concurrency(expected.ref)

    def _check_served(self, worker: SimWorker, expected: ReferenceItem) -> None:
        must(worker.serves(expected.item), f"{expected} began in {worker.process}, which does not serve it")

    def _check_permit(self, expected: ReferenceItem) -> None:
        type = expected.item.type
        if type in LIMITED:
            self._starts[type] += 1
            must(self._starts[type] <= self._permits[type], f"{expected} began without a permit")

    def _check_in_time(self, expected: ReferenceItem, now: float) -> None:
        late = expected.deadline is not None and not expected.ended and now > expected.deadline + 0.5
        must(not late, f"{expected} began {now - (expected.deadline or 0):g} s after its deadline")
        gone = expected.ended_at is not None and expected.ended and now > expected.ended_at + TOLD
        must(not gone, f"{expected} began {now - (expected.ended_at or 0):g} s after its end")

    def _check_prompt(self, expected: ReferenceItem, now: float) -> None:
        item = expected.item
        if item.type in IN_THREADS or item.type in BATCHES or item.type in (LIMITED | STRICT) - {"rated"}:
            return
        resumed = max(self._resumed.get(item.queue, 0.0), self._resumed.get(None, 0.0))
        since = max(expected.ready_at or 0.0, resumed)
        able = [one for one in self.workers.values() if one.born <= since and one.serves(item)]
        lost = any(one.losses for one in self._reference.open_items())
        if lost or all(one.process.dead or one.process.stopping for one in able):
            return
        most = PROMPT
        if item.type == "rated":
            self._rated.append(now)
            most = 2.0 + sum(at >= since for at in self._rated) / 2
        self._cover(f"a {'limited' if item.type == 'rated' else 'plain'} start that had to be prompt")
        must(now - since <= most, f"{expected} began {now - since:g} s after it was ready, not {most:g}")

    def _check_isolation(self, worker: SimWorker, expected: ReferenceItem) -> None:
        current = expected.token and expected.token == expected.started_token
        must(not current or expected.begun, f"{expected} runs, and the store does not know that it has begun")
        running = worker.running()
        beside = len({id(held.batch or held) for held in running})
        for held in running:
            lease, now = held.lease, asyncio.get_running_loop().time()
            # An item that found no room was given back, and may run beside twice as many each time.
            halvings = lease.losses - 1 - self._given_back[lease.tenant, lease.id, lease.losses]
            if halvings > 0 and now - held.sent < LEASE * 2.0 ** (lease.losses - 2):
                most = max(1, (worker.most or USUAL_LIMIT) >> halvings)
                must(
                    beside <= most,
                    f"{lease.id} ({lease.type}), lost {lease.losses} times, runs beside {beside} of {most}",
                )
                self._cover("an item on trial ran")
            self._cover("a lost item ran again") if lease.losses else None

    def removed(self, worker: str) -> None:
        """The items of this worker are freed: none whose thread lives (R4). What waited in it, and had not
        begun, counts no loss (R6)."""
        known = self.workers.get(worker)
        if known is None or not self.strict_timing:
            return
        for run in self.threads_of(known.process):
            leased = self._reference.items[run.ref].token == run.token
            must(not leased, f"{self._reference.items[run.ref]} was freed while its thread runs")
        if not known.process.dead:
            return
        for token, expected in self._reference.held.get(worker, {}).items():
            waited = expected.item.type in BATCHES or expected.item.type in LIMITED
            if expected.begun and waited and expected.doom is None and expected.started_token != token:
                late = known.process.died_at - expected.begun_at
                must(late <= 0.5, f"{expected} counts a loss, and its handler had not begun for {late:g} s")

    def leased(self, expected: ReferenceItem, lease: Lease, worker: str) -> None:
        """No second worker gets an item while the thread of the first lives (R4)."""
        served = worker not in self.workers or self.workers[worker].serves(expected.item)
        must(lease.verdict or served, f"{expected} was leased to {worker}, which does not serve it")
        run = self._threads.get(expected.ref)
        if run is not None and self.strict_timing:
            must(not run.alive(self._now()), f"{expected} was leased again while its thread runs")

    def settled(self, expected: ReferenceItem, settlement: Settlement) -> None:
        """A release gives an item away. Any other settlement is the end of this attempt."""
        lease = settlement.lease
        self._given_back[lease.tenant, lease.id, lease.losses] += settlement.kind == "release"
        run = self._threads.get(expected.ref)
        if run is None or run.token != lease.token:
            return
        if settlement.kind == "release":
            must(not run.alive(self._now()), f"{expected} was given back while its thread runs")
        del self._threads[expected.ref]

    def _check_concurrency(self, ref: Ref) -> None:
        key = self._limit_key(ref)
        most = CONCURRENT[key.partition(":")[0]]
        now = self._now()
        count = sum(other == key and not process.dead for other, process in self._running)
        count += sum(self._limit_key(run.ref) == key and run.alive(now) for run in self._threads.values())
        if count == most:
            self._cover("a concurrency limit was reached")
        must(count <= most or not self.strict_timing, f"{ref}: {count} run at once, of {most}")

    def _limit_key(self, ref: Ref) -> str:
        """What shares a concurrency limit with this item."""
        item = self._reference.items[ref].item
        return f"{item.type}:{item.tenant}:{item.lane}" if item.type in PER_LANE else f"{item.type}:"
