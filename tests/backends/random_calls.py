"""Random calls of every verb of a backend, in any order; then everything is ended and pruned."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from tests.support.folds import with_present_versions
from treadle.errors import TreadleError
from treadle.item import (
    GROUP_MARK,
    AuditNote,
    AvoidedLane,
    Contribution,
    Demand,
    ErrorInfo,
    Filter,
    Fire,
    GroupFilter,
    Heartbeat,
    Item,
    ItemUpdate,
    Lease,
    Limit,
    Order,
    PermitRequest,
    Record,
    Rejected,
    Schedule,
    Settlement,
    Signal,
    StepKind,
    StepRecord,
    Submission,
)

TENANTS = ("default", "acme")
QUEUES = ("default", "bulk")
LANES = ("", "left", "right")
TYPES = ("a", "b", "c")
WORKERS = ("w1", "w2", "w3")
SCHEDULES = ("s1", "s2")
DEADLINES = (1.0, 30.0, 300.0)
STEPS = ("x", "y", "z")
SIGNALS = ("go", "stop")


class RandomCalls:
    def __init__(
        self,
        seed: int,
        backend: Any,
        advance: Callable[[float], Awaitable[None]],
        tenants: Sequence[str] = TENANTS,
    ) -> None:
        self.tenants = tenants
        self.random = random.Random(seed)
        self.backend = backend
        self.advance = advance
        self.count = 0
        self.leases: list[Lease] = []
        self.verbs: list[Callable[[], Awaitable[object]]] = [
            *[self.submit] * 6,
            *[self.claim] * 6,
            *[self.settle] * 8,
            *[self.beat, self.pass_time] * 2,
            self.remove_worker,
            self.cancel,
            self.complete,
            self.requeue,
            self.trigger,
            self.delete,
            self.pause,
            self.prune,
            self.limit,
            self.read,
            *[self.begin, self.update] * 2,
            self.schedule,
            self.drain,
            *[self.record] * 3,
            *[self.signal] * 2,
        ]

    async def step(self) -> str:
        verb = self.random.choice(self.verbs)
        try:
            await verb()
        except TreadleError as refusal:
            return f"{verb.__name__}: {refusal}"
        return verb.__name__

    async def finish(self) -> None:
        """Resume every queue, remove every worker, end every item, and prune until the store is empty."""
        for order in (await self.backend.orders()).orders:
            await self.backend.withdraw(order)
        for name in SCHEDULES:
            await self.backend.drop_schedule(name)
        for worker in WORKERS:
            await self.backend.remove_worker(worker)
        while await self._end_claimed():
            await self.advance(3600)
        for tenant in self.tenants:
            await self.backend.cancel([state.id for state in await self._open_items(tenant)], tenant=tenant)
            dead = await self.backend.list(Filter(status=("dead",), tenant=tenant), limit=1000)
            await self.backend.delete([state.group_id for state in dead.items], tenant=tenant, cascade=False)
        await self.advance(1e9)
        while await self.backend.prune():
            pass
        await self.backend.remove_worker("last")
        await self.backend.prune()

    async def _end_claimed(self) -> bool:
        await self.backend.beat(Heartbeat(worker="last", lease=1e9))
        claimed = await self.backend.claim(Demand(worker="last", limit=1000))
        ends = [
            Settlement(lease=lease, kind="dead" if lease.verdict else "success", reason=lease.verdict)
            for lease in claimed.leases
        ]
        await self.backend.settle(ends)
        return bool(ends) or (claimed.next_due is not None and claimed.next_due < 1e9)  # or suspended

    async def _open_items(self, tenant: str) -> Sequence[Any]:
        where = Filter(status=("blocked", "scheduled", "ready", "running"), tenant=tenant)
        return (await self.backend.list(where, limit=1000)).items

    # -- random values -----------------------------------------------------------------------------------

    def item(self, **fields: Any) -> Item:
        self.count += 1
        roll = self.random.random
        after = tuple({self.some_name() for _ in range(self.random.randint(1, 3))}) if roll() < 0.25 else ()
        made: dict[str, Any] = {
            "id": f"i{self.count}",
            "type": self.random.choice(TYPES),
            "input": b"",
            "tenant": self.random.choice(self.tenants),
            "queue": self.random.choice(QUEUES),
            "lane": self.random.choice(LANES),
            "priority": self.random.choice((0, 0, 0, 5, -5)),
            "delay": self.random.choice((0.0, 0.0, 0.0, 5.0, 50.0)),
            "expires_in": self.random.choice(DEADLINES) if roll() < 0.2 else None,
            "attempts": self.random.choice((None, 1, 3)),
            "after": after,
            "need": self.random.randint(0, len(after)),
            "counting": self.random.choice(("success", "done")),
            "key": f"k{self.random.randint(1, 4)}" if roll() < 0.2 else None,
            "key_scope": self.random.choice(("open", "any", 20.0)),
            "key_policy": self.random.choice(("existing", "existing", "replace", "debounce", "error")),
            "workflow": "flow" if roll() < 0.1 else None,
            "parent": self.some_id() if roll() < 0.05 else None,
            "lease_to": self.random.choice(WORKERS) if roll() < 0.1 else None,
            "keep": self.random.choice((0.0, 10.0, 100.0)),
            "keep_dead": self.random.choice((None, 10.0)),
            "contributes": roll() < 0.8,
        }
        return Item(**(made | fields))

    def some_id(self) -> str:
        """The id of an item that existed, exists, or may be submitted later."""
        return f"i{self.random.randint(max(1, self.count - 30), self.count + 5)}"

    def some_name(self) -> str:
        """The name of an item or of a group, for `after`."""
        return (GROUP_MARK if self.random.random() < 0.2 else "") + self.some_id()

    def nested(self) -> tuple[Item, ...]:
        """A nested group, and the item that closes it."""
        closer = self.item(closes_group=True, key=None, need=1, lease_to=None, counting="success")
        members = [self.item(group_id=closer.id) for _ in range(self.random.randint(0, 2))]
        return (*members, replace(closer, after=(GROUP_MARK + closer.id,)))

    def some_ids(self) -> list[str]:
        return [self.some_id() for _ in range(self.random.randint(1, 4))]

    def tenant(self) -> str | None:
        return self.random.choice((None, *self.tenants))

    # -- verbs -------------------------------------------------------------------------------------------

    async def submit(self) -> None:
        together = tuple(self.item() for _ in range(self.random.randint(1, 4)))
        answers = await self.backend.submit([Submission(together), Submission((self.item(),))])
        for answer in answers:
            if not isinstance(answer, Rejected):
                self.leases += [one.lease for one in answer if one.lease is not None]

    async def claim(self) -> None:
        some = self.random.sample(TYPES, self.random.randint(1, 3))
        rare = self.random.random
        worker = self.random.choice(WORKERS)
        if rare() < 0.8:
            await self.backend.beat(Heartbeat(worker=worker, lease=30.0, release=self.release()))
        demand = Demand(
            worker=worker,
            limit=self.random.randint(0, 6),
            types=None if rare() < 0.3 else {type: self.random.randint(0, 3) for type in some},
            queues=None if rare() < 0.6 else (self.random.choice(QUEUES),),
            tenants=None if rare() < 0.6 else (self.random.choice(self.tenants),),
            avoid=self.avoided() if rare() < 0.5 else {},
            unknown_grace=50.0 if rare() < 0.3 else None,
            buffered=frozenset(self.random.sample(TYPES, 1)) if rare() < 0.3 else frozenset(),
            strict=frozenset({"c"}) if rare() < 0.8 else frozenset(),
        )
        self.leases += (await self.backend.claim(demand)).leases

    def avoided(self) -> dict[str, frozenset[AvoidedLane]]:
        lanes: list[AvoidedLane] = [("acme", "left"), (self.random.choice(self.tenants), None), ("acme", "")]
        return {type: frozenset({self.random.choice(lanes)}) for type in self.random.sample(TYPES, 2)}

    async def settle(self) -> None:
        self.random.shuffle(self.leases)
        some, self.leases = self.leases[:4], self.leases[4:]
        given = [self.settlement(lease) for lease in some]
        await self.backend.settle(await with_present_versions(self.backend, given))

    def settlement(self, lease: Lease) -> Settlement:
        kinds: list[Any] = ["success", "success", "retry", "defer", "release", "dead", "cancelled", "suspend"]
        kind = self.random.choice(["dead", "release"] if lease.verdict else kinds)
        if lease.attempts is not None and lease.attempt >= lease.attempts and kind == "retry":
            kind = "dead"
        children = tuple(self.item() for _ in range(self.random.choice((0, 0, 1, 3))))
        if children and self.random.random() < 0.3:
            children += self.nested()
        value = Contribution(
            self.random.choice((None, b"v")),
            self.random.random() < 0.1,
            self.random.choice((None, None, 0, 1)),
        )
        return Settlement(
            lease=lease,
            kind=kind,
            result=b"r",
            reason=(lease.verdict or "aborted") if kind == "dead" else None,
            failure=ErrorInfo("Oops", "no"),
            delay=self.random.choice((0.0, 5.0)),
            contribution=self.random.choice((None, value)),
            mark=self.random.choice("mn"),
            children=children if kind in ("success", "dead", "suspend") else (),
            steps=self.steps() if kind == "suspend" else (),
        )

    async def beat(self) -> None:
        types = self.random.choice((None, ("a",), ("a", "b"), TYPES))
        lease = self.random.choice((5.0, 1000.0))
        worker = self.random.choice(WORKERS)
        held, release = self.leases[:5], self.release()
        beat = Heartbeat(worker=worker, lease=lease, types=types, held=held, release=release)
        await self.backend.beat(beat)

    def release(self) -> str:
        return self.random.choice(("", "v1", "v2"))

    async def pass_time(self) -> None:
        await self.advance(self.random.choice((0.5, 3.0, 20.0, 60.0)))

    async def remove_worker(self) -> None:
        await self.backend.remove_worker(self.random.choice(WORKERS))

    async def cancel(self) -> None:
        await self.backend.cancel(self.some_ids(), tenant=self.tenant())

    async def complete(self) -> None:
        await self.backend.complete(self.some_id(), b"completed", tenant=self.tenant())

    async def requeue(self) -> None:
        where: Any = self.random.choice((self.some_ids(), Filter(), Filter(type="a"), Filter(release="v1")))
        redrives = self.random.choice((None, 2))
        how: dict[str, Any] = {
            "alone": self.random.random() < 0.3,
            "cancelled": self.random.random() < 0.3,
            "from_step": self.random.choice((None, *STEPS)) if isinstance(where, list) else None,
        }
        await self.backend.requeue(
            where, tenant=self.tenant(), limit=3, redrives=redrives, backoff=4.0, **how
        )

    async def trigger(self) -> None:
        await self.backend.trigger([self.some_id()], tenant=self.tenant())

    async def delete(self) -> None:
        cascade = self.random.random() < 0.5
        await self.backend.delete(self.some_ids(), tenant=self.tenant(), cascade=cascade)

    async def pause(self) -> None:
        paused, tenant = self.random.random() < 0.3, self.tenant()
        queue = self.random.choice((*QUEUES, *([] if tenant is None else [None])))
        order = Order(kind="pause", queue=queue, tenant=tenant)
        await (self.backend.order if paused else self.backend.withdraw)(order)

    async def prune(self) -> None:
        await self.backend.prune(self.random.choice((1, 5, 1000)))

    async def limit(self) -> None:
        limits = (Limit("slots", 3, algorithm="slots"), Limit("calls", 5, 10.0))
        worker = self.random.choice(WORKERS)
        await self.backend.take_permits([PermitRequest(limits, 2)], worker=worker)
        await self.backend.return_permits([PermitRequest(limits[:1], 1)], worker=worker)
        kept = [PermitRequest(limits[:1], 1)] if len(self.leases) % 2 else []
        await self.backend.keep_permits(kept, len(self.leases) % 3, worker=worker)
        await self.backend.claim_key(self.some_id(), worker, 10, tenant=self.tenants[-1])

    async def begin(self) -> None:
        await self.backend.begin(self.leases[: self.random.randint(1, 4)])

    async def update(self) -> None:
        changes: list[dict[str, Any]] = [
            {"priority": self.random.randint(-5, 5)},
            {"lane": self.random.choice(LANES), "queue": self.random.choice(QUEUES)},
            {"run_at": await self.backend.now() + self.random.choice((-5.0, 5.0, 50.0))},
            {"deadline": self.random.choice((None, await self.backend.now() + 20.0))},
        ]
        note = self.random.choice((None, AuditNote(actor="someone")))
        where = ItemUpdate(**self.random.choice(changes))
        await self.backend.update([self.some_id()], where, tenant=self.tenant(), note=note)

    async def schedule(self) -> None:
        name = self.random.choice(SCHEDULES)
        now = await self.backend.now()
        spec = self.random.choice((b"x", b"y"))
        stored = await self.backend.put_schedule(Schedule(name=name, next_at=now - 1.0, spec=spec))
        if self.random.random() < 0.2:
            await self.backend.drop_schedule(name, note=AuditNote(actor="someone"))
        elif stored.next_at is not None:
            items = (self.item(), self.item())
            await self.backend.fire(Fire(name=name, at=stored.next_at, next_at=now + 9.0, items=items))

    async def drain(self) -> None:
        await self.backend.drain_worker(self.random.choice(WORKERS))

    async def record(self) -> None:
        self.random.shuffle(self.leases)
        records = [
            Record(
                lease=lease,
                steps=self.steps() if self.random.random() < 0.8 else (),
                progress=self.random.choice((None, b"half")),
                chunks=self.random.choice(((), (b"1", b"2"), (b"1", b"2", b"3"))),
                first_chunk=1,
            )
            for lease in self.leases[: self.random.randint(1, 3)]
        ]
        await self.backend.record(records)

    def steps(self) -> tuple[StepRecord, ...]:
        """Values and waits, each name once."""
        return tuple(self.some_step(name) for name in self.random.sample(STEPS, self.random.randint(1, 3)))

    def some_step(self, name: str) -> StepRecord:
        kinds: list[StepKind] = ["value", "failure", "sleep", "signal", "signal"]
        match self.random.choice(kinds):
            case "sleep":
                delay = self.random.choice((0.0, 5.0, 50.0))
                return StepRecord(name=name, kind="sleep", delay=delay, over=False)
            case "signal":
                signal, delay = self.random.choice(SIGNALS), self.random.choice((None, 20.0))
                return StepRecord(name=name, kind="signal", signal=signal, delay=delay, over=False)
            case kind:
                value, undo = self.random.choice((None, b"v")), self.random.choice((None, b"undo"))
                return StepRecord(name=name, kind=kind, value=value, undo=undo, took=0.5)

    async def signal(self) -> None:
        signals = [
            Signal(
                id=id,
                name=self.random.choice(SIGNALS),
                value=self.random.choice((None, b"sent")),
                key=self.random.choice((None, None, "k1", "k2")),
            )
            for id in self.some_ids()
        ]
        await self.backend.signal(signals, tenant=self.tenant())

    async def read(self) -> None:
        """Reads must neither change nor raise anything."""
        ids = self.some_ids()
        await self.backend.get(ids)
        await self.backend.steps(ids, tenant=self.tenant())
        await self.backend.stream(ids[0], since=1, tenant=self.tenant())
        await self.backend.group(ids, tenant=self.tenant())
        await self.backend.counts(ended=True)
        await self.backend.list(Filter(group_id=ids[0]), limit=2)
        await self.backend.unknown_leases(self.random.choice(WORKERS), [])
        await self.backend.explain(ids[0], tenant=self.tenant())
        await self.backend.overview(tenant=self.tenant(), quick=True)
        await self.backend.marks(tenant=self.tenant(), cap=3)
        await self.backend.lines(QUEUES[0])
        await self.backend.related(ids[0])
        await self.backend.groups(GroupFilter(tenant=self.tenant()), limit=3)
        await self.backend.workflows(GroupFilter(outcome=("failed",)), limit=3)
        await self.backend.limits()
