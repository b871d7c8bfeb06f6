"""Make a backend from a URL. A driver is imported only when a URL needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import parse_qsl, quote, urlencode

from treadle.backend import Backend, By
from treadle.base.timing import Clock
from treadle.errors import InputError
from treadle.logs.masking import masked

if TYPE_CHECKING:
    from treadle.store.wakeups import PubSub


Stores: TypeAlias = Mapping[str, str | Backend]
"""Several stores by name. The first is home."""


def connect(
    url: str | Stores,
    *,
    prefix: str = "treadle",
    notify: Any = True,
    clock: Clock,
    by: By = "tenant",
) -> Backend:
    """Return the backend that a URL names, or the one over several. It is not opened.

    memory://                          a new store in this process
    sqlite:///work.db                  a file; sqlite:////var/lib/work.db for an absolute path;
                                       sqlite:///work.db?durability=normal
    postgresql://user@host/database    a server, for many processes
                                       as SQLAlchemy writes it: postgresql+asyncpg://, postgresql+psycopg://,
                                       sqlite+aiosqlite:/// (treadle has its own driver)
    redis://host:6379                  a Redis or Valkey server; rediss:// with TLS, redis+unix:///path,
                                       redis+sentinel://host,host/service, redis+cluster://host,host
                                       a whole cluster: redis+cluster://host,host?partitions=16

    notify: True for wake-ups by the store itself. On PostgreSQL also a URL (redis://, nats://) or a `PubSub`
    that carries them. False or None: a server sends none.
    """
    if not isinstance(url, str):
        return _several(url, prefix, notify, clock, by)
    url = _without_driver(url)
    scheme, _, rest = url.partition(":")
    if scheme.lower() not in ("postgresql", "postgres") and not isinstance(notify, bool | None):
        raise InputError.of(
            "notify", _shown(notify), "is only for PostgreSQL: other stores wake processes themselves"
        )
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
        case name if name.partition("+")[0] in _REDIS:
            return _redis(url, prefix, notify, clock)
        case _:
            plain = scheme.partition("+")[0]
            hint = (
                f"write {plain}:, since treadle has its own driver"
                if plain in _SCHEMES and plain != scheme
                else "use memory://, sqlite:///file.db, postgresql://... or redis://..."
            )
            raise InputError(f"{masked(url)!r} is not a backend URL: {hint}", parameters=("backend",))


def _several(stores: Stores, prefix: str, notify: Any, clock: Clock, by: By) -> Backend:
    from treadle.backends.many import ManyStores  # few programs need it

    backends = {
        name: connect(each, prefix=prefix, notify=notify, clock=clock) if isinstance(each, str) else each
        for name, each in stores.items()
    }
    if any(isinstance(each, ManyStores) for each in backends.values()):
        raise InputError(
            "a store cannot be several stores itself: leave partitions= out", parameters=("backend",)
        )
    return ManyStores(backends, by=by, clock=clock)


def _without_driver(url: str) -> str:
    """The URL of an engine of SQLAlchemy as treadle writes it: without the driver, and with options that
    libpq knows."""
    scheme, _, rest = url.partition(":")
    name, _, driver = scheme.lower().partition("+")
    if driver not in _DRIVERS.get(name, ()):
        return url
    address, mark, query = rest.partition("?")
    if name == "sqlite" or not mark:
        return f"{name}:{rest}"
    options = [
        ("sslmode" if option == "ssl" else option, value)
        for option, value in parse_qsl(query, keep_blank_values=True)
        if not option.startswith("prepared_statement_") and option != "async_fallback"
    ]
    return f"{name}:{address}?{urlencode(options, quote_via=quote)}" if options else f"{name}:{address}"


_DRIVERS = {
    "postgresql": ("asyncpg", "psycopg", "psycopg_async", "psycopg2"),
    "sqlite": ("aiosqlite", "pysqlite"),
}
"""The drivers that SQLAlchemy names in its URLs."""
_REDIS = ("redis", "rediss", "valkey", "valkeys")
_SCHEMES = ("memory", "sqlite", "postgresql", "postgres", *_REDIS)


def _suggested(scheme: str, rest: str) -> str:
    if scheme == "sqlite":
        return f"sqlite:///{rest or 'work.db'} (three slashes, four for an absolute path)"
    if scheme in _REDIS:
        return f"{scheme}://host:6379"
    return "memory://" if scheme == "memory" else "postgresql://user@host/database"


def check_backend(given: object, by: object = None) -> None:
    """Raise InputError for what is neither a URL nor a backend, nor several of them. by: what says where an
    item is."""
    if by not in (None, "tenant", "root"):
        raise InputError.of("by", by, "must be 'tenant' or 'root'")
    if isinstance(given, Mapping):
        for each in cast("Mapping[object, object]", given).values():
            check_backend(each)
        return
    if by is not None:
        raise InputError("by= is for several stores: {'eu': url, 'us': url}", parameters=("by",))
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
    url, durable = _durable_claims(url)
    if isinstance(notify, str):
        pubsub = _pubsub(notify, prefix)
        return PostgresBackend(url, schema=prefix, durable_claims=durable, notify=pubsub, close_notify=True)
    if not isinstance(notify, bool | None) and not hasattr(notify, "subscribe"):
        raise InputError.of("notify", notify, "must be True, False, a URL or a PubSub")
    return PostgresBackend(url, schema=prefix, durable_claims=durable, notify=notify)


def _durable_claims(url: str) -> tuple[str, bool]:
    """The URL as the server's driver takes it, and whether it says `durable_claims=1`."""
    address, _, query = url.partition("?")
    named = [option.partition("=") for option in query.split("&")]
    values = {value for name, _, value in named if name == "durable_claims"}
    if not values:
        return url, False
    if values not in ({"0"}, {"1"}):
        raise InputError(
            f"{masked(url)!r} cannot be used: durable_claims= is 1 if claims must wait for the disk, else 0",
            parameters=("backend",),
        )
    others = "&".join("".join(option) for option in named if option[0] != "durable_claims")
    return f"{address}?{others}" if others else address, values == {"1"}


def _pubsub(url: str, prefix: str) -> PubSub:
    """The PubSub that a URL names. Its channel is that of the namespace."""
    scheme = url.partition(":")[0].lower()
    try:
        if scheme.startswith(("redis", "valkey")):
            from treadle.ports.redis_pubsub import RedisPubSub

            return RedisPubSub(url, channel=f"treadle.{prefix}")
        if scheme in ("nats", "tls"):
            from treadle.ports.nats_pubsub import NatsPubSub, nats_subject

            return NatsPubSub(url, subject=nats_subject(prefix))
    except ModuleNotFoundError as error:
        raise InputError(f"notify={masked(url)!r}: {error}", parameters=("notify",)) from error
    raise InputError.of("notify", masked(url), "must be a URL of Redis (redis://) or NATS (nats://)")


def _shown(notify: object) -> object:
    return masked(notify) if isinstance(notify, str) else notify


def _redis(url: str, prefix: str, notify: Any, clock: Clock) -> Backend:
    try:
        from treadle.backends.redis import RedisBackend
    except ModuleNotFoundError as error:
        raise InputError(
            "Redis needs its driver: pip install 'treadle[redis]'", parameters=("backend",)
        ) from error
    found = RedisBackend(url, prefix=prefix, notify=bool(notify))
    partitions = found.partitions()
    if not partitions:
        return found
    from treadle.backends.many import ManyStores

    return ManyStores(partitions, by="root", clock=clock)
