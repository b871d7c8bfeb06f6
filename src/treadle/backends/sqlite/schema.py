"""The schema: which version a file has, and how it gets to ours."""

from __future__ import annotations

import sqlite3

from treadle.errors import SchemaError

from .statements import Statements, migrations

_SQL = Statements("schema")


def schema_sql() -> str:
    """All DDL, for those who run it themselves and open the backend with `apply_schema=False`."""
    return "\n".join(migrations())


def wanted_version() -> int:
    return len(migrations())


def found_version(connection: sqlite3.Connection) -> int | None:
    """The version of the schema in the file; None if there is none."""
    if not connection.execute(_SQL["has_meta"]).fetchall():
        return None
    rows = connection.execute(_SQL["version"]).fetchall()
    return int(rows[0][0]) if rows else None


def check_schema(connection: sqlite3.Connection) -> None:
    """`SchemaError` unless the schema is exactly ours."""
    found = found_version(connection)
    if found != wanted_version():
        raise SchemaError(found, wanted_version())


def apply_schema(connection: sqlite3.Connection) -> None:
    """Bring the schema to our version; each script notes its own. Inside a write transaction: other processes
    wait, and then find it done; a crash on the way leaves the old one."""
    found, wanted = found_version(connection), wanted_version()
    if found is not None and found > wanted:
        raise SchemaError(found, wanted)
    for version, script in enumerate(migrations(), start=1):
        if version > (found or 0):
            for statement in statements_of(script):
                connection.execute(statement)


def statements_of(script: str) -> list[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction first."""
    found: list[str] = []
    begun = ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            found.append(begun)
            begun = ""
    return found
