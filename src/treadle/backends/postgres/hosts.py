"""Hosts: several servers in one URL, one of which is the primary.

The driver has one timeout for all of them, so a host that is gone without a sign would use it up. Here each
has a part of it, and the host that answered last is tried first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from .schema import Connection

Host: TypeAlias = tuple[str, int]

LEAST_SECONDS: Final = 1.0
"""Seconds that each host has at least, if there are several."""
HOST_ERRORS: Final = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.TargetServerAttributeNotMatched,
)
"""What a host raises, after which another one may be the right one."""
_PLACE = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d+))?")


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
