"""BackendProgram: the random calls of one tenant to a backend, with all answers."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import asdict, astuple, replace

from treadle.backend import Backend
from treadle.errors import TreadleError
from treadle.item import (
    AuditNote,
    Claim,
    Contribution,
    Count,
    Demand,
    Ended,
    ErrorInfo,
    Filter,
    GroupFilter,
    Heartbeat,
    Item,
    Lease,
    Order,
    Rejected,
    Settlement,
    Submission,
)
from treadle.item_facts import DeadMark, Explanation, Overview
from treadle.records import AuditPage

Exchange: TypeAlias = tuple[str, Any]
"""A call with its arguments, and the answer."""

# Both tenants use the same names, so that every possible mix-up can happen.
IDS = tuple(f"i{n}" for n in range(10))
TYPES = ("a", "b")
QUEUES = ("default", "bulk")
LANES = ("", "left")
KEYS = ("k1", "k2")
FLOWS = ("flow", "other")
KINDS: Any = (*["success"] * 5, "retry", "retry", "defer", "release", "dead", "dead", "cancelled")
LONG = 1e9

VERBS = {
    "submit": 8,
    "claim": 6,
    "settle": 10,
    "beat": 2,
    "remove_worker": 1,
    "unknown_leases": 1,
    "cancel": 2,
    "complete": 2,
    "requeue": 3,
    "trigger": 2,
    "delete": 2,
    "pause": 2,
    "claim_key": 2,
    "get": 1,
    "group": 1,
    "ended": 1,
    "list": 2,
    "counts": 1,
    "explain": 1,
    "overview": 1,
    "lines": 1,
    "related": 1,
    "groups": 1,
    "workflows": 1,
    "marks": 1,
}
"""The weight of each verb."""


class BackendProgram:
    """All calls are bound to `tenant`. Some filters name the tenant `other`."""

    def __init__(self, backend: Backend, tenant: str, other: str, seed: int) -> None:
        self.backend = backend
        self.tenant = tenant
        self.other = other
        self.exchanges: list[Exchange] = []
        self.leases: list[Lease] = []
        self._random = random.Random(f"{seed} {tenant}")
        self._workers = tuple(f"{tenant}-{n}" for n in (1, 2))
        self._fairness: dict[str, object] = {}

    async def step(self) -> None:
        verb = self._random.choices(list(VERBS), weights=list(VERBS.values()))[0]
        await getattr(self, verb)()

    async def call(
        self, asked: str, call: Awaitable[Any], plain: Callable[[Any], Any] = lambda answer: answer
    ) -> Any:
        """Make the call and record its answer, without tokens and cursors, which differ between stores."""
        try:
            answer = await call
        except TreadleError as error:
            self.exchanges.append((asked, (type(error).__name__, str(error), sorted(vars(error).items()))))
            return None
        self.exchanges.append((asked, comparable(plain(answer))))
        return answer

    # -- random values ---------------------------------------------------------------------------------

    def mine(self, text: str = "") -> bytes:
        """Data that no other tenant may see."""
        return f"{text} of {self.tenant}".encode()

    def item(self, **fields: Any) -> Item:
        draw, roll = self._random.choice, self._random.random
        after = tuple(dict.fromkeys(self.ids(3))) if roll() < 0.35 else ()
        made: dict[str, Any] = {
            "id": draw(IDS),
            "type": draw(TYPES),
            "input": self.mine("input"),
            "tenant": self.tenant,
            "queue": draw(QUEUES),
            "lane": draw(LANES),
            "priority": draw((0, 0, 5)),
            "attempts": draw((None, 1, 3)),
            "delay": draw((0.0, 0.0, 0.0, 5.0, 500.0)),
            "expires_in": draw((None, None, None, 1.0, 30.0)),
            "after": after,
            "need": draw((len(after), len(after), 0)),
            "counting": draw(("success", "done")),
            "key": draw((None, None, *KEYS)),
            "key_scope": draw(("open", "any", 20.0)),
            "workflow": draw((None, *FLOWS)),
            "keep": draw((0.0, 10.0, LONG)),
            "keep_dead": draw((None, 10.0)),
        }
        return Item(**(made | fields))

    def ids(self, most: int) -> list[str]:
        return [self._random.choice(IDS) for _ in range(self._random.randint(1, most))]

    # -- the path of work ------------------------------------------------------------------------------

    def submissions(self) -> list[Submission]:
        worker = self._random.choice((None, None, None, *self._workers))
        items = tuple(self.item(lease_to=worker) for _ in range(self._random.choice((1, 1, 2))))
        return [Submission(items), Submission((self.item(),))]

    async def submit(self) -> None:
        new = self.submissions()
        self.submitted(await self.call(f"submit {comparable(new)}", self.backend.submit(new)))

    def submitted(self, answers: Sequence[Any] | None) -> None:
        for answer in answers or ():
            if not isinstance(answer, Rejected):
                self.leases += [one.lease for one in answer if one.lease is not None]

    async def claim(self) -> None:
        worker = self._random.choice(self._workers)
        await self._alive(worker)
        # The store decides which queue comes first. The claim asks for one queue, or for everything.
        queue = self._random.choice((None, *QUEUES))
        demand = Demand(
            worker=worker,
            limit=1000 if queue is None else self._random.randint(0, 3),
            types=self._random.choice((None, dict.fromkeys(TYPES, 1000), {"a": 1000, "b": 0})),
            queues=None if queue is None else (queue,),
            tenants=(self.tenant,),
            fairness=self._fairness.get(worker),
        )
        asked = f"claim {demand.limit} of {queue} {demand.types} by {worker}"
        found = await self.call(asked, self.backend.claim(demand), claimed if queue else claimed_in_any_order)
        if found is not None:
            self._fairness[worker] = found.fairness
            self.leases += by_id(found.leases)

    async def _alive(self, worker: str, lease: float = 30.0, held: Sequence[Lease] = ()) -> None:
        beat = Heartbeat(worker=worker, lease=lease, held=held)
        asked = f"beat {worker} {lease} {[one.id for one in held]}"
        await self.call(
            asked, self.backend.beat(beat), lambda reply: (reply.fresh, list(reply.lost.values()))
        )

    async def beat(self) -> None:
        lease = self._random.choice((5.0, 60.0))
        await self._alive(self._random.choice(self._workers), lease, self.leases[:4])

    async def remove_worker(self) -> None:
        worker = self._random.choice(self._workers)
        await self.call(f"remove_worker {worker}", self.backend.remove_worker(worker))

    async def unknown_leases(self) -> None:
        worker = self._random.choice(self._workers)
        known = [lease.token for lease in self.leases]
        found = self.backend.unknown_leases(worker, known)
        await self.call(f"unknown_leases {worker}", found, lambda found: sorted(lease.id for lease in found))

    async def settle(self) -> None:
        ends = self.settlements()
        await self.call(f"settle {comparable(ends)}", self.backend.settle(ends), unordered_effects)

    def settlements(self) -> list[Settlement]:
        self._random.shuffle(self.leases)
        some, self.leases = self.leases[:2], self.leases[2:]
        if some and self._random.random() < 0.2:
            self.leases.append(some[0])  # to be settled a second time
        return [self.settlement(lease) for lease in some]

    def settlement(self, lease: Lease) -> Settlement:
        kind = self._random.choice(("dead", "release") if lease.verdict else KINDS)
        if kind == "retry" and lease.attempts is not None and lease.attempt >= lease.attempts:
            kind = "dead"
        children = tuple(self.item() for _ in range(self._random.choice((0, 0, 1, 2))))
        value = Contribution(self.mine("value"), False, self._random.choice((None, 0, 1)))
        return Settlement(
            lease=lease,
            kind=kind,
            result=self.mine("result") if kind == "success" else None,
            reason=(lease.verdict or "aborted") if kind == "dead" else None,
            failure=ErrorInfo("Oops", self.mine("failure").decode()) if kind in ("retry", "dead") else None,
            delay=self._random.choice((0.0, 5.0)),
            contribution=self._random.choice((None, value)) if kind == "success" else None,
            children=children if kind in ("success", "dead") else (),
        )

    # -- operators -------------------------------------------------------------------------------------

    def note(self) -> AuditNote | None:
        """Who makes a change: half of them are noted."""
        return self._random.choice((None, AuditNote(actor=self.mine("actor").decode())))

    async def cancel(self) -> None:
        ids = self.ids(2)
        await self.call(
            f"cancel {ids}", self.backend.cancel(ids, tenant=self.tenant, note=self.note()), changed
        )

    async def complete(self) -> None:
        (id,) = self.ids(1)
        call = self.backend.complete(id, self.mine("by hand"), tenant=self.tenant, note=self.note())
        await self.call(f"complete {id}", call, changed)

    async def requeue(self) -> None:
        named: list[Any] = [self.ids(3), Filter(), Filter(type="a"), Filter(tenant=self.other)]
        where = self._random.choice(named)
        redrives = self._random.choice((None, 2))
        call = self.backend.requeue(where, tenant=self.tenant, limit=3, redrives=redrives, backoff=4.0)
        await self.call(f"requeue {where} {redrives}", call, changed)

    async def trigger(self) -> None:
        ids = self.ids(2)
        await self.call(
            f"trigger {ids}", self.backend.trigger(ids, tenant=self.tenant, note=self.note()), changed
        )

    async def delete(self) -> None:
        ids, cascade = self.ids(2), self._random.random() < 0.5
        call = self.backend.delete(ids, tenant=self.tenant, cascade=cascade, note=self.note())
        await self.call(f"delete {ids} {cascade}", call, changed)

    async def pause(self) -> None:
        queue, paused = self._random.choice(QUEUES), self._random.random() < 0.4
        order = Order(kind="pause", queue=queue, tenant=self.tenant)
        call = (self.backend.order if paused else self.backend.withdraw)(order, note=self.note())
        await self.call(f"pause {queue} {paused}", call)

    async def claim_key(self) -> None:
        key, owner = self._random.choice(KEYS), self._random.choice(IDS)
        call = self.backend.claim_key(key, owner, self._random.choice((0.0, 20.0)), tenant=self.tenant)
        await self.call(f"claim_key {key} {owner}", call)

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self) -> None:
        await self.call("get", self.backend.get(IDS, tenant=self.tenant))

    async def group(self) -> None:
        await self.call("group", self.backend.group(IDS, tenant=self.tenant))

    async def ended(self) -> None:
        refs = [(self.tenant, id) for id in IDS]
        await self.call("ended", self.backend.ended(refs, refs), plain_ended)

    async def list(self) -> None:
        draw = self._random.choice
        where = Filter(
            tenant=self.tenant,
            status=draw(((), ("dead",), ("ready", "scheduled"), ("success", "cancelled"))),
            type=draw((None, *TYPES)),
            queue=draw((None, *QUEUES)),
            workflow=draw((None, *FLOWS)),
            group_id=draw((None, None, *IDS)),
            key=draw((None, None, *KEYS)),
        )
        await self.call(f"list {where}", self._pages(where, draw((1, 3, 1000)), draw((True, False))))

    async def _pages(self, where: Filter, limit: int, oldest_first: bool = False) -> list[Any]:
        pages: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self.backend.list(where, limit=limit, cursor=cursor, oldest_first=oldest_first)
            pages.append(page.items)
            cursor = page.cursor
            if cursor is None:
                return pages

    async def counts(self) -> None:
        await self.call("counts", self.backend.counts(tenant=self.tenant, ended=True), counted)

    async def explain(self) -> None:
        (id,) = self.ids(1)
        await self.call(f"explain {id}", self.backend.explain(id, tenant=self.tenant), explained)

    async def overview(self) -> None:
        await self.call("overview", self.backend.overview(tenant=self.tenant), overlooked)

    async def lines(self) -> None:
        queue = self._random.choice(QUEUES)
        await self.call(f"lines {queue}", self.backend.lines(queue, tenant=self.tenant))

    async def related(self) -> None:
        (id,) = self.ids(1)
        await self.call(f"related {id}", self.backend.related(id, tenant=self.tenant))

    async def groups(self) -> None:
        outcome = self._random.choice(((), ("running",), ("failed", "succeeded")))
        where = GroupFilter(tenant=self.tenant, outcome=outcome)
        await self.call(f"groups {outcome}", self.backend.groups(where), lambda page: page.items)

    async def workflows(self) -> None:
        where = GroupFilter(tenant=self.tenant, outcome=self._random.choice(((), ("running",))))
        await self.call(f"workflows {where}", self.backend.workflows(where), lambda page: page.items)

    async def marks(self) -> None:
        await self.call("marks", self.backend.marks(tenant=self.tenant), marked)

    async def audits(self) -> None:
        await self.call("audits", self.backend.audits(tenant=self.tenant, limit=1000), noted)

    async def read_everything(self) -> None:
        """Read everything that the tenant can see."""
        await self.get()
        await self.group()
        await self.ended()
        await self.counts()
        await self.audits()
        for where in (Filter(tenant=self.tenant), *(Filter(tenant=self.tenant, workflow=f) for f in FLOWS)):
            await self.call(f"list {where}", self._pages(where, 1000))


# -- comparable answers ----------------------------------------------------------------------------------

_OPAQUE = frozenset({"token", "ref", "fairness", "cursor", "unknown", "version"})


def comparable(value: Any) -> Any:
    """Plain data, without the numbers that a store assigns."""
    if isinstance(value, msgspec.Struct):
        return {name: comparable(each) for name, each in asdict(value).items() if name not in _OPAQUE}
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    return value


def plain_ended(ended: Ended) -> list[Any]:
    items, groups = ([found[ref] for ref in sorted(found)] for found in (ended.items, ended.groups))
    return [items, groups, sorted(ended.missing)]


def counted(counts: Sequence[Count]) -> list[Any]:
    return sorted(astuple(count) for count in counts if count.count)


def explained(found: Explanation | None) -> Any:
    """Without workers, which serve all tenants, and what follows from them."""
    return None if found is None else replace(found, workers=(), unknown_since=None)


def overlooked(found: Overview) -> list[Any]:
    """The same."""
    return [counted(found.counts), found.ages, found.now]


def marked(found: Sequence[DeadMark]) -> list[Any]:
    return sorted(astuple(mark) for mark in found)


def noted(page: AuditPage) -> list[Any]:
    return [(one.actor, one.verb, one.tenant, one.ids, one.count) for one in page.entries]


def by_id(found: Sequence[Any]) -> list[Any]:
    return sorted(found, key=lambda each: each.id)


def claimed(found: Claim) -> list[Any]:
    """The leases to run, in order. Doomed items have no order."""
    ready = [lease for lease in found.leases if lease.verdict is None]
    doomed = [lease for lease in found.leases if lease.verdict is not None]
    return [ready, by_id(doomed), found.alive, found.next_due]


def claimed_in_any_order(found: Claim) -> list[Any]:
    return [by_id(found.leases), found.alive, found.next_due]


def effects(found: Any) -> list[Any]:
    return [by_id(found.released), by_id(found.ended_groups), found.doomed]


def changed(answer: Any) -> list[Any]:
    return [by_id(answer.items), effects(answer.effects)]


def unordered_effects(settled: Any) -> list[Any]:
    return [settled.outcomes, effects(settled.effects)]
