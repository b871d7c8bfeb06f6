"""Duty: what a worker is set to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import msgspec

from treadle.doers.base import BaseDoer
from treadle.flow import BackpressureInfo, Redrive

from .backlog import OnBacklog
from .run import Accept, Middleware

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
Backpressure: TypeAlias = Callable[[BackpressureInfo], float | Awaitable[float | None] | None]


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is set to do."""

    worker: str
    types: frozenset[str] | None = None
    queues: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None
    doer: BaseDoer
    middleware: tuple[Middleware, ...] = ()
    accept: Accept | None = None
    backpressure: Backpressure | None = None
    on_backlog: OnBacklog | None = None
    backlog_after: float = 30.0
    backlog_every: float | None = None
    redrive: Redrive | None = None
    lifespan: Lifespan | None = None
    threads: int = 32
    processes: int | None = None
