"""A tenant moves between stores that are in use: what clients and workers see, and a mover that dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from treadle import Client, Context, Result, Treadle, work
from treadle.backend import (
    Backend,
    EndedRecords,
    GivesAhead,
    Giving,
    MovesAhead,
    ReadAhead,
    TenantMoves,
    transaction_of,
)
from treadle.backends.many import ManyStores
from treadle.backends.many.member import AWAY
from treadle.backends.memory import MemoryBackend
from treadle.backends.postgres import PostgresBackend
from treadle.backends.redis import RedisBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.errors import (
    BackendError,
    InputError,
    PlacementError,
    StoreUnavailable,
    TenantElsewhere,
    UnsupportedError,
)
from treadle.item import Filter, Fire, Heartbeat, ItemUpdate, Record, Schedule, Signal, Submission
from treadle.operate.promote import promote
from treadle.records import TenantMark
from treadle.store.rules.tenant_moves import MARKS, PREFIX, decode_mark
from treadle.testing import WrappedBackend
from treadle.testing.contract.build import (
    LEASE,
    apply,
    claim_answer,
    dependent,
    die,
    group,
    item,
    start_one,
    state,
    submit,
    succeed,
)
from treadle.testing.contract.check import consistent

T = TypeVar("T")


class Died(Exception):
    """The mover is dead: it does nothing more."""


class Steps:
    """Counts the calls of movers to stores. One of them dies, before it is sent or before it is answered."""

    def __init__(self) -> None:
        self.live()
        self.answer_is_lost = False
        self.before_last: Callable[[], Awaitable[Any]] | None = None
        """What happens once when the records were compared, and nothing is decided."""
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None
        """What happens once when all is copied ahead, and nothing is frozen."""

    def live(self) -> None:
        self.calls = 0
        self.dies_at: int | None = None
        self.read_after: list[int] = []
        """Behind which numbers ended items were read."""

    async def call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self.calls += 1
        dies = self.calls == self.dies_at
        if dies and not self.answer_is_lost:
            raise Died
        answer = await call()
        if dies:
            raise Died
        return answer


class Counted(Giving, TenantMoves):
    """What a store does for movers, or the tenant that it gives, call by call."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    async def put_mark(
        self, tenant: str, expected: TenantMark | None, mark: TenantMark, *, empty: bool = False
    ) -> bool:
        done: bool = await self._steps.call(lambda: self._inner.put_mark(tenant, expected, mark, empty=empty))
        return done

    async def stage(self, tenant: str, mark: TenantMark, records: Sequence[bytes]) -> bool:
        done: bool = await self._steps.call(lambda: self._inner.stage(tenant, mark, records))
        return done

    async def staged(self, tenant: str) -> tuple[int, int]:
        found: tuple[int, int] = await self._steps.call(lambda: self._inner.staged(tenant))
        if (before_last := self._steps.before_last) is not None:
            self._steps.before_last = None
            await before_last()
        return found

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        done: bool = await self._steps.call(lambda: self._inner.receive(tenant, mark, owned))
        return done

    def give(self, tenant: str, mark: TenantMark) -> AbstractAsyncContextManager[Giving]:
        @asynccontextmanager
        async def counted() -> AsyncGenerator[Giving]:
            async with self._inner.give(tenant, mark) as giving:
                yield counted_of(giving, self._steps)

        return counted()

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        found: Sequence[bytes] = await self._steps.call(lambda: self._inner.read(limit))
        return found

    async def commit(self, mark: TenantMark) -> None:
        await self._steps.call(lambda: self._inner.commit(mark))


class CountedAhead(Counted, GivesAhead, MovesAhead):
    """The same for a store that copies what has ended before the freeze."""

    async def read_ahead(
        self, tenant: str, mark: TenantMark, after: int, limit: int
    ) -> Sequence[EndedRecords]:
        self._steps.read_after.append(after)
        found: Sequence[EndedRecords] = await self._steps.call(
            lambda: self._inner.read_ahead(tenant, mark, after, min(limit, 2))
        )
        if not found and (meanwhile := self._steps.meanwhile) is not None:
            self._steps.meanwhile = None
            await meanwhile()
        return found

    async def stage_ahead(self, tenant: str, mark: TenantMark, ended: Sequence[EndedRecords]) -> bool:
        done: bool = await self._steps.call(lambda: self._inner.stage_ahead(tenant, mark, ended))
        return done

    async def staged_ahead(self, tenant: str) -> int:
        found: int = await self._steps.call(lambda: self._inner.staged_ahead(tenant))
        return found

    async def drop_ahead(self, tenant: str, mark: TenantMark, numbers: Sequence[int]) -> bool:
        done: bool = await self._steps.call(lambda: self._inner.drop_ahead(tenant, mark, numbers))
        return done

    async def ahead(self) -> ReadAhead:
        found: ReadAhead = await self._steps.call(self._inner.ahead)
        return found


def counted_of(inner: Any, steps: Steps) -> Counted:
    return (CountedAhead if isinstance(inner, MovesAhead | GivesAhead) else Counted)(inner, steps)


class Watched(SqliteBackend):
    counted: Steps

    @property
    def tenant_moves(self) -> Any:
        return counted_of(super().tenant_moves, self.counted)


class WatchedMemory(MemoryBackend):
    counted: Steps

    @property
    def tenant_moves(self) -> Any:
        return counted_of(super().tenant_moves, self.counted)


class WatchedSchema(PostgresBackend):
    counted: Steps

    @property
    def tenant_moves(self) -> Any:
        return Counted(super().tenant_moves, self.counted)


class WatchedNamespace(RedisBackend):
    counted: Steps

    @property
    def tenant_moves(self) -> Any:
        return Counted(super().tenant_moves, self.counted)


AnyWatched: TypeAlias = Watched | WatchedMemory | WatchedSchema | WatchedNamespace
NAMES = ("eu", "us")
FILES = ("file", "file")
KINDS = (
    FILES,
    ("memory", "memory"),
    ("memory", "file"),
    ("file", "memory"),
    ("redis", "redis"),
    ("file", "redis"),
    ("redis", "postgres"),
)


class Pair:
    """Two stores, and processes that use both.

    kinds: of the two. urls: of their servers, by kind."""

    def __init__(self, directory: Path, kinds: Sequence[str] = FILES, urls: Mapping[str, str] = {}) -> None:
        self.directory = directory
        self._kinds = dict(zip(NAMES, kinds, strict=True))
        self._urls = urls
        self._memory = {name: WatchedMemory() for name, kind in self._kinds.items() if kind == "memory"}
        self.steps = Steps()
        self.processes: list[ManyStores] = []
        self.has_changed = False

    def another(self, name: str) -> Pair:
        """A new pair of the same kind."""
        (directory := self.directory / name).mkdir()
        return Pair(directory, [*self._kinds.values()], self._urls)

    def store(self, name: str) -> AnyWatched:
        """One of them, as a new process has it."""
        kind, alone = self._kinds[name], f"{self.directory.name}_{name}"
        store: AnyWatched
        match kind:
            case "memory":
                store = self._memory[name]
            case "redis":
                store = WatchedNamespace(f"{self._urls[kind]}&prefix={alone}")
            case "postgres":
                store = WatchedSchema(self._urls[kind], schema=f"s{alone[-40:].lower()}")
            case _:
                store = Watched(self.directory / f"{name}.db")
        store.counted = self.steps
        return store

    async def process(self) -> ManyStores:
        stores: dict[str, Backend] = {name: self.store(name) for name in NAMES}
        process = ManyStores(stores)
        await process.open()
        self.processes.append(process)
        return process

    async def owners(self, id: str) -> list[str]:
        return [
            name
            for name, store in self.processes[0].backends.items()
            if (await store.get([id], tenant="acme"))[0] is not None
        ]


@pytest.fixture(params=KINDS, ids="-".join)
def kinds(request: pytest.FixtureRequest) -> Sequence[str]:
    found: Sequence[str] = request.param
    return found


@pytest.fixture
def urls(kinds: Sequence[str], request: pytest.FixtureRequest) -> dict[str, str]:
    """Not asked for within the event loop of a test."""
    fixtures = {"postgres": "postgres_url", "redis": "valkey_url"}
    return {kind: request.getfixturevalue(fixtures[kind]) for kind in fixtures if kind in kinds}


@pytest.fixture
async def pair(kinds: Sequence[str], urls: dict[str, str], directory: Path) -> AsyncIterator[Pair]:
    pair = Pair(directory, kinds, urls)
    yield pair
    for process in pair.processes:
        await process.close()


@pytest.fixture
async def files(directory: Path) -> AsyncIterator[Pair]:
    pair = Pair(directory)
    yield pair
    for process in pair.processes:
        await process.close()


@pytest.fixture
def directory(quick_directory: Path, tmp_path: Path) -> Path:
    directory = quick_directory / tmp_path.name
    directory.mkdir()
    return directory


async def fill(stores: ManyStores) -> Any:
    """Let the tenant have what has ended, what waits, and an item that runs. Returns its lease."""
    await stores.place("acme", "eu")
    await submit(stores, item("theirs", tenant="other"))
    for id in ("ended", "gone"):
        await apply(stores, succeed(await start_one(stores, item(id, tenant="acme"))))
    await submit(stores, item("cancelled", tenant="acme"))
    await stores.cancel(["cancelled"], tenant="acme")
    running = await start_one(stores, item("running", tenant="acme"))
    await submit(stores, dependent("running", id="next", tenant="acme"), item("ready", tenant="acme"))
    assert await stores.claim_key("lock", "me", 500, tenant="acme")
    return running


def changing(case: Pair, stores: ManyStores) -> None:
    """Let what has ended change when all of it is copied ahead: as with `fill`, one is requeued and runs once
    more, and one is deleted."""

    async def change() -> None:
        await stores.requeue(["cancelled"], tenant="acme", cancelled=True)
        await stores.delete(["gone"], tenant="acme")
        await submit(stores, item("more", tenant="acme", delay=500))
        await stores.update(["more"], ItemUpdate(priority=3), tenant="acme")
        case.has_changed = True

    case.steps.meanwhile = change


async def work_off(stores: ManyStores, running: Any, *, has_changed: bool = False) -> None:
    """What ran is settled by its lease, and the rest is run, each item once."""
    await apply(stores, succeed(running))
    ran: list[str] = []
    while leases := (await claim_answer(stores, 5, thorough=True)).leases:
        ran += [lease.id for lease in leases if lease.tenant == "acme"]
        await apply(stores, *map(succeed, leases))
    assert sorted(ran) == [*(["cancelled"] if has_changed else []), "next", "ready"]
    assert ((await stores.get(["gone"], tenant="acme")) == [None]) is has_changed
    again = await state(stores, "cancelled", "acme")
    assert again.status == ("success" if has_changed else "cancelled")
    for id in ("ended", "running", "next", "ready"):
        assert (await state(stores, id, "acme")).status == "success"
        assert (await group(stores, id, "acme")).open == 0
    assert (await state(stores, "running", "acme")).attempt == 1
    assert await stores.key_owner("lock", tenant="acme") == "me"


async def steps_of_a_move(pair: Pair) -> int:
    """How many calls a move takes."""
    stores = await pair.process()
    await fill(stores)
    pair.steps.live()
    changing(pair, stores)
    await stores.move_tenant("acme", "us")
    return pair.steps.calls


async def test_a_worker_settles_in_the_new_store_what_it_runs(pair: Pair) -> None:
    """And what was submitted, claimed or read by processes that know of no move goes there."""
    stores, other = await pair.process(), await pair.process()
    running = await fill(stores)
    assert await other.place("acme") == "eu"
    moved = await other.move_tenant("acme", "us")
    assert (moved.source, moved.to, moved.items, moved.running) == ("eu", "us", 6, 1)
    assert await pair.owners("ready") == ["us"]
    await submit(stores, item("more", tenant="acme", priority=-1))
    assert await pair.owners("more") == ["us"]
    await stores.cancel(["more"], tenant="acme")
    await work_off(stores, running)
    for store in stores.backends.values():
        await consistent(store)
    late = await pair.process()
    assert await late.place("acme") == "us"
    back = await late.move_tenant("acme", "eu", source="us")
    assert back.items == 7
    assert (await state(stores, "ready", "acme")).status == "success"
    assert (await stores.audits()).entries == ()


@pytest.mark.parametrize("beats", [False, True])
@pytest.mark.parametrize("hears", ["at the end", "in between"])
async def test_a_tenant_that_comes_back_while_an_item_runs_brings_its_lease(
    pair: Pair, hears: str, beats: bool
) -> None:
    """The item has another number by then, and the process of its worker may know only where it was."""
    stores, other = await pair.process(), await pair.process()
    running = await fill(stores)
    await other.move_tenant("acme", "us")
    if hears == "in between":
        assert (await state(stores, "ready", "acme")).status == "ready"
    await other.move_tenant("acme", "eu")
    if beats:
        assert not (await stores.beat(Heartbeat(worker="w", lease=LEASE, held=[running]))).lost
    await work_off(stores, running)


@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("kinds", [("postgres", "file")], ids="-".join, indirect=True)
async def test_a_transaction_that_began_before_a_move_does_not_say_that_the_lease_is_lost(
    pair: Pair, settles: bool
) -> None:
    """It is rolled back. The item goes on in the new store."""
    stores, other = await pair.process(), await pair.process()
    running = await fill(stores)

    async def write() -> None:
        async with transaction_of(stores, "acme") as transaction:
            await other.move_tenant("acme", "us")
            if settles:
                await transaction.settle([succeed(running)])
            else:
                await transaction.record([Record(lease=running)])

    with pytest.raises(StoreUnavailable, match="rolled back"):
        await write()
    await work_off(stores, running)


class Deaf(WrappedBackend):
    """A store whose answers to one verb are lost for a while."""

    verb = ""

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        answer = await call()
        if verb == self.verb:
            raise StoreUnavailable("lost")
        return answer


@pytest.mark.parametrize("verb", ["unknown_leases", "key_owner"])
async def test_a_lease_is_not_lost_because_a_store_does_not_say_where_it_is(files: Pair, verb: str) -> None:
    """A heartbeat that cannot look for the item leaves it to the next one."""
    mover = await files.process()
    deaf = {name: Deaf(files.store(name)) for name in NAMES}
    stores = ManyStores({**deaf})
    await stores.open()
    files.processes.append(stores)
    running = await fill(stores)
    await mover.move_tenant("acme", "us")
    for each in deaf.values():
        each.verb = verb
    beat = Heartbeat(worker="w", lease=LEASE, held=[running])
    assert not (await stores.beat(beat)).lost
    for each in deaf.values():
        each.verb = ""
    await asyncio.sleep(AWAY.base)
    assert not (await stores.beat(beat)).lost
    await work_off(stores, running)


async def test_a_worker_of_one_tenant_waits_for_nothing_where_that_was(files: Pair) -> None:
    """Otherwise it would claim again at once, for ever: what was due there is not there any more."""
    stores, other = await files.process(), await files.process()
    await stores.place("acme", "eu")
    await submit(stores, item("soon", tenant="acme", delay=0.1))
    assert (await claim_answer(stores, tenants=("acme",))).next_due is not None
    await other.move_tenant("acme", "us")
    assert (await state(stores, "soon", "acme")).status == "scheduled"  # so it knows where the tenant is
    await asyncio.sleep(0.15)
    (lease,) = (await claim_answer(stores, tenants=("acme",))).leases
    await apply(stores, succeed(lease))
    assert (await claim_answer(stores, tenants=("acme",))).next_due is None


async def test_a_lease_that_no_one_runs_is_told_with_each_heartbeat(files: Pair) -> None:
    """The engine asks for it when it was told twice in a row."""
    stores, late = await files.process(), await files.process()
    await stores.place("acme", "us")
    running = await start_one(stores, item("lost", tenant="acme"))
    beat = Heartbeat(worker="w", lease=LEASE)
    assert [(await late.beat(beat)).unknown for _ in range(3)] == [[running.token]] * 3


@pytest.mark.parametrize("kinds", KINDS[:-1], ids="-".join, indirect=True)
@pytest.mark.parametrize("answer_is_lost", [False, True])
@pytest.mark.parametrize("ends", ["resume", "give up", "by itself"])
async def test_a_mover_that_dies_at_any_step_loses_nothing(
    processes: None, pair: Pair, answer_is_lost: bool, ends: str
) -> None:
    """The tenant is in one store, the worker goes on, and the move can be ended either way."""
    count = await steps_of_a_move(pair)
    assert count > 8
    for dies_at in range(1, count + 1):
        case = pair.another(f"{dies_at}")
        stores, mover = await case.process(), await case.process()
        running = await fill(stores)
        case.steps.live()
        changing(case, stores)
        case.steps.dies_at, case.steps.answer_is_lost = dies_at, answer_is_lost
        with pytest.raises(Died):
            await mover.move_tenant("acme", "us")
        case.steps.live()
        late = await case.process()
        if ends == "resume":
            await late.move_tenant("acme", "us", resume=True)
            assert await case.owners("ready") == ["us"]
        elif ends == "give up":
            try:
                if await late.give_up_move("acme"):
                    assert await case.owners("ready") == ["eu"]
            except BackendError as error:
                assert "--resume" in str(error)  # noqa: PT017  only once it is decided
        await work_off(stores, running, has_changed=case.has_changed)
        assert len(await case.owners("ready")) == 1
        for store in stores.backends.values():
            await consistent(store)
        if ends != "by itself" and len(await case.owners("ready")):
            (where,) = await case.owners("ready")
            to = "eu" if where == "us" else "us"
            await late.move_tenant("acme", to, resume=True)
            assert await case.owners("ready") == [to]
        for process in case.processes:
            await process.close()


async def test_what_changes_while_it_is_copied_ahead_arrives_as_it_is(files: Pair) -> None:
    """Nothing is there twice, and nothing that was deleted comes back."""
    stores = await files.process()
    running = await fill(stores)
    changing(files, stores)
    moved = await stores.move_tenant("acme", "us")
    assert (moved.items, moved.running) == (6, 1)
    assert await files.owners("cancelled") == ["us"]
    assert await files.owners("gone") == []
    await work_off(stores, running, has_changed=True)
    for store in stores.backends.values():
        await consistent(store)


async def test_a_copy_goes_on_where_it_was_left(files: Pair) -> None:
    """What the new store has is not read again."""
    stores = await files.process()
    await fill(stores)
    files.steps.live()
    files.steps.dies_at = 6  # begun, prepared, asked; the first portion is read and staged
    with pytest.raises(Died):
        await stores.move_tenant("acme", "us")
    new = stores.backends["us"]
    assert isinstance(new, SqliteBackend)
    staged = await new.tenant_moves.staged_ahead("acme")
    files.steps.live()
    await stores.move_tenant("acme", "us", resume=True)
    assert staged > 0
    assert files.steps.read_after[0] == staged


async def test_what_was_read_ahead_and_never_came_ends_the_move(files: Pair) -> None:
    """Another mover has read it, and could not send it any more. A new move has all."""
    stores = await files.process()
    running = await fill(stores)
    old, new = stores.backends["eu"], stores.backends["us"]
    assert isinstance(old, SqliteBackend)
    assert isinstance(new, SqliteBackend)

    async def read_only() -> None:
        late = await start_one(stores, item("late", tenant="acme", priority=5))
        await apply(stores, succeed(late))
        mark = decode_mark(await old.key_owner(PREFIX + "acme", tenant=MARKS))
        assert mark is not None
        last = await new.tenant_moves.staged_ahead("acme")
        (read,) = await old.tenant_moves.read_ahead("acme", mark, last, 100)
        assert b"late" in read.records[0]

    files.steps.meanwhile = read_only
    with pytest.raises(BackendError, match="begin it anew"):
        await stores.move_tenant("acme", "us")
    assert await files.owners("ready") == ["eu"]
    assert (await stores.move_tenant("acme", "us")).items == 7
    assert await files.owners("late") == ["us"]
    await work_off(stores, running)


async def test_a_move_that_has_begun_is_not_begun_again(pair: Pair) -> None:
    stores = await pair.process()
    await fill(stores)
    pair.steps.live()
    pair.steps.dies_at = 5
    with pytest.raises(Died):
        await stores.move_tenant("acme", "us")
    pair.steps.live()
    with pytest.raises(BackendError, match="--resume"):
        await stores.move_tenant("acme", "us")
    assert await stores.give_up_move("acme")
    assert not await stores.give_up_move("acme")
    await stores.move_tenant("acme", "us")
    assert (await stores.move_tenant("acme", "us")).finished


async def test_movers_at_the_same_time_move_it_once(pair: Pair) -> None:
    """The others are told, or find it there."""
    processes = [await pair.process() for _ in range(3)]
    running = await fill(processes[0])
    answers = await asyncio.gather(
        *(each.move_tenant("acme", "us", resume=True) for each in processes), return_exceptions=True
    )
    for answer in answers:
        assert not isinstance(answer, BaseException) or isinstance(answer, StoreUnavailable), answer
    await processes[0].move_tenant("acme", "us", resume=True)
    assert await pair.owners("ready") == ["us"]
    await work_off(processes[0], running)


class Late(MemoryBackend):
    """A store that answers late where a tenant is, to who asks first."""

    may_answer: asyncio.Event | None = None

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        answer = await super().key_owner(key, tenant=tenant)
        if key.startswith(PREFIX) and (event := self.may_answer) is not None:
            self.may_answer = None
            await event.wait()
        return answer


async def test_a_key_is_claimed_where_its_tenant_has_come_back_to() -> None:
    """A store refuses the key, and has the tenant when it is asked where that is."""

    class Refusing(MemoryBackend):
        refuses = False

        async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
            if self.refuses and tenant == "acme":
                self.refuses = False
                raise TenantElsewhere("memory://")
            return await super().claim_key(key, owner, ttl, tenant=tenant)

    old = Refusing()
    stores = ManyStores({"eu": old, "us": MemoryBackend()})
    await stores.open()
    await stores.place("acme", "eu")
    old.refuses = True
    assert await stores.claim_key("lock", "me", 50, tenant="acme")


async def test_who_gives_up_and_is_late_does_not_drop_what_a_mover_decides_on() -> None:
    """It has seen the old store before the move began there. To drop the copy then would lose everything."""
    case = Pair(Path(), ("memory", "memory"))
    old, new = Late(), case.store("us")
    stores, other = ManyStores({"eu": old, "us": new}), ManyStores({"eu": old, "us": new})
    for process in (stores, other):
        await process.open()
    running = await fill(stores)
    event = old.may_answer = asyncio.Event()
    giving_up = asyncio.ensure_future(other.give_up_move("acme"))
    await asyncio.sleep(0)

    async def wake_up() -> None:
        event.set()
        await asyncio.wait({giving_up})

    case.steps.before_last = wake_up
    await stores.move_tenant("acme", "us")
    assert isinstance(giving_up.exception(), StoreUnavailable)
    assert (await new.get(["ready"], tenant="acme"))[0] is not None
    await work_off(stores, running)


async def test_a_copy_that_takes_too_long_lets_others_go_on(pair: Pair) -> None:
    stores = await pair.process()
    running = await fill(stores)
    with pytest.raises(BackendError, match="--freeze"):
        await stores.move_tenant("acme", "us", freeze=-1)
    assert await pair.owners("ready") == ["eu"]
    await work_off(stores, running)


async def test_more_than_the_new_store_can_take_in_time_is_refused(files: Pair) -> None:
    """Before the decision: others would wait for too long when it makes items of the records."""
    stores = await files.process()
    running = await fill(stores)
    with pytest.raises(BackendError, match="larger --freeze"):
        await stores.move_tenant("acme", "us", freeze=1 / 5000)
    assert await files.owners("ready") == ["eu"]
    assert (await stores.move_tenant("acme", "us", resume=True)).items == 6
    await work_off(stores, running)


async def test_what_cannot_move_is_refused(pair: Pair) -> None:
    stores = await pair.process()
    with pytest.raises(PlacementError, match="no store yet"):
        await stores.move_tenant("acme", "us")
    await fill(stores)
    with pytest.raises(InputError, match="no store of this app"):
        await stores.move_tenant("acme", "asia")
    with pytest.raises(PlacementError, match="'eu'"):
        await stores.move_tenant("acme", "us", source="asia")
    others = ManyStores({name: WrappedBackend(MemoryBackend()) for name in ("one", "two")})
    await others.open()
    await others.place("acme", "one")
    with pytest.raises(UnsupportedError, match="in use"):
        await others.move_tenant("acme", "two")


async def test_an_app_goes_on_while_a_tenant_moves(pair: Pair) -> None:
    """A handler that runs returns its result to the client that waits, and its children are stored there."""
    began, may_end = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    @work(name="child")
    async def child(name: str) -> str:
        runs.append(name)
        return name

    @work(name="parent")
    async def parent(ctx: Context, name: str) -> Result[None, str]:
        runs.append(name)
        began.set()
        await may_end.wait()
        return ctx.queue(child(f"{name}-child"))

    stores = {name: pair.store(name) for name in NAMES}
    app = Treadle(ManyStores(stores), work=[parent, child], poll_interval=0.05, lease=2)
    async with app:
        assert await app.place("acme", "eu") == "eu"
        acme = app.tenant("acme")
        handle = await acme.enqueue(parent("one"))
        waiting = asyncio.ensure_future(handle.group())
        await asyncio.wait_for(began.wait(), 10)
        moved = await app.by("ann", reason="room").move_tenant("acme", "us")
        assert moved.running == 1
        may_end.set()
        await asyncio.wait_for(waiting, 10)
        assert runs == ["one", "one-child"]
        assert (await stores["us"].get([handle.id], tenant="acme"))[0] is not None
        audit = (await app.audits()).entries
        assert [(entry.verb, entry.about, entry.actor) for entry in audit] == [("move", "eu to us", "ann")]


VERBS: list[Callable[[ManyStores, str | None], Awaitable[Any]]] = [
    lambda stores, tenant: stores.cancel(["ready"], tenant=tenant),
    lambda stores, tenant: stores.complete("ready", b"1", tenant=tenant),
    lambda stores, tenant: stores.hold(["ready"], tenant=tenant),
    lambda stores, tenant: stores.update(["ready"], ItemUpdate(priority=7), tenant=tenant),
    lambda stores, tenant: stores.delete(["ended"], tenant=tenant),
    lambda stores, tenant: stores.requeue(["dead"], tenant=tenant),
    lambda stores, tenant: stores.requeue(Filter(tenant="acme", status=("dead",)), tenant=tenant),
]


class Waiting(WrappedBackend):
    """A store in which a call waits until a tenant has moved."""

    def __init__(self, inner: Backend, move: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self._move: Callable[[], Awaitable[Any]] | None = move

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb in ("cancel", "complete", "hold", "update", "delete", "requeue", "signal") and self._move:
            move, self._move = self._move, None
            await move()
        return await call()


async def waiting(pair: Pair) -> ManyStores:
    """A process whose next change comes to the store when the tenant has left it."""
    mover = await pair.process()
    stores: dict[str, Backend] = {
        "eu": Waiting(pair.store("eu"), lambda: mover.move_tenant("acme", "us")),
        "us": pair.store("us"),
    }
    process = ManyStores(stores)
    await process.open()
    pair.processes.append(process)
    return process


@pytest.mark.parametrize("tenant", ["acme", None])
@pytest.mark.parametrize("verb", range(len(VERBS)))
async def test_a_change_that_waits_for_a_move_is_made_in_the_new_store(
    files: Pair, verb: int, tenant: str | None
) -> None:
    stores = await files.process()
    await fill(stores)
    await apply(stores, die(await start_one(stores, item("dead", tenant="acme", priority=9))))
    process = await waiting(files)
    changed = await VERBS[verb](process, tenant)
    assert await files.owners("running") == ["us"]
    assert len(changed.items) == 1


class InParts(Waiting):
    """A store that stores one submission after the other, as Redis does with those of different kinds. The
    tenant moves before the second one."""

    async def submit(self, submissions: Sequence[Submission], *, tx: object = None) -> Sequence[Any]:
        answers: list[Any] = []
        for number, each in enumerate(submissions):
            if number and self._move:
                move, self._move = self._move, None
                await move()
            try:
                answers += await self.inner.submit([each], tx=tx)
            except TenantElsewhere as error:
                error.answers = tuple(answers)
                raise
        return answers


async def test_what_was_stored_before_the_tenant_moved_is_no_duplicate(files: Pair) -> None:
    """It goes along, and only the rest of its call is sent on."""
    mover = await files.process()
    await fill(mover)
    eu = InParts(files.store("eu"), lambda: mover.move_tenant("acme", "us"))
    process = ManyStores({"eu": eu, "us": files.store("us")})
    files.processes.append(process)

    @work(name="some")
    async def some(number: int) -> None: ...

    async with Client(process) as client:
        acme = client.tenant("acme")
        handles = await asyncio.gather(*(acme.enqueue(some(number)) for number in range(20)))
        assert await files.owners("ready") == ["us"]
        assert not any(handle.existing for handle in handles)
        states = await acme.get([handle.id for handle in handles])
        assert [each and each.status for each in states] == ["ready"] * 20


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_a_signal_that_waits_for_a_move_is_sent_in_the_new_store(
    files: Pair, tenant: str | None
) -> None:
    """Also the one that says that children have ended: without it, their parent would wait for ever."""
    stores = await files.process()
    await fill(stores)
    process = await waiting(files)
    signals = [Signal(id="ready", name="go"), Signal(id="never", name="go")]
    answers = await process.signal(signals, tenant=tenant)
    assert await files.owners("running") == ["us"]
    assert [answer.verb for answer in answers] == ["stored", "not_found"]


async def test_schedules_follow_their_tenant(pair: Pair) -> None:
    """With their next fire. The one that they left has them no more, and each occurrence fires once."""
    stores = await pair.process()
    await stores.place("acme", "eu")
    now = await stores.now()
    await stores.put_schedule(Schedule(name="often", next_at=now - 5, spec=b"often", tenant="acme"))
    await stores.move_tenant("acme", "us")
    other = await pair.process()
    first = Fire(name="often", at=now - 5, next_at=now - 1, items=(item("one", tenant="acme"),))
    answers = [await each.fire(first) for each in (stores, other)]
    assert [answer is not None for answer in answers] == [True, False]
    second = Fire(name="often", at=now - 1, next_at=now + 50, items=(item("two", tenant="acme"),))
    assert await other.fire(second) is not None
    assert await pair.owners("two") == ["us"]
    for process in (stores, other):
        assert [(one.name, one.next_at) for one in await process.schedules()] == [("often", now + 50)]
    assert await stores.backends["eu"].schedules() == []


async def test_a_copy_of_a_schedule_that_was_left_behind_fires_nothing_again(pair: Pair) -> None:
    """A process died when it had taken the schedule along, and the tenant has come back to the copy."""
    stores = await pair.process()
    await stores.place("acme", "eu")
    now = await stores.now()
    await stores.put_schedule(Schedule(name="often", next_at=now - 9, spec=b"often", tenant="acme"))
    fires = [
        Fire(name="often", at=now - at, next_at=now - at + 2, items=(item(f"{at}", tenant="acme"),))
        for at in (9, 7, 5, 3)
    ]
    assert await stores.fire(fires[0]) is not None
    (left,) = await stores.schedules()
    await stores.move_tenant("acme", "us")
    assert await stores.fire(fires[1]) is not None
    await stores.backends["eu"].put_schedule(left)
    assert [(one.name, one.next_at) for one in await stores.schedules()] == [("often", now - 5)]
    await stores.move_tenant("acme", "eu")
    other = await pair.process()
    for process in (stores, other):
        assert await process.fire(fires[1]) is None
    assert [await process.fire(fires[2]) is not None for process in (stores, other)] == [True, False]
    assert [(one.name, one.next_at) for one in await other.schedules()] == [("often", now - 3)]
    assert await stores.backends["us"].schedules() == []
    await stores.backends["us"].put_schedule(left)
    assert await stores.drop_schedule("often")
    assert await other.schedules() == []


@pytest.mark.parametrize("kinds", [FILES, ("redis", "redis")], ids="-".join, indirect=True)
async def test_a_store_that_is_promoted_keeps_its_marks(processes: None, pair: Pair) -> None:
    """The new one refuses what is stored of a tenant that had left the old one."""
    stores = await pair.process()
    await fill(stores)
    await stores.move_tenant("acme", "us")
    await stores.remove_worker("w")
    old = stores.backends["eu"]
    await old.close()
    new = pair.another("new").store("eu")
    await promote(old, new, None, lambda what, done: None)
    await new.open()
    with pytest.raises(TenantElsewhere):
        await submit(new, item("more", tenant="acme"))
    await submit(new, item("more", tenant="other"))
    await new.close()


async def test_a_tenant_that_has_left_a_store_whose_data_are_lost_is_found(files: Pair) -> None:
    """The lost store has said where it went. The new one says so too, and refuses what would be stored."""
    stores = await files.process()
    await stores.place("acme", "us")
    await submit(stores, item("theirs", tenant="acme"))
    await stores.move_tenant("acme", "eu")
    await stores.close()
    for left in files.directory.glob("us.db*"):
        left.unlink()
    late = ManyStores({name: SqliteBackend(files.directory / f"{name}.db") for name in ("eu", "us")})
    files.processes = [late]
    await late.accept_store("us")
    assert await late.place("acme") == "eu"
    assert await files.owners("theirs") == ["eu"]
    with pytest.raises(TenantElsewhere):
        await submit(late.backends["us"], item("more", tenant="acme"))
    await late.move_tenant("acme", "us")
    assert await files.owners("theirs") == ["us"]
