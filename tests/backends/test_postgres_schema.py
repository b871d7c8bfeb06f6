"""PostgreSQL: creating, checking and replacing the schema."""

import asyncio
import re
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.backends.postgres_store import WRONG, connected, opened
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres.schema import VERSION, PostgresSchema, migrations
from treadle.backends.postgres.submit import FIRE, SubmitCall
from treadle.errors import InputError, SchemaError, StoreUnavailable
from treadle.item import Count, Heartbeat, Record, Schedule, Settlement, StepRecord, Submission
from treadle.testing.contract.build import (
    apply,
    by_id,
    claim,
    claim_answer,
    claim_one,
    defer,
    dependent,
    die,
    group,
    item,
    items,
    state,
    status,
    statuses,
    submit,
    succeed,
)
from treadle.testing.contract.check import consistent


async def test_many_open_an_empty_database_at_once(postgres_url: str) -> None:
    """When many processes open it at once, the tables are created once, and all processes can work."""
    backends = [PostgresBackend(postgres_url) for _ in range(8)]
    await asyncio.gather(*(backend.open() for backend in backends))
    await asyncio.gather(*(submit(backend, *items(3)) for backend in backends))
    await asyncio.gather(*(backend.close() for backend in backends))
    async with connected(postgres_url) as admin:
        assert await admin.fetchval("select count(*) from treadle.item") == 24
        assert await admin.fetchval("select value from treadle.meta where name = 'version'") == str(VERSION)


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    """An older library must not use it. A worker that has it open goes on, and its watchdog with it."""
    async with opened(postgres_url) as backend, connected(postgres_url) as admin:
        await admin.execute("update treadle.meta set value = '999' where name = 'version'")
        watchdog = backend.heartbeat_connection()
        await watchdog.open()
        await watchdog.beat(Heartbeat(worker="w", lease=30.0))
        await watchdog.close()
        assert [each.id for each in (await backend.overview()).workers] == ["w"]
    with pytest.raises(SchemaError) as refusal:
        await PostgresBackend(postgres_url).open()
    assert (refusal.value.found, refusal.value.wanted) == (999, VERSION)


async def test_without_apply_schema_the_schema_must_exist(postgres_url: str) -> None:
    """`apply_schema=False`: another program migrates."""
    with pytest.raises(SchemaError) as refusal:
        await PostgresBackend(postgres_url, apply_schema=False).open()
    assert refusal.value.found is None
    async with opened(postgres_url), opened(postgres_url, apply_schema=False) as backend:
        await submit(backend, item("a"))


async def test_functions_of_another_version_are_replaced(postgres_url: str) -> None:
    """Also functions with another return type."""
    async with opened(postgres_url), connected(postgres_url) as admin:
        await admin.execute("drop function treadle.remove_worker(text)")
        await admin.execute(
            "create function treadle.remove_worker(who text) returns text language sql as 'select who'"
        )
        await admin.execute("update treadle.meta set value = 'old' where name = 'functions'")
    async with opened(postgres_url) as backend:
        assert await backend.remove_worker("unknown") == 0


async def test_a_migration_that_fails_leaves_nothing(postgres_url: str) -> None:
    """It is one transaction: the next process starts after the last migration that succeeded."""
    async with connected(postgres_url) as admin:
        await admin.execute("create schema treadle; create table treadle.ended_item (mine text)")
        with pytest.raises(Exception, match="already exists"):
            await PostgresBackend(postgres_url).open()
        assert await admin.fetchval("select to_regclass('treadle.item')") is None
        await admin.execute("drop table treadle.ended_item")
    async with opened(postgres_url) as backend:
        await submit(backend, item("a"))


VERSION_1 = """
create schema treadle;
create table treadle.meta (name text primary key, value text not null);
insert into treadle.meta values ('version', '1'), ('functions', 'old');
"""
"""What a database has besides the tables of the first migration, before those."""

ITEMS_OF_VERSION_1 = """
create function treadle.requeue(p_nos bigint[], p_redrives int, p_backoff float8) returns void
  language sql as $$ select $$;
create function treadle.naming(p_ids text[]) returns bigint[] language sql as $$ select null::bigint[] $$;

insert into treadle.worker (no, until, id) values (1000, 1e12, 'w');
insert into treadle.item (no, queued, due, keep, keep_dead, group_no, priority, attempts, need, id, tenant,
    type, queue, lane, group_id, parent, after, input, options)
  select x.no, 0, 0, 86400, null, x.group_no, 0, 3, x.need, x.id, 'default', 'work', 'default', '',
    case when x.group_no is not null then 'root' end, case when x.group_no is not null then 'root' end,
    x.after, '', ''
  from (values
    (1, 'ready', null::bigint, 0, null::text[]),
    (2, 'scheduled', null, 0, null),
    (3, 'running', null, 0, null),
    (4, 'blocked', null, 1, '{ready}'),
    (5, 'any', null, 1, '{lost}'),
    (6, 'doomed', null, 1, '{lost}'),
    (7, 'root', null, 0, null),
    (8, 'lost', 7, 0, null),
    (9, 'charge', 7, 0, null),
    (10, 'email', 7, 1, '{charge}'),
    (11, 'cancelled', 7, 0, null),
    (12, 'waiting', null, 1, '{missing}'),
    (13, 'alone', null, 0, null)) x(no, id, group_no, need, after);
insert into treadle.item (no, id, tenant) values (14, 'missing', 'default');
insert into treadle.open_item (no, seq, due, ready_since, status, priority, queue, tenant, lane, type,
    shown_status, verdict, counting, need, met, pending, worker, token, attempt, claimed)
  select x.no, x.no, x.due, 0, x.status, 0, 'default', 'default', '', 'work', x.shown_status, x.verdict,
    x.counting, x.need, x.met, x.pending, x.worker, x.token, x.attempt, x.claimed
  from (values
    (1, 0, 2, null::int, null::int, 0, 0, 0, 0, null::bigint, null::bigint, 0, null::float8),
    (2, 1e12, 1, null, null, 0, 0, 0, 0, null, null, 0, null),
    (3, 0, 5, null, null, 0, 0, 0, 0, 1000, 1, 1, 0),
    (4, 0, 0, null, null, 0, 1, 0, 1, null, null, 0, null),
    (5, 0, 2, null, null, 1, 1, 1, 0, null, null, 0, null),
    (6, 0, 4, 0, 5, 0, 1, 0, 0, null, null, 0, null),
    (12, 0, 0, null, null, 0, 1, 0, 1, null, null, 0, null))
    x(no, due, status, shown_status, verdict, counting, need, met, pending, worker, token, attempt, claimed);
insert into treadle.dependency (prerequisite, dependent) values (1, 4), (14, 12);
insert into treadle.ended_item (no, ended, started, due, token, attempt, outcome, reason, flags, worker,
    result)
  values
    (7, 1, 0, 0, 2, 1, 6, null, 1, 'w', 'value'),
    (8, 2, 0, 0, 3, 1, 7, 1, 0, 'w', null),
    (9, 3, 0, 0, 4, 1, 7, 1, 0, 'w', null),
    (10, 4, null, 0, 5, 0, 7, 5, 0, 'w', null),
    (11, 5, null, 0, null, 0, 8, null, 0, null, null),
    (13, 6, 0, 0, 6, 1, 7, 2, 0, 'w', null);
insert into treadle.item_group (no, open, dead, cancelled, version, contributed, ended, keep, prune_at, value)
  values (7, 0, 3, 1, 1, true, 5, 86400, 1e12, 'value');
select setval('treadle.number', 2000), setval('treadle.token', 2000);
"""
"""Items in all states, as version 1 stored them. `lost` died, and `any` counts any end of it."""


@pytest.mark.parametrize("version", [1, 7])
async def test_a_database_of_an_earlier_version_is_upgraded(postgres_url: str, version: int) -> None:
    """All items go on: also those that died, and groups that have ended."""
    async with connected(postgres_url) as admin:
        for script in (VERSION_1, migrations()[0][1], ITEMS_OF_VERSION_1):
            await admin.execute(script)
        for _, script in migrations()[1:version]:
            await admin.execute(script)
        await admin.execute(f"update treadle.meta set value = '{version}' where name = 'version'")
        async with opened(postgres_url) as backend:
            for wrong, query in WRONG.items():
                assert await admin.fetch(query) == [], wrong
            await consistent(backend)
            await _use_old_items(backend)
            for wrong, query in WRONG.items():
                assert await admin.fetch(query) == [], wrong
            await consistent(backend)
        signatures = (
            "select count(*) from pg_proc where proname = $1 and pronamespace = 'treadle'::regnamespace"
        )
        assert [await admin.fetchval(signatures, name) for name in ("requeue", "naming")] == [1, 1]


BEAT_OF_VERSION_4 = "select * from treadle.beat('w', 60, null, true, '{}', '{}', '{}')"

SETTLE_OF_VERSION_4 = """
select s.ended_row, s.lost_code from treadle.settle(
  row(array[$1::bigint], array[$2::bigint], array['default'], array[7], array[0], array[1], null, null, null,
    null, null, null, null, null, null, null, null)::treadle.settlements,
  null, false, false, true, false) s
"""


async def test_a_process_of_version_4_that_is_open_goes_on(postgres_url: str) -> None:
    """Its calls leave out what is new, and do what they did."""
    async with opened(postgres_url) as backend, connected(postgres_url) as admin:
        await submit(backend, item("a"))
        lease = await claim_one(backend)
        assert (await admin.fetchrow(BEAT_OF_VERSION_4))[:3] == (False, None, None)
        assert await admin.fetchrow(SETTLE_OF_VERSION_4, lease.ref, lease.token) == ([1], None)
        (mark,) = await backend.marks(tenant="default")
        assert (mark.mark, mark.sample) == ("", "a")
        for wrong, query in WRONG.items():
            assert await admin.fetch(query) == [], wrong


@pytest.mark.parametrize(
    ("version", "new"), [(5, r",\s+\$\d+::int, \$\d+::text\) f$"), (6, r", \$\d+::text\) f$")]
)
async def test_a_process_of_an_earlier_version_that_is_open_goes_on(
    postgres_url: str, version: int, new: str
) -> None:
    """Its call of `fire` has fewer arguments. The run is recorded."""
    fire = PostgresSchema("treadle").sql(re.sub(new, ") f", FIRE))
    assert fire != FIRE
    async with opened(postgres_url) as backend, connected(postgres_url) as admin:
        await backend.put_schedule(Schedule(name="s", next_at=5.0))
        call = SubmitCall([Submission((item("a"),))], {0: 7})
        arguments = [*call.arguments, call.first_row][: None if version == 6 else -1]
        assert (await admin.fetchrow(fire, "s", 5.0, 6.0, *arguments))["fired"]
        (run,) = await backend.schedule_runs()
        assert (run.name, run.at, run.id, run.tenant, run.status) == ("s", 5.0, "a", "default", "ready")
        signatures = "select count(*) from pg_proc where proname in ('fire', 'overview') and prokind = 'f'"
        assert await admin.fetchval(signatures) == 2


REQUEUE_OF_VERSION_7 = """
select (c.item).id from treadle.requeue(treadle.find_items($1::text[], null), null, 0, false, false) c
"""


async def test_a_process_of_version_7_that_is_open_goes_on(postgres_url: str) -> None:
    """It reads what it knew of leases by position: the first columns, and the last one."""
    async with opened(postgres_url) as backend, connected(postgres_url) as admin:
        await submit(backend, item("a"))
        lease = await claim_one(backend)
        await backend.record([Record(lease=lease, steps=(StepRecord(name="one"),))])
        await apply(backend, defer(lease))
        claimed, _ = await admin.fetch("select * from treadle.claim('w', 5, null, null, null)")
        (unknown,) = await admin.fetch("select * from treadle.unknown_leases('w', '{}')")
        for row in (claimed, unknown):
            assert (row[0], row[25], row[-1]) == ("a", row["ready"], 1)
        (again,) = await backend.unknown_leases("w", [])
        await apply(backend, die(again))
        assert await admin.fetchval(REQUEUE_OF_VERSION_7, ["a"]) == "a"
        assert (await claim_one(backend)).has_steps


async def _use_old_items(backend: PostgresBackend) -> None:
    (old,) = await backend.marks(tenant="default")
    assert (old.mark, old.count, old.sample, old.oldest_queued_at) == ("old:work", 4, "alone", 0)
    assert (await backend.overview()).counts == tuple(sorted(await backend.counts(), key=_labels))
    found = await group(backend, "root")
    assert (found.value, found.failed, [one.id for one in found.deaths]) == (b"value", 2, ["charge", "email"])
    assert found.cancelled is not None
    assert (await group(backend, "alone")).failed == 1
    assert (await state(backend, "waiting")).waiting_for == ("missing",)
    changed = await backend.requeue(["charge", "lost"])
    assert [one.id for one in changed.items] == ["charge", "lost", "email"]
    expected = ["ready", "ready", "blocked", "blocked", "blocked", "ready"]
    assert await statuses(backend, "charge", "lost", "email", "blocked", "doomed", "any") == expected
    assert ((await group(backend, "root")).open, (await group(backend, "root")).failed) == (3, 0)
    (running,) = await backend.unknown_leases("w", [])
    await apply(backend, succeed(running))
    await submit(backend, item("missing"), dependent("\x1eroot", id="after"))
    leases = by_id(await claim(backend))
    assert leases.keys() == {"ready", "any", "charge", "lost", "missing"}
    await apply(backend, *(die(lease) if id == "lost" else succeed(lease) for id, lease in leases.items()))
    assert await statuses(backend, "blocked", "email", "waiting", "after") == [
        "ready",
        "ready",
        "ready",
        "blocked",
    ]
    answer = await claim_answer(backend)
    await apply(
        backend,
        *(
            Settlement(lease=lease, kind="dead", reason=lease.verdict) if lease.verdict else succeed(lease)
            for lease in answer.leases
        ),
    )
    # `any` tolerates the death of `lost`, but a member was cancelled: the group is no success.
    assert await statuses(backend, "doomed", "email", "after") == ["dead", "success", "blocked"]
    assert (await group(backend, "root")).failed == 0


def _labels(count: Count) -> tuple[str, str, str, str]:
    return count.tenant, count.queue, count.type, count.status


async def test_two_schemas_in_one_database_are_separate(postgres_url: str) -> None:
    """Several apps share a database, each in its own schema."""
    async with opened(postgres_url) as one, opened(postgres_url, schema="Other_app") as other:
        await submit(one, item("a"))
        await submit(other, item("a", input=b"other"))
        assert (await claim_one(other)).input == b"other"
        assert await status(one, "a") == "ready"


@pytest.mark.parametrize("name", ["", "a b", 'x"; drop table item; --', "1st", "x" * 60, "a.b", "é"])
def test_odd_schema_names_are_refused(name: str) -> None:
    """The name is written into every statement."""
    with pytest.raises(InputError):
        PostgresBackend("postgresql://localhost/x", schema=name)


async def test_opening_without_a_server_fails() -> None:
    """It raises `StoreUnavailable` and leaves no connection behind."""
    backend = PostgresBackend("postgresql://localhost:1/none", connect_timeout=2)
    with pytest.raises(StoreUnavailable):
        await backend.open()
    await backend.close()


async def test_another_collation_changes_no_order(postgres_url: str) -> None:
    """Names are always compared by their bytes, also in a database with another collation."""
    parts = urlsplit(postgres_url)
    name = f"{parts.path[1:]}_icu"
    async with connected(postgres_url) as admin:
        try:
            await admin.execute(
                f"create database {name} template template0 locale_provider icu icu_locale 'en'"
            )
        except asyncpg.FeatureNotSupportedError:
            pytest.skip("this server was built without ICU, the other way to compare texts")
        try:
            async with opened(urlunsplit(parts._replace(path=f"/{name}"))) as backend:
                await _claim_from_lanes(backend)
        finally:
            await admin.execute(f"drop database {name} with (force)")


async def _claim_from_lanes(backend: PostgresBackend) -> None:
    lanes = ["a", "B", "_", "-", "Z", "é", "z", "10", "9", "aB", "Ab", "ß"]
    for lane in lanes:
        await submit(backend, *items(3, lane=lane))
    served: list[str] = []
    fairness: object = None
    for size in (5, 1, 7, 11, 12):
        claimed = await claim_answer(backend, size, fairness=fairness)
        served += [lease.lane for lease in claimed.leases]
        fairness = claimed.fairness
    assert [sorted(served[n : n + 12]) for n in (0, 12, 24)] == [sorted(lanes)] * 3
    assert served[:12] == sorted(lanes)
