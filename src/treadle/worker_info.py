"""WorkerInfo: what a worker says about itself in its heartbeats, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

MOST_BLOCKAGES: Final = 5
"""Blockages that a worker tells of, the newest."""


class UndecodableType(msgspec.Struct, frozen=True, gc=False):
    """Items of one type whose arguments do not fit the code of a worker."""

    count: int
    """How many it gave back for that in the last minute. 0: not shown to a tenant, as they may be others'."""
    error: str
    """Why one of them cannot be decoded: the one that it met last. Empty: not shown to a tenant."""
    until: float
    """When the first of them is dead (`undecodable`), at the latest, by the store's clock."""


class WorkerTrial(msgspec.Struct, frozen=True, gc=False):
    """An item whose workers died. While it is on trial, the worker runs few others."""

    id: str
    """Empty: not shown to another tenant."""
    tenant: str
    losses: int
    """How many workers in a row died while they ran it."""
    most: int
    """How many items the worker runs at once meanwhile, this one included."""
    until: float
    """When the trial, or the wait for it, ends at the latest, by the store's clock."""
    waits: bool = False
    """It has not begun: it waits until few enough others run, and nothing is claimed."""


class BlockingItem(msgspec.Struct, frozen=True, gc=False):
    """An item whose handler blocks the event loop of its worker, or did."""

    id: str
    type: str
    tenant: str


class Blockage(msgspec.Struct, frozen=True, gc=False):
    """A time in which the event loop of a worker did not run. Instants are by the store's clock."""

    since: float
    until: float
    items: tuple[BlockingItem, ...] = ()
    """What blocked it: one item, or a batch. Empty: not known, or the process was stopped."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a worker says about itself. It is sent with the first heartbeat, and when it has changed."""

    host: str = ""
    pid: int = 0
    version: str = ""
    """Of treadle."""
    release: str = ""
    """Of its own code: `Treadle(release=)`."""
    started_at: float = 0.0
    """By the store's clock."""
    lease: float = 0.0
    """Seconds. The last heartbeat came `lease` seconds before `WorkerState.until`."""
    heartbeat: float = 0.0
    """Seconds between two heartbeats."""
    queues: tuple[str, ...] | None = None
    """None: every queue."""
    tenants: tuple[str, ...] | None = None
    """None: every tenant."""
    room: int | None = None
    """How many items its doer runs at once. None: without limit."""
    rooms: Mapping[str, int | None] = {}
    """For types with a doer of their own, and types whose handlers run in threads or processes: how many
    items of the type it runs at once. None: without limit."""
    full: bool = False
    """It had no room for anything when it last asked for work."""
    full_types: tuple[str, ...] = ()
    """Types for which it had no room then, although it had room for others."""
    trial: WorkerTrial | None = None
    """The item on trial that leaves the least room for others."""
    pressed_until: float | None = None
    """Back-pressure: it claims nothing before this instant of the store's clock."""
    declined: Mapping[str, int] = {}
    """How many items of each type its `accept` declined in the last minute."""
    undecodable: Mapping[str, UndecodableType] = {}
    """Types of which it cannot decode items that it has claimed in the last minute."""
    limits: Mapping[str, int] = {}
    """How much its code allows under the `slots` limits that the fleet shares, by how their names begin."""
    rates: tuple[str, ...] | None = None
    """How the names begin of the limits on starts that its code has. None: not known, or too many to name."""
    waiting: int = 0
    """Items that it holds and has not begun."""
    blocked_since: float | None = None
    """Its event loop has not run since then, by the store's clock: it is blocked, or the process is stopped.
    Its supervisor or its watchdog says so."""
    blocked_by: tuple[BlockingItem, ...] = ()
    """What blocks it: one item, or a batch. Empty: not known, or the process is stopped."""
    blockages: tuple[Blockage, ...] = ()
    """When it was blocked in the last ten minutes, the newest last. At most five."""
    draining: bool = False
    """It is stopping: it claims nothing more."""
    manual: bool = False
    """It is no worker but a lease of `claim_one`: it claims nothing more."""
    schedules: tuple[str, ...] | None = None
    """The schedules whose code it has, by their full names. None: not known, or too many to name."""
    unknown_type_grace: float | None = None
    """How long it lets items wait for a worker that has their type. None: without limit."""


def encode_worker_info(info: WorkerInfo) -> bytes:
    """What a heartbeat carries."""
    return msgspec.json.encode(info)


_decode: Final = msgspec.json.Decoder(WorkerInfo).decode
"""Made here: threads of several stores that make it at the same time crash the process."""


def decode_worker_info(data: object) -> WorkerInfo | None:
    """Read the `info` of a worker. None if there is none, or if another version wrote something else."""
    if not isinstance(data, bytes) or not data:
        return None
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return None
