"""Opening connections to PostgreSQL: the hosts of a URL, the login, and the types that the driver must know.

The driver has one timeout for all hosts of a URL, so one that is gone without a sign would use it up. Here
each has a part of it, and the host that answered last is tried first.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from treadle.errors import InputError
from treadle.logs.masking import Address
from treadle.store.listening import keep_alive

from .schema import Connection
from .statements import statements

_sql = statements("connection")

Host: TypeAlias = tuple[str, int]

STATEMENTS_KEPT: Final = 100
"""Prepared statements that a connection keeps."""
SIGN_OF_LIFE_SECONDS: Final = 1.5
"""Seconds that a sign of life may take. Half of the time that connecting may take, if that is more."""
LEAST_SECONDS: Final = 1.0
"""Seconds that each host has at least, if there are several."""
KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 8000}
"""The kernel asks after 5 s of silence, and gives up after 8 s without an acknowledgement."""
HOST_ERRORS: Final = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.TargetServerAttributeNotMatched,
)
"""What a host raises, after which another one may be the right one."""
_PLACE = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d+))?")


class PostgresConnector:
    """Opens connections.

    prepare: whether statements are prepared and kept.
    timeout: seconds that connecting may take.
    statement_timeout: seconds after which the server itself ends a statement.
    """

    def __init__(self, *, prepare: bool, timeout: float, statement_timeout: float) -> None:
        self._prepare = prepare
        self._timeout = timeout
        self._settings = {"statement_timeout": f"{max(0, round(statement_timeout * 1000))}"}
        self._poolers: set[Address] = set()
        self._hosts: dict[Address, Hosts] = {}

    async def connect(self, address: Address) -> Connection:
        """Open a connection. A pooler may refuse to set anything for sessions that it shares out: those keep
        the timeouts of their role, and only the caller's `patience` bounds a call."""
        if address in self._poolers:
            return await self._connect(address, {})
        try:
            return await self._connect(address, self._settings)
        except asyncpg.ProtocolViolationError:
            connection = await self._connect(address, {})
            self._poolers.add(address)
            return connection

    async def greet(self, address: Address) -> None:
        """Log in, for a sign of life of the host in use. Nothing is asked: a pooler without a free server
        would not answer."""
        async with asyncio.timeout(max(SIGN_OF_LIFE_SECONDS, self._timeout / 2)):
            (await self._open(address, self._hosts_of(address).first, {})).terminate()

    async def _connect(self, address: Address, settings: dict[str, str]) -> Connection:
        """A connection to the first host that is a primary; if none is, to a standby, for readers."""
        hosts, standby, failure = self._hosts_of(address), None, None
        for host in hosts:
            try:
                connection = await self._connect_to(address, host, settings, hosts.seconds(self._timeout))
            except HOST_ERRORS as error:
                failure = error
                continue
            if host is None or not is_standby(connection):
                hosts.prefer(host)
                return connection
            connection.terminate()
            standby = host
        if standby is None and failure is not None:
            raise failure
        return await self._connect_to(address, standby, settings, self._timeout)

    async def _connect_to(
        self, address: Address, host: Host | None, settings: dict[str, str], seconds: float
    ) -> Connection:
        async with asyncio.timeout(seconds):
            connection = await self._open(address, host, settings)
            keep_alive(getattr(connection, "_transport", None), KEEPALIVE)
            try:
                await _learn_array_types(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

    async def _open(self, address: Address, host: Host | None, settings: dict[str, str]) -> Connection:
        name, port = host or (None, None)
        try:
            return await asyncpg.connect(
                address.url,
                host=name,
                port=port,
                timeout=self._timeout,
                statement_cache_size=STATEMENTS_KEPT if self._prepare else 0,
                server_settings={"application_name": "treadle", **settings},
            )
        except BaseException as error:  # noqa: BLE001  all are raised again
            _forget_frames(error)
            if not isinstance(error, ValueError) or isinstance(error, OSError):  # a certificate is refused
                raise error.with_traceback(None)  # noqa: B904  a plain `raise` would bring it back
            # Without a cause: it may show a part of the URL, and the part may be the password.
            raise InputError.of("url", address, f"cannot be used ({type(error).__name__})") from None

    def _hosts_of(self, address: Address) -> Hosts:
        hosts = self._hosts.get(address)
        if hosts is None:
            hosts = self._hosts[address] = Hosts(address.url)
        return hosts


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error of the driver and of its causes. The driver's frames have the URL and
    the password in their variables, and tools that report errors read those."""
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        _forget_frames(error.__cause__)
        error = error.__context__


async def _learn_array_types(connection: Connection) -> None:
    """If they cannot be registered, let the driver look up the types of arrays, by a search path in which no
    other role can create."""
    if register_array_types(connection):
        return
    await connection.execute(_sql("begin_pinned"))
    await connection.fetch(_sql("array_types"))
    await connection.execute(_sql("commit"))


class Hosts:
    """The hosts of a URL. One that is None: the driver finds out."""

    def __init__(self, url: str) -> None:
        self._hosts: list[Host | None] = [*hosts_of(url)] or [None]

    def __iter__(self) -> Iterator[Host | None]:
        return iter(tuple(self._hosts))

    @property
    def first(self) -> Host | None:
        return self._hosts[0]

    def prefer(self, host: Host | None) -> None:
        """Try this one first from now on."""
        if host != self._hosts[0]:
            self._hosts.remove(host)
            self._hosts.insert(0, host)

    def seconds(self, timeout: float) -> float:
        """The part of `timeout` that each has."""
        count = len(self._hosts)
        return timeout if count == 1 else max(min(timeout, LEAST_SECONDS), timeout / count)


def is_standby(connection: Connection) -> bool:
    """Whether the server said so at the login. A pooler does not say, and then it is none."""
    return getattr(connection.get_settings(), "in_hot_standby", None) == "on"


def hosts_of(url: str) -> list[Host]:
    """The hosts that a URL names, if there are several. None if it cannot be told: that is for the driver."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    places = parts.netloc.rpartition("@")[2]
    if places:
        found = [_place(place) for place in unquote(places).split(",")]
    else:
        found = _pairs(query.get("host", "").split(","), query.get("port", _usual_port()).split(","))
    hosts = [(host, int(port)) for host, port in found if host and port.isdigit()]
    return hosts if len(hosts) == len(found) > 1 else []


def _place(text: str) -> tuple[str, str]:
    match = _PLACE.fullmatch(text)
    return ("", "") if match is None else (match[1] or match[2], match[3] or _usual_port())


def _pairs(hosts: list[str], ports: list[str]) -> list[tuple[str, str]]:
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return list(zip(hosts, ports, strict=True)) if len(hosts) == len(ports) else []


def _usual_port() -> str:
    return os.environ.get("PGPORT", "5432")


ARRAYS: Final = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int2": (1005, 21),
    "int4": (1007, 23),
    "text": (1009, 25),
    "int8": (1016, 20),
    "float8": (1022, 701),
}
"""The type of the elements: the numbers of the array and of the elements in `pg_type`.

asyncpg does not know arrays of built-in types. Before their first use it looks them up by a query that costs
the server more than opening the connection, and that calls functions by the search path of the connection and
so could call another role's. But their numbers are the same in every PostgreSQL, so they are registered here.
"""


def _row(name: str, oid: int, element: int) -> dict[str, Any]:
    """A row as the driver's own query answers it."""
    return {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "basetype_name": None,
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "range_subtype_name": None,
        "attrtypoids": None,
        "attrnames": None,
    }


ROWS: Final = [_row(name, oid, element) for name, (oid, element) in ARRAYS.items()]


def register_array_types(connection: Any) -> bool:
    """Register the types with a connection of asyncpg. False: this version of asyncpg cannot, and has to look
    them up."""
    try:
        connection.get_settings().register_data_types(ROWS)
    except (AttributeError, LookupError, TypeError):
        return False
    return True
