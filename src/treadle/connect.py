"""Make a backend from a URL. A driver is imported only when a URL needs it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from treadle.backend import Backend
from treadle.clock import Clock
from treadle.errors import InputError
from treadle.masking import masked


def connect(url: str, *, prefix: str = "treadle", notify: Any = True, clock: Clock) -> Backend:
    """Return the backend that a URL names. It is not opened.

    memory://                          a new store in this process
    sqlite:///work.db                  a file; sqlite:////var/lib/work.db for an absolute path;
                                       sqlite:///work.db?durability=normal
    postgresql://user@host/database    a server, for many processes
    """
    if notify not in (True, False, None):
        raise InputError.of("notify", notify, "must be True or False: only the store can wake others")
    match url.partition(":")[0].lower():
        case "memory":
            from treadle.backends.memory import MemoryBackend

            return MemoryBackend(clock=clock)
        case "sqlite":
            return _sqlite(url, clock)
        case "postgresql" | "postgres":
            return _postgres(url, prefix, notify)
        case _:
            raise InputError(
                f"{masked(url)!r} is not a backend URL: use memory://, sqlite:///file.db or postgresql://...",
                parameters=("backend",),
            )


def _sqlite(url: str, clock: Clock) -> Backend:
    from treadle.backends.sqlite import SqliteBackend

    path, _, query = url.removeprefix("sqlite://").removeprefix("/").partition("?")
    if not path:
        raise InputError(
            f"{masked(url)!r} has no file name: write sqlite:///work.db", parameters=("backend",)
        )
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    durability = options.pop("durability", "full")
    if options:
        others = ", ".join(options)
        raise InputError(
            f"{masked(url)!r}: a URL can set only durability=. For {others} use SqliteBackend(...)",
            parameters=("backend",),
        )
    return SqliteBackend(path, clock=clock, durability=durability)


def _postgres(url: str, prefix: str, notify: Any) -> Backend:
    try:
        from treadle.backends.postgres import PostgresBackend
    except ModuleNotFoundError as error:
        raise InputError(
            "PostgreSQL needs its driver: pip install 'treadle[postgres]'", parameters=("backend",)
        ) from error
    return PostgresBackend(url, schema=prefix, notify=bool(notify))
