"""MemoryBackend: the contract with and without shortcuts, its memory, its costs and its audit."""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tests.backends.memory_audit import MemoryWithoutShortcuts, audit
from tests.backends.random_calls import RandomCalls
from tests.support.tiers import examples
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.backends.memory.rows import ItemKind
from treadle.backends.memory.tables import MemoryTables
from treadle.errors import UnsupportedError
from treadle.item import (
    Contribution,
    Demand,
    ErrorInfo,
    Filter,
    Heartbeat,
    Item,
    Lease,
    Limit,
    PermitRequest,
    Settlement,
    Submission,
    Wake,
)
from treadle.testing import BackendContract, ManualClock

YEAR = 366 * 86400.0


class MemorySubject:
    def __init__(self, kind: type[MemoryBackend] = MemoryBackend) -> None:
        self.clock = ManualClock()
        self.backend = kind(self.clock)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        await self.clock.set(self.clock.now() - seconds)

    async def another(self) -> Backend:
        return self.backend


class TestContract(BackendContract):
    @pytest.fixture
    def subject(self) -> Iterator[MemorySubject]:
        subject = MemorySubject()
        yield subject
        assert audit(subject.backend) == []


@pytest.mark.usefixtures("another_form")
class TestContractWithoutShortcuts(BackendContract):
    """The shortcuts of plain items must not change any answer."""

    @pytest.fixture
    def subject(self) -> Iterator[MemorySubject]:
        subject = MemorySubject(MemoryWithoutShortcuts)
        yield subject
        assert audit(subject.backend) == []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(clock: ManualClock) -> MemoryBackend:
    return MemoryBackend(clock)


def item(id: str, type: str = "work", **fields: Any) -> Item:
    return Item(id=id, type=type, input=b"", **fields)


async def submit(backend: MemoryBackend, *items: Item) -> None:
    await backend.submit([Submission((one,)) for one in items])


async def claim(backend: MemoryBackend, limit: int = 100, worker: str = "w") -> list[Lease]:
    await backend.beat(Heartbeat(worker=worker, lease=YEAR * 10))
    return list((await backend.claim(Demand(worker=worker, limit=limit))).leases)


async def succeed(backend: MemoryBackend, leases: list[Lease], *children: Item) -> None:
    await backend.settle(
        [
            Settlement(lease=lease, kind="success", contribution=Contribution(), children=children)
            for lease in leases
        ]
    )


def left_in(store: MemoryTables) -> list[str]:
    """The tables that are not empty, except those of workers and schedules."""
    tables: dict[str, object] = {
        "items": store.items,
        "log": store.log,
        "kinds": store.kinds,
        "types": store.types,
        "groups": store.groups,
        "keys": store.keys,
        "workflows": store.workflows,
        "dead": store.dead,
        "lines": store.lines,
        "ready": list(store.ready),
        "queues": store.ready.queues.nodes or store.ready.queues.left_out,
        "parked": store.parked,
        "scheduled": store.scheduled.queues,
        "doomed": list(store.doomed),
        "deadlines": store.deadlines,
        "waiters": store.waiters,
        "retention": store.retention.rows,
        "bundles": store.retention.bundles,
        "retained groups": store.retention.groups,
        "claimed keys": store.claimed_keys.by_ref,
        "claimed keys by end": store.claimed_keys.by_end,
        "limits": store.limits.limits,
        "limits by end": store.limits.limits_by_end,
        "unknown searches": store.unknown_searches,
        "unknown since": store.unknown_since,
    }
    return [name for name, table in tables.items() if table]


# ----------------------------------------------------------------------------------------------- random verbs


@pytest.mark.usefixtures("random_examples")
@pytest.mark.parametrize("seed", range(12))
async def test_random_verbs_keep_the_tables_consistent(seed: int) -> None:
    """The audit runs after each verb. In the end all items are done and pruned, and all tables are empty."""
    clock = ManualClock()
    backend = (MemoryWithoutShortcuts, MemoryBackend)[seed % 2](clock)
    calls = RandomCalls(seed, backend, clock.advance)
    for _ in range(examples(250, few=120)):
        verb = await calls.step()
        assert audit(backend) == [], verb
    await calls.finish()
    assert audit(backend) == []
    assert left_in(backend.store) == []


# ----------------------------------------------------------------------------------------------------- memory


async def test_pruned_items_leave_nothing_behind(backend: MemoryBackend, clock: ManualClock) -> None:
    """Memory is bounded by what is stored: items, groups, keys, workflows, lines, limits."""
    await submit(backend, *(item(f"plain{n}", lane=f"lane{n}") for n in range(50)))
    await submit(backend, item("keyed", key="k", workflow="flow", expires_in=YEAR), item("root"))
    await submit(backend, item("dependent", after=("root", "never"), need=1))
    await backend.claim_key("mine", "me", 60, tenant="default")
    await backend.take_permits([PermitRequest((Limit("calls", 5),), 3)])
    leases = {lease.id: lease for lease in await claim(backend)}
    await succeed(backend, [leases.pop("root")], item("child"), item("sibling", after=("child",), need=1))
    while found := [*leases.values(), *await claim(backend)]:
        await succeed(backend, found)
        leases.clear()
    clock.advance(YEAR)
    assert await backend.prune(1000) == 55
    assert audit(backend) == []
    assert left_in(backend.store) == []


async def test_deleted_items_leave_nothing_behind(backend: MemoryBackend) -> None:
    """In every state."""
    await submit(backend, item("running", expires_in=YEAR), item("ended"))
    leases = await claim(backend)
    await succeed(backend, [lease for lease in leases if lease.id == "ended"], item("child"))
    await submit(
        backend, item("ready"), item("scheduled", delay=5), item("blocked", after=("ready",), need=1)
    )
    await submit(backend, item("doomed", after=("ready",), need=2))
    assert (
        len((await backend.delete(["running", "ended", "ready", "scheduled", "blocked", "doomed"])).items)
        == 7
    )
    assert left_in(backend.store) == []


async def test_cancelled_items_are_swept_out_of_their_line(backend: MemoryBackend) -> None:
    """Positions in the middle of a line do not stay until they come first."""
    await submit(backend, item("first"), *(item(f"i{n}") for n in range(1000)), item("last"))
    await backend.cancel([f"i{n}" for n in range(1000)])
    (line,) = backend.store.ready
    assert len(line) == 2
    assert sum(1 for _ in line._in_order) < 50  # pyright: ignore[reportPrivateUsage]
    assert [lease.id for lease in await claim(backend)] == ["first", "last"]


async def test_a_backend_that_is_dropped_is_freed() -> None:
    """The garbage collector does not track rows, so none may stay in a cycle."""
    backend = MemoryBackend()
    tenant = "a backend that is dropped"
    await submit(backend, *(item(f"i{n}", tenant=tenant, expires_in=YEAR) for n in range(5)))
    await submit(
        backend,
        item("dependent", tenant=tenant, after=("i4",), need=1),
        item("later", tenant=tenant, delay=9),
    )
    await succeed(backend, (await claim(backend, 2))[:1], item("child"))
    await backend.cancel(["i3"])
    await submit(backend, item("parked", "foreign", tenant=tenant))
    await backend.claim(Demand(worker="w", limit=5, types={"work": 1}))

    def kinds() -> int:
        gc.collect()
        return sum(type(found) is ItemKind and found.tenant == tenant for found in gc.get_objects())

    assert kinds() > 0
    del backend
    assert kinds() == 0


# ------------------------------------------------------------------------------------------------------- cost


def calls(run: Callable[[], Any]) -> int:
    """The cost of `run` without a clock: how many functions it calls."""
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def drive(verb: Any) -> Any:
    """Run a verb to its end. It never waits."""
    with pytest.raises(StopIteration) as ended:
        verb.send(None)
    return ended.value.value


async def fill(backend: MemoryBackend, count: int) -> None:
    """Submit `count` items of each sort, in many lanes."""
    await backend.beat(Heartbeat(worker="w", lease=YEAR))
    for sort in (
        {},
        {"delay": 99.0},
        {"after": ("never",), "need": 1},
        {"expires_in": 99.0},
        {"priority": 5},
    ):
        await submit(backend, *(item(f"{n} {sort}", lane=f"{n % 50}", **sort) for n in range(count)))


@pytest.mark.parametrize(
    "verb",
    [
        lambda backend: backend.submit([Submission((item("new"),))]),
        lambda backend: backend.claim(Demand(worker="w", limit=10)),
        lambda backend: backend.claim(Demand(worker="w", limit=10, queues=("x", "default"))),
        lambda backend: backend.claim(Demand(worker="w", limit=10, tenants=("x", "default"))),
        lambda backend: backend.cancel(["3 {}"]),
        lambda backend: backend.prune(10),
        lambda backend: backend.counts(),
        lambda backend: backend.list(Filter(), limit=10),
    ],
    ids=["submit", "claim", "claim queues", "claim tenants", "cancel", "prune", "counts", "list"],
)
async def test_the_cost_of_a_verb_does_not_depend_on_the_backlog(
    verb: Callable[[MemoryBackend], Any],
) -> None:
    costs: list[int] = []
    for count in (100, 2000):
        backend = MemoryBackend(ManualClock())
        await fill(backend, count)
        costs.append(calls(lambda: drive(verb(backend))))  # noqa: B023  called at once
    assert costs[1] <= costs[0] * 1.1 + 5


# ------------------------------------------------------------------------------------------------------ audit


def _lose_row(store: MemoryTables) -> None:
    next(iter(store.ready)).pop()


def _miscount(store: MemoryTables) -> None:
    next(iter(store.kinds.values())).counts["ready"] += 1


def _miscount_group(store: MemoryTables) -> None:
    store.groups["root"]["default"].open += 1


def _meet_dependency(store: MemoryTables) -> None:
    dependencies = store.log[-1].dependencies
    assert dependencies is not None
    dependencies.met += 1


def _forget_waiter(store: MemoryTables) -> None:
    store.waiters.clear()


def _lose_worker(store: MemoryTables) -> None:
    store.workers.clear()


def _steal_key(store: MemoryTables) -> None:
    store.keys["default", "work", "k"] = store.log[0]


def _forget_deadline(store: MemoryTables) -> None:
    store.deadlines.pop()


def _forget_dead(store: MemoryTables) -> None:
    store.dead.clear()


def _orphan(store: MemoryTables) -> None:
    for row in store.log:
        row.parent = None


CORRUPTIONS = [
    _lose_row,
    _miscount,
    _miscount_group,
    _meet_dependency,
    _forget_waiter,
    _lose_worker,
    _steal_key,
    _forget_deadline,
    _forget_dead,
    _orphan,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
async def test_the_audit_finds_a_corruption(
    backend: MemoryBackend, corrupt: Callable[[MemoryTables], None]
) -> None:
    await submit(backend, item("root"), item("dies"), item("runs"), item("keyed", key="k"), item("waits"))
    leases = {lease.id: lease for lease in await claim(backend, 3)}
    await succeed(backend, [leases["root"]], item("child", expires_in=YEAR))
    failure = ErrorInfo("Oops", "no")
    await backend.settle([Settlement(lease=leases["dies"], kind="dead", reason="aborted", failure=failure)])
    await submit(backend, item("dependent", after=("runs",), need=1))
    assert audit(backend) == []
    corrupt(backend.store)
    assert audit(backend) != []


# --------------------------------------------------------------------------------------------------- the rest


async def test_there_are_no_transactions(backend: MemoryBackend) -> None:
    with pytest.raises(UnsupportedError, match="transactions"):
        backend.transaction()
    with pytest.raises(UnsupportedError, match="transactions"):
        await backend.submit([], tx=object())
    assert "transactions" not in backend.capabilities


async def test_closing_keeps_the_items(backend: MemoryBackend) -> None:
    await submit(backend, item("a"))
    await backend.close()
    await backend.open()
    assert [lease.id for lease in await claim(backend)] == ["a"]


async def test_a_release_with_a_delay_keeps_its_place(backend: MemoryBackend, clock: ManualClock) -> None:
    await submit(backend, item("a"), item("b"))
    (lease,) = await claim(backend, 1)
    await backend.settle([Settlement(lease=lease, kind="release", delay=5)])
    clock.advance(6)
    assert [lease.id for lease in await claim(backend)] == ["a", "b"]


async def test_a_prerequisite_named_by_two_keys_counts_twice(backend: MemoryBackend) -> None:
    """One earlier item answers for two keyed items. An item that waits for both waits for the earlier one."""
    await submit(backend, item("earlier", key="k"), item("other"))
    dependent = item("dependent", after=("x", "y", "other"), need=2)
    await backend.submit([Submission((item("x", key="k"), item("y", key="k"), dependent))])
    (state,) = await backend.get(["dependent"])
    assert state is not None
    assert state.after == ("earlier", "earlier", "other")
    leases = await claim(backend)
    await succeed(backend, [lease for lease in leases if lease.id == "earlier"])
    assert [lease.id for lease in await claim(backend)] == ["dependent"]
    assert audit(backend) == []


async def test_parked_items_are_not_parked_again(backend: MemoryBackend) -> None:
    """More items of a type are parked than there is room for. The rest stays parked."""
    await backend.beat(Heartbeat(worker="w", lease=YEAR))
    await submit(backend, *(item(f"a{n}", "a") for n in range(5)), item("b", "b"))
    await backend.claim(Demand(worker="w", limit=9, types={"b": 1}))
    claimed = await backend.claim(Demand(worker="w", limit=9, types={"a": 2, "b": 7}))
    assert [lease.id for lease in claimed.leases] == ["a0", "a1"]
    assert claimed.next_due is None


async def test_a_claim_parks_items_in_portions(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim takes long. `next_due` 0 asks for another claim at once."""
    monkeypatch.setattr("treadle.backends.memory.claim.MOST_PARKED", 10)
    await backend.beat(Heartbeat(worker="w", lease=YEAR))
    await submit(backend, *(item(f"a{n}", "a") for n in range(25)), item("b", "b"))
    demand = Demand(worker="w", limit=9, types={"b": 1})
    answers = [await backend.claim(demand) for _ in range(4)]
    assert [len(answer.leases) for answer in answers] == [0, 0, 1, 0]
    assert [answer.next_due for answer in answers] == [0, 0, None, None]


async def test_an_overdue_item_is_never_run(
    backend: MemoryBackend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim processes only a portion of the deadlines, but never leases an overdue item to be run."""
    monkeypatch.setattr("treadle.backends.memory.claim.PORTION", 2)
    await submit(backend, *(item(f"i{n}", expires_in=5) for n in range(5)), item("last"))
    clock.advance(6)
    leases = await claim(backend)
    assert [lease.id for lease in leases if lease.verdict is None] == ["last"]
    leases += await claim(backend)
    assert sorted(lease.id for lease in leases if lease.verdict == "expired") == [f"i{n}" for n in range(5)]
    assert audit(backend) == []


async def test_a_group_that_opens_again_keeps_its_members(backend: MemoryBackend, clock: ManualClock) -> None:
    """Members that could have been pruned already are kept until after the group's next end."""
    await submit(backend, item("root", keep=10))
    dies = item("dies", keep_dead=50)
    await succeed(backend, await claim(backend), item("a", keep=10), item("b", keep=20), dies)
    leases = await claim(backend)
    await succeed(backend, [lease for lease in leases if lease.id != "dies"])
    dead = [lease for lease in leases if lease.id == "dies"]
    await backend.settle([Settlement(lease=lease, kind="dead", reason="aborted") for lease in dead])
    clock.advance(15)
    assert await backend.prune(1) == 1
    await backend.requeue(["dies"])
    clock.advance(100)
    assert await backend.prune() == 0
    assert audit(backend) == []
    await succeed(backend, await claim(backend))
    clock.advance(30)
    assert await backend.prune() == 2
    clock.advance(YEAR)
    assert await backend.prune() == 1
    assert left_in(backend.store) == []


async def test_items_of_one_bundle_are_pruned_one_by_one(backend: MemoryBackend, clock: ManualClock) -> None:
    await submit(backend, *(item(f"i{n}") for n in range(100)))
    await succeed(backend, await claim(backend))
    await backend.delete([f"i{n}" for n in range(95)])
    (bundle,) = backend.store.retention.bundles
    assert len(bundle._rows) < 50  # pyright: ignore[reportPrivateUsage]
    clock.advance(YEAR)
    assert [await backend.prune(2) for _ in range(4)] == [2, 2, 1, 0]
    assert left_in(backend.store) == []


async def test_items_are_due_in_the_order_of_their_due_times(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    """Each is due earlier than the one before, alternating between two tenants. Every third is triggered."""
    await submit(backend, *(item(f"i{n}", delay=500.0 - n, tenant=f"t{n % 2}") for n in range(100)))
    await backend.trigger([f"i{n}" for n in range(0, 100, 3)])
    assert len(await claim(backend)) == 34
    clock.advance(450.5)
    due = [n for n in range(99, 49, -1) if n % 3]
    for tenant in ("t0", "t1"):
        demand = Demand(worker="w", limit=100, tenants=(tenant,))
        found = [lease.id for lease in (await backend.claim(demand)).leases]
        assert found == [f"i{n}" for n in due if f"t{n % 2}" == tenant]
    assert (await backend.claim(Demand(worker="w", limit=0))).next_due == pytest.approx(0.5)


async def test_the_grace_of_an_unknown_type_starts_anew(backend: MemoryBackend, clock: ManualClock) -> None:
    """A worker with every type has this one too. Once that worker is gone, the grace starts anew."""
    await backend.beat(Heartbeat(worker="w", lease=YEAR, types=("work",)))
    await submit(backend, item("a", "rare"), item("b", "rare"))
    demand = Demand(worker="w", limit=5, types={"work": 5}, unknown_grace=100)
    clock.advance(99)
    assert (await backend.claim(demand)).leases == ()
    await backend.beat(Heartbeat(worker="all", lease=YEAR))
    clock.advance(99)
    assert (await backend.claim(demand)).leases == ()
    await backend.remove_worker("all")
    clock.advance(99)
    assert (await backend.claim(demand)).leases == ()
    await backend.cancel(["a"])
    clock.advance(2)
    assert [(it.id, it.verdict) for it in (await backend.claim(demand)).leases] == [("b", "unknown_type")]


async def test_a_heartbeat_connection_keeps_a_worker_alive(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    """It is used from another thread."""
    await backend.beat(Heartbeat(worker="w", lease=10))
    connection = backend.heartbeat_connection()

    async def beat() -> bool:
        await connection.open()
        reply = await connection.beat(Heartbeat(worker="w", lease=10))
        await connection.close()
        return reply.fresh

    for _ in range(3):
        clock.advance(8)
        assert not await asyncio.to_thread(lambda: asyncio.run(beat()))
        assert (await backend.claim(Demand(worker="w", limit=1))).alive
        assert audit(backend) == []
    clock.advance(10)
    assert not (await backend.claim(Demand(worker="w", limit=1))).alive
    assert await asyncio.to_thread(lambda: asyncio.run(beat()))
    assert await backend.workers() == []


async def test_a_group_is_found_by_an_id_that_two_tenants_use(backend: MemoryBackend) -> None:
    """Without a tenant, the id means the first item with this id that is a root."""
    await submit(backend, item("root", tenant="acme"))
    await succeed(backend, await claim(backend), item("x"))
    await submit(backend, item("x", tenant="other"))
    (group,) = await backend.group(["x"])
    assert group is not None
    assert group.tenant == "other"


async def test_wakeups_reach_other_loops(backend: MemoryBackend) -> None:
    """Each subscriber is called on the loop it subscribed on. Subscribers of closed loops are dropped."""
    heard: list[int] = []
    subscribed, done = threading.Event(), threading.Event()

    def other() -> None:
        async def listen() -> None:
            arrived = asyncio.Event()

            def receive(wake: Wake) -> None:
                heard.append(threading.get_ident())
                arrived.set()

            await backend.subscribe(receive)
            subscribed.set()
            await arrived.wait()

        asyncio.run(listen())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    await asyncio.to_thread(subscribed.wait)
    await backend.publish(Wake(ready=True))
    await asyncio.to_thread(done.wait)
    assert heard == [thread.ident]
    thread.join()
    await backend.publish(Wake(ready=True))
    assert heard == [thread.ident]
