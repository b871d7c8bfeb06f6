"""Helpers of the tests of the PostgreSQL backend."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres.wakeups import channel_name

READY = """
with n as (select nextval('treadle.number') as no from generate_series(1, $1::int)),
i as (
  insert into treadle.item (no, queued, due, keep, priority, attempts, need, id, tenant, type, queue, lane,
      input, options)
    select no, 0, 0, 86400, 0, 3, 0, 'x' || no, 'default', 'work', 'default', 'l' || (no % 10), '', '' from n
)
insert into treadle.open_item (no, seq, due, ready_since, status, priority, queue, tenant, lane, type)
  select no, no, 0, 0, 2, 0, 'default', 'default', 'l' || (no % 10), 'work' from n
"""
"""Insert `$1` ready items in ten lanes, faster than `submit`."""

WRONG = {
    "groups with a wrong count": """
        select g.no from treadle.item_group g
        where g.open <> (select count(*) from treadle.open_item o where o.group_no = g.no)
          or g.dead <> (select count(*) from treadle.item i join treadle.ended_item e on e.no = i.no
                        where coalesce(i.group_no, i.no) = g.no and e.outcome = 7)
          or g.cancelled <> (select count(*) from treadle.item i join treadle.ended_item e on e.no = i.no
                             where coalesce(i.group_no, i.no) = g.no and e.outcome = 8)
          or g.failed < (select count(*) from treadle.item i join treadle.ended_item e on e.no = i.no
                         where coalesce(i.group_no, i.no) = g.no and e.outcome = 7 and e.flags & 8 = 0)
          or (g.ended is null) <> (g.open > 0)
          or exists (select 1 from treadle.item i
                     where i.no = g.no and (i.group_no is null) <> (g.outermost is null))""",
    "blocked items with a wrong count": """
        select o.no from treadle.open_item o where o.status = 0 and (
          o.pending <> (select coalesce(sum(d.times), 0) from treadle.dependency d where d.dependent = o.no)
          or o.met >= o.need or o.met + o.pending < o.need)""",
    "dependencies on ended items": """
        select d.prerequisite from treadle.dependency d
        where not d.of_group and not exists (select 1 from treadle.open_item o where o.no = d.prerequisite)
          and not exists (select 1 from treadle.item i where i.no = d.prerequisite and i.type is null)""",
    "dependencies on ended groups": """
        select d.prerequisite from treadle.dependency d
          left join treadle.item_group g on g.no = d.prerequisite
        where d.of_group and case when g.no is not null then g.ended is not null
          else not exists (select 1 from treadle.open_item o where o.no = d.prerequisite)
            and not exists (select 1 from treadle.item i where i.no = d.prerequisite
                            and (i.type is null or i.group_no is not null)) end""",
    "nested groups that are open without an item that waits": """
        select g.no from treadle.item_group g join treadle.open_item o on o.no = g.no
        where g.outermost is not null and g.ended is null and o.status <> 0 and o.verdict is null""",
    "items that are neither open nor ended, or both": """
        select i.no from treadle.item i where i.type is not null and
          (select count(*) from treadle.open_item o where o.no = i.no)
          + (select count(*) from treadle.ended_item e where e.no = i.no) <> 1""",
    "running items without a worker": """
        select o.no from treadle.open_item o where o.status = 5
          and not exists (select 1 from treadle.worker w where w.no = o.worker)""",
    "members without their group": """
        select i.no from treadle.item i join treadle.open_item o on o.no = i.no
        where i.group_no is not null and o.group_no is distinct from i.group_no""",
    "rows without an item": """
        select x.no from (select no from treadle.ended_item union all select no from treadle.attempt
                          union all select no from treadle.open_item union all select no from treadle.step
                          union all select no from treadle.mail union all select no from treadle.progress
                          union all select no from treadle.chunk) x
        where not exists (select 1 from treadle.item i where i.no = x.no)""",
    "items whose steps or streams stay when they go": """
        select x.no from (
          select no, recorded & 1 as steps, recorded & 2 as stream from treadle.open_item
          union all select no, flags & 32, flags & 64 from treadle.ended_item) x
        where x.steps = 0 and exists (select 1 from treadle.step s where s.no = x.no)
          or x.stream = 0 and (exists (select 1 from treadle.progress p where p.no = x.no)
                               or exists (select 1 from treadle.chunk c where c.no = x.no))""",
    "signals that a wait has not taken": """
        select o.no from treadle.open_item o join treadle.step s on s.no = o.no
          join treadle.mail m on m.no = o.no and m.name = s.signal and not m.taken
        where o.suspended and o.status <> 5 and not s.over and coalesce(s.until > treadle.clock(), true)""",
}
"""Queries that find rows only if the tables contradict each other."""


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[PostgresBackend]:
    """An open backend."""
    backend = PostgresBackend(url, **options)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def connected(url: str) -> "AsyncGenerator[asyncpg.Connection]":
    """A connection that is not the backend's."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def wake_channel(connection: "asyncpg.Connection") -> str:
    """The channel of the wake-ups, as a role that may read the schema knows it."""
    return channel_name(await connection.fetchval("select value from treadle.meta where name = 'wake_key'"))
