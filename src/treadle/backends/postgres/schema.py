"""Schema: the tables, by numbered migrations, and the functions, whose text is the version.

Both are applied in one transaction under an advisory lock, so that processes that start at once do it once.
The functions are replaced whenever their text is not that of this library; the clock is not one of them,
so that a test can put another in its place.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from treadle.errors import InputError, SchemaError

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]

_HERE = files("treadle.backends.postgres")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_QUALIFIED = re.compile(r"\btreadle\.")
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")

VERSION: Final = 1


def check_schema(name: str) -> str:
    """`name`, if it may be a schema's: it is written into every statement."""
    if not _SCHEMA.fullmatch(name):
        raise InputError.of("schema", name, "must be a letter or _, then up to 47 letters, digits or _")
    return name


class Schema:
    """The SQL of one schema, and how to bring a database to it."""

    def __init__(self, name: str) -> None:
        self.name = check_schema(name)
        self._qualifier = f'"{name}".'

    def sql(self, text: str) -> str:
        """`text`, written for the schema `treadle`, for this one."""
        return _QUALIFIED.sub(self._qualifier, text)

    async def check(self, connection: Connection) -> None:
        """`SchemaError` unless the database has exactly this version."""
        found = _version(await self._meta(connection))
        if found != VERSION:
            raise SchemaError(found, VERSION)

    async def apply(self, connection: Connection) -> None:
        """Bring the database to this version. Cheap when it is there."""
        if await self._current(connection):
            return
        async with connection.transaction():
            await connection.execute("set local lock_timeout = 0; set local statement_timeout = 0")
            await connection.execute(
                "select pg_advisory_xact_lock(hashtextextended($1, 0))", f"treadle.schema.{self.name}"
            )
            if not await self._current(connection):
                await self._migrate(connection)
                await self._define(connection)

    async def _current(self, connection: Connection) -> bool:
        meta = await self._meta(connection)
        found = _version(meta)
        if found is not None and found > VERSION:
            raise SchemaError(found, VERSION)
        return found == VERSION and meta.get("functions") == functions_hash()

    async def _meta(self, connection: Connection) -> dict[str, str]:
        """What the schema says about itself; nothing if it is not there."""
        if await connection.fetchval("select to_regclass($1)::oid", f'"{self.name}".meta') is None:
            return {}
        return dict(await connection.fetch(self.sql("select name, value from treadle.meta")))

    async def _migrate(self, connection: Connection) -> None:
        if await connection.fetchval("select to_regnamespace($1)::oid", f'"{self.name}"') is None:
            await connection.execute(f'create schema "{self.name}"')
        await connection.execute(
            self.sql("create table if not exists treadle.meta (name text primary key, value text not null)")
        )
        found = _version(await self._meta(connection)) or 0
        for number, text in migrations():
            if number > found:
                await connection.execute(self.sql(text))
                await self._set_meta(connection, "version", str(number))

    async def _define(self, connection: Connection) -> None:
        for text in functions():
            await self._replace(connection, self.sql(text))
        await self._set_meta(connection, "functions", functions_hash())

    async def _replace(self, connection: Connection, text: str) -> None:
        try:
            async with connection.transaction():
                await connection.execute(text)
        except asyncpg.InvalidFunctionDefinitionError:
            # What a function returns cannot be replaced: the old one goes first.
            for name in re.findall(r'create or replace function "\w+"\.(\w+)\(', text):
                await self._drop(connection, name)
            await connection.execute(text)

    async def _drop(self, connection: Connection, function: str) -> None:
        for (signature,) in await connection.fetch(
            "select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
            " where n.nspname = $1 and p.proname = $2",
            self.name,
            function,
        ):
            await connection.execute(f"drop function {signature}")

    async def _set_meta(self, connection: Connection, name: str, value: str) -> None:
        await connection.execute(
            self.sql(
                "insert into treadle.meta values ($1, $2)"
                " on conflict (name) do update set value = excluded.value"
            ),
            name,
            value,
        )


def _version(meta: dict[str, str]) -> int | None:
    return int(meta["version"]) if "version" in meta else None


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Number and text of each, in order."""
    found = [
        (int(match[1]), file.read_text("utf-8"))
        for file in (_HERE / "migrations").iterdir()
        if (match := _MIGRATION.fullmatch(file.name))
    ]
    return tuple(sorted(found))


@cache
def functions() -> tuple[str, ...]:
    return tuple(file.read_text("utf-8") for file in _sql_files())


@cache
def functions_hash() -> str:
    return hashlib.sha256("\n".join(functions()).encode()).hexdigest()[:32]


def _sql_files() -> list[Traversable]:
    return sorted((file for file in (_HERE / "sql").iterdir() if file.name.endswith(".sql")), key=_name)


def _name(file: Traversable) -> str:
    return file.name


def schema_sql(name: str = "treadle") -> str:
    """All of it, as one script for `psql`: for those who run DDL themselves (`apply_schema=False`)."""
    schema = Schema(name)
    tables = "\n".join(text for _, text in migrations())
    begun = f'begin;\ncreate schema if not exists "{name}";'
    meta = schema.sql("create table treadle.meta (name text primary key, value text not null);")
    values = f"insert into treadle.meta values ('version', '{VERSION}'), ('functions', '{functions_hash()}');"  # noqa: S608
    parts = (begun, meta, schema.sql(values), schema.sql(tables), *map(schema.sql, functions()), "commit;\n")
    return "\n".join(parts)
