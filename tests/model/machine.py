"""The state machine. Each rule calls a verb on both backends. The answers must be equal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.model import values as v
from tests.model.compare import as_listed, differences, plain, unordered, without_claim_time
from tests.support.folds import with_present_versions
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.errors import TreadleError
from treadle.item import (
    Demand,
    Filter,
    Fire,
    Heartbeat,
    ItemUpdate,
    Lease,
    Limit,
    Order,
    Outcome,
    PermitRequest,
    Rejected,
    Schedule,
    Settlement,
    Submission,
)
from treadle.testing import ManualClock

PAIR = tuple[Lease, Lease]


def _plain_outcome(outcome: Outcome, end: dict[str, Any]) -> Any:
    """A settlement that is both `moved` and `rejected` may be answered with either."""
    fold = end["contribution"]
    both = fold is not None and fold.version is not None and end["children"]
    return "refused" if both and outcome.verb in ("moved", "rejected") else plain(outcome)


class BackendMachine(RuleBasedStateMachine):
    steps = 0
    """Of all machines in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.memory = MemoryBackend(clock=self.clock)
        self.other: Backend = self.loop.run_until_complete(self.connect())
        self.leases: list[PAIR] = []
        self.number = 0

    async def connect(self) -> Backend:
        raise NotImplementedError

    async def disconnect(self) -> None:
        raise NotImplementedError

    async def clock_moved(self) -> None:
        """The clock has moved. Override this for a store with its own clock."""

    def teardown(self) -> None:
        self.loop.run_until_complete(self.disconnect())
        self.loop.close()

    # -- both backends ---------------------------------------------------------------------------------

    def both(self, call: Callable[[Backend, int], Awaitable[Any]], compare: Any = plain) -> tuple[Any, Any]:
        """Make the call on both backends. `call` gets the backend and its index."""
        BackendMachine.steps += 1
        one = self.loop.run_until_complete(_outcome(call(self.memory, 0)))
        two = self.loop.run_until_complete(_outcome(call(self.other, 1)))
        first, second = compare(one), compare(two)
        assert first == second, (
            f"memory: {one!r}\n\nother: {two!r}\n\n{'; '.join(differences(first, second))}"
        )
        return one, two

    def keep_leases(self, one: Any, two: Any) -> None:
        """Keep the leases of both backends in pairs."""
        first, second = ({(lease.tenant, lease.id): lease for lease in each} for each in (one, two))
        self.leases += [(first[ref], second[ref]) for ref in sorted(first)]

    # -- the path of work ------------------------------------------------------------------------------

    @rule(items=st.lists(v.items(), min_size=1, max_size=3), worker=st.sampled_from((None, None, *v.WORKERS)))
    def submit(self, items: Any, worker: str | None) -> None:
        given = tuple(msgspec.structs.replace(item, lease_to=worker) for item in items)
        one, two = self.both(lambda backend, _: backend.submit([Submission(given)]))
        for first, second in zip(one, two, strict=True):
            if not isinstance(first, Rejected):
                pairs = zip(first, second, strict=True)
                self.leases += [(a.lease, b.lease) for a, b in pairs if a.lease is not None]

    @rule(
        worker=st.sampled_from(v.WORKERS),
        limit=st.sampled_from((0, 1000)),
        types=st.sampled_from((None, None, {"a": 1000}, {"a": 1000, "b": 0}, {v.TYPES[2]: 1000})),
        queues=st.sampled_from((None, None, v.QUEUES[1:])),
        tenants=st.sampled_from((None, None, v.TENANTS[1:])),
        grace=st.sampled_from((None, None, 10.0)),
        beats=st.sampled_from((True, True, True, False)),
    )
    def claim(
        self, worker: str, limit: int, types: Any, queues: Any, tenants: Any, grace: Any, beats: bool
    ) -> None:
        if beats:
            beat = Heartbeat(worker=worker, lease=30.0, release=v.RELEASES[worker])
            self.both(lambda backend, _: backend.beat(beat))
        demand = Demand(
            worker=worker,
            limit=limit,
            types=types,
            queues=queues,
            tenants=tenants,
            unknown_grace=grace,
        )
        one, two = self.both(lambda backend, _: backend.claim(demand), unordered)
        self._check_order(one.leases, two.leases)
        self.keep_leases(one.leases, two.leases)

    def _check_order(self, one: Any, two: Any) -> None:
        """Within a lane, leases of one type come in the same order."""
        lines: list[dict[Any, list[str]]] = [{}, {}]
        for line, leases in zip(lines, (one, two), strict=True):
            for lease in leases:
                if lease.verdict is None:
                    line.setdefault((lease.queue, lease.tenant, lease.lane, lease.type), []).append(lease.id)
        assert lines[0] == lines[1]

    @rule(
        worker=st.sampled_from(v.WORKERS),
        lease=st.sampled_from((5.0, 1000.0)),
        types=st.sampled_from((None, ("a",), ("a", "b"), ())),
    )
    def beat(self, worker: str, lease: float, types: Any) -> None:
        self.both(
            lambda backend, side: backend.beat(
                Heartbeat(
                    worker=worker,
                    lease=lease,
                    types=types,
                    held=[pair[side] for pair in self.leases[:6]],
                    release=v.RELEASES[worker],
                )
            ),
            lambda reply: (reply.fresh, sorted(reply.lost.values())),
        )

    @rule(worker=st.sampled_from(v.WORKERS))
    def remove_worker(self, worker: str) -> None:
        self.both(lambda backend, _: backend.remove_worker(worker))

    @precondition(lambda self: self.leases)
    @rule(
        which=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
        keep=st.sampled_from((False, False, False, True)),
        given=st.data(),
    )
    def settle(self, which: list[int], keep: bool, given: Any) -> None:
        pairs = list({id(pair): pair for n in which for pair in [self.leases[n % len(self.leases)]]}.values())
        ends = [self._settlement(given.draw, pair[0]) for pair in pairs]
        if not keep:
            self.leases = [pair for pair in self.leases if pair not in pairs]

        async def settle(backend: Backend, side: int) -> Any:
            given = [Settlement(lease=pair[side], **end) for pair, end in zip(pairs, ends, strict=True)]
            return await backend.settle(await with_present_versions(backend, given))

        self.both(
            settle,
            lambda settled: (
                [_plain_outcome(outcome, end) for outcome, end in zip(settled.outcomes, ends, strict=True)],
                unordered(settled.effects),
            ),
        )

    def _settlement(self, draw: Any, lease: Lease) -> dict[str, Any]:
        kinds = ["success", "success", "retry", "defer", "release", "dead", "cancelled"]
        kind = draw(st.sampled_from(["dead", "release"] if lease.verdict else kinds))
        if kind == "retry" and lease.attempts is not None and lease.attempt >= lease.attempts:
            kind = "dead"
        children = draw(v.children()) if kind in ("success", "dead") else []
        return {
            "kind": kind,
            "result": draw(v.results) if kind == "success" else None,
            "reason": (lease.verdict or "aborted") if kind == "dead" else None,
            "failure": draw(v.failures) if kind in ("retry", "dead") else None,
            "delay": draw(v.durations),
            "contribution": draw(v.contributions) if kind == "success" else None,
            "children": tuple(children),
            "ran": draw(st.sampled_from((None, 0.0, 2.0, 1e9))),
        }

    @rule(worker=st.sampled_from(v.WORKERS))
    def unknown_leases(self, worker: str) -> None:
        known = self.leases[:3]
        self.both(
            lambda backend, side: backend.unknown_leases(worker, [pair[side].token for pair in known]),
            lambda leases: unordered([without_claim_time(lease) for lease in leases]),
        )

    # -- frequent steps: purely random calls would hardly ever end an item -------------------------------

    @initialize(items=st.lists(v.items(delay=0.0, expires_in=None), min_size=3, max_size=6))
    def begin(self, items: Any) -> None:
        self.submit_some(items)
        for worker in v.WORKERS:
            beat = Heartbeat(worker=worker, lease=1000.0, release=v.RELEASES[worker])
            self.both(lambda backend, _, beat=beat: backend.beat(beat))

    @rule(items=st.lists(v.items(delay=0.0, expires_in=None), min_size=2, max_size=4))
    def submit_some(self, items: Any) -> None:
        for item in items:
            self.both(lambda backend, _, item=item: backend.submit([Submission((item,))]))

    @rule(worker=st.sampled_from(v.WORKERS))
    def claim_all(self, worker: str) -> None:
        self.claim(worker, 1000, None, None, None, None, True)

    @rule(worker=st.sampled_from(v.WORKERS), items=st.lists(v.items(delay=0.0, after=(), need=0), max_size=3))
    def submit_and_claim(self, worker: str, items: Any) -> None:
        self.submit_some(items)
        self.claim_all(worker)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 1000), given=st.data())
    def settle_one(self, which: int, given: Any) -> None:
        self.settle([which], False, given)

    @precondition(lambda self: self.leases)
    @rule(which=st.lists(st.integers(0, 1000), min_size=2, max_size=4), given=st.data())
    def settle_some(self, which: list[int], given: Any) -> None:
        self.settle(which, False, given)

    # -- operators -------------------------------------------------------------------------------------

    @rule(ids=st.lists(v.names, min_size=1, max_size=3), tenant=v.any_tenant)
    def cancel(self, ids: list[str], tenant: str | None) -> None:
        self.both(lambda backend, _: backend.cancel(ids, tenant=tenant), unordered)

    @rule(id=v.names, result=v.results, tenant=v.any_tenant)
    def complete(self, id: str, result: bytes | None, tenant: str | None) -> None:
        self.both(lambda backend, _: backend.complete(id, result, tenant=tenant), unordered)

    @rule(
        where=st.one_of(st.lists(v.names, min_size=1, max_size=3), v.filters),
        tenant=v.any_tenant,
        limit=st.sampled_from((1, 1000)),
        redrives=st.sampled_from((None, 2)),
        alone=st.sampled_from((False, False, True)),
        cancelled=st.booleans(),
    )
    def requeue(
        self,
        where: Any,
        tenant: str | None,
        limit: int,
        redrives: int | None,
        alone: bool,
        cancelled: bool,
    ) -> None:
        how: Any = {
            "tenant": tenant,
            "limit": limit,
            "redrives": redrives,
            "backoff": 4.0,
            "alone": alone,
            "cancelled": cancelled,
        }
        self.both(lambda backend, _: backend.requeue(where, **how), unordered)

    @rule(ids=st.lists(v.names, min_size=1, max_size=2), tenant=v.any_tenant)
    def trigger(self, ids: list[str], tenant: str | None) -> None:
        self.both(lambda backend, _: backend.trigger(ids, tenant=tenant), unordered)

    @rule(ids=st.lists(v.names, min_size=1, max_size=2), held=st.booleans(), tenant=v.any_tenant)
    def hold(self, ids: list[str], held: bool, tenant: str | None) -> None:
        self.both(lambda backend, _: backend.hold(ids, held, tenant=tenant), unordered)

    @rule(ids=st.lists(v.names, min_size=1, max_size=2), changes=v.updates, tenant=v.any_tenant)
    def update(self, ids: list[str], changes: ItemUpdate, tenant: str | None) -> None:
        self.both(lambda backend, _: backend.update(ids, changes, tenant=tenant), unordered)

    @rule(ids=st.lists(v.names, min_size=1, max_size=2), tenant=v.any_tenant, cascade=st.booleans())
    def delete(self, ids: list[str], tenant: str | None, cascade: bool) -> None:
        self.both(lambda backend, _: backend.delete(ids, tenant=tenant, cascade=cascade), unordered)

    @rule(
        queue=st.sampled_from((*v.QUEUES, None)),
        paused=st.sampled_from((True, False, False)),
        tenant=v.any_tenant,
        length=st.sampled_from((None, None, 5.0, 50.0)),
    )
    def pause(self, queue: str | None, paused: bool, tenant: str | None, length: float | None) -> None:
        if queue is None and tenant is None:
            return
        until = None if length is None else self.clock.now() + length
        order = Order(kind="pause", queue=queue, tenant=tenant, until=until)
        self.both(lambda backend, _: backend.order(order) if paused else backend.withdraw(order))

    @rule(everything=st.just(True))
    def prune(self, everything: bool) -> None:
        self.both(lambda backend, _: backend.prune(1000))

    @rule(seconds=st.sampled_from((0.5, 3.0, 20.0, 60.0)))
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(_advance(self.clock, seconds))
        self.loop.run_until_complete(self.clock_moved())

    # -- coordination ----------------------------------------------------------------------------------

    @rule(key=st.sampled_from(v.KEYS), owner=v.names, ttl=st.sampled_from((0.0, 5.0, 1e9)), tenant=v.tenants)
    def claim_key(self, key: str, owner: str, ttl: float, tenant: str) -> None:
        self.both(lambda backend, _: backend.claim_key(key, owner, ttl, tenant=tenant))

    @rule(
        worker=st.sampled_from(v.WORKERS),
        algorithm=st.sampled_from(("token_bucket", "fixed_window", "sliding_window", "slots")),
        count=st.integers(1, 4),
        how=st.sampled_from(("take", "take", "return", "keep")),
    )
    def limit(self, worker: str, algorithm: Any, count: int, how: str) -> None:
        requests = [PermitRequest((Limit(f"of'{algorithm}", 3, 10.0, algorithm),), count)]
        if how == "return":
            self.both(lambda backend, _: backend.return_permits(requests, worker=worker))
        elif how == "keep":
            held = [PermitRequest((Limit("of'slots", 3, 10.0, "slots"),), count)]
            self.both(lambda backend, _: backend.keep_permits(held, 3, worker=worker))
        else:
            self.both(lambda backend, _: backend.take_permits(requests, worker=worker))

    @rule(
        name=st.sampled_from(v.KEYS),
        next_at=st.sampled_from((None, 5.0, 10.0)),
        spec=v.data,
        then=st.sampled_from(("put", "fire", "fire", "pause", "resume", "drop")),
        items=st.lists(v.items(), max_size=1),
    )
    def schedule(self, name: str, next_at: float | None, spec: bytes, then: str, items: Any) -> None:
        at = None if next_at is None else 1_000_000.0 + next_at
        fire = Fire(name=name, at=at or 0.0, next_at=1_000_005.0, items=tuple(items))
        calls: dict[str, Callable[[Backend, int], Awaitable[Any]]] = {
            "put": lambda backend, _: backend.put_schedule(Schedule(name=name, next_at=at, spec=spec)),
            "fire": lambda backend, _: backend.fire(fire),
            "pause": lambda backend, _: backend.pause_schedule(name, True),
            "resume": lambda backend, _: backend.pause_schedule(name, False),
            "drop": lambda backend, _: backend.drop_schedule(name),
        }
        self.both(calls[then])

    # -- reads -----------------------------------------------------------------------------------------

    @rule(where=v.filters, limit=st.sampled_from((1, 2, 1000)), oldest_first=st.booleans())
    def list(self, where: Filter, limit: int, oldest_first: bool) -> None:
        self.both(lambda backend, _: _pages(backend, where, limit, oldest_first))

    @rule(ids=st.lists(v.names, max_size=4), tenant=v.tenants)
    def ended(self, ids: list[str], tenant: str) -> None:
        refs = [(tenant, id) for id in ids]
        self.both(lambda backend, _: backend.ended(refs, refs), lambda found: unordered(as_listed(found)))

    @invariant()
    def states_are_equal(self) -> None:
        """Everything that can be read is equal."""
        self.both(lambda backend, _: _read_everything(backend))


async def _outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except TreadleError as error:
        return type(error).__name__


async def _advance(clock: ManualClock, seconds: float) -> None:
    await clock.advance(seconds)


async def _pages(backend: Backend, where: Filter, limit: int, oldest_first: bool) -> Any:
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = await backend.list(where, limit=limit, cursor=cursor, oldest_first=oldest_first)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def _read_everything(backend: Backend) -> Any:
    listed = (await backend.list(Filter(), limit=1000, oldest_first=True)).items
    whole = []
    for tenant in v.TENANTS:
        ids = [state.id for state in listed if state.tenant == tenant]
        whole.append(list(await backend.get(ids, tenant=tenant)))
        groups = sorted({*ids, *(state.group_id for state in listed if state.tenant == tenant)})
        whole.append(list(await backend.group(groups, tenant=tenant)))
    counts = sorted((c.tenant, c.queue, c.type, c.status, c.count) for c in await backend.counts(ended=True))
    workers = sorted((w.id, round(w.until, 4), w.types, w.running) for w in await backend.workers())
    return [
        list(listed),
        whole,
        [count for count in counts if count[-1]],
        workers,
        [msgspec.structs.replace(each, at=0.0) for each in (await backend.orders()).orders],
        list(await backend.schedules()),
    ]
