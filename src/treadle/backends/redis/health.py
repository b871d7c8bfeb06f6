"""Health: settings and states of the server with which answered work can be lost, or new work is refused, and
keys that are missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from treadle.base.wording import listed
from treadle.errors import AccessDenied, BackendError

from .connector import info_fields
from .link import RedisLink
from .scripts import RedisScript

ALMOST_FULL: Final = 90
"""Percent of `maxmemory` that are reported."""
SECTIONS: Final = (b"persistence", b"memory", b"replication")


class HealthLink(Protocol):
    """What carries out the commands that ask."""

    async def command(self, *parts: bytes) -> Any: ...


class Risk(NamedTuple):
    """Something with which work can be lost, or refused. `size`: it is reported again when this grows."""

    name: str
    size: int
    advice: str


class RedisHealth:
    """Reports each risk once, and again when it has become worse, or came back.

    replicas: how many have to be connected.
    missing_keys: names keys that are gone and should be there.
    """

    def __init__(
        self, link: HealthLink, replicas: int, missing_keys: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        self._link = link
        self._missing_keys = missing_keys
        self._replicas = replicas
        self._reported: dict[str, int] = {}

    async def inspect(self) -> Sequence[BackendError]:
        """The risks that are new, and damage."""
        found = [*await self._damage(), *await self.risks()]
        news = [risk for risk in found if risk.size > self._reported.get(risk.name, -1)]
        self._reported = {risk.name: risk.size for risk in found}
        return [BackendError(risk.advice) for risk in news]

    async def risks(self) -> Sequence[Risk]:
        """All that there are. What the user may not ask for is left out."""
        try:
            info = info_fields(await self._link.command(b"INFO", *SECTIONS))
        except AccessDenied:
            return []
        fsync = await self._fsync()
        return [*_risks(info, fsync), *_memory(info), *_missing_replicas(info, self._replicas)]

    async def _damage(self) -> Sequence[Risk]:
        missing = await self._missing_keys()
        return [Risk("damage", len(missing), damage_advice(missing))] if missing else []

    async def _fsync(self) -> str:
        try:
            found = await self._link.command(b"CONFIG", b"GET", b"appendfsync")
        except BackendError as error:
            if isinstance(error, AccessDenied) or not error.transient:  # hosted servers often have no CONFIG
                return ""
            raise
        return found[1].decode() if found else ""


def _risks(info: Mapping[str, str], fsync: str) -> Iterator[Risk]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield Risk(
            "eviction",
            0,
            f"Redis deletes items when its memory is full (maxmemory-policy {policy}): set it to noeviction",
        )
    if info.get("aof_enabled") == "0":
        yield Risk(
            "aof",
            0,
            "Redis keeps no log of its writes (appendonly no), so a crash loses work that was accepted: "
            "set appendonly yes, and appendfsync everysec or always",
        )
    elif fsync == "no":
        yield Risk(
            "fsync",
            0,
            "Redis does not bring its log to the disk (appendfsync no), so a power cut loses "
            "work that was accepted: set appendfsync everysec or always",
        )


def _memory(info: Mapping[str, str]) -> Iterator[Risk]:
    used, most = (int(info.get(name, "") or 0) for name in ("used_memory", "maxmemory"))
    percent = 100 * used // most if most else 0
    if percent >= ALMOST_FULL:
        is_full = used >= most
        state = (
            "Redis is full, and refuses new items"
            if is_full
            else f"Redis uses {percent} % of its maxmemory: when that is reached, new items are refused"
        )
        yield Risk("memory", int(is_full), f"{state}: raise maxmemory, or keep items for a shorter time")


def _missing_replicas(info: Mapping[str, str], wanted: int) -> Iterator[Risk]:
    text = info.get("connected_slaves", "")
    if wanted and text.isdigit() and int(text) < wanted:
        yield Risk(
            "replicas",
            wanted - int(text),
            f"Redis has {text} replicas, and replicas={wanted} have to acknowledge writes: start others",
        )


_MISSING_KEYS: Final = RedisScript("missing_keys")


class RedisDamage:
    """Looks for keys of a namespace that were deleted, or evicted, one by one.

    No call can mend that. It is looked for when a script has failed, by `treadle doctor`, and by workers now
    and then.
    """

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def missing_keys(self) -> Sequence[str]:
        """The names of keys that are missing, or have lost a part, as far as other keys show it."""
        found = await self._link.run(_MISSING_KEYS, on="read")
        return [self._link.key(name.decode()).decode() for name in dict.fromkeys(found)]

    async def error(self) -> BackendError | None:
        """The error to raise when a script has failed. None: nothing is known to be missing."""
        missing = await self.missing_keys()
        return BackendError(damage_advice(missing)) if missing else None


def damage_advice(missing: Sequence[str]) -> str:
    """What to do about keys that are missing."""
    return (
        f"the store is damaged, keys of it are missing or have lost a part: {listed(missing)}. Were they "
        "deleted, or evicted? Stop the workers, then restore the server from a backup, or remove all keys of "
        "the namespace and submit again what was lost"
    )
