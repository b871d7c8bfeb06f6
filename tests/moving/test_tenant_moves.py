"""A tenant moves between stores that are in use: what clients and workers see, and a mover that dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from treadle import Context, Result, Treadle, work
from treadle.backend import Backend, Giving, TenantMoves
from treadle.backends.many import ManyStores
from treadle.backends.memory import MemoryBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.errors import (
    BackendError,
    InputError,
    PlacementError,
    StoreUnavailable,
    TenantElsewhere,
    UnsupportedError,
)
from treadle.item import Fire, Schedule
from treadle.operate.promote import promote
from treadle.records import TenantMark
from treadle.testing.contract.build import (
    apply,
    claim_answer,
    dependent,
    group,
    item,
    start_one,
    state,
    submit,
    succeed,
)
from treadle.testing.contract.check import consistent


class Died(Exception):
    """The mover is dead: it does nothing more."""


class Steps:
    """Counts the calls of movers to stores. One of them dies, before it is sent or before it is answered."""

    def __init__(self) -> None:
        self.calls = 0
        self.dies_at: int | None = None
        self.answer_is_lost = False

    def live(self) -> None:
        self.calls, self.dies_at = 0, None

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

    async def staged(self, tenant: str) -> tuple[int, str]:
        found: tuple[int, str] = await self._steps.call(lambda: self._inner.staged(tenant))
        return found

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        done: bool = await self._steps.call(lambda: self._inner.receive(tenant, mark, owned))
        return done

    def give(self, tenant: str, mark: TenantMark) -> AbstractAsyncContextManager[Giving]:
        @asynccontextmanager
        async def counted() -> AsyncGenerator[Giving]:
            async with self._inner.give(tenant, mark) as giving:
                yield Counted(giving, self._steps)

        return counted()

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        found: Sequence[bytes] = await self._steps.call(lambda: self._inner.read(limit))
        return found

    async def commit(self, mark: TenantMark) -> None:
        await self._steps.call(lambda: self._inner.commit(mark))


class Watched(SqliteBackend):
    counted: Steps

    @property
    def tenant_moves(self) -> Any:
        return Counted(super().tenant_moves, self.counted)


class Pair:
    """Two files, and a process that uses both."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.steps = Steps()
        self.processes: list[ManyStores] = []

    async def process(self) -> ManyStores:
        stores: dict[str, Backend] = {}
        for name in ("eu", "us"):
            stores[name] = watched = Watched(self.directory / f"{name}.db")
            watched.counted = self.steps
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


@pytest.fixture
async def pair(quick_directory: Path, tmp_path: Path) -> AsyncIterator[Pair]:
    directory = quick_directory / tmp_path.name
    directory.mkdir()
    pair = Pair(directory)
    yield pair
    for process in pair.processes:
        await process.close()


async def fill(stores: ManyStores) -> Any:
    """Let the tenant have what has ended, what waits, and an item that runs. Returns its lease."""
    await stores.place("acme", "eu")
    await submit(stores, item("theirs", tenant="other"))
    ended = await start_one(stores, item("ended", tenant="acme"))
    await apply(stores, succeed(ended))
    running = await start_one(stores, item("running", tenant="acme"))
    await submit(stores, dependent("running", id="next", tenant="acme"), item("ready", tenant="acme"))
    assert await stores.claim_key("lock", "me", 500, tenant="acme")
    return running


async def work_off(stores: ManyStores, running: Any) -> None:
    """What ran is settled by its lease, and the rest is run, each item once."""
    await apply(stores, succeed(running))
    ran: list[str] = []
    while leases := (await claim_answer(stores, 5, thorough=True)).leases:
        ran += [lease.id for lease in leases if lease.tenant == "acme"]
        await apply(stores, *map(succeed, leases))
    assert sorted(ran) == ["next", "ready"]
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
    await stores.move_tenant("acme", "us")
    return pair.steps.calls


async def test_a_worker_settles_in_the_new_store_what_it_runs(pair: Pair) -> None:
    """And what was submitted, claimed or read by processes that know of no move goes there."""
    stores, other = await pair.process(), await pair.process()
    running = await fill(stores)
    assert await other.place("acme") == "eu"
    moved = await other.move_tenant("acme", "us")
    assert (moved.source, moved.to, moved.items, moved.running) == ("eu", "us", 4, 1)
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
    assert back.items == 5
    assert (await state(stores, "ready", "acme")).status == "success"
    assert (await stores.audits()).entries == ()


@pytest.mark.parametrize("answer_is_lost", [False, True])
@pytest.mark.parametrize("ends", ["resume", "give up", "by itself"])
async def test_a_mover_that_dies_at_any_step_loses_nothing(
    processes: None, pair: Pair, answer_is_lost: bool, ends: str
) -> None:
    """The tenant is in one store, the worker goes on, and the move can be ended either way."""
    count = await steps_of_a_move(pair)
    assert count > 8
    for dies_at in range(1, count + 1):
        case = Pair(pair.directory / f"{dies_at}")
        case.directory.mkdir()
        stores, mover = await case.process(), await case.process()
        running = await fill(stores)
        case.steps.live()
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
        await work_off(stores, running)
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


async def test_a_copy_that_takes_too_long_lets_others_go_on(pair: Pair) -> None:
    stores = await pair.process()
    running = await fill(stores)
    with pytest.raises(BackendError, match="--freeze"):
        await stores.move_tenant("acme", "us", freeze=-1)
    assert await pair.owners("ready") == ["eu"]
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
    memory = ManyStores({"one": MemoryBackend(), "two": MemoryBackend()})
    await memory.open()
    await memory.place("acme", "one")
    with pytest.raises(UnsupportedError, match="SQLite and PostgreSQL"):
        await memory.move_tenant("acme", "two")


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

    stores = {name: SqliteBackend(pair.directory / f"{name}.db") for name in ("eu", "us")}
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


async def test_a_store_that_is_promoted_keeps_its_marks(processes: None, pair: Pair) -> None:
    """The new one refuses what is stored of a tenant that had left the old one."""
    stores = await pair.process()
    await fill(stores)
    await stores.move_tenant("acme", "us")
    await stores.remove_worker("w")
    old = stores.backends["eu"]
    await old.close()
    new = SqliteBackend(pair.directory / "new.db")
    await promote(old, new, None, lambda what, done: None)
    await new.open()
    with pytest.raises(TenantElsewhere):
        await submit(new, item("more", tenant="acme"))
    await submit(new, item("more", tenant="other"))
    await new.close()
