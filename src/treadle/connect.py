"""Make a backend from a URL. A driver is imported only when a URL needs it."""

from __future__ import annotations

from pathlib import PurePath
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
    scheme, _, rest = url.partition(":")
    if not rest.startswith("//") and scheme.lower() in _SCHEMES:
        raise InputError(
            f"{masked(url)!r} is not a backend URL: write {_suggested(scheme.lower(), rest)}",
            parameters=("backend",),
        )
    match scheme.lower():
        case "memory":
            from treadle.backends.memory import MemoryBackend

            return MemoryBackend(clock=clock)
        case "sqlite":
            return _sqlite(url, clock)
        case "postgresql" | "postgres":
            return _postgres(url, prefix, notify)
        case _:
            plain = scheme.partition("+")[0]
            hint = (
                f"write {plain}:, since treadle has its own driver"
                if plain in _SCHEMES and plain != scheme
                else "use memory://, sqlite:///file.db or postgresql://..."
            )
            raise InputError(f"{masked(url)!r} is not a backend URL: {hint}", parameters=("backend",))


_SCHEMES = ("memory", "sqlite", "postgresql", "postgres")


def _suggested(scheme: str, rest: str) -> str:
    if scheme == "sqlite":
        return f"sqlite:///{rest or 'work.db'} (three slashes, four for an absolute path)"
    return "memory://" if scheme == "memory" else "postgresql://user@host/database"


def check_backend(given: object) -> None:
    """Raise InputError for what is neither a URL nor a backend."""
    is_class = isinstance(given, type)
    if isinstance(given, str) or (hasattr(given, "submit") and hasattr(given, "claim") and not is_class):
        return
    if given is None:
        problem = "is no backend: is the variable for its URL set? Leave it out for memory://"
    elif isinstance(given, PurePath):
        problem = f"is a path: write 'sqlite:///{given}'"
    elif isinstance(given, type):
        problem = f"is a class: call it, as in {given.__name__}(...)"
    else:
        problem = "must be a URL, as in 'sqlite:///work.db', or a Backend"
    raise InputError.of("backend", given, problem)


def _sqlite(url: str, clock: Clock) -> Backend:
    from treadle.backends.sqlite import SqliteBackend

    if not url.partition(":")[2].startswith("///"):
        name = url.partition("//")[2] or "work.db"
        raise InputError(
            f"{masked(url)!r} has a host, and SQLite has none: write sqlite:///{name} (three slashes)",
            parameters=("backend",),
        )
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
