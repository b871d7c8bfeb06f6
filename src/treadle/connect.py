"""From a URL to a backend. Drivers are imported here and only when they are asked for."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from treadle.backend import Backend
from treadle.clock import Clock
from treadle.errors import InputError


def connect(url: str, *, prefix: str = "treadle", notify: Any = True, clock: Clock) -> Backend:
    """The backend that a URL names. Nothing is opened yet.

    memory://                          in this process, gone with it; always a fresh one
    sqlite:///work.db                  one file; sqlite:////var/lib/work.db for an absolute path;
                                       sqlite:///work.db?durability=normal
    postgresql://user@host/database    a server, for a fleet
    """
    if notify not in (True, False, None):
        raise InputError.of("notify", notify, "must be True or False: only the store itself can wake others")
    scheme = urlsplit(url).scheme
    match scheme:
        case "memory":
            from treadle.backends.memory import MemoryBackend

            return MemoryBackend(clock=clock)
        case "sqlite":
            return _sqlite(url, clock)
        case "postgresql" | "postgres":
            return _postgres(url, prefix, notify)
        case _:
            raise InputError(
                f"{url!r} names no backend: use memory://, sqlite:///file.db or postgresql://...",
                parameters=("backend",),
            )


def _sqlite(url: str, clock: Clock) -> Backend:
    from treadle.backends.sqlite import SqliteBackend

    path, _, query = url.removeprefix("sqlite://").removeprefix("/").partition("?")
    if not path:
        raise InputError(f"{url!r} names no file: write sqlite:///work.db", parameters=("backend",))
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    durability = options.pop("durability", "full")
    if options:
        raise InputError(
            f"{url!r}: only durability= may follow the file; for {', '.join(options)} use SqliteBackend(...)",
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
