"""Watching: transactions, of anybody, that keep the server from cleaning up after us.

Rows that have ended are removed by vacuum once no transaction can see them any more. One that stays open, a
report or a forgotten console, pins that horizon: dead rows pile up just where the next claim looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.errors import BackendError, LongTransaction

from .base import Verbs
from .calls import Record

# Sessions of other roles show their start only to members of pg_read_all_stats.
PINNING: Final = """
select 'pid ' || pid || coalesce(' (' || nullif(application_name, '') || ', ' || state || ')', '') as holder,
    pid, extract(epoch from clock_timestamp() - xact_start)::float8 as seconds,
    'select pg_terminate_backend(' || pid || ')' as advice
  from pg_stat_activity
  where coalesce(backend_xid, backend_xmin) is not null and pid <> pg_backend_pid()
    and datname = current_database() and backend_type = 'client backend'
    and xact_start < clock_timestamp() - $1 * interval '1 second'
union all
select 'the prepared transaction ' || quote_literal(gid), null,
    extract(epoch from clock_timestamp() - prepared)::float8,
    'commit prepared or rollback prepared ' || quote_literal(gid)
  from pg_prepared_xacts
  where database = current_database() and prepared < clock_timestamp() - $1 * interval '1 second'
order by seconds desc limit 10
"""
AGAIN: Final = 2.0
"""Told again when it has become so many times older."""


class Watching(Verbs):
    def __init__(self) -> None:
        super().__init__()
        self._long_transaction: float | None = None
        self._told: dict[str, float] = {}

    async def inspect(self) -> Sequence[BackendError]:
        if self._long_transaction is None:
            return ()
        found = await self._calls.rows(PINNING, self._long_transaction)
        news = [_trouble(row) for row in found if self._is_news(row)]
        self._told = {row["holder"]: self._told[row["holder"]] for row in found}
        return news

    def _is_news(self, row: Record) -> bool:
        holder, age = row["holder"], row["seconds"]
        told = self._told.get(holder)
        # Younger than what was told of: another one of the same session.
        if told is not None and told <= age < told * AGAIN:
            return False
        self._told[holder] = age
        return True


def _trouble(row: Record) -> LongTransaction:
    return LongTransaction(row["holder"], row["seconds"], row["advice"], pid=row["pid"])
