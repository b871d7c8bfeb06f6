"""PostgreSQL: an overview of many items."""

import asyncpg
import pytest

from tests.backends.postgres_store import READY, connected, opened
from treadle.backends.postgres import PostgresBackend, watch
from treadle.item import Count
from treadle.item_facts import Overview
from treadle.testing.contract.build import beat, claim, dependent, die, end, item, items, submit, verdicts

MANY = 20_000


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick look counts only what there is little of."""
    monkeypatch.setattr(watch, "QUICK_SECONDS", 0.0)


@pytest.fixture
def time_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine counts everything too: what is counted within the usual time depends on it."""
    monkeypatch.setattr(watch, "COUNTING_SECONDS", 60.0)


@pytest.mark.usefixtures("time_to_count")
async def test_counts_are_exact_however_large_the_table_is(fresh_url: str) -> None:
    """Also when most of it is empty again, which a burst leaves behind."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await admin.execute(READY, 30_000)
        await admin.execute("update treadle.open_item set queue = 'q' || no % 3, tenant = 't' || no % 7")
        await _assert_exact(backend)
        await admin.execute("delete from treadle.open_item where no % 500 > 0")
        await _assert_exact(backend)
        assert sum(one.count for one in (await backend.overview(quick=True)).counts) == 60


async def _assert_exact(backend: PostgresBackend) -> None:
    found = (await backend.overview()).counts
    assert not any(one.estimated for one in found)
    assert {_labels(one): one.count for one in found} == {
        _labels(one): one.count for one in await backend.counts()
    }


@pytest.mark.usefixtures("no_time")
async def test_what_there_is_little_of_is_counted_exactly(fresh_url: str) -> None:
    """Beside many ready items of one queue, of which a quick look counts some. The answer says so."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await submit(backend, item("old", queue="first"), item("late", queue="first", delay=900))
        await admin.execute(READY, MANY)
        await _some_of_each(backend)
        found = await backend.overview(quick=True)
        exact = {_labels(one): one.count for one in await backend.counts()}
        many = ("default", "default", "work", "ready")
        counted = {_labels(one): one for one in found.counts}
        assert counted.keys() == exact.keys()
        assert {one for one in counted if counted[one].estimated} == {many}
        assert counted.pop(many).count == pytest.approx(exact.pop(many), rel=0.1)
        assert {key: one.count for key, one in counted.items()} == exact
        assert [age.queue for age in found.ages] == ["default", "first", "q"]
        await _tenant_sees_its_own(backend)


async def _some_of_each(backend: PostgresBackend) -> None:
    await end(backend, *items(3, queue="q"), how=die)
    await submit(
        backend, *items(4, queue="q", type="t"), *items(2, queue="q", delay=100), item(queue="q", tenant="x")
    )
    await submit(backend, dependent("p", queue="q"), dependent("p", "r", queue="q"))
    await submit(backend, dependent("lost", queue="q", expires_in=-1), *items(3, type="alien", queue="q"))
    await verdicts(backend, types={"work": 1})
    await beat(backend, "w")
    assert len(await claim(backend, 2, types={"t": 2}, queues=("q",))) == 2


async def _tenant_sees_its_own(backend: PostgresBackend) -> None:
    found = await backend.overview(tenant="x")
    assert found.counts == (Count("x", "q", "work", "ready", 1),)
    assert [age.queue for age in found.ages] == ["q"]


@pytest.mark.usefixtures("no_time")
async def test_of_many_items_that_wait_some_are_counted(fresh_url: str) -> None:
    """Of each status, although no index has its queues. They say about how many there are."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await admin.execute(READY, MANY)
        await admin.execute("update treadle.open_item set status = 1, due = 1e12 where no % 2 = 0")
        await admin.execute("analyze treadle.open_item")
        found = await backend.overview(quick=True)
        assert {(one.status, one.estimated) for one in found.counts} == {("ready", True), ("scheduled", True)}
        half = pytest.approx(MANY / 2, rel=0.6)  # a third of the pages have no item any more
        assert [one.count for one in found.counts] == [half, half]
        assert found.unserved[0].count == half


@pytest.mark.usefixtures("time_to_count", "no_time")
async def test_many_deaths_are_counted(fresh_url: str) -> None:
    """By tenant, queue and type. A quick look estimates those of which there are many."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await end(backend, *items(3, tenant="a", queue="q"), *items(2, tenant="z", type="t"), how=die)
        few = {"a": (3, False), "z": (2, False)}
        assert _dead(await backend.overview()) == few
        await _kill(admin, MANY)
        assert _dead(await backend.overview()) == {**few, "default": (MANY, False)}
        found = _dead(await backend.overview(quick=True))
        assert (found["a"], found["z"]) == ((3, False), (2, True))
        assert found["default"] == (pytest.approx(MANY, rel=0.1), True)
        assert _dead(await backend.overview(tenant="z")) == {"z": (2, False)}
        (mine,) = await backend.marks(tenant="z")
        assert (mine.count, mine.capped) == (2, False)
        (mark,) = await backend.marks()
        assert (mark.count, mark.capped) == (10_000, True)
        await admin.execute("update treadle.ended_item set type = 't' || no % 700")
        counts = (await backend.overview()).counts
        assert len({_labels(one) for one in counts}) == 500
        assert all(one.estimated for one in counts)


async def _kill(admin: "asyncpg.Connection", count: int) -> None:
    await admin.execute(READY, count)
    await admin.execute(
        """
        with gone as (delete from treadle.open_item returning *)
        insert into treadle.ended_item (no, ended, due, attempt, outcome, reason, mark, tenant, queue, type)
          select no, 0, 0, 1, 7, 2, '', tenant, queue, type from gone
        """
    )


def _dead(found: Overview) -> dict[str, tuple[int, bool]]:
    return {one.tenant: (one.count, one.estimated) for one in found.counts if one.status == "dead"}


def _labels(count: Count) -> tuple[str, str, str, str]:
    return count.tenant, count.queue, count.type, count.status
