"""What the tests of the PostgreSQL backend share."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from treadle.backends.postgres import PostgresBackend

READY = """
with n as (select nextval('treadle.number') as no from generate_series(1, $1::int)),
i as (
  insert into treadle.item (no, queued, due, keep, priority, attempts, need, id, tenant, type, queue, lane,
      input, options)
    select no, 0, 0, 86400, 0, 3, 0, 'x' || no, 'default', 'work', 'default', 'l' || (no % 10), '', '' from n
)
insert into treadle.job (no, seq, due, since, status, priority, budget, queue, tenant, lane, type)
  select no, no, 0, 0, 2, 0, 3, 'default', 'default', 'l' || (no % 10), 'work' from n
"""
"""So many ready items, in ten lanes, quicker than by `submit`."""

WRONG = {
    "groups that count wrongly": """
        select g.no from treadle.grp g where g.open <> (select count(*) from treadle.job j where j.grp = g.no)
          or g.dead <> (select count(*) from treadle.item i join treadle.done d on d.no = i.no
                        where (i.no = g.no or i.grp = g.no) and d.outcome = 7)
          or g.cancelled <> (select count(*) from treadle.item i join treadle.done d on d.no = i.no
                             where (i.no = g.no or i.grp = g.no) and d.outcome = 8)
          or (g.ended is null) <> (g.open > 0)""",
    "gates that count wrongly": """
        select j.no from treadle.job j where j.status = 0 and (
          j.open <> (select coalesce(sum(e.times), 0) from treadle.edge e where e.dst = j.no)
          or j.met >= j.need or j.met + j.open < j.need)""",
    "edges from what has ended": """
        select e.src from treadle.edge e where not exists (select 1 from treadle.job j where j.no = e.src)
          and not exists (select 1 from treadle.item i where i.no = e.src and i.type is null)""",
    "items in no state, or in two": """
        select i.no from treadle.item i where i.type is not null and
          (select count(*) from treadle.job j where j.no = i.no)
          + (select count(*) from treadle.done d where d.no = i.no) <> 1""",
    "items that run on nobody": """
        select j.no from treadle.job j where j.status = 5
          and not exists (select 1 from treadle.worker w where w.no = j.worker)""",
    "members that do not know their group": """
        select i.no from treadle.item i join treadle.job j on j.no = i.no
        where i.grp is not null and j.grp is distinct from i.grp""",
    "rows of nothing": """
        select x.no from (select no from treadle.done union all select no from treadle.attempt
                          union all select no from treadle.job) x
        where not exists (select 1 from treadle.item i where i.no = x.no)""",
}
"""Queries that find nothing if the tables agree with each other."""


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
