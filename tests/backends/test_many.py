"""ManyStores: both contracts over several stores, and where things are."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from tests.backends.test_postgres import EMPTY, prepare, shared_database
from tests.support.databases import Postgres
from tests.support.sqlite import empty_store
from treadle.backend import Backend
from treadle.backends.many import ManyStores
from treadle.backends.memory import MemoryBackend
from treadle.backends.postgres import PostgresBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.base.timing import Clock
from treadle.errors import InputError, PlacementError, StoreUnavailable, WrongStore
from treadle.item import DEFAULT_TENANT, Claim, Demand, Filter, Rejected, Schedule, Submission, Submitted
from treadle.testing import BackendContract, ManualClock, WorkerContract, WrappedBackend
from treadle.testing.contract.build import item, submit

__all__ = ["shared_database"]


T = TypeVar("T")


class Apart(WrappedBackend):
    """As the contract calls a store: its claims are thorough, and some cases submit for several tenants at
    once. Those are submitted for one tenant after the other."""

    async def claim(self, demand: Demand) -> Claim:
        return await self.inner.claim(replace(demand, thorough=True))

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        if all(len({one.tenant for one in each.items}) < 2 for each in submissions):
            return await self.inner.submit(submissions, tx=tx)
        return [await self._one(each, tx) for each in submissions]

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        return await self.inner.put_schedule(replace(schedule, tenant=DEFAULT_TENANT), again=again)

    async def _one(self, submission: Submission, tx: object) -> tuple[Submitted, ...] | Rejected:
        found: dict[int, Submitted] = {}
        for tenant in dict.fromkeys(each.tenant for each in submission.items):
            places = [place for place, each in enumerate(submission.items) if each.tenant == tenant]
            items = tuple(submission.items[place] for place in places)
            (answer,) = await self.inner.submit([replace(submission, items=items)], tx=tx)
            if isinstance(answer, Rejected):
                return answer
            found.update(zip(places, answer, strict=True))
        return tuple(found[place] for place in range(len(submission.items)))


_TURNS = "stores take turns claim by claim, so tenants of different stores do not take turns item by item"
_INSTANT = "at one instant, lists are in the order of stores, and an id of two tenants is that of any store"

DIFFERENT = {
    "test_a_submission_may_hold_items_of_several_tenants": "a submission is for tenants of one store",
    "test_a_queue_with_many_tenants_gets_one_share": _TURNS,
    "test_queues_tenants_and_lanes_are_served_fairly_together": _TURNS,
    "test_fairness_is_kept_per_worker": _TURNS,
    "test_one_claim_is_fair": _TURNS,
    "test_fairness_continues_across_claims": _TURNS,
    "test_claims_of_one_item_are_fair": _TURNS,
    "test_a_long_backlog_does_not_delay_others": _TURNS,
    "test_newcomers_are_served_within_one_round": _TURNS,
    "test_a_claim_skips_queues_with_only_other_tenants_items": _TURNS,
    "test_a_queue_or_tenant_that_a_demand_repeats_gets_no_larger_share": _TURNS,
    "test_the_empty_ones_are_skipped": _TURNS,
    "test_a_change_of_items_stores_who_made_it": "a change over several stores has an entry in each",
    "test_a_tenant_sees_its_own_entries": _INSTANT,
    "test_groups_by_tenant_type_and_time": _INSTANT,
    "test_children_and_dependents": _INSTANT,
    "test_held_items_of_many_queues_are_listed_in_order": _INSTANT,
    "test_without_a_tenant_an_id_means_the_first_item": _INSTANT,
    "test_cancel_stays_in_its_tenant": _INSTANT,
    "test_cancel_without_a_tenant_ends_the_first_item": _INSTANT,
    "test_with_a_cap_releases_have_no_more_deaths_than_there_are": "a tenant's marks are those of its store",
    "test_permits_of_leases_and_others_count_together": "permits of leases are where the leases are",
    "test_a_change_of_a_queue_schedule_or_worker_stores_who_made_it": _INSTANT,
    "test_other_tenants_look_as_if_they_did_not_exist": "why counts the lines of the store of the item",
}
"""Cases of the contracts that differ over several stores, with the rules that users are told."""


@pytest.fixture(autouse=True)
def _as_over_one_store(request: pytest.FixtureRequest) -> None:
    rule = DIFFERENT.get(getattr(request.node, "originalname", request.node.name))
    if rule is not None:
        pytest.skip(f"over several stores {rule}")


class StoresSubject:
    """Several stores, with one clock."""

    def __init__(self, make: Callable[[Clock], Mapping[str, Backend]], *, engine: bool = False) -> None:
        """engine: an engine calls them, not the cases."""
        self.clock = ManualClock()
        self._make, self._engine = make, engine
        self._opened: list[Backend] = []
        self.backend: Backend = self._new()

    def _new(self) -> Backend:
        stores = self._make(self.clock)
        return ManyStores(stores) if self._engine else Apart(ManyStores(stores, idle_leases=1))

    async def __aenter__(self) -> StoresSubject:
        await self.backend.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (*self._opened, self.backend):
            await each.close()

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        await self.clock.set(self.clock.now() - seconds)

    async def another(self) -> Backend:
        other = self._new()
        await other.open()
        self._opened.append(other)
        return other


NAMES = ("eu", "us", "asia")


def in_memory() -> Callable[[Clock], Mapping[str, Backend]]:
    stores: dict[str, Backend] = {}

    def make(clock: Clock) -> Mapping[str, Backend]:
        for name in NAMES:
            stores.setdefault(name, MemoryBackend(clock))
        return stores

    return make


def in_files(directory: Path) -> Callable[[Clock], Mapping[str, Backend]]:
    for name in NAMES:
        empty_store(directory / f"{name}.db")
    return lambda clock: {
        name: SqliteBackend(directory / f"{name}.db", clock=clock, durability="normal") for name in NAMES
    }


class ServersSubject(StoresSubject):
    """Two databases, whose clocks can be moved."""

    def __init__(self, urls: tuple[str, str], *, engine: bool = False) -> None:
        self._urls = urls
        super().__init__(self._connect, engine=engine)

    def _connect(self, clock: Clock) -> Mapping[str, Backend]:
        return {name: PostgresBackend(url) for name, url in zip(NAMES, self._urls, strict=False)}

    async def advance(self, seconds: float) -> None:
        for url in self._urls:
            connection = await asyncpg.connect(url)
            await connection.execute("update treadle.shift set seconds = seconds + $1", seconds)
            await connection.close()

    async def set_back(self, seconds: float) -> None:
        await self.advance(-seconds)


@pytest.fixture(scope="session")
def two_databases(
    shared_database: tuple[str, psycopg.Connection], postgres: Postgres
) -> Iterator[list[tuple[str, psycopg.Connection]]]:
    with postgres.database() as url:
        asyncio.run(prepare(url))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set search_path to pg_catalog")
            yield [shared_database, (url, connection)]


@pytest.fixture
def two_urls(
    two_databases: list[tuple[str, psycopg.Connection]], kept_sessions: Callable[[str], str]
) -> tuple[str, str]:
    """Two databases with empty tables."""
    for _, connection in two_databases:
        connection.execute(EMPTY)
    first, second = (kept_sessions(url) for url, _ in two_databases)
    return first, second


@pytest.mark.usefixtures("another_form")
class TestThreeInMemory(BackendContract):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[StoresSubject]:
        async with StoresSubject(in_memory()) as subject:
            yield subject


@pytest.mark.usefixtures("another_form")
class TestThreeFiles(BackendContract):
    @pytest.fixture
    async def subject(self, quick_directory: Path) -> AsyncIterator[StoresSubject]:
        directory = Path(tempfile.mkdtemp(dir=quick_directory))
        async with StoresSubject(in_files(directory)) as subject:
            yield subject
        shutil.rmtree(directory)


@pytest.mark.usefixtures("another_form")
class TestWorkersOfThreeInMemory(WorkerContract):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[StoresSubject]:
        async with StoresSubject(in_memory(), engine=True) as subject:
            yield subject


@pytest.mark.usefixtures("another_form")
class TestWorkersOfThreeFiles(WorkerContract):
    @pytest.fixture
    async def subject(self, quick_directory: Path) -> AsyncIterator[StoresSubject]:
        directory = Path(tempfile.mkdtemp(dir=quick_directory))
        async with StoresSubject(in_files(directory), engine=True) as subject:
            yield subject
        shutil.rmtree(directory)


@pytest.mark.usefixtures("another_form")
class TestTwoServers(BackendContract):
    @pytest.fixture
    async def subject(self, two_urls: tuple[str, str]) -> AsyncIterator[StoresSubject]:
        async with ServersSubject(two_urls) as subject:
            yield subject


@pytest.mark.usefixtures("another_form")
class TestWorkersOfTwoServers(WorkerContract):
    @pytest.fixture
    async def subject(self, two_urls: tuple[str, str]) -> AsyncIterator[StoresSubject]:
        async with ServersSubject(two_urls, engine=True) as subject:
            yield subject


# -- where things are -----------------------------------------------------------------------------------


def by_root(stores: Mapping[str, Backend]) -> ManyStores:
    return ManyStores(stores, by="root")


@asynccontextmanager
async def opened(
    stores: Mapping[str, Backend], make: Callable[[Mapping[str, Backend]], ManyStores] = ManyStores
) -> AsyncGenerator[ManyStores]:
    many = make(stores)
    await many.open()
    try:
        yield many
    finally:
        await many.close()


class Switched(WrappedBackend):
    """A store that can be down, and behind whose address another one can appear."""

    is_down = False

    def __init__(self) -> None:
        super().__init__(MemoryBackend())

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if self.is_down and verb != "close":
            raise StoreUnavailable("connection refused")
        return await call()


def memories(*names: str) -> dict[str, MemoryBackend]:
    return {name: MemoryBackend() for name in names}


async def test_a_tenant_keeps_its_store_when_another_one_joins() -> None:
    stores: dict[str, Backend] = {**memories("eu", "us")}
    tenants = [f"t{n}" for n in range(50)]
    async with opened(stores) as many:
        before = {tenant: await many.place(tenant) for tenant in tenants}
    assert set(before.values()) == {"eu", "us"}
    stores["asia"] = MemoryBackend()
    async with opened(stores) as many:
        assert {tenant: await many.place(tenant) for tenant in tenants} == before
        assert "asia" in {await many.place(f"new{n}") for n in range(50)}


async def test_the_first_place_wins() -> None:
    """Also if another process asks for another one at the same time."""
    stores = memories("eu", "us")
    async with opened(stores) as one, opened(stores) as two:
        answers = await asyncio.gather(one.place("acme", "eu"), two.place("acme", "us"))
        assert len(set(answers)) == 1
        assert await one.place("acme", "us") == answers[0]


async def test_swapped_addresses_are_found_out() -> None:
    stores = memories("eu", "us", "asia")
    async with opened(stores):
        pass
    with pytest.raises(WrongStore, match=r"is '(asia|us)': two addresses were swapped"):
        async with opened({"eu": stores["eu"], "us": stores["asia"], "asia": stores["us"]}):
            pass
    with pytest.raises(WrongStore):
        async with opened({"eu": stores["us"], "us": stores["eu"], "asia": stores["asia"]}):
            pass


async def test_a_store_of_another_app_is_found_out() -> None:
    ours, theirs = memories("eu", "us"), memories("eu", "us")
    async with opened(ours), opened(theirs):
        pass
    with pytest.raises(WrongStore, match="belongs to other stores"):
        async with opened({"eu": ours["eu"], "us": theirs["us"]}):
            pass


async def test_an_app_that_leaves_a_store_out_is_refused() -> None:
    """Its lists would leave out tenants, and home may be the one that it leaves out."""
    stores = memories("eu", "us", "asia")
    async with opened(stores):
        pass
    with pytest.raises(WrongStore, match="more stores than this app names: asia"):
        async with opened({"eu": stores["eu"], "us": stores["us"]}):
            pass
    with pytest.raises(WrongStore, match="whose home is 'eu'"):
        async with opened({"us": stores["us"], "asia": stores["asia"]}):
            pass


@pytest.mark.parametrize("by", [ManyStores, by_root])
@pytest.mark.parametrize("wrong", ["renamed", "another's", "in use", "its own twice"])
async def test_an_app_that_is_refused_leaves_nothing_behind(
    wrong: str, by: Callable[[Mapping[str, Backend]], ManyStores]
) -> None:
    """Its wrong name is not told to home: all others would have to name it too."""
    stores: dict[str, Backend] = {**memories("eu", "us")}
    async with opened(stores, by) as many:
        await submit(many, item(tenant="acme"))
    others: dict[str, Backend] = {**memories("eu", "asia")}
    async with opened(others, by):
        pass
    used = MemoryBackend()
    await submit(used, item(tenant="acme"))
    apps = {
        "renamed": {"eu": stores["eu"], "usa": stores["us"]},
        "another's": {**stores, "asia": others["asia"]},
        "in use": {**stores, "asia": used},
        "its own twice": {**stores, "asia": stores["us"]},
    }
    with pytest.raises((WrongStore, PlacementError)):
        async with opened(apps[wrong], by):
            pass
    async with opened(stores, by):
        pass


async def test_an_app_that_knows_of_one_store_learns_of_another_one() -> None:
    """A process that was started before it has joined stores nothing of the tenants that are there."""
    stores = memories("eu", "us")
    async with opened({"eu": stores["eu"]}) as old:
        await submit(old, item("first", tenant="acme"))
        assert old.places.preferred("acme") == "eu"
        async with opened(stores) as new:
            theirs = next(name for name in map(str, range(99)) if new.places.preferred(name) == "us")
            await submit(new, item("theirs", tenant=theirs))
            with pytest.raises(PlacementError, match="in the store 'us', which this app does not name"):
                await submit(old, item("stray", tenant=theirs))
            assert await old.place("zoo", "eu") == await new.place("zoo", "us") == "eu"


async def test_tenants_of_a_store_that_was_alone_stay_in_it() -> None:
    stores = memories("eu", "us")
    names = [f"tenant {number}" for number in range(8)]
    async with opened({"eu": stores["eu"]}) as alone:
        for name in names:
            await submit(alone, item(f"of-{name}".replace(" ", "-"), tenant=name))
    async with opened(stores) as many:
        assert {many.places.preferred(name) for name in names} == {"eu", "us"}
        assert {await many.place(name) for name in names} == {"eu"}


async def test_the_order_of_the_names_does_not_matter_later() -> None:
    stores = memories("eu", "us")
    async with opened(stores) as many:
        await many.place("acme", "us")
    async with opened({"us": stores["us"], "eu": stores["eu"]}) as many:
        assert many.places.home.name == "eu"
        assert await many.place("acme") == "us"


async def test_a_store_that_joins_keeps_its_tenants() -> None:
    stores = memories("eu", "us")
    await submit(stores["us"], item("old", tenant="acme"))
    async with opened(stores) as many:
        assert await many.place("acme", "eu") == "us"
        assert [state and state.store for state in await many.get(["old"])] == ["us"]


async def test_a_tenant_in_two_stores_that_join_is_refused() -> None:
    stores = memories("eu", "us")
    for store in stores.values():
        await submit(store, item("old", tenant="acme"))
    with pytest.raises(PlacementError, match="the tenant 'acme' is in the store 'eu', and 'us' has items"):
        async with opened(stores):
            pass


async def test_a_submission_for_tenants_of_two_stores_is_refused() -> None:
    async with opened(memories("eu", "us")) as many:
        await many.place("acme", "eu")
        await many.place("zoo", "us")
        with pytest.raises(PlacementError, match="'acme' is in 'eu', 'zoo' in 'us'"):
            await many.submit([Submission((item(tenant="acme"), item(tenant="zoo")))])
        assert await many.counts() == []


async def test_a_tenant_without_a_place_has_nothing() -> None:
    """To read of it gives it no place."""
    async with opened(memories("eu", "us")) as many:
        assert await many.get(["x"], tenant="acme") == [None]
        assert (await many.list(Filter(tenant="acme"))).items == ()
        assert (await many.ended([("acme", "x")], [])).missing == {("acme", "x")}
        assert many.place_of("acme", "x") is None


async def test_a_long_name_of_a_tenant_has_a_place() -> None:
    tenant = "t" * 255
    async with opened(memories("eu", "us")) as many:
        assert await many.place(tenant, "us") == "us"
        await submit(many, item(tenant=tenant))
        assert [state.store for state in (await many.list(Filter())).items] == ["us"]


@pytest.mark.parametrize("names", [[], ["e u"], [""], ["eu/1"], ["x" * 41]])
def test_names_of_stores_are_plain(names: list[str]) -> None:
    with pytest.raises(InputError):
        ManyStores(memories(*names))


async def test_a_transaction_of_another_database_is_refused(tmp_path: Path, processes: None) -> None:
    stores = {name: SqliteBackend(tmp_path / f"{name}.db") for name in ("eu", "us")}
    async with opened(stores) as many:
        await many.place("acme", "us")
        with closing(sqlite3.connect(tmp_path / "eu.db")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(PlacementError, match="the tenant 'acme' is in the store 'us'"):
                await many.submit([Submission((item(tenant="acme"),))], tx=connection)
            with pytest.raises(PlacementError, match=r"call app.place\('new'\)"):
                await many.submit([Submission((item(tenant="new"),))], tx=connection)
        with closing(sqlite3.connect(tmp_path / "us.db")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            await many.submit([Submission((item("in", tenant="acme"),))], tx=connection)
            connection.commit()
        assert [state and state.store for state in await many.get(["in"])] == ["us"]


async def test_a_store_that_comes_back_empty_does_not_join_as_a_new_one() -> None:
    """It has lost its data, or its address is that of another database."""
    stores = memories("eu", "us")
    async with opened(stores) as many:
        await many.place("acme", "us")
    with pytest.raises(WrongStore, match=r"'us' has joined these stores before\. Correct its address"):
        async with opened({"eu": stores["eu"], "us": MemoryBackend()}):
            pass
    with pytest.raises(WrongStore, match="'eu' has joined these stores before"):
        async with opened({"eu": MemoryBackend(), "us": stores["us"]}):
            pass
    async with opened(stores):
        pass


@pytest.mark.parametrize("lost", ["eu", "us"])
async def test_an_empty_store_is_accepted_for_one_that_has_lost_its_data(lost: str) -> None:
    stores = memories("eu", "us", "asia")
    async with opened(stores) as many:
        for tenant, store in (("acme", "eu"), ("zoo", "us"), ("kiosk", "asia")):
            await many.place(tenant, store)
            await submit(many, item(tenant, tenant=tenant))
    stores[lost] = MemoryBackend()
    many = ManyStores(stores)
    await many.accept_store(lost)
    await many.close()
    left = {"acme": "eu", "zoo": "us", "kiosk": "asia"}
    async with opened(stores) as many:
        assert many.backends.keys() == stores.keys()
        for tenant, store in left.items():
            assert [state and state.store for state in await many.get([tenant], tenant=tenant)] == [
                None if store == lost else store
            ]
            if store != lost:
                assert await many.place(tenant) == store
                assert await submit(many, item(f"{tenant} again", tenant=tenant))
    with pytest.raises(InputError, match="knows its name: there is nothing to accept"):
        await ManyStores(stores).accept_store(lost)


async def test_a_store_with_items_is_not_accepted_for_another_one() -> None:
    stores = memories("eu", "us")
    async with opened(stores):
        pass
    stores["us"] = MemoryBackend()
    await submit(stores["us"], item(tenant="zoo"))
    with pytest.raises(InputError, match="has items of zoo: only an empty one takes the place of 'us'"):
        await ManyStores(stores).accept_store("us")


async def test_all_stores_must_answer_when_one_is_accepted() -> None:
    """Otherwise a tenant of one that is away could get a second place."""
    stores: dict[str, Backend] = {**memories("eu", "us"), "asia": Switched()}
    async with opened(stores):
        pass
    away = stores["asia"]
    assert isinstance(away, Switched)
    away.is_down = True
    stores["eu"] = MemoryBackend()
    with pytest.raises(StoreUnavailable):
        await ManyStores(stores).accept_store("eu")
    away.is_down = False
    await ManyStores(stores).accept_store("eu")


async def test_a_store_that_is_replaced_while_it_is_away_is_found_out() -> None:
    """Its own items wait, and the error says why. Other stores go on, and it is used when it is itself."""
    stores = {name: Switched() for name in ("eu", "us")}
    async with opened(stores) as many:
        await many.place("acme", "us")
        await many.place("zoo", "eu")
        await submit(many, item("kept", tenant="acme"))
        original, stores["us"].inner = stores["us"].inner, MemoryBackend()
        stores["us"].is_down = True
        with pytest.raises(StoreUnavailable):
            await many.get(["kept"], tenant="acme")
        stores["us"].is_down = False
        await asyncio.sleep(0.1)
        with pytest.raises(StoreUnavailable, match="is empty, or is another one"):
            await submit(many, item("lost", tenant="acme"))
        await submit(many, item("other", tenant="zoo"))
        assert many.away == ("us",)
        stores["us"].inner = original
        await asyncio.sleep(0.3)
        (state,) = await many.get(["kept"], tenant="acme")
        assert state is not None
        assert many.away == ()
