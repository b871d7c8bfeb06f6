"""Lists of Redis: which index is read, and how many items are looked at."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.redis_store import RedisSubject
from treadle.backends.redis import RedisBackend
from treadle.backends.redis.scripts import RedisScript
from treadle.item import OPEN, Filter, GroupFilter, Item, Page
from treadle.records import BacklogSample, Stat
from treadle.testing.contract.build import claim, dependent, end, item, items, start, submit
from treadle.testing.contract.check import everything
from treadle.testing.contract.releases import fail_on, kill_on


@pytest.fixture
async def subject(valkey_url: str) -> AsyncIterator[RedisSubject]:
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    yield subject
    await subject.close()


@pytest.fixture
def backend(subject: RedisSubject) -> RedisBackend:
    return subject.backend


async def page_counts(backend: RedisBackend) -> dict[str, int]:
    found = await backend._link.command(b"HGETALL", backend._link.key("pages"))
    return {name.decode(): int(count) for name, count in zip(found[::2], found[1::2], strict=True)}


async def bytes_sent(backend: RedisBackend) -> int:
    """All that the server has answered so far to those who use this database. Others have theirs."""
    own = await backend._link.command(b"CLIENT", b"INFO")
    database = re.findall(rb" db=\d+ ", own)[0]
    clients = (await backend._link.command(b"CLIENT", b"LIST")).splitlines()
    return sum(int(re.findall(rb" tot-net-out=(\d+)", each)[0]) for each in clients if database in each)


async def ids(backend: RedisBackend, **where: Any) -> list[str]:
    return [state.id for state in await everything(backend, **where)]


async def test_scripts_that_read_work_when_memory_is_full() -> None:
    """The server runs them although it refuses writes."""
    assert RedisScript("list").source.text.startswith("#!lua flags=no-writes\n")


async def test_pages_count_items_and_ended_items(backend: RedisBackend) -> None:
    """Whichever way items end. A page without items is forgotten."""
    await submit(backend, *items(1200))
    assert sum((await page_counts(backend)).values()) == 1200
    taken = await claim(backend, 3)
    await backend.cancel([taken[0].id])
    await backend.complete(taken[1].id, None)
    await end(backend, item("last"))
    counts = await page_counts(backend)
    ended = sum(count for page, count in counts.items() if page.endswith("e"))
    assert (sum(counts.values()) - ended, ended) == (1201, 3)
    await backend.delete(await ids(backend))
    assert await page_counts(backend) == {}


async def test_open_items_are_found_among_many(backend: RedisBackend) -> None:
    """When there are too many to collect them, pages without open items are skipped."""
    await submit(backend, *items(1500, lane="old"))
    for _ in range(5):
        await backend.complete((await claim(backend, 1))[0].id, None)
    await submit(backend, *items(1500), *items(3, delay=100))
    whole = await everything(backend)
    for status in OPEN:
        expected = [state.id for state in whole if state.status == status]
        assert await ids(backend, status=(status,)) == expected
    newest = await backend.list(Filter(status=("ready", "scheduled")), limit=5)
    assert [state.id for state in newest.items] == [state.id for state in reversed(whole[-5:])]


async def test_pages_of_ended_items_are_not_read_for_open_ones(backend: RedisBackend) -> None:
    """2,000 ended items in two pages, then 2,500 open ones: no item of the former is read."""
    await submit(backend, *items(2000))
    await backend.cancel(await ids(backend))
    await submit(backend, *items(2500))
    page = await backend.list(Filter(status=("ready",)), limit=10, oldest_first=True, reach=12)
    assert (len(page.items), page.reached_at) == (10, None)


async def test_scheduled_items_of_a_tenant_are_found_among_those_of_others(backend: RedisBackend) -> None:
    """Also if all tenants have too many together."""
    await submit(backend, *items(2, tenant="a", delay=100), *items(2100, tenant="b", delay=100))
    await submit(backend, *items(1500, tenant="a"), *items(2, tenant="a", delay=50, queue="other"))
    expected = [state.id for state in await everything(backend, tenant="a") if state.status == "scheduled"]
    page = await backend.list(Filter(tenant="a", status=("scheduled",)), oldest_first=True, reach=5)
    assert ([state.id for state in page.items], page.reached_at, len(expected)) == (expected, None, 4)
    page = await backend.list(Filter(tenant="a", status=("scheduled",)), limit=3, reach=5)
    assert [state.id for state in page.items] == expected[:0:-1]
    assert len(await ids(backend, tenant="b", status=("scheduled",))) == 2100
    assert (await backend.list(Filter(tenant="c", status=("scheduled",)), reach=5)).items == ()


async def test_blocked_items_of_a_tenant_are_found_among_those_of_others(backend: RedisBackend) -> None:
    """Also if all tenants have too many together. What it submitted is not looked at in vain."""
    await submit(backend, *items(1500, tenant="a"))
    await end(backend, item("met", tenant="a"))
    await submit(backend, item("open", tenant="a"), dependent("met", tenant="a", id="ready"))
    await submit(backend, *(dependent("none", tenant="b") for _ in range(2100)))
    new = [dependent("none", "never", tenant="a", id=f"blocked-{n}") for n in range(3)]
    await submit(backend, *new, dependent("open", tenant="a", id="waits"))
    expected = [*(each.id for each in new), "waits"]
    for oldest_first in (True, False):
        page = await backend.list(
            Filter(tenant="a", status=("blocked",)), oldest_first=oldest_first, history=True, reach=20
        )
        found = [state.id for state in page.items]
        assert (sorted(found, reverse=not oldest_first), page.reached_at) == (found, None)
        assert sorted(found) == expected
    assert set(page.items[-1].waiting_for) == {"none", "never"}
    assert len(await ids(backend, tenant="b", status=("blocked",))) == 2100


async def test_a_list_ends_when_it_has_all_items_of_a_type(backend: RedisBackend) -> None:
    """The counts say how many there are. Those of other statuses are not looked for."""
    await submit(backend, *items(3000), item("rare", type="rare"), item("held", type="rare", delay=100))
    where = Filter(type="rare", status=("ready",))
    page = await backend.list(where, reach=2500)
    assert ([state.id for state in page.items], page.cursor, page.reached_at) == (["rare"], None, None)
    page = await backend.list(replace(where, status=("ready", "dead")), limit=1, oldest_first=True)
    assert ([state.id for state in page.items], page.cursor) == (["rare"], None)
    assert (await backend.list(replace(where, tenant="other"), reach=2500)).items == ()


async def test_a_list_goes_on_if_what_it_has_found_is_no_longer_counted(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest item of a type is cancelled before they are counted: there is still one, but another."""
    await submit(backend, item("deep", type="rare"), *items(6000), item("shallow", type="rare"))
    counted = backend._counted

    async def late() -> Any:
        await backend.cancel(["shallow"])
        return await counted()

    monkeypatch.setattr(backend, "_counted", late)
    page = await backend.list(Filter(type="rare", status=("ready",)))
    assert [state.id for state in page.items] == ["shallow", "deep"]


@pytest.mark.parametrize("most", [20_000, 10])
async def test_of_a_release_only_items_that_failed_are_looked_at(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Unless too many have."""
    monkeypatch.setattr("treadle.backends.redis.lists._MOST_TRIED", most)
    await kill_on(backend, "v1", "m", 7)
    await kill_on(backend, "v2", "m", 5)
    await fail_on(backend, "v1", "waits")
    await submit(backend, *items(1200))
    whole = [state.id for state in await everything(backend) if state.release == "v1"]
    assert len(whole) == 8
    for status in ((), ("dead",), ("scheduled",)):
        expected = [id for id in whole if not status or (id == "waits") == (status == ("scheduled",))]
        assert await ids(backend, release="v1", status=status) == expected
    page = await backend.list(Filter(release="v1"), limit=5)
    assert [state.id for state in page.items] == whole[:2:-1]
    page = await backend.list(Filter(release="v1"), limit=5, cursor=page.cursor)
    assert ([state.id for state in page.items], page.cursor) == (whole[2::-1], None)
    page = await backend.list(Filter(release="v1"), limit=8, reach=100)
    assert page.reached_at is None if most > 10 else page.reached_at is not None


async def test_a_name_that_tenants_share_is_found_for_each(backend: RedisBackend) -> None:
    """A workflow, a key and a group, without a look at other items."""
    labels: dict[str, Any] = {"workflow": "w", "key": "k"}
    new = [item("root", tenant=tenant, **labels) for tenant in ("a", "b", "c")]
    await submit(backend, *items(1500), *new, *items(1500))
    for where in (Filter(workflow="w"), Filter(key="k"), Filter(group_id="root")):
        page = await backend.list(where, reach=4)
        assert ([state.tenant for state in page.items], page.cursor) == (["c", "b", "a"], None)
        page = await backend.list(replace(where, tenant="b"), reach=4)
        assert ([state.tenant for state in page.items], page.cursor) == (["b"], None)


async def test_items_of_other_tenants_are_passed_over_up_to_a_bound(backend: RedisBackend) -> None:
    """Tenants may share the name of a workflow, and a script holds the server while it reads."""
    await submit(backend, item("first", tenant="a", workflow="w"))
    for _ in range(15):
        await submit(backend, *items(1000, tenant="b", workflow="w"))
    (found,) = (await backend.workflows(GroupFilter(tenant="a"))).items
    assert (found.id, found.tenant, found.total, found.open, found.capped) == ("w", "a", 1, 1, True)
    (found,) = (await backend.workflows(GroupFilter(tenant="b"))).items
    assert (found.total, found.capped) == (1000, True)


async def test_samples_of_other_queues_are_not_sent(backend: RedisBackend) -> None:
    """The page of a queue asks for a month of it, and there may be a thousand queues."""
    queues = ["", *(f"queue-{n:03}" for n in range(999))]
    for minute in range(4):
        await backend.put_samples([BacklogSample(at=60.0 * minute, queue=queue, ready=1) for queue in queues])
    before = await bytes_sent(backend)
    found = await backend.samples(0, queues=("", "queue-998"))
    assert [(each.at, each.queue) for each in found] == [
        (60.0 * minute, queue) for minute in range(4) for queue in ("", "queue-998")
    ]
    assert await bytes_sent(backend) - before < 20_000
    assert len(await backend.samples(0)) == 4000
    assert await bytes_sent(backend) - before > 20_000


async def test_statistics_of_other_queues_are_not_sent(backend: RedisBackend) -> None:
    """A type may have the name of a queue."""
    names = [f"name-{n:02}" for n in range(40)]
    stats = [Stat(at=0.0, type=type, queue=queue, dead=1) for type in names for queue in names[:20]]
    await backend.add_stats(stats)
    before = await bytes_sent(backend)
    assert [each.dead for each in await backend.stats(0, queue="name-07")] == [40]
    assert [each.dead for each in await backend.stats(0, queue="name-07", type="name-09")] == [1]
    assert await backend.stats(0, queue="name-30") == []
    assert await bytes_sent(backend) - before < 10_000
    assert [each.dead for each in await backend.stats(0)] == [800]


async def test_lists_by_time_begin_and_end_there(subject: RedisSubject) -> None:
    """In both directions: earlier and later pages are not read."""
    backend = subject.backend
    for name in ("a", "b", "c"):
        await submit(backend, *(Item(f"{name}{n:04}", "work", b"") for n in range(1000)))
        await subject.advance(1000)
    since = (await backend.get(["b0000"]))[0]
    until = (await backend.get(["c0000"]))[0]
    assert since is not None
    assert until is not None
    where = Filter(since=since.queued_at, until=until.queued_at)
    for oldest_first, expected in ((True, "b0000"), (False, "b0999")):
        page = await backend.list(where, limit=1000, oldest_first=oldest_first)
        assert (len(page.items), page.cursor, page.items[0].id) == (1000, None, expected)
    later = Filter(since=until.queued_at + 100, type="none")
    assert await backend.list(later, reach=100) == Page(())


async def test_long_inputs_are_read_a_few_at_a_time(backend: RedisBackend) -> None:
    """A list of large items is complete, however many calls it takes."""
    new = items(120, input=b"x" * 20_000)
    await submit(backend, *new)
    await start(backend, item("small"))
    assert await ids(backend) == [*(each.id for each in new), "small"]


async def test_held_items_are_found_also_if_there_are_too_many_to_collect(backend: RedisBackend) -> None:
    """In the order of submission, from both ends. Those that are let go are not among them."""
    await submit(backend, *items(2100, tenant="acme", delay=1000.0), *items(300, lane="ready"))
    every = await ids(backend, tenant="acme")
    for first in range(0, 2100, 700):
        await backend.hold(every[first : first + 700], tenant="acme")
    assert await ids(backend, held=True) == every
    newest = await backend.list(Filter(held=True), limit=5)
    assert [state.id for state in newest.items] == every[:-6:-1]
    await backend.hold(every[:2050], False, tenant="acme")
    assert await ids(backend, held=True) == every[2050:]
    assert await ids(backend, held=True, tenant="other") == []
