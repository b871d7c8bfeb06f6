"""PostgreSQL: plans that still use indexes when the tables have grown."""

import asyncio
import json
import time
from itertools import combinations
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from tests.backends.postgres_store import READY, connected, opened
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres.lists import ListQuery
from treadle.backends.postgres.schema import PostgresSchema
from treadle.item import Filter, GroupFilter, Heartbeat, Record, Signal
from treadle.store.rules.listing import cursor_of, plan_list
from treadle.testing.contract.build import (
    apply,
    beat,
    claim,
    claim_one,
    dependent,
    die,
    item,
    release,
    submit,
    succeed,
)
from treadle.testing.contract.steps import awaits, sleep, step, suspend

ENDED = """
with gone as (delete from treadle.open_item where no % 2 = 0 returning no)
insert into treadle.ended_item (no, ended, due, attempt, outcome, reason)
  select no, 0, 0, 1, 6 + (no % 100 = 0)::int, case when no % 100 = 0 then 2 end from gone
"""
SCANS = """
select relname, seq_scan from pg_stat_user_tables where schemaname = 'treadle'
  and relname in ('item', 'open_item', 'ended_item', 'dependency', 'item_group', 'attempt', 'key', 'step',
    'mail', 'progress', 'chunk')
  order by relname
"""


@pytest.mark.parametrize("way", ["plain", "steps"])
async def test_no_verb_scans_a_table(fresh_url: str, way: str) -> None:
    """Plans are kept from the first calls, when the tables were empty, and there are no new statistics: after
    the tenth call, with 20,000 open items, every verb still uses an index."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await beat(backend)
        for _ in range(10):
            await WORK[way](backend)
        await admin.execute(READY, 20_000)
        before = await scans(backend)
        for _ in range(12):
            await WORK[way](backend)
        assert await scans(backend) == before


async def scans(backend: PostgresBackend) -> "list[asyncpg.Record]":
    """How often each table was scanned, the last call included."""
    async with backend.transaction() as transaction:
        await transaction.connection.execute("select pg_stat_force_next_flush()")
    async with backend.transaction() as transaction:
        return await transaction.connection.fetch(SCANS)


async def work(backend: PostgresBackend) -> None:
    """Call every verb that runs an item goes through, and the reads of a waiter and of an operator."""
    name = f"{time.monotonic_ns()}"
    await submit(
        backend,
        item(f"a{name}"),
        dependent(f"a{name}", id=f"b{name}"),
        item(f"k{name}", key=name, workflow=name),
    )
    leases = await claim(backend, 20)
    mine = [lease for lease in leases if lease.id.endswith(name)]
    rest = [release(lease) for lease in leases if lease not in mine]
    await apply(backend, *(succeed(lease, item(f"c{lease.id}")) for lease in mine), *rest)
    await backend.beat(Heartbeat(worker="w", lease=1000, held=leases))
    await backend.unknown_leases("w", [])
    await backend.get([lease.id for lease in leases])
    await backend.group([lease.id for lease in leases])
    await backend.ended([("default", f"a{name}")], [("default", f"a{name}")])
    for id in (f"a{name}", f"b{name}", f"k{name}"):
        await backend.explain(id)
    for tenant in (None, "default"):
        await backend.overview(tenant=tenant, quick=tenant is None)
        await backend.marks(tenant=tenant)
        await backend.lines("default", tenant=tenant)
        await backend.related(f"a{name}", tenant=tenant)
        await backend.list(Filter(tenant=tenant, type="none", status=("ready", "success")), reach=1000)
        await backend.groups(GroupFilter(tenant=tenant, type="none"), reach=1000)
        await backend.groups(GroupFilter(outcome=("running", "failed")))
        await backend.workflows(GroupFilter(tenant=tenant), reach=1000)
    await backend.limits()
    await submit(backend, item(f"h{name}"))
    for held in (True, False):
        await backend.hold([f"h{name}"], held)
    await backend.cancel([f"k{name}", f"b{name}", f"h{name}"])
    await backend.prune()


async def work_in_steps(backend: PostgresBackend) -> None:
    """Record, wait, signal, die, and end."""
    name = f"{time.monotonic_ns()}"
    await submit(backend, item(name, queue="steps", keep=0.0))
    for kind in ("suspend", "dead", "success"):
        lease = await claim_one(backend, queues=("steps",))
        written = Record(lease=lease, steps=(step("one"),), progress=b"p", chunks=(b"c",), first_chunk=1)
        await backend.record([written])
        await backend.signal([Signal(id=name, name="one", key=kind)])
        if kind == "suspend":
            await apply(backend, suspend(lease, awaits("one"), awaits("two"), sleep(seconds=10)))
            await backend.signal([Signal(id=name, name="two")])
        elif kind == "dead":
            await apply(backend, die(lease))
            await backend.requeue([name], from_step="one")
        else:
            await apply(backend, succeed(lease))
    await backend.steps([name])
    await backend.stream(name)
    await backend.prune()


WORK = {"plain": work, "steps": work_in_steps}

FILTERS = [
    Filter(),
    Filter(tenant="default", type="work"),
    Filter(workflow="w"),
    Filter(group_id="g"),
    Filter(key="k"),
    Filter(status=("dead",)),
    Filter(group_id="g", failed_group=True),
    Filter(killing=True),
    Filter(held=True),
    Filter(held=True, workflow="w"),
    Filter(reason="aborted"),
    Filter(mark="m"),
    Filter(mark="m", tenant="default", type="work"),
    Filter(release="v2"),
    Filter(release="v2", status=("dead",), mark="m"),
    Filter(status=("ready", "running")),
    Filter(status=("success",)),
    Filter(status=("success", "ready")),
    Filter(queue="default"),
    Filter(type="work"),
    Filter(since=1.0),
    Filter(until=1e12),
    Filter(status=("ready", "blocked"), queue="default", tenant="default"),
    Filter(status=("cancelled", "dead"), type="work", since=1.0),
    Filter(workflow="w", status=("dead",)),
    Filter(group_id="g", status=("ready",), type="work"),
    Filter(key="k", tenant="default", type="work"),
]


def test_the_filters_above_use_every_field() -> None:
    """A new field of `Filter` has to be added to FILTERS. One store never sees which of several is meant."""
    empty = Filter()
    named = {name for where in FILTERS for name in Filter.__struct_fields__ if is_given(where, empty, name)}
    assert {*named, "store"} == set(Filter.__struct_fields__)


def is_given(where: Filter, empty: Filter, name: str) -> bool:
    return getattr(where, name) != getattr(empty, name)


def _query(where: Filter, oldest_first: bool, cursor: str | None) -> ListQuery:
    return ListQuery(
        plan_list("postgres", where, limit=100, cursor=cursor, oldest_first=oldest_first), limit=100
    )


async def test_lists_use_an_index(fresh_url: str) -> None:
    """Every filter, in both directions, from the start and from a cursor, with and without a reach."""
    schema = PostgresSchema("treadle")
    async with opened(fresh_url), connected(fresh_url) as admin:
        await admin.execute(READY, 20_000)
        await admin.execute(ENDED)
        await admin.execute("analyze treadle.item, treadle.open_item, treadle.ended_item")
        for where in FILTERS:
            for oldest_first in (False, True):
                for cursor in (None, cursor_of("postgres", 10_000)):
                    query = _query(where, oldest_first, cursor)
                    texts = [query.text, query.counting, query.walk]
                    last = 15_100 if oldest_first else 14_900
                    query.stop_at([_walked(15_000, True), _walked(last), _walked(last + 1)])
                    for text in (*texts, query.text):
                        if text is not None:
                            sql, arguments = query.bind(text, most=100, looked_at=100)
                            plan = await admin.fetch(f"explain {schema.sql(sql)}", *arguments)
                            lines = "\n".join(line for (line,) in plan)
                            assert "Seq Scan" not in lines, (where, lines)


async def test_a_list_with_a_reach_reads_no_more_than_that(fresh_url: str) -> None:
    """Whatever the filter: of each table a few rows, among 40,000."""
    schema = PostgresSchema("treadle")
    async with opened(fresh_url), connected(fresh_url) as admin:
        await admin.execute(READY, 40_000)
        await admin.execute(ENDED)
        await admin.execute("analyze treadle.item, treadle.open_item, treadle.ended_item")
        await admin.execute("set plan_cache_mode = force_generic_plan")
        for where in FILTERS:
            for oldest_first in (False, True):
                rare = replace(where, queue="none") if where.queue is None else where
                query = _query(rare, oldest_first, cursor_of("postgres", 20_000))
                assert query.walk is not None
                sql, arguments = query.bind(query.walk, looked_at=500)
                walked = await admin.fetch(schema.sql(sql), *arguments)
                query.stop_at(walked)
                sql, arguments = query.bind(query.text)
                plan = await admin.fetch(f"explain (analyze, format json) {schema.sql(sql)}", *arguments)
                assert _rows_read(json.loads(plan[0][0])[0]["Plan"]) < 5000, (where, plan)


def _rows_read(plan: dict[str, Any]) -> float:
    """The rows that all parts of a plan have looked at, together."""
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return own * plan["Actual Loops"] + sum(map(_rows_read, plan.get("Plans", ())))


def _walked(no: int, is_first: bool = False) -> dict[str, Any]:
    return {"no": no, "is_first": is_first, "queued": 0.0}


async def test_an_instant_is_found_by_binary_search(fresh_url: str) -> None:
    """The first of 20,000 items that was queued at an instant is found without reading the others."""
    async with opened(fresh_url), connected(fresh_url) as admin:
        assert await admin.fetchval("select treadle.first_number_since(5)") == 0
        await admin.execute(READY, 20_000)
        first = await admin.fetchval("select min(no) from treadle.item")
        await admin.execute("update treadle.item set queued = no - $1::bigint where no % 7 <> 0", first)
        await admin.execute("delete from treadle.item where no % 7 = 0")
        await admin.execute("vacuum analyze treadle.item")
        for at in (-1.0, 0.0, 0.5, 9_999.0, 10_000.5, 19_998.0, 1e9):
            found = await admin.fetchval("select treadle.first_number_since($1)", at)
            wanted = await admin.fetchval("select min(no) from treadle.item where queued >= $1", at)
            last = await admin.fetchval("select max(no) + 1 from treadle.item")
            between = "select count(*) from treadle.item where no >= $1 and no < $2"
            assert await admin.fetchval(between, *sorted((found, wanted or last))) == 0
        plan = await admin.fetch("explain (analyze, buffers) select treadle.first_number_since(10000)")
        pages = next(line for (line,) in plan if "shared hit" in line)
        assert int(pages.partition("hit=")[2].split()[0].rstrip(")")) < 500


RUNNING_ELSEWHERE = """
with w as (insert into treadle.worker (id, until) values ('elsewhere', 1e12) returning no)
update treadle.open_item o set status = 5, worker = w.no, token = nextval('treadle.token') from w
"""
SETTLE_NOTHING = """
select treadle.settle(
  row(array[0, 0], array[0, 0], array['default'], array[{kind}], array[0], {reason}, null, null,
    array[0.0, 0.0], null, null, null, null, null, null, null, null)::treadle.settlements,
  null, {folds}, {returns}, true, false)
"""
NEW_STEP = """
row(array[1], array['s'], array[3], array[null], array[0.0], array[null], array['go'], array[false],
  array[null], array[null])::treadle.new_steps
"""
WAYS = {
    "success": SETTLE_NOTHING.format(kind=6, reason="null", folds=False, returns=False),
    "death": SETTLE_NOTHING.format(kind=7, reason="array[1]", folds=False, returns=False),
    "release": SETTLE_NOTHING.format(kind=3, reason="null", folds=False, returns=True),
    "fold": SETTLE_NOTHING.format(kind=6, reason="null", folds=True, returns=False),
    "suspend": SETTLE_NOTHING.format(kind=4, reason="null", folds=False, returns=True).replace(
        "true, false)", f"true, false, null, {NEW_STEP})"
    ),
    "record": "select treadle.record(array[0, 0], array[0, 0], array['default'], "
    f"{NEW_STEP}, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', true)",
    "begin": "select treadle.begin_attempts(array[0], array[0], array['default'])",
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_settle_does_not_read_what_others_run(fresh_url: str, way: str) -> None:
    """Items are found by their numbers, also by plans from when the table was empty, and not among all that
    run."""
    async with opened(fresh_url), connected(fresh_url) as admin:
        await admin.execute(WAYS[way])
        await admin.execute(READY, 5_000)
        await admin.execute(RUNNING_ELSEWHERE)
        explain = f"explain (analyze, buffers) {WAYS[way]}"
        # The server may look at the tables by itself. What is planned after that reads the catalogue.
        assert min([_pages(await admin.fetch(explain)) for _ in range(3)]) < 100


CLAIM = "select * from treadle.claim($1, 50, null, null, null) where no is not null"


async def test_a_claim_costs_the_same_with_more_ready_items(fresh_url: str) -> None:
    """A claim reads as many pages with 20,000 ready items as with 1,000."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await beat(backend)
        await admin.execute(READY, 1_000)
        few = min([await pages(backend) for _ in range(5)])
        await admin.execute(READY, 20_000)
        many = min([await pages(backend) for _ in range(5)])
        assert many < 2 * few, (few, many)


async def pages(backend: PostgresBackend) -> int:
    """How many pages the server reads for one claim. The first calls of a session read the catalogue too."""
    async with backend.transaction() as transaction:
        return _pages(await transaction.connection.fetch(f"explain (analyze, buffers) {CLAIM}", "w"))


def _pages(plan: "list[asyncpg.Record]") -> int:
    shared = next(line for (line,) in plan if "shared hit" in line)
    return int(shared.partition("hit=")[2].split()[0])


async def test_claims_do_not_wait_for_each_other(fresh_url: str) -> None:
    """While one claim has not committed, the next gets the items behind it, in every lane."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await beat(backend, "w1")
        await beat(backend, "w2")
        await admin.execute(READY, 1_000)
        async with backend.transaction() as transaction:
            first = await transaction.connection.fetch(CLAIM, "w1")
            async with asyncio.timeout(10):
                second = await claim(backend, 50, "w2")
        assert len(first) == len(second) == 50
        assert {row["id"] for row in first}.isdisjoint(lease.id for lease in second)
        assert {row["lane"] for row in first} == {lease.lane for lease in second}


OPEN_DEPENDENTS = """
with n as (select nextval('treadle.number') as no from generate_series(1, $1::int)),
i as (
  insert into treadle.item (no, queued, due, priority, attempts, need, id, tenant, type, queue, lane, input,
      after)
    select no, 0, 0, 0, 3, 0, 'x' || no, 'default', 'work', 'default', 'l', '', array['other' || no] from n
)
insert into treadle.open_item (no, seq, due, ready_since, status, priority, queue, tenant, lane, type)
  select no, no, 0, 0, 2, 0, 'default', 'default', 'l', 'work' from n
"""
OVERDUE = """
with n as (select nextval('treadle.number') as no, k from generate_series(1, $1::int) k),
i as (
  insert into treadle.item (no, group_no, queued, due, keep, id, tenant, type, queue, lane, input)
    select no,
      case when $2::int > 1 and k % $2 <> 1
        then first_value(no) over (partition by (k - 1) / $2 order by k) end,
      0, 0, 0, 'e' || no, 'default', 'work', 'default', 'l', '' from n
),
g as (
  insert into treadle.item_group (no, open, ended, keep, prune_at)
    select no, 0, 0, 0, 0 from n where $2 > 1 and k % $2 = 1
)
insert into treadle.ended_item (no, ended, due, attempt, outcome, prune_at)
  select no, 0, 0, 1, 6, case when $2 = 1 then 0 end from n
"""
"""`$1` items whose retention is over, in groups of `$2`."""
READ = """
select sum(idx_tup_fetch + seq_tup_read) from pg_stat_xact_user_tables where schemaname = 'treadle'
"""


DRAINED = """
update pg_class set reltuples = 0, relpages = greatest(pg_relation_size(oid) / 8192, 1)::int
  where relnamespace = 'treadle'::regnamespace and relkind in ('r', 'i')
    and coalesce((select x.indrelid from pg_index x where x.indexrelid = oid), oid)::regclass::text = any($1)
"""
"""What the server says of tables that it has looked at when they were empty, and kept their pages."""
PRUNED = ("treadle.item", "treadle.open_item", "treadle.ended_item", "treadle.item_group")


@pytest.mark.parametrize("members", [1, 2, 50])
async def test_prune_reads_what_it_removes(fresh_url: str, members: int) -> None:
    """Also if the statistics are those of a short queue, and 10,000 open items wait for others by now, and if
    the server has looked at some of the tables when they were empty."""
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        await admin.execute(OPEN_DEPENDENTS, 3)
        await admin.execute(OVERDUE, 100, members)
        await admin.execute(f"analyze {', '.join(PRUNED)}")
        await backend.prune()
        await admin.execute(OPEN_DEPENDENTS, 10_000)
        await admin.execute(OVERDUE, 2000, members)
        for drained in (some for count in range(5) for some in combinations(PRUNED, count)):
            transaction = admin.transaction()
            await transaction.start()
            await admin.execute(DRAINED, drained)
            before = await admin.fetchval(READ)
            assert await admin.fetchval("select treadle.prune(1000)") == 1000
            assert await admin.fetchval(READ) - before < 20_000, drained
            await transaction.rollback()
        assert await backend.prune(1000) == 1000
        assert await backend.prune(2000) == 1000
        assert await admin.fetchval("select count(*) from treadle.item") == 10_003
        assert await admin.fetchval("select count(*) from treadle.item_group") == 0


async def test_only_the_index_of_names_finds_dependents(fresh_url: str) -> None:
    """With statistics of an empty table too: any other plan reads all items."""
    async with opened(fresh_url), connected(fresh_url) as admin:
        await admin.execute("analyze treadle.item")
        settings = await admin.fetchval("select proconfig from pg_proc where proname = 'naming'")
        async with admin.transaction():
            for name, _, value in (setting.partition("=") for setting in settings):
                await admin.execute("select set_config($1, $2, true)", name, value)
            plan = await admin.fetch("explain select no from treadle.item where after && $1", ["a", "b"])
        assert any("Bitmap Index Scan on item_after" in line for (line,) in plan), plan
