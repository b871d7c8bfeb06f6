"""New databases on any PostgreSQL server."""

import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.support.sessions import RETURNED


class Postgres:
    """A server, and new databases on it."""

    def __init__(self, url: str, *, strategy: str = "WAL_LOG") -> None:
        self.url = url
        self._strategy = sql.Identifier(strategy)
        self._admin = psycopg.connect(url, autocommit=True)

    @classmethod
    def throwaway(cls, url: str) -> "Postgres":
        """A server without fsync, where copying files is the faster way to make a database."""
        return cls(url, strategy="FILE_COPY")

    def __enter__(self) -> "Postgres":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admin.close()

    @contextmanager
    def database(self, template: str = "template0") -> Generator[str]:
        """The URL of a new database. It is dropped at the end, even if clients are connected."""
        name = f"treadle_{uuid.uuid4().hex[:16]}"
        self._create(name, template)
        try:
            yield urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        finally:
            self._drop(name)

    def _create(self, name: str, template: str) -> None:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}")
        names = (sql.Identifier(name), sql.Identifier(template), self._strategy)
        self._admin.execute(create.format(*names))

    def _drop(self, name: str) -> None:
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        self._admin.execute(drop.format(sql.Identifier(name)))


WORN = 500
"""A database that had this many rows is not reused. Deleted rows still fill its files."""
TIMES = 30
"""How often a database is reused."""

# The schema: a change of it changes the row of the catalogue that describes it. And everything that
# stays when all rows are deleted.
SHAPE = """
select md5(string_agg(seen, ',' order by seen)) from (
  select 'class ' || oid || ' ' || xmin as seen from pg_class where oid >= 16384
  union all select 'column ' || attrelid || ' ' || attnum || ' ' || xmin from pg_attribute
    where attrelid >= 16384
  union all select 'function ' || oid || ' ' || xmin from pg_proc where oid >= 16384
  union all select 'schema ' || oid || ' ' || xmin from pg_namespace where oid >= 16384
  union all select 'constraint ' || oid || ' ' || xmin from pg_constraint where oid >= 16384
  union all select 'trigger ' || oid || ' ' || xmin from pg_trigger
  union all select 'type ' || oid || ' ' || xmin from pg_type where oid >= 16384
  union all select 'extension ' || oid || ' ' || xmin from pg_extension
  union all select 'meta ' || meta::text from treadle.meta
  union all select 'setting ' || setconfig::text from pg_db_role_setting
    where setdatabase = (select oid from pg_database where datname = current_database())
  union all select 'transaction ' || gid from pg_prepared_xacts where database = current_database()) found
"""
DISCONNECT = f"""
select pg_terminate_backend(pid, 60000) from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    and query not like '{RETURNED}%'
"""
DROP_TABLES = """
do $$
declare mine text;
begin
  for mine in select tablename from pg_tables where schemaname = 'public' loop
    execute format('drop table if exists public.%I cascade', mine);
  end loop;
end $$
"""
RESTART = "select setval(seqrelid, seqstart, false) from pg_sequence"


def deletion(connection: psycopg.Connection, *kept: str) -> str:
    """A statement that deletes the rows of all tables but these, and returns how many there were. Each
    session plans it once: to plan 30 statements takes 20 times as long as to run them."""
    found = connection.execute(
        "select quote_ident(tablename) from pg_tables where schemaname = 'treadle' and tablename <> all(%s)",
        [list(kept)],
    )
    tables = [name for (name,) in found]
    parts = (f"gone{n} as (delete from treadle.{name} returning 1)" for n, name in enumerate(tables))
    total = " + ".join(f"(select count(*) from gone{n})" for n in range(len(tables)))
    return f"with {', '.join(parts)} select {total}"


class Copy:
    """A database and an open connection to it. Connecting is the slowest part of checking and emptying it."""

    def __init__(self, postgres: Postgres, template: str) -> None:
        self.times = 0
        with ExitStack() as stack:
            self.url = stack.enter_context(postgres.database(template))
            self._connection = stack.enter_context(psycopg.connect(self.url, autocommit=True))
            self.drop = stack.pop_all().close
        self._deletion = deletion(self._connection, "meta")

    def empty(self) -> int:
        """Delete all rows, and return how many there were."""
        self._connection.execute(DISCONNECT, prepare=True)
        (gone,) = self._connection.execute(self._deletion.encode(), prepare=True).fetchone() or (0,)
        self._connection.execute(RESTART, prepare=True)
        return gone

    def drop_tables(self) -> None:
        """Drop the tables that a test has made beside those of treadle."""
        self._connection.execute(DISCONNECT, prepare=True)
        self._connection.execute(DROP_TABLES)

    def shape(self) -> object:
        return self._connection.execute(SHAPE, prepare=True).fetchone()


class Prepared:
    """Databases with empty tables: copies of `template`.

    A database in which only rows changed is emptied and reused. That takes a sixth of the time of a copy.
    """

    def __init__(self, postgres: Postgres, template: str) -> None:
        self._postgres = postgres
        self._template = urlsplit(template).path.removeprefix("/")
        self._idle: list[Copy] = [self._copied()]
        self._shape = self._idle[0].shape()

    def close(self) -> None:
        for copy in self._idle:
            copy.drop()

    @contextmanager
    def fresh(self) -> Generator[str]:
        """The URL of a new one, for one test. It has no statistics, and no dead rows."""
        with self._postgres.database(self._template) as url:
            yield url

    @contextmanager
    def database(self) -> Generator[str]:
        """The URL of one of them."""
        copy = self._idle.pop() if self._idle else self._copied()
        copy.times += 1
        try:
            yield copy.url
        finally:
            if copy.times < TIMES and self._as_new(copy):
                self._idle.append(copy)
            else:
                copy.drop()

    def _copied(self) -> Copy:
        return Copy(self._postgres, self._template)

    def _as_new(self, copy: Copy) -> bool:
        try:
            if copy.shape() != self._shape:
                copy.drop_tables()
                if copy.shape() != self._shape:
                    return False
            return copy.empty() < WORN
        except psycopg.Error:  # it cannot be checked, so it is not reused
            return False
