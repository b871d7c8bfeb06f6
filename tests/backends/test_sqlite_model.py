"""SqliteBackend against the model, MemoryBackend: the same verbs at the same times get the same answers.

Random histories. Every claim asks for all items, so that fairness, which each backend tracks in its own way,
does not matter. Tokens differ between the backends, so leases are paired by their items.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pytest
from msgspec.structs import asdict, replace

from tests.support.folds import with_present_versions
from tests.support.tiers import examples
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.errors import TreadleError
from treadle.item import (
    GROUP_MARK,
    Changed,
    Contribution,
    Demand,
    Effects,
    ErrorInfo,
    Filter,
    Heartbeat,
    Item,
    ItemState,
    Lease,
    Limit,
    Order,
    PermitRequest,
    Rejected,
    Settled,
    Settlement,
    SettlementKind,
    Status,
    Submission,
)
from treadle.item_facts import DeadMark, Explanation, Overview
from treadle.testing import ManualClock

STEPS = examples(120, few=80)
TENANTS = ("x", "y")
WORKERS = ("w0", "w1", "w2")
VERBS = {
    "submit": 14,
    "claim": 14,
    "settle": 30,
    "advance": 8,
    "remove_worker": 3,
    "beat": 4,
    "cancel": 3,
    "complete": 3,
    "requeue": 6,
    "trigger": 2,
    "delete": 2,
    "prune": 2,
    "pause": 1,
    "claim_key": 1,
    "take_permits": 2,
}
KINDS: tuple[SettlementKind, ...] = (
    *["success"] * 5,
    *["dead", "retry"] * 2,
    "defer",
    "release",
    "cancelled",
)  # type: ignore[assignment]

FILTERS = (
    *(Filter(status=(status,)) for status in get_args(Status)),
    Filter(mark="m"),
    Filter(mark="", type="t"),
    Filter(status=("dead",), queue="q"),
    Filter(status=("cancelled",), type="t", since=1.0),
    Filter(status=("success", "ready"), until=1e12),
    Filter(reason="aborted"),
    Filter(failed_group=True),
)

Pair: TypeAlias = "tuple[Lease, Lease]"


class History:
    """Two backends, and the verbs that both have executed."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.backends: tuple[Backend, Backend] = (
            MemoryBackend(self.clock),
            SqliteBackend(path, clock=self.clock, durability="normal"),
        )
        self.ids: list[tuple[str, str]] = []
        self.leases: list[Pair] = []
        self.count = 0

    async def both(self, ask: Callable[[Backend, int], Awaitable[Any]]) -> tuple[Any, Any]:
        answers: list[Any] = []
        for place, backend in enumerate(self.backends):
            try:
                answers.append(await ask(backend, place))
            except TreadleError as error:
                answers.append((type(error), sorted(getattr(error, "references", [])) or str(error)))
        return answers[0], answers[1]

    async def step(self) -> None:
        verb = self.random.choices(list(VERBS), list(VERBS.values()))[0]
        await getattr(self, verb)()

    # -- the path of work ------------------------------------------------------------------------------

    def item(self, tenant: str) -> Item:
        pick, chance = self.random.choice, self.random.random
        self.count += 1
        fields: dict[str, Any] = {}
        if chance() < 0.35:
            pool = [*[id for owner, id in self.ids if owner == tenant][-12:], f"i{self.count + 2}"]
            if chance() < 0.3:
                pool = [*pool, *(GROUP_MARK + id for id in pool)]
            after = tuple(dict.fromkeys(self.random.sample(pool, min(len(pool), self.random.randint(1, 3)))))
            need = self.random.randint(0, len(after) + (chance() < 0.1))
            fields = {"after": after, "need": need, "counting": pick(("success", "done"))}
        if chance() < 0.2:
            fields |= {"key": pick("abc"), "key_scope": pick(("open", "any", 20.0))}
        if chance() < 0.2:
            fields["delay"] = pick((5.0, 20.0))
        if chance() < 0.15:
            fields["expires_in"] = pick((5.0, 30.0))
        if chance() < 0.2:
            fields["contributes"] = False
        if chance() < 0.3:
            fields |= {"keep": pick((0.0, 10.0, 50.0)), "keep_dead": pick((None, 10.0))}
        taken = [id for owner, id in self.ids if owner == tenant]
        return Item(
            id=pick(taken) if taken and chance() < 0.03 else f"i{self.count}",
            type=pick("tu"),
            input=b"",
            tenant=tenant,
            queue=pick("qr"),
            lane=pick(("", "l")),
            priority=self.random.randint(-1, 1),
            attempts=pick((None, 1, 2, 3)),
            **fields,
        )

    async def submit(self) -> None:
        chance = self.random.random
        submissions: list[Submission] = []
        for _ in range(self.random.randint(1, 2)):
            items = [self.item(self.random.choice(TENANTS)) for _ in range(self.random.randint(1, 3))]
            leased = [replace(item, lease_to="w0" if chance() < 0.15 else None) for item in items]
            self.ids += [(item.tenant, item.id) for item in items]
            submissions.append(Submission(tuple(leased)))
        ours, theirs = await self.both(lambda backend, _: backend.submit(submissions))
        assert [submitted(answer) for answer in ours] == [submitted(answer) for answer in theirs]
        self.pair(*([one.lease for one in answered(answers) if one.lease] for answers in (ours, theirs)))

    async def claim(self) -> None:
        worker, pick = self.random.choice(WORKERS), self.random.choice
        types = pick((None, {"t": 1000}, {"t": 1000, "u": 1000}, {"u": 1000}))
        if self.random.random() < 0.8:
            known = None if types is None else tuple(types)
            await self.both(lambda backend, _: backend.beat(Heartbeat(worker=worker, lease=15, types=known)))
        demand = Demand(
            worker=worker,
            limit=1000,
            types=types,
            queues=pick((None, None, ("q",))),
            tenants=pick((None, None, ("x",))),
            unknown_grace=pick((None, 15.0)),
        )
        ours, theirs = await self.both(lambda backend, _: backend.claim(demand))
        assert (ours.alive, ours.next_due) == (theirs.alive, theirs.next_due)
        self.pair(ours.leases, theirs.leases)

    def pair(self, ours: Sequence[Lease], theirs: Sequence[Lease]) -> None:
        mine, yours = (
            sorted(leases, key=lambda lease: (lease.tenant, lease.id)) for leases in (ours, theirs)
        )
        assert [shown_lease(lease) for lease in mine] == [shown_lease(lease) for lease in yours]
        self.leases += zip(mine, yours, strict=True)

    async def settle(self) -> None:
        pairs = self.random.sample(self.leases, min(len(self.leases), self.random.randint(1, 6)))
        settlements = [self.settlement(pair) for pair in pairs]
        ours, theirs = await self.both(
            lambda backend, place: settle_at_present(backend, [both[place] for both in settlements])
        )
        assert [shown_outcome(one) for one in ours.outcomes] == [
            shown_outcome(one) for one in theirs.outcomes
        ]
        assert shown_effects(ours.effects) == shown_effects(theirs.effects)
        if self.random.random() < 0.9:
            over = {
                pair
                for pair, outcome in zip(pairs, ours.outcomes, strict=True)
                if outcome.verb in ("applied", "stale")
            }
            self.leases = [pair for pair in self.leases if pair not in over]

    def settlement(self, pair: Pair) -> tuple[Settlement, Settlement]:
        lease, pick, chance = pair[0], self.random.choice, self.random.random
        kind: SettlementKind = "dead" if lease.verdict and chance() < 0.8 else pick(KINDS)
        fields: dict[str, Any] = {}
        if kind == "dead":
            fields = {"reason": lease.verdict or "aborted", "failure": pick((None, ErrorInfo("E", "m", "")))}
            fields["mark"] = pick(("", "m", "n"))
        elif kind == "retry":
            fields = {"failure": ErrorInfo("E", str(self.count), ""), "delay": pick((0.0, 3.0))}
        elif kind in ("defer", "release"):
            fields = {"delay": pick((0.0, 3.0))}
        elif kind == "success":
            fields["result"] = pick((None, b"", b"r%d" % self.count))
            if chance() < 0.5:
                value, version = pick((None, b"v%d" % self.count)), pick((None, None, 0, 1, 2))
                fields["contribution"] = Contribution(value, chance() < 0.1, version)
        if kind in ("success", "dead") and chance() < 0.35:
            children = [self.item(lease.tenant) for _ in range(self.random.randint(1, 3))]
            if chance() < 0.2:
                children.append(Item(id=f"i{self.count}s", type="t", input=b"", after=(lease.id,), need=1))
            if chance() < 0.4:
                children += self.nested()
            self.ids += [(lease.tenant, child.id) for child in children]
            fields["children"] = tuple(children)
        ours, theirs = (Settlement(lease=one, kind=kind, **fields) for one in pair)
        return ours, theirs

    def nested(self, group_id: str | None = None) -> list[Item]:
        """A nested group: its members, possibly with another group inside, and the item that closes it."""
        self.count += 1
        id, chance = f"g{self.count}", self.random.random
        waits: dict[str, Any] = {"after": (GROUP_MARK + id,), "need": 1}
        children = [Item(id, "t", b"", closes_group=True, group_id=group_id, **waits)]
        for _ in range(self.random.randint(0, 2)):
            children.append(replace(self.item("x"), group_id=id))
        if chance() < 0.2:
            children += self.nested(id)
        if chance() < 0.5:
            self.count += 1
            counting = self.random.choice(("success", "done"))
            children.append(Item(f"i{self.count}", "t", b"", after=(id,), need=1, counting=counting))
        return children

    async def advance(self) -> None:
        await self.clock.advance(self.random.choice((1.0, 4.0, 12.0, 40.0)))

    async def remove_worker(self) -> None:
        worker = self.random.choice(WORKERS)
        ours, theirs = await self.both(lambda backend, _: backend.remove_worker(worker))
        assert ours == theirs

    async def beat(self) -> None:
        worker = self.random.choice(WORKERS)
        held = [[pair[place] for pair in self.leases] for place in (0, 1)]
        ours, theirs = await self.both(
            lambda backend, place: backend.beat(Heartbeat(worker=worker, lease=15, held=held[place]))
        )
        assert ours.fresh == theirs.fresh
        lost = [[reply.lost.get(lease.token) for lease in held[n]] for n, reply in enumerate((ours, theirs))]
        assert lost[0] == lost[1]

    # -- operators -------------------------------------------------------------------------------------

    async def operate(self, ask: Callable[[Backend, list[str], str | None], Awaitable[Any]]) -> None:
        if not self.ids:
            return
        ids = [self.random.choice(self.ids)[1] for _ in range(self.random.randint(1, 3))]
        tenant = self.random.choice((None, *TENANTS))
        ours, theirs = await self.both(lambda backend, _: ask(backend, ids, tenant))
        if isinstance(ours, tuple) or isinstance(theirs, tuple):
            assert ours == theirs
            return
        assert self.shown(ours.items) == self.shown(theirs.items)
        assert shown_effects(ours.effects) == shown_effects(theirs.effects)

    async def cancel(self) -> None:
        await self.operate(lambda backend, ids, tenant: backend.cancel(ids, tenant=tenant))

    async def complete(self) -> None:
        await self.operate(lambda backend, ids, tenant: backend.complete(ids[0], b"op", tenant=tenant))

    async def trigger(self) -> None:
        async def trigger(backend: Backend, ids: list[str], tenant: str | None) -> Any:
            (found,) = await backend.get(ids[:1], tenant=tenant)
            late = found is not None and found.deadline is not None and found.deadline <= self.clock.now()
            return (await backend.trigger([] if late else ids[:1], tenant=tenant)) if found else Changed(())

        await self.operate(trigger)

    async def delete(self) -> None:
        cascade = self.random.random() < 0.5
        await self.operate(lambda backend, ids, tenant: backend.delete(ids, tenant=tenant, cascade=cascade))

    async def requeue(self) -> None:
        how = self.random.randrange(3)
        more: dict[str, Any] = {} if how == 0 else {"limit": 3}
        more |= {"alone": self.random.random() < 0.3, "cancelled": self.random.random() < 0.3}
        if how == 2:
            more |= {"redrives": 2, "backoff": 4.0}
        await self.operate(
            lambda backend, ids, tenant: backend.requeue(ids if how == 0 else Filter(), tenant=tenant, **more)
        )

    async def prune(self) -> None:
        ours, theirs = await self.both(lambda backend, _: backend.prune())
        assert ours == theirs

    async def pause(self) -> None:
        queue, paused = self.random.choice("qr"), self.random.random() < 0.4
        tenant = self.random.choice((None, "x"))
        order = Order(kind="pause", queue=queue, tenant=tenant)
        await self.both(lambda backend, _: backend.order(order) if paused else backend.withdraw(order))

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self) -> None:
        key, owner = self.random.choice("ab"), self.random.choice("12")
        ours, theirs = await self.both(lambda backend, _: backend.claim_key(key, owner, 10.0, tenant="x"))
        assert ours == theirs

    async def take_permits(self) -> None:
        pick = self.random.choice
        algorithm: Any = pick(("token_bucket", "fixed_window", "sliding_window", "slots"))
        requests = [
            PermitRequest((Limit(pick("ab"), 3, pick((5.0, 10.0)), algorithm),), self.random.randint(1, 3))
        ]
        ours, theirs = await self.both(lambda backend, _: backend.take_permits(requests, worker="w0"))
        assert ours == theirs

    # -- comparing -------------------------------------------------------------------------------------

    async def compare(self) -> None:
        """Compare all items and all groups."""
        ours, theirs = await self.both(
            lambda backend, _: backend.list(Filter(), limit=1000, oldest_first=True)
        )
        assert self.shown(ours.items) == self.shown(theirs.items)
        for tenant in TENANTS:
            found = [one for one in ours.items if one.tenant == tenant]
            ids, roots = [one.id for one in found], list({one.group_id: None for one in found})
            whole = await self.both(lambda backend, _: backend.get(ids, tenant=tenant))  # noqa: B023
            assert self.shown(whole[0]) == self.shown(whole[1])
            groups = await self.both(lambda backend, _: backend.group(roots, tenant=tenant))  # noqa: B023
            assert [shown_group(one) for one in groups[0]] == [shown_group(one) for one in groups[1]]

    async def compare_facts(self) -> None:
        """Compare what operators read. Not while a deadline has passed: the next claim dooms the item, and
        the time of that decides what is shown."""
        listed = (await self.backends[0].list(Filter(), limit=1000)).items
        if any(self.is_late(one) for one in listed):
            return
        for one in listed:
            facts = await self.both(lambda backend, _: backend.explain(one.id, tenant=one.tenant))  # noqa: B023
            assert shown_facts(facts[0]) == shown_facts(facts[1])
        for tenant in (None, *TENANTS):
            overviews = await self.both(lambda backend, _: backend.overview(tenant=tenant))  # noqa: B023
            assert shown_overview(overviews[0]) == shown_overview(overviews[1])
            marks = await self.both(lambda backend, _: backend.marks(tenant=tenant, cap=2))  # noqa: B023
            assert shown_marks(marks[0]) == shown_marks(marks[1])
            for where in FILTERS:
                pages = await self.both(lambda backend, _: backend.list(replace(where, tenant=tenant)))  # noqa: B023
                assert pages[0].items == pages[1].items
        uses = await self.both(lambda backend, _: backend.limits())
        assert uses[0] == uses[1]

    def is_late(self, one: ItemState) -> bool:
        return one.ended_at is None and one.deadline is not None and one.deadline <= self.clock.now()

    def shown(self, items: Sequence[ItemState]) -> list[dict[str, Any]]:
        return [self.state(one) for one in sorted(items, key=lambda one: (one.tenant, one.id))]

    def state(self, one: ItemState) -> dict[str, Any]:
        fields = asdict(one)
        late = one.deadline is not None and one.deadline <= self.clock.now()
        if late and one.status in ("ready", "scheduled"):
            # Doomed now or by the next claim. The time of that decides which status it keeps.
            fields["status"] = "waits"
        return fields


def answered(answers: Sequence[Any]) -> list[Any]:
    return [one for answer in answers if not isinstance(answer, Rejected) for one in answer]


def submitted(answer: Any) -> object:
    if isinstance(answer, Rejected):
        return answer.why, sorted(answer.ids) if answer.why != "cycle" else None
    return [(one.id, one.existing, one.status, one.group_id, one.lease is None) for one in answer]


def shown_lease(lease: Lease) -> Lease:
    if lease.verdict is not None:
        lease = replace(lease, ready_at=0.0)  # a doomed item need not have been ready
    return replace(lease, token=0, ref=0)


async def settle_at_present(backend: Backend, settlements: Sequence[Settlement]) -> Settled:
    return await backend.settle(await with_present_versions(backend, settlements))


def shown_outcome(outcome: Any) -> object:
    rejected = outcome.rejected and outcome.rejected.why
    shown = replace(
        outcome, rejected=None, existing=dict(outcome.existing or {}), version=outcome.version > 0
    )
    return shown, rejected


def shown_effects(effects: Effects) -> object:
    released = sorted(effects.released, key=lambda one: (one.tenant, one.id))
    ended = sorted((one.tenant, one.id, one.type, one.value) for one in effects.ended_groups)
    return released, ended, effects.doomed


def shown_facts(facts: Explanation) -> Explanation:
    """Items that became ready in one call may be in any order. The counts of a doomed item may be older."""
    return replace(facts, ahead=0) if facts.verdict is None else replace(facts, met=0, open=0)


def shown_overview(overview: Overview) -> Overview:
    """Without what a store need not say: of which item the age of a queue is."""
    return replace(overview, ages=tuple([replace(age, tenant="", type="") for age in overview.ages]))


def shown_marks(marks: Sequence[DeadMark]) -> object:
    """Of items that died at the same time, any is the newest."""
    return sorted((one.mark, one.count, one.capped, one.oldest_queued_at, one.last_at) for one in marks)


def shown_group(group: Any) -> object:
    if group is None:
        return None
    return (
        replace(group, cancelled=None, deaths=(), version=group.version > 0),
        group.cancelled is None,
        [one.id for one in group.deaths],
    )


@pytest.mark.usefixtures("random_examples")
@pytest.mark.parametrize("seed", range(8))
async def test_sqlite_answers_like_the_model(seed: int, quick_file: Path) -> None:
    history = History(seed, quick_file)
    await history.backends[1].open()
    for step in range(STEPS):
        await history.step()
        if step % 10 == 9:
            await history.compare()
            await history.compare_facts()
    await history.backends[1].close()
