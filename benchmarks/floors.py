"""The floors: the driver alone, with only the statements that any queue needs, on the same tables.

No fairness, no fencing, no groups, no events. Rows are inserted, claimed in batches, and their results kept.
The difference to a backend is the price of its guarantees.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.measure import Stopwatch

INPUT = b'{"i":123456}'
RESULT = b"123456"

PG_SUBMIT = """
with i as (
  insert into treadle.item (no, nonce, queued, due, keep, priority, attempts, need, id, tenant, type, queue,
                            lane, input, options)
    select nextval('treadle.number'), 1, $2, $2, 86400, 0, 3, 0, u.id, 'default', 'noop', 'default',
           '', $3, ''
    from unnest($1::text[]) u(id) returning no)
insert into treadle.open_item (no, seq, due, ready_since, status, priority, queue, tenant, lane, type)
  select no, no, $2, $2, 2, 0, 'default', 'default', '', 'noop' from i
"""

PG_SUBMIT_AND_TELL = (
    PG_SUBMIT.replace("returning no)\ninsert into", "returning no),\nj as (insert into")
    + ") select pg_notify('floor', '')"
)

PG_CLAIM = """
with c as materialized (
  select no from treadle.open_item
    where queue = 'default' and tenant = 'default' and lane = '' and status = 2
    order by queue, tenant, lane, priority desc, seq limit $1 for update skip locked),
j as (
  update treadle.open_item j set status = 5, attempt = j.attempt + 1, token = nextval('treadle.token'),
                                 worker = 1, claimed = $2
    where j.no = any(array(select no from c)) returning j.no, j.token, j.attempt)
select j.no, j.token, j.attempt, i.id, i.type, i.input from j join treadle.item i on i.no = j.no
"""

PG_SETTLE = """
with d as (delete from treadle.open_item j where j.no = any($1::bigint[])
             returning j.no, j.token, j.attempt, j.due, j.claimed)
insert into treadle.ended_item (no, ended, started, due, prune_at, token, attempt, outcome, worker, result)
  select d.no, $2::float8, d.claimed, d.due, $2::float8 + 86400, d.token, d.attempt, 6, 'floor', $3 from d
"""


async def pg_submit(url: str, count: int, batch: int = 1000) -> float:
    """Items per second, in bulk."""
    connection = await asyncpg.connect(url)
    try:
        with Stopwatch() as watch:
            for start in range(0, count, batch):
                ids = [f"{start + i:032x}" for i in range(min(batch, count - start))]
                await connection.execute(PG_SUBMIT, ids, 1.7e9, INPUT)
        return count / watch.seconds
    finally:
        await connection.close()


async def pg_submit_singly(url: str, count: int) -> float:
    connection = await asyncpg.connect(url)
    try:
        with Stopwatch() as watch:
            for i in range(count):
                await connection.execute(PG_SUBMIT, [f"one{i:029x}"], 1.7e9, INPUT)
        return count / watch.seconds
    finally:
        await connection.close()


async def pg_drain(url: str, count: int, batch: int = 500) -> float:
    """Claim and settle on two connections. The next claim runs during a settle."""
    claims, settles = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        with Stopwatch() as watch:
            settling: asyncio.Task[Any] | None = None
            while rows := await claims.fetch(PG_CLAIM, batch, 1.7e9):
                if settling is not None:
                    await settling
                numbers = [row["no"] for row in rows]
                settling = asyncio.create_task(settles.execute(PG_SETTLE, numbers, 1.7e9, RESULT))
            if settling is not None:
                await settling
        return count / watch.seconds
    finally:
        await claims.close()
        await settles.close()


SQLITE_ITEM = """
INSERT INTO treadle_item
    (no, id, tenant, type, queue, lane, priority, attempts, group_no, queued_at, keep, options, input)
VALUES (?, ?, 'default', 'noop', 'default', '', 0, 3, ?, 1.7e9, 86400, x'', ?)
"""
SQLITE_OPEN = """
INSERT INTO treadle_open (no, status, queue, tenant, type, lane, rank, seq, due, ready_since, attempts)
VALUES (?, 2, 'default', 'default', 'noop', '', 0, ?, 1.7e9, 1.7e9, 3)
"""
SQLITE_CLAIM = """
SELECT open.no, item.id, item.type, item.input
FROM treadle_open open JOIN treadle_item item ON item.no = open.no
WHERE open.queue = 'default' AND open.tenant = 'default' AND open.lane = '' AND open.status = 2
ORDER BY open.rank, open.seq LIMIT ?
"""
SQLITE_TAKE = """
UPDATE treadle_open SET status = 4, attempt = attempt + 1, token = ?, worker = 1, started = 1.7e9 WHERE no = ?
"""
SQLITE_DONE = """
INSERT INTO treadle_done
    (no, outcome, token, attempt, redrives, due, started, ended, expires, contributed, worker, result)
VALUES (?, 10, 1, 1, 0, 1.7e9, 1.7e9, 1.7e9, 1.8e9, 1, 'floor', ?)
"""


def _sqlite(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(Path(url.removeprefix("sqlite:///")), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def sqlite_submit(url: str, count: int, batch: int = 1000) -> float:
    connection = _sqlite(url)
    with Stopwatch() as watch:
        for start in range(1, count + 1, batch):
            numbers = range(start, min(start + batch, count + 1))
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(SQLITE_ITEM, [(n, f"{n:032x}", n, INPUT) for n in numbers])
            connection.executemany(SQLITE_OPEN, [(n, n) for n in numbers])
            connection.execute("COMMIT")
    connection.close()
    return count / watch.seconds


def sqlite_drain(url: str, count: int, batch: int = 500) -> float:
    connection = _sqlite(url)
    with Stopwatch() as watch:
        while True:
            connection.execute("BEGIN IMMEDIATE")
            rows = connection.execute(SQLITE_CLAIM, (batch,)).fetchall()
            connection.executemany(SQLITE_TAKE, [(row[0], row[0]) for row in rows])
            connection.execute("COMMIT")
            if not rows:
                break
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM treadle_open WHERE no = ?", [(row[0],) for row in rows])
            connection.executemany(SQLITE_DONE, [(row[0], RESULT) for row in rows])
            connection.execute("COMMIT")
    connection.close()
    return count / watch.seconds


async def pg_notified(url: str, times: int) -> list[float]:
    """Milliseconds from before an insert until a listener, woken by it, has claimed it."""
    submits, listens, claims = [await asyncpg.connect(url) for _ in range(3)]
    woken = asyncio.Event()
    taken: list[float] = []
    try:
        await listens.add_listener("floor", lambda *_: woken.set())
        for i in range(times + 10):
            await asyncio.sleep(0.003)
            woken.clear()
            start = time.perf_counter()
            await submits.execute(PG_SUBMIT_AND_TELL, [f"woken{i:027x}"], 1.7e9, INPUT)
            await woken.wait()
            rows = await claims.fetch(PG_CLAIM, 1, 1.7e9)
            taken.append((time.perf_counter() - start) * 1000)
            await claims.execute(PG_SETTLE, [row["no"] for row in rows], 1.7e9, RESULT)
        return taken[10:]
    finally:
        for connection in (submits, listens, claims):
            await connection.close()
