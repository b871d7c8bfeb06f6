"""Addresses: what a Redis URL says, and which are refused.

    redis://[user:password@]host[:port][/db]               one server; rediss:// with TLS
    redis+unix:///path/of/socket[?db=1]                    one server, by its socket
    redis+sentinel://host:port,host:port/service[/db]      the primary that the Sentinels name
    redis+cluster://host:port,host:port                    a cluster, found by any of its nodes
    redis+cluster://host:port,host:port?partitions=16      all of its nodes

`valkey` in place of `redis` means the same. rediss+sentinel:// and rediss+cluster:// use TLS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn
from urllib.parse import parse_qsl, unquote

from treadle.errors import InputError
from treadle.logs.masking import MASK, Address, masked

Kind = Literal["server", "socket", "sentinel", "cluster"]

SCHEMES: Final = frozenset(
    f"{name}{tls}{kind}"
    for name in ("redis", "valkey")
    for tls in ("", "s")
    for kind in ("", "+unix", "+sentinel", "+cluster")
    if (tls, kind) != ("s", "+unix")
)
PORT: Final = 6379
SENTINEL_PORT: Final = 26379
PATIENCE: Final = 30.0
MOST_PARTITIONS: Final = 256
"""Partitions of one app: operators ask them all."""
OPTIONS: Final = (
    *("ca", "db", "partitions", "patience", "prefix", "replicas"),
    *("sentinel_password", "sentinel_user", "verify"),
)
"""What a URL can set after `?`."""

_HOST = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens. Port 0: `host` is the path of a socket."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.port == 0:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Login:
    """Who connects. An empty user is the default one."""

    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """ca: a file of certificates that are trusted. None: those of the system. verify: check the server's."""

    ca: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed URL.

    endpoints: the server; for a Sentinel set-up or a cluster, where to ask for it.
    service: the name of the primary that the Sentinels watch.
    replicas: how many replicas have to acknowledge a write before it is answered.
    patience: seconds after which a call without an answer closes its connection.
    prefix: the namespace, if the URL names one.
    partitions: into how many namespaces the work of the app is divided, on a cluster. 0: it has one.
    """

    url: Address
    kind: Kind
    endpoints: tuple[Endpoint, ...]
    login: Login = Login()
    sentinel_login: Login = Login()
    db: int = 0
    service: str = ""
    tls: Tls | None = None
    replicas: int = 0
    patience: float = PATIENCE
    prefix: str = ""
    partitions: int = 0

    def __repr__(self) -> str:
        return f"RedisAddress({self.url!r})"


def parse_address(url: str) -> RedisAddress:
    """Read a URL. `InputError`, without the password, says what is wrong with it."""
    return _Parser(url).parsed()


def check_prefix(prefix: str) -> str:
    """Refuse a prefix with which keys would not all be in one slot of a cluster."""
    if not prefix or re.search(r"[{}\s\x00]", prefix):
        raise InputError.of("prefix", prefix, "must not be empty, nor have braces, spaces or NUL")
    return prefix


class _Parser:
    def __init__(self, url: str) -> None:
        self._url = url
        scheme, _, rest = url.partition("://")
        if scheme.lower() not in SCHEMES:
            self._refuse(
                "begin it with redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://"
            )
        name, _, kind = scheme.lower().partition("+")
        self._kind: Kind = _KINDS[kind]
        self._is_tls = name.endswith("s") and name != "redis"
        rest, _, query = rest.partition("?")
        self._place, self._login = self._split_login(rest)
        self._options = self._split_options(query)

    def parsed(self) -> RedisAddress:
        endpoints, service, db = self._endpoints()
        options = self._options
        if "db" in options and db:
            self._refuse("it has two databases: write /db or ?db=, not both")
        db = db or options.get("db", "")
        if self._kind == "cluster" and db:
            self._refuse("a cluster has no numbered databases")
        return RedisAddress(
            url=Address(self._url),
            kind=self._kind,
            endpoints=endpoints,
            login=self._login,
            sentinel_login=Login(options.get("sentinel_user", ""), options.get("sentinel_password", "")),
            db=self._whole("db", db, 0),
            service=service,
            tls=self._tls(),
            replicas=self._whole("replicas", options.get("replicas", ""), 0),
            patience=self._patience(),
            prefix=options.get("prefix", ""),
            partitions=self._partitions(),
        )

    def _split_login(self, rest: str) -> tuple[str, Login]:
        before, at, place = rest.rpartition("@")
        if not at:
            return rest, Login()
        user, colon, password = before.partition(":")
        if not colon:  # what stands there may be meant as the password
            self._url = self._url.replace(f"{before}@", f"{MASK}@")
            self._refuse(
                "the part before @ needs a colon: user:password@, or :password@ for the default user"
            )
        return place, Login(unquote(user), unquote(password))

    def _split_options(self, query: str) -> Mapping[str, str]:
        if "@" in query:
            self._refuse("write ? in a password as %3F, and @ in an option as %40")
        options = dict(parse_qsl(query, keep_blank_values=True))
        unknown = ", ".join(sorted(options.keys() - set(OPTIONS)))
        if unknown:
            self._refuse(f"a URL cannot set {unknown}, only {', '.join(OPTIONS)}")
        return options

    def _endpoints(self) -> tuple[tuple[Endpoint, ...], str, str]:
        """The endpoints, the service and the database."""
        if self._kind == "socket":
            if not self._place.startswith("/") or self._place == "/":
                self._refuse("write redis+unix:///path/of/socket (three slashes)")
            return (Endpoint(unquote(self._place), 0),), "", ""
        hosts, _, path = self._place.partition("/")
        port = SENTINEL_PORT if self._kind == "sentinel" else PORT
        found = tuple(self._endpoint(each, port) for each in (hosts or "localhost").split(","))
        if self._kind == "server" and len(found) > 1:
            self._refuse("several hosts need redis+sentinel:// or redis+cluster://")
        parts = [unquote(part) for part in path.rstrip("/").split("/")] if path.rstrip("/") else []
        service = ""
        if self._kind == "sentinel":
            if not parts:
                self._refuse("name the service that the Sentinels watch: redis+sentinel://host:26379/service")
            service = parts.pop(0)
        if len(parts) > 1:
            self._refuse("its path has too many parts")
        return found, service, parts[0] if parts else ""

    def _endpoint(self, text: str, port: int) -> Endpoint:
        match = _HOST.fullmatch(text)
        if match is None:
            self._refuse("write hosts as name, name:port or [address]:port")
        found = int(match["port"] or port)
        if not 0 < found < 65536:
            self._refuse("a port is a number from 1 to 65535")
        return Endpoint(unquote(match["v6"] or match["name"]), found)

    def _tls(self) -> Tls | None:
        ca, verify = self._options.get("ca"), self._options.get("verify", "full")
        if verify not in ("full", "none"):
            self._refuse("verify= is full or none")
        if self._is_tls:
            return Tls(ca or None, verify == "full")
        if "ca" in self._options or "verify" in self._options:
            self._refuse("ca= and verify= need TLS: begin it with rediss://")
        return None

    def _partitions(self) -> int:
        partitions = self._whole("partitions", self._options.get("partitions", ""), 0)
        if "partitions" in self._options and self._kind != "cluster":
            self._refuse("partitions= needs a cluster: begin it with redis+cluster://")
        if "partitions" in self._options and not 1 < partitions <= MOST_PARTITIONS:
            self._refuse(f"partitions= is a number from 2 to {MOST_PARTITIONS}")
        return partitions

    def _patience(self) -> float:
        text = self._options.get("patience", "")
        try:
            patience = float(text) if text else PATIENCE
        except ValueError:
            patience = math.nan
        if not 0 < patience < math.inf:
            self._refuse("patience= is a number of seconds above 0")
        return patience

    def _whole(self, name: str, text: str, default: int) -> int:
        if not text:
            return default
        if not re.fullmatch(r"[0-9]{1,6}", text):
            self._refuse(f"{name} is a whole number, 0 or more")
        return int(text)

    def _refuse(self, problem: str) -> NoReturn:
        """Options are not shown: the name of one that is secret may be misspelt."""
        shown = masked(self._url).partition("?")[0]
        raise InputError(f"{shown!r} cannot be used: {problem}", parameters=("url",)) from None


_KINDS: Final[Mapping[str, Kind]] = {
    "": "server",
    "unix": "socket",
    "sentinel": "sentinel",
    "cluster": "cluster",
}
