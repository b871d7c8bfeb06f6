"""Schema: the tables, by numbered migrations, and the functions, whose text is their version.

Both are applied in one transaction under an advisory lock, so that processes that start together do it
once. The functions are replaced whenever their text differs from that of this library. The clock is not one
of them, so that a test can replace it.

Another role must not be able to change what a statement does (see decision 0007). The functions pin their
search path, and a schema in which an untrusted role could replace something is refused.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Any, Final, TypeAlias

import asyncpg

from treadle.errors import (
    BackendError,
    InputError,
    SchemaError,
    StoreMoved,
    StoreUnfinished,
    UntrustedSchema,
)
from treadle.records import StoreMark

from .statements import FILES, statement, statements, text

Connection: TypeAlias = "asyncpg.Connection[Any]"

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_QUALIFIED = re.compile(r"\btreadle\.")
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")
_COMMENT = re.compile(r"--[^\n]*")
_FUNCTION = re.compile(r'create or replace function "\w+"\.(\w+)\(')
_CALL = re.compile(r"\btreadle\.(\w+)\(")
_HEAD = re.compile(
    r"(?<=create or replace function treadle\.)(\w+)(\((?:(?!create or replace).)*?\blanguage plpgsql\b)(.*?)"
    r"(?=\bas \$\$)",
    re.DOTALL,
)
_PIN: Final = " set search_path = pg_catalog, pg_temp"

VERSION: Final = 10

MOVED: Final = 2
IMPORTING: Final = 3
"""What the column `state` of a mark says."""

_sql = statements("schema")


class PostgresSchema:
    """The SQL of one schema, and how to bring a database to it."""

    def __init__(self, name: str, owner: str | None = None) -> None:
        if not _SCHEMA.fullmatch(name):  # it is written into every statement
            raise InputError.of("schema", name, "must be a letter or _, then up to 47 letters, digits or _")
        self.name = name
        self._owner = owner
        self._qualifier = f'"{name}".'

    def sql(self, text: str) -> str:
        """`text`, which names the schema `treadle`, for this schema."""
        return _QUALIFIED.sub(self._qualifier, text)

    async def check(self, connection: Connection, *, newer: bool = False) -> None:
        """Raise `SchemaError` unless the database has exactly this version. newer: or a newer one."""
        found = _version(await self._meta(connection))
        if found != VERSION and not (newer and found is not None and found > VERSION):
            raise SchemaError(found, VERSION)

    async def apply(self, connection: Connection) -> None:
        """Bring the database to this version. Cheap if it has it. Call `check_roles` before."""
        if await self._is_current(connection):
            return
        async with connection.transaction():
            await connection.execute(statement("connection", "pin_search_path"))
            await connection.execute(_sql("no_timeouts"))
            await connection.execute(_sql("lock"), f"treadle.schema.{self.name}")
            if not await self._is_current(connection):
                await self._migrate(connection)
                await self._define_functions(connection)

    async def mark(self, connection: Connection) -> StoreMark | None:
        """The mark of a store that is out of sight: see moving.py."""
        if await connection.fetchval(_sql("table_oid"), f'"{self.name}".part') is None:
            return None
        row = await connection.fetchrow(self.sql(statement("moving", "mark")))
        if row is None:
            return None
        if row["state"] == MOVED:
            return StoreMark(state="moved", move=row["move"], to=row["other"], content=row["content"])
        return StoreMark(state="importing", move=row["move"], source=row["other"], whole=True)

    async def owned(self, connection: Connection) -> str | None:
        """The last move that the store owned."""
        return (await self._meta(connection)).get("owned")

    async def identity(self, connection: Connection) -> str | None:
        """The key of its wake-ups, and which schema it is: a copy has that key too."""
        key = (await self._meta(connection)).get("wake_key")
        oids = await connection.fetchval(statement("moving", "oids"), f'"{self.name}"')
        return None if key is None or oids is None else f"{key}:{oids}"

    async def set_owned(self, connection: Connection, move: str) -> None:
        await connection.execute(self.sql(_sql("set_meta")), "owned", move)

    async def check_unmarked(self, connection: Connection) -> None:
        """Raise what the mark of the store says. A mark of an untrusted role says nothing: call `check_roles`
        before."""
        mark = await self.mark(connection)
        if mark is not None:
            raise refusal(mark)

    async def wake_key(self, connection: Connection) -> str:
        """The key of the wake-ups of this schema."""
        meta = await self._meta(connection)
        if "wake_key" not in meta:
            raise SchemaError(None, VERSION)
        return meta["wake_key"]

    async def check_roles(self, connection: Connection) -> None:
        """Raise `UntrustedSchema` if an untrusted role could change what the schema does."""
        found = await connection.fetchrow(_sql("untrusted_roles"), self.name, self._owner)
        if found is not None:
            raise UntrustedSchema(self.name, found["role"], found["what"])

    async def _is_current(self, connection: Connection) -> bool:
        meta = await self._meta(connection)
        found = _version(meta)
        if found is not None and found > VERSION:
            raise SchemaError(found, VERSION)
        return found == VERSION and meta.get("functions") == functions_hash()

    async def _meta(self, connection: Connection) -> dict[str, str]:
        """The versions in the database; empty if the schema does not exist."""
        if await connection.fetchval(_sql("table_oid"), f'"{self.name}".meta') is None:
            return {}
        return dict(await connection.fetch(self.sql(_sql("meta"))))

    async def _migrate(self, connection: Connection) -> None:
        if await connection.fetchval(_sql("schema_oid"), f'"{self.name}"') is None:
            await connection.execute(text("schema", "create_schema", schema=self.name))
        await self.check_roles(connection)
        await connection.execute(self.sql(_sql("create_meta")))
        found = _version(await self._meta(connection)) or 0
        for number, script in migrations():
            if number > found:
                if _COMMENT.sub("", script).strip():  # the driver cannot execute nothing
                    await connection.execute(self.sql(script))
                await connection.execute(self.sql(_sql("set_meta")), "version", str(number))

    async def _define_functions(self, connection: Connection) -> None:
        for script in functions():
            await self._replace_functions(connection, self.sql(script))
        await connection.execute(self.sql(_sql("set_meta")), "functions", functions_hash())

    async def _replace_functions(self, connection: Connection, script: str) -> None:
        try:
            async with connection.transaction():
                await connection.execute(script)
        except asyncpg.InvalidFunctionDefinitionError:
            # PostgreSQL cannot replace a function by one that returns something else: drop it first.
            for name in _FUNCTION.findall(script):
                for (signature,) in await connection.fetch(_sql("functions_of"), self.name, name):
                    await connection.execute(text("schema", "drop_function", signature=signature))
            await connection.execute(script)


def refusal(mark: StoreMark) -> BackendError:
    """What a marked store raises."""
    return StoreMoved(mark.to) if mark.state == "moved" else StoreUnfinished(mark.move, mark.source)


def _version(meta: dict[str, str]) -> int | None:
    return int(meta["version"]) if "version" in meta else None


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Number and text of each, in order."""
    found = [
        (int(match[1]), file.read_text("utf-8"))
        for file in (FILES / "migrations").iterdir()
        if (match := _MIGRATION.fullmatch(file.name))
    ]
    return tuple(sorted(found))


@cache
def functions() -> tuple[str, ...]:
    """The text of each file of functions."""
    folder = FILES / "sql" / "functions"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return tuple(_HEAD.sub(_pinned, (folder / name).read_text("utf-8")) for name in names)


def _pinned(head: re.Match[str]) -> str:
    """The head of a function in PL/pgSQL. It pins its search path if statements call it, or if it has other
    settings: then that is almost free. The rest run with the search path of the functions that call them. (A
    first setting takes 1 us per call. If every function had one, a claim would take 47 us instead of 41.)"""
    name, declaration, settings = head.groups()
    pin = _PIN if name in _called_by_statements() or "set " in settings else ""
    return f"{name}{declaration}{pin}{settings}"


@cache
def _called_by_statements() -> frozenset[str]:
    folder = FILES / "sql" / "statements"
    return frozenset(name for file in folder.iterdir() for name in _CALL.findall(file.read_text("utf-8")))


@cache
def functions_hash() -> str:
    return hashlib.sha256("\n".join(functions()).encode()).hexdigest()[:32]


def schema_sql(name: str = "treadle") -> str:
    """The whole schema as one script for `psql`, for use with `apply_schema=False`."""
    script = text(
        "schema",
        "script",
        schema=name,
        version=str(VERSION),
        hash=functions_hash(),
        migrations="\n".join(script for _, script in migrations()),
        functions="\n".join(functions()),
    )
    return PostgresSchema(name).sql(script) + "\n"
