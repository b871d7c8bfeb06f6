"""Stores that take over from each other: between all pairs, with kills at each step, while others submit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from itertools import permutations
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from tests.backends.random_calls import RandomCalls
from tests.backends.redis_store import RedisSubject
from tests.backends.test_postgres import PostgresSubject, shared_database, shared_url  # noqa: F401
from tests.backends.test_sqlite import FileSubject
from tests.cli.forks import common_server
from tests.support.tiers import pairs_of, some_of
from treadle.backend import Backend, store_name
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres import moving as postgres_moving
from treadle.backends.redis.moving import wait_until_thawed
from treadle.backends.sqlite import SqliteBackend
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.errors import (
    BackendError,
    InputError,
    StoreMoved,
    StoreUnavailable,
    StoreUnfinished,
    UnsupportedError,
)
from treadle.item import AuditNote, Demand, Filter, Heartbeat, Item, Order, Schedule, Submission
from treadle.operate.promote import export_to, give_up, import_from, promote
from treadle.ports import PortsBackend
from treadle.ports.memory import MemoryPubSub, MemoryQueue, MemoryStore
from treadle.store import portable
from treadle.store.portable import AnyRecord, FileWriter, PortableItem, Tally
from treadle.store.portable_rows import columns

PROGRAM = Path(__file__).with_name("moving_program.py")
STORES = ("sqlite", "postgres", "redis")
PAIRS = [*permutations(STORES, 2)]


@pytest.fixture
def places(old: str, new: str, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where the two stores are, by kind. Not asked for within the event loop of a test."""
    fixtures = {"postgres": "shared_url", "redis": "valkey_url"}
    found = {kind: request.getfixturevalue(fixtures[kind]) for kind in (old, new) if kind in fixtures}
    return {"sqlite": tmp_path / "work.db", **found}


@asynccontextmanager
async def subject(kind: str, place: Any) -> AsyncGenerator[Any]:
    if kind == "sqlite":
        file = FileSubject(place)
        await file._clock.set(SystemClock().now())
        await file.backend.open()
        yield file
        await file.close()
    elif kind == "postgres":
        async with PostgresSubject(place) as database:
            yield database
    else:
        namespace = RedisSubject(place)
        await namespace.backend.open()
        yield namespace
        await namespace.close()


async def records(backend: Backend, **how: Any) -> list[AnyRecord]:
    found: list[AnyRecord] = []
    async with backend.export(**how) as export:
        while portion := await export.read(100):
            found += map(portable.decode, portion)
    return found


def tally(found: list[AnyRecord]) -> Tally:
    counted = Tally()
    counted.add(found)
    return counted


@pytest.mark.parametrize(("old", "new"), pairs_of(*STORES))
async def test_the_records_of_a_used_store_are_the_same_in_another_kind(
    old: str, new: str, places: dict[str, Any]
) -> None:
    """After random calls of all verbs. And the new store goes on with them until it is empty."""
    async with subject(old, places[old]) as source, subject(new, places[new]) as target:
        passed = 0.0

        async def advance(seconds: float) -> None:
            nonlocal passed
            passed += seconds
            await source.advance(seconds)

        calls = RandomCalls(PAIRS.index((old, new)), source.backend, advance)
        for _ in range(250):
            await calls.step()
        found = await records(source.backend)
        async with target.backend.import_("m") as filled:
            for first in range(0, len(found), 100):
                await filled.write([portable.encode(one) for one in found[first : first + 100]])
            await filled.finish()
        again = await records(target.backend, move="m")
        items = {one.number: one for one in found if isinstance(one, PortableItem)}
        assert {one.number: one for one in again if isinstance(one, PortableItem)} == items
        assert tally(again).is_copy_of(tally(found))
        await target.backend.own("m")
        await target.advance(passed)
        calls.backend, calls.advance, calls.leases = target.backend, target.advance, []
        for _ in range(100):
            await calls.step()
        await calls.finish()
        assert await target.backend.counts(ended=True) == []


@pytest.mark.parametrize(("old", "new"), [pair for pair in pairs_of(*STORES) if pair.values[1] != "redis"])
async def test_a_tenant_comes_in_beside_the_work_of_another(
    old: str, new: str, places: dict[str, Any]
) -> None:
    """After random calls in both stores, and random calls go on."""
    async with subject(old, places[old]) as source, subject(new, places[new]) as target:
        passed = {"source": 0.0, "target": 0.0}

        async def advance(seconds: float) -> None:
            passed["source"] += seconds
            await source.advance(seconds)

        async def advance_target(seconds: float) -> None:
            passed["target"] += seconds
            await target.advance(seconds)

        calls = RandomCalls(PAIRS.index((old, new)), source.backend, advance)
        others = RandomCalls(100, target.backend, advance_target, ("default",))
        for _ in range(250):
            await calls.step()
            await others.step()
        before = tally(await records(target.backend, tenant="default"))
        found = await records(source.backend, tenant="acme")
        async with target.backend.import_("m", tenant="acme") as filled:
            for first in range(0, len(found), 100):
                await filled.write([portable.encode(one) for one in found[first : first + 100]])
            await filled.finish()
        assert tally(await records(target.backend, tenant="default")).is_copy_of(before)
        there = {
            one.id: one
            for one in await records(target.backend, tenant="acme")
            if isinstance(one, PortableItem)
        }
        were = {one.id: one for one in found if isinstance(one, PortableItem)}
        assert {*there} == {*were}
        for id, one in there.items():
            one.number, one.group, one.place = were[id].number, were[id].group, were[id].place
            assert one == were[id]
        await target.advance(max(0.0, passed["source"] - passed["target"]))
        others.tenants, others.count = calls.tenants, max(calls.count, others.count)
        for _ in range(100):
            await others.step()
        await others.finish()
        assert await target.backend.counts(ended=True) == []


# ------------------------------------------------------------------------------------------------ promoting


def urls(kinds: tuple[str, str], request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = []
    for kind in kinds:
        if kind == "sqlite":
            found.append(f"sqlite:///{request.getfixturevalue('tmp_path') / 'shop.db'}")
        else:
            found.append(request.getfixturevalue("postgres_url" if kind == "postgres" else "valkey_url"))
    return found


def store(url: str) -> Backend:
    return connect(url, prefix="shop", notify=False, clock=SystemClock())


async def program(*arguments: object) -> tuple[int, str]:
    command = ["python", str(PROGRAM), *map(str, arguments)]
    done = await asyncio.to_thread(common_server().run, command, PROGRAM.parents[2], os.environ, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout


class Submitter:
    """Submits one item after the other, and notes which were acknowledged, until the store has moved."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.acknowledged: list[str] = []
        self.moved = ""

    async def run(self) -> None:
        await self._backend.open()
        number = 0
        try:
            while not self.moved:
                number += 1
                item = Item(id=f"during-{number}", type="work", input=b"{}")
                try:
                    await self._backend.submit([Submission((item,))])
                    self.acknowledged.append(item.id)
                except StoreMoved as moved:
                    self.moved = moved.address
                except StoreUnavailable:
                    pass  # it may have happened, or not
                await asyncio.sleep(0.01)
        finally:
            await self._backend.close()


async def fill(url: str) -> None:
    backend = store(url)
    await backend.open()
    items = [Item(id=f"item-{number}", type="work", input=b"{}") for number in range(70)]
    await backend.submit([Submission(tuple(items))])
    await backend.close()


async def owner(old: str, new: str) -> str:
    """Which of the two owns the work. Never both."""
    mark, other = await store(old).mark(), await store(new).mark()
    if mark is not None and mark.state == "moved":
        return "new"
    if other is None:
        fresh = store(new)
        await fresh.open()
        try:
            assert await fresh.counts(ended=True) == []
        finally:
            await fresh.close()
    else:
        with pytest.raises(StoreUnfinished):
            await store(new).open()
    return "old"


async def thawed(url: str) -> None:
    while (mark := await store(url).mark()) is not None and mark.state == "frozen":  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def kill_at(step: int, kinds: tuple[str, str], request: pytest.FixtureRequest) -> bool:
    """False: the promotion has fewer steps."""
    old, new = urls(kinds, request)
    await fill(old)
    submitter = Submitter(store(old))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(submitter.run())
        code, _ = await program(old, new, "shop", step)
        was_killed = code != 0
        if was_killed:
            await owner(old, new)
            await thawed(old)
            code, _ = await program(old, new, "shop", 0)
        assert code == 0
    assert await owner(old, new) == "new"
    assert submitter.moved
    final = store(new)
    await final.open()
    found = {one.id for one in (await final.list(Filter(), limit=1000)).items}
    await final.close()
    assert {f"item-{number}" for number in range(70)} <= found
    assert [one for one in submitter.acknowledged if one not in found] == []
    with pytest.raises(StoreMoved):
        await store(old).open()
    return was_killed


STEPS = range(1, 17)
FEW_STEPS = (5, 11, 13, 15)
"""While it copies, before the decision, after it, and when the new store owns the work."""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("step", some_of(STEPS, *FEW_STEPS))
async def test_a_promotion_that_is_killed_leaves_one_owner_and_can_be_repeated(
    step: int, request: pytest.FixtureRequest
) -> None:
    """From SQLite to PostgreSQL, while another process submits: nothing acknowledged is lost."""
    await kill_at(step, ("sqlite", "postgres"), request)


@pytest.mark.usefixtures("processes", "another_form")
@pytest.mark.parametrize("kinds", [("postgres", "redis"), ("redis", "sqlite")])
@pytest.mark.parametrize("step", STEPS)
async def test_so_does_one_between_other_kinds(
    kinds: tuple[str, str], step: int, request: pytest.FixtureRequest
) -> None:
    """From PostgreSQL to Redis, and from there to SQLite."""
    await kill_at(step, kinds, request)


@pytest.mark.usefixtures("processes")
async def test_the_steps_of_a_promotion_are_all_tried(request: pytest.FixtureRequest) -> None:
    """The last kill is behind the last step."""
    old, new = urls(("sqlite", "postgres"), request)
    await fill(old)
    code, out = await program(old, new, "shop", 0)
    assert (code, int(out)) == (0, STEPS[-1] - 1)


async def test_marks_of_postgres_are_on_the_disk(postgres_url: str) -> None:
    """Also where other commits are not: a mark that is undone leaves two owners. More is left as it is."""
    found: list[object] = []
    for setting in ("off", "local", "remote_apply"):
        mark = "&" if "?" in postgres_url else "?"
        backend = PostgresBackend(f"{postgres_url}{mark}synchronous_commit={setting}", schema="shop")
        async with backend._moving.connection() as connection:
            found.append(await connection.fetchval("show synchronous_commit"))
    assert found == ["on", "on", "remote_apply"]


async def test_marks_of_a_file_are_on_the_disk(tmp_path: Path) -> None:
    """Also where other commits are not."""
    backend = SqliteBackend(tmp_path / "a.db", durability="normal")
    with contextlib.closing(backend._moving.connect(make=True)) as connection:
        assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]  # full


async def test_a_freeze_has_what_it_waited_for(postgres_url: str) -> None:
    """What a transaction of PostgreSQL has written is exported, if it commits while the freeze waits."""
    backend = store(postgres_url)
    await backend.open()
    connection: Any = await asyncpg.connect(postgres_url)
    transaction = connection.transaction()
    await transaction.start()
    await backend.submit([Submission((Item(id="late", type="work", input=b"{}"),))], tx=connection)
    frozen = asyncio.create_task(records(backend, freeze=60))
    waiting = "select 1 from pg_locks where not granted and relation = 'shop.item'::regclass"
    other: Any = await asyncpg.connect(postgres_url)
    while not await other.fetchval(waiting):  # noqa: ASYNC110  the server tells no one
        await asyncio.sleep(0.01)
    await transaction.commit()
    assert "late" in {one.id for one in await frozen if isinstance(one, PortableItem)}
    await connection.close()
    await other.close()
    await backend.close()


async def test_a_promotion_that_another_one_was_faster_than_learns_where_the_work_is(
    postgres_url: str,
) -> None:
    """It waited for the locks of the other, and the schema was gone."""
    backend = store(postgres_url)
    await backend.open()
    async with backend.export(freeze=60) as export:
        second = asyncio.create_task(records(backend, freeze=60))
        other: Any = await asyncpg.connect(postgres_url)
        waiting = "select 1 from pg_locks where not granted"
        while not await other.fetchval(waiting):  # noqa: ASYNC110  the server tells no one
            await asyncio.sleep(0.01)
        await other.close()
        await export.move("m1", "elsewhere")
    with pytest.raises(StoreMoved):
        await second
    await backend.close()


async def test_all_callers_learn_that_a_store_is_frozen(valkey_url: str) -> None:
    """Also those that ask at the same time."""
    backend = store(valkey_url)
    await backend.open()
    async with backend.export(freeze=60):
        found = await asyncio.gather(*(backend.get(["x"]) for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in found] == [StoreUnavailable] * 5
    assert await backend.get(["x"]) == [None]
    await backend.close()


async def test_a_promotion_is_refused_while_workers_live(tmp_path: Path) -> None:
    """It names them. Nothing is changed."""
    old, new = store(f"sqlite:///{tmp_path / 'a.db'}"), store(f"sqlite:///{tmp_path / 'b.db'}")
    await old.open()
    await old.beat(Heartbeat(worker="w7", lease=60))
    await old.close()
    with pytest.raises(BackendError, match="w7"):
        await promote(old, new, None, lambda *_: None)
    assert (await old.mark(), await new.mark()) == (None, None)


async def test_give_up_empties_the_new_store(tmp_path: Path) -> None:
    """Of what a promotion has left there, as long as the old store owns the work."""
    old, new = store(f"sqlite:///{tmp_path / 'a.db'}"), store(f"sqlite:///{tmp_path / 'b.db'}")
    await fill(f"sqlite:///{tmp_path / 'a.db'}")
    assert not await give_up(old, new)
    async with new.import_("m1", f"sqlite:///{tmp_path / 'a.db'}") as filled:
        await filled.finish()
    assert await give_up(old, new)
    assert await new.mark() is None


@pytest.mark.parametrize("source", ["", "sqlite:////other.db"])
async def test_give_up_leaves_what_came_from_elsewhere(tmp_path: Path, source: str) -> None:
    """From a file, or from another store."""
    old, new = store(f"sqlite:///{tmp_path / 'a.db'}"), store(f"sqlite:///{tmp_path / 'b.db'}")
    await fill(f"sqlite:///{tmp_path / 'a.db'}")
    async with new.import_("m1", source) as filled:
        await filled.finish()
    with pytest.raises(StoreUnfinished) as caught:
        await give_up(old, new)
    assert caught.value.source == source


@pytest.mark.parametrize(("kind", "other"), pairs_of(*STORES))
async def test_a_promotion_is_given_up_before_the_new_store_is_used(
    kind: str, other: str, request: pytest.FixtureRequest
) -> None:
    """The old store owns the work, and the new one is empty. It can be promoted again."""
    old, new = urls((kind, other), request)
    source = store(old)
    await source.open()
    await use(source)
    before = tally(await records(source))
    await source.close()
    for _ in range(2):
        await promote(store(old), store(new), AuditNote(actor="ann", reason="to see"), lambda *_: None)
        assert await give_up(store(old), store(new))
        assert not await give_up(store(old), store(new))
        assert await owner(old, new) == "old"
    await source.open()
    after = tally(await records(source))
    await source.close()
    assert after.content == before.content


async def use(backend: Backend) -> None:
    """Leave items in many states, also such that a clock changes, and what expires."""
    await backend.beat(Heartbeat(worker="w1", lease=60, types=("work",)))
    items = [Item(id=f"item-{number}", type="work", input=b"{}", key=f"key-{number}") for number in range(9)]
    late = [Item(id=f"late-{delay}", type="work", input=b"{}", delay=delay) for delay in (0.05, 3600)]
    waits = Item(id="waits", type="work", input=b"{}", after=("item-8",), deadline=60)
    await backend.submit([Submission((*items, *late, waits))])
    claimed = await backend.claim(Demand(worker="w1", limit=4))
    assert claimed.leases
    await backend.order(Order(kind="pause", queue="q", until=await backend.now() + 0.2))
    await backend.put_schedule(Schedule(name="s", next_at=1.0))
    await backend.remove_worker("w1")


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
async def test_there_is_no_way_back_from_a_store_that_was_used(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Nothing changes then: the new store goes on. A live worker is named."""
    old, new = urls(("redis" if kind == "sqlite" else "sqlite", kind), request)
    await fill(old)
    await promote(store(old), store(new), None, lambda *_: None)
    final = store(new)
    await final.open()
    await final.beat(Heartbeat(worker="w7", lease=60))
    with pytest.raises(BackendError, match="w7"):
        await give_up(store(old), store(new))
    await final.remove_worker("w7")
    await final.cancel(["item-3"])
    with pytest.raises(BackendError, match="was used after the promotion"):
        await give_up(store(old), store(new))
    assert len((await final.list(Filter(), limit=100)).items) == 70
    await final.close()
    assert await owner(old, new) == "new"


async def test_only_the_store_that_has_the_work_can_give_it_back(tmp_path: Path) -> None:
    """Not one that the work never went to."""
    old, new, third = (f"sqlite:///{tmp_path / name}.db" for name in "abc")
    await fill(old)
    await fill(third)
    await promote(store(old), store(new), None, lambda *_: None)
    with pytest.raises(StoreMoved):
        await give_up(store(old), store(third))
    assert await owner(old, new) == "new"


BACK = range(1, 10)
FEW_BACK = (4, 6, 8)


async def kill_back_at(step: int, kinds: tuple[str, str], request: pytest.FixtureRequest) -> None:
    old, new = urls(kinds, request)
    await fill(old)
    await promote(store(old), store(new), None, lambda *_: None)
    code, _ = await program(old, new, "shop", step, "back")
    assert code == -signal.SIGKILL
    await thawed(new)
    await owner(old, new)
    code, _ = await program(old, new, "shop", 0, "back")
    assert code == 0
    assert (await store(old).mark(), await store(new).mark()) == (None, None)
    final = store(old)
    await final.open()
    assert len((await final.list(Filter(), limit=1000)).items) == 70
    await final.close()
    assert await owner(old, new) == "old"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("step", some_of(BACK, *FEW_BACK))
async def test_a_way_back_that_is_killed_leaves_one_owner_and_can_be_repeated(
    step: int, request: pytest.FixtureRequest
) -> None:
    """From PostgreSQL back to SQLite."""
    await kill_back_at(step, ("sqlite", "postgres"), request)


@pytest.mark.usefixtures("processes", "another_form")
@pytest.mark.parametrize("kinds", [("postgres", "redis"), ("redis", "sqlite")])
@pytest.mark.parametrize("step", BACK)
async def test_so_does_a_way_back_between_other_kinds(
    kinds: tuple[str, str], step: int, request: pytest.FixtureRequest
) -> None:
    await kill_back_at(step, kinds, request)


@pytest.mark.usefixtures("processes")
async def test_the_steps_of_a_way_back_are_all_tried(request: pytest.FixtureRequest) -> None:
    old, new = urls(("sqlite", "postgres"), request)
    await fill(old)
    await promote(store(old), store(new), None, lambda *_: None)
    code, out = await program(old, new, "shop", 0, "back")
    assert (code, int(out)) == (0, BACK[-1])


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
async def test_a_store_is_not_promoted_into_itself(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also not under another address. Neither does it give itself up."""
    (old,) = urls((kind,), request)
    new = second_address(kind, old, tmp_path)
    assert store_name(store(old)) != store_name(store(new))
    await fill(old)
    for refused in (promote(store(old), store(new), None, lambda *_: None), give_up(store(old), store(new))):
        with pytest.raises(InputError, match="two addresses of one store"):
            await refused
    assert await store(old).mark() is None
    await fill(f"sqlite:///{tmp_path / 'other.db'}")
    await give_up(store(old), store(f"sqlite:///{tmp_path / 'other.db'}"))


def second_address(kind: str, url: str, directory: Path) -> str:
    if kind == "sqlite":
        (directory / "alias.db").symlink_to(directory / "shop.db")
        return f"sqlite:///{directory / 'alias.db'}"
    if kind == "postgres":
        return f"{url}{'&' if '?' in url else '?'}options=-c%20geqo%3Doff"
    socket = Path(url.partition("://")[2].partition("?")[0])
    (directory / "alias").symlink_to(socket)
    return url.replace(str(socket), str(directory / "alias"))


async def test_a_start_waits_until_a_store_has_thawed(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so. Not for ever: then it says what to do."""
    backend, other = store(valkey_url), store(valkey_url)
    await backend.open()
    async with backend.export(freeze=60):
        starting = asyncio.create_task(other.open())
        while "waiting for up to" not in caplog.text:  # noqa: ASYNC110  a log tells no one
            await asyncio.sleep(0.01)
        assert not starting.done()
        with pytest.raises(StoreUnavailable, match="still frozen after 0 s: start again"):
            async with other_link(valkey_url) as link:
                await wait_until_thawed(link, 0.0)
    await starting
    assert await other.get(["x"]) == [None]
    await other.close()
    await backend.close()


@asynccontextmanager
async def other_link(url: str) -> AsyncGenerator[Any]:
    backend: Any = store(url)
    async with backend._moving.link() as link:
        yield link


class Stopped(Exception):
    """Stands for the end of the process."""


async def decided(kinds: tuple[str, str], request: pytest.FixtureRequest) -> list[str]:
    """Two stores after the decision, before the new one owns the work."""
    old, new = urls(kinds, request)
    await fill(old)
    target = store(new)

    async def stop(_: str) -> None:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "own", stop)
        with pytest.raises(Stopped):
            await promote(store(old), target, None, lambda *_: None)
    return [old, new]


@pytest.mark.usefixtures("another_form")
@pytest.mark.parametrize("kinds", [("sqlite", "postgres"), ("postgres", "redis"), ("redis", "sqlite")])
async def test_what_may_be_the_only_copy_is_not_cleared(
    kinds: tuple[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Neither by another promotion, nor by the import of a file, nor by `--give-up` with another store."""
    old, new = await decided(kinds, request)
    other = store(f"sqlite:///{tmp_path / 'other.db'}")
    await fill(f"sqlite:///{tmp_path / 'other.db'}")
    file = BytesIO()
    await export_to(other, file, lambda *_: None)
    file.seek(0)
    for clear in (
        promote(other, store(new), None, lambda *_: None),
        give_up(other, store(new)),
        import_from(file, store(new), None, "file", lambda *_: None),
    ):
        with pytest.raises(StoreUnfinished):
            await clear
    assert await other.mark() is None
    assert (await promote(store(old), store(new), None, lambda *_: None)).finished
    final = store(new)
    await final.open()
    assert len((await final.list(Filter(), limit=1000)).items) == 70
    await final.close()


async def test_a_new_store_that_is_gone_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    """Whether its file was removed, or an empty one is in its place."""
    old, new = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    await fill(old)
    await promote(store(old), store(new), None, lambda *_: None)
    (tmp_path / "b.db").unlink()
    with pytest.raises(BackendError, match=r"does not hold it.*backup.*parked"):
        await promote(store(old), store(new), None, lambda *_: None)
    assert not (tmp_path / "b.db").exists()
    await fill(new)
    with pytest.raises(BackendError, match="does not hold it"):
        await promote(store(old), store(new), None, lambda *_: None)


async def test_a_copy_that_differs_moves_nothing(tmp_path: Path) -> None:
    """The new store is emptied again, and the old one goes on."""
    old, new = store(f"sqlite:///{tmp_path / 'a.db'}"), store(f"sqlite:///{tmp_path / 'b.db'}")
    await fill(f"sqlite:///{tmp_path / 'a.db'}")
    export = type(new).export

    def without_one(self: Any, **how: Any) -> Any:
        @asynccontextmanager
        async def left_out() -> AsyncGenerator[Any]:
            async with export(self, **how) as inner:
                if how.get("move"):
                    await inner.read(2)
                yield inner

        return left_out()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(new), "export", without_one)
        with pytest.raises(BackendError, match="differs"):
            await promote(old, new, None, lambda *_: None)
    assert (await old.mark(), await new.mark()) == (None, None)


HEAD: dict[str, Any] = {
    "kind": "head",
    "store": "sqlite",
    "at": 1.0,
    "number": 9,
    "place": 9,
    "token": 5,
    "orders": 0,
}


def open_item(number: int, **fields: Any) -> dict[str, Any]:
    """A record of an item that is ready."""
    names = {"id": f"item-{number}", "tenant": "default", "type": "work", "queue": "default"}
    numbers = {"number": number, "group": number, "place": number, "attempts": 3}
    times = {"queued_at": 1.0, "keep": 60.0, "due": 1.0, "ready_at": 1.0}
    return {"kind": "item", **names, **numbers, **times, "status": "ready", **fields}


GROUP = {"kind": "group", "number": 1, "id": "item-1", "tenant": "default", "type": "work"}
FAILED = [1, b"\xff\xfe", b"\xff", b"\xff", 1.0, "w1", ""]
DAMAGED: list[list[dict[str, Any]]] = [
    [open_item(1, id="x"), open_item(2, id="x")],
    [open_item(1, key="k", holds_key=True), open_item(2, key="k", holds_key=True)],
    [open_item(1, history=[FAILED])],
    [{"kind": "order", "body": b"junk", "at": 1.0}],
    [open_item(1), HEAD],
    [open_item(1), {**GROUP, "outer": 1}],
]


def filed(*found: dict[str, Any]) -> BytesIO:
    """A file of these records, with the checksum that belongs to it."""
    file = BytesIO()
    writer = FileWriter(file)
    writer.write([msgspec.msgpack.encode(one) for one in found])
    writer.end()
    return BytesIO(file.getvalue())


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
async def test_a_file_that_fits_no_store_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    """With one error, whatever the store would stumble over. It stays empty, and takes a whole file then."""
    target = store(urls((kind, "sqlite"), request)[0])
    for found in DAMAGED:
        with pytest.raises(InputError):
            await import_from(filed(HEAD, *found), target, None, "a file", lambda *_: None)
        assert await target.mark() is None, found
    done = await import_from(filed(HEAD, open_item(1), open_item(2)), target, None, "", lambda *_: None)
    assert done.counts == {"item": 2}


async def test_a_row_has_a_value_for_each_column(postgres_url: str) -> None:
    """The server's copy drops what is too much."""
    release = {"kind": "release", "name": "r1", "began": 1.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(postgres_moving._COLUMNS, "release", columns({"release": "name"})["release"])
        with pytest.raises(BackendError, match="release"):
            await import_from(filed(HEAD, release), store(postgres_url), None, "", lambda *_: None)


async def test_ports_say_what_to_do_instead() -> None:
    """They cannot list what they hold."""
    ports = PortsBackend(MemoryQueue(SystemClock()), MemoryPubSub(), MemoryStore(SystemClock()))
    for block in (ports.export, lambda: ports.import_("m")):
        with pytest.raises(UnsupportedError, match="work off"):
            block()
    with pytest.raises(UnsupportedError):
        await ports.mark()
