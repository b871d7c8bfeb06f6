"""PostgreSQL: groups that many connections use at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from tests.backends.postgres_store import WRONG, connected, opened
from treadle.backends.postgres import PostgresBackend
from treadle.item import GROUP_MARK, GROUP_TYPE, Item, Lease, Submission
from treadle.testing.contract.build import (
    apply,
    by_id,
    claim,
    claim_one,
    dependent,
    die,
    end,
    group,
    item,
    start_one,
    status,
    statuses,
    submit,
    succeed,
)
from treadle.testing.contract.check import consistent
from treadle.testing.contract.nested_groups import nested

WIDTH = 4
DEPTH = 4
CONNECTIONS = 6

BLOCKED = """
select count(*) from pg_stat_activity
where wait_event_type = 'Lock' and datname = current_database() and pid <> pg_backend_pid()
"""


@pytest.fixture
async def backend(warm_url: str) -> AsyncGenerator[PostgresBackend]:
    async with opened(warm_url) as backend:
        yield backend


def _pages(lease: Lease) -> tuple[Item, ...]:
    """The pages below a page, as a nested group, and the index that waits for it."""
    if lease.type == GROUP_TYPE or lease.id.endswith("index") or len(lease.id) > DEPTH:
        return ()
    close = f"{lease.id}g"
    pages = (item(f"{lease.id}{n}") for n in range(WIDTH))
    return (*nested(close, *pages), dependent(close, id=f"{lease.id}index"))


class Crawl:
    """A recursive crawl that several connections run together."""

    def __init__(self) -> None:
        self.settling: set[str] = set()
        self.runs: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    async def work(self, backend: PostgresBackend, worker: str) -> None:
        while not self.ended["p"]:
            leases = await claim(backend, 8, worker=worker)
            for lease in leases:
                self.runs[lease.id] += 1
                self._check_order(lease.id)
            self.settling.update(lease.id for lease in leases)
            settled = await apply(backend, *(succeed(lease, *_pages(lease)) for lease in leases))
            self.ended.update(one.id for one in settled.effects.ended_groups)

    def _check_order(self, id: str) -> None:
        """An index runs after everything below its page."""
        if id.endswith("index"):
            page = id.removesuffix("index")
            below = {other for other in self.runs if other.startswith(page)} - {page, id}
            assert below <= self.settling, id


async def test_a_recursive_crawl_of_many_connections(warm_url: str, backend: PostgresBackend) -> None:
    """Every page and every closing item runs once, every group ends once."""
    await submit(backend, item("p"))
    crawl = Crawl()
    others = [PostgresBackend(warm_url, pool_size=2, reserved=1) for _ in range(CONNECTIONS - 1)]
    await asyncio.gather(*(other.open() for other in others))
    await asyncio.gather(*(crawl.work(one, f"w{n}") for n, one in enumerate([backend, *others])))
    await asyncio.gather(*(other.close() for other in others))
    groups = sum(WIDTH**level for level in range(DEPTH))
    assert len(crawl.runs) == groups + WIDTH**DEPTH + 2 * groups
    assert {*crawl.runs.values()} == {1}
    assert len(crawl.ended) == groups + 1
    assert {*crawl.ended.values()} == {1}
    async with connected(warm_url) as admin:
        for wrong, query in WRONG.items():
            assert await admin.fetch(query) == [], wrong
    await consistent(backend)


async def _someone_waits(admin: asyncpg.Connection) -> None:
    """Return when a transaction waits for a lock."""
    while not await admin.fetchval(BLOCKED):
        pass


@pytest.mark.parametrize("name", ["a", GROUP_MARK + "a"], ids=["the item", "its group"])
async def test_an_item_is_requeued_while_a_dependent_is_submitted(
    warm_url: str, backend: PostgresBackend, name: str
) -> None:
    """The dependent is not committed yet. It waits for the item that is open again."""
    await end(backend, item("a"), how=die)
    async with connected(warm_url) as user, connected(warm_url) as admin:
        async with user.transaction():
            await backend.submit([Submission((dependent(name, id="b"),))], tx=user)
            requeue = asyncio.create_task(backend.requeue(["a"]))
            await _someone_waits(admin)
        await requeue
    assert await statuses(backend, "a", "b") == ["ready", "blocked"]
    await apply(backend, succeed(await claim_one(backend)))
    assert await status(backend, "b") == "ready"
    await consistent(backend)


async def test_members_end_while_a_transaction_waits_for_their_group(
    warm_url: str, backend: PostgresBackend
) -> None:
    """Only the last member has to wait: with its end the group ends, and the transaction may still commit."""
    await apply(backend, succeed(await start_one(backend, item("root")), item("x"), item("y")))
    leases = by_id(await claim(backend))
    async with connected(warm_url) as user, connected(warm_url) as admin:
        async with user.transaction():
            await backend.submit([Submission((dependent(GROUP_MARK + "root", id="b"),))], tx=user)
            await apply(backend, succeed(leases["x"]))
            last = asyncio.create_task(apply(backend, succeed(leases["y"])))
            await _someone_waits(admin)
        settled = await last
    assert [one.id for one in settled.effects.released] == ["b"]
    assert (await group(backend, "root")).open == 0
    await consistent(backend)
