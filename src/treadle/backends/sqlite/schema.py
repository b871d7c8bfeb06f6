"""The schema: which version a file has, and how it is brought to this library's version."""

from __future__ import annotations

import sqlite3
from functools import cache

from treadle.errors import SchemaError

from .statements import package_files, statements

_SQL = statements("schema")


def schema_sql() -> str:
    """All DDL, for users who apply it themselves and open the backend with `apply_schema=False`."""
    return "\n".join(_migrations())


def wanted_version() -> int:
    return len(_migrations())


def is_current(connection: sqlite3.Connection | sqlite3.Cursor) -> bool:
    """Whether the file has exactly this library's version. It only reads."""
    return _found_version(connection) == wanted_version()


def check_schema(connection: sqlite3.Connection) -> None:
    """`SchemaError` unless the file has exactly this library's version."""
    found = _found_version(connection)
    if found != wanted_version():
        raise SchemaError(found, wanted_version())


def apply_schema(connection: sqlite3.Connection) -> None:
    """Bring the schema to this library's version. Each script stores its own version.

    This runs inside a write transaction: other processes wait, then find it done. A crash leaves the old one.
    """
    found, wanted = _found_version(connection), wanted_version()
    if found is not None and found > wanted:
        raise SchemaError(found, wanted)
    for version, script in enumerate(_migrations(), start=1):
        if version > (found or 0):
            for statement in _statements_of(script):
                connection.execute(statement)


def _found_version(connection: sqlite3.Connection | sqlite3.Cursor) -> int | None:
    """The version of the schema in the file; None if there is no schema."""
    if not connection.execute(_SQL["has_meta"]).fetchall():
        return None
    rows = connection.execute(_SQL["version"]).fetchall()
    return int(rows[0][0]) if rows else None


@cache
def _migrations() -> tuple[str, ...]:
    """The scripts that build the schema, in order: number n brings it to version n."""
    files = package_files().joinpath("migrations").iterdir()
    scripts = sorted((file.name, file) for file in files if file.name.endswith(".sql"))
    return tuple(file.read_text(encoding="utf-8") for _, file in scripts)


def _statements_of(script: str) -> list[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction first."""
    found: list[str] = []
    begun = ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            found.append(begun)
            begun = ""
    return found
