"""The settings of an app and of a worker, with their defaults."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeAlias

import msgspec

from treadle.base.ids import IdGenerator, generate_id
from treadle.base.timing import Clock, SystemClock
from treadle.codec import Codec, default_codec
from treadle.doers.base import BaseDoer
from treadle.errors import InputError
from treadle.flow_control import Accept, Backpressure, OnBacklog, Redrive
from treadle.handler.call_next import Middleware
from treadle.retry import Retry

MAX_PAYLOAD = 1024 * 1024
MAX_SUBMISSION = 64 * MAX_PAYLOAD
"""A store writes all items of one submission in one statement or one transaction."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an app, fixed when it is made. Durations are seconds."""

    poll_interval: float = 1.0
    lease: float = 10.0
    heartbeat: float = 2.0
    drain: float = 5.0
    keep: float = 86400.0
    keep_dead: float | None = None
    retry: Retry = Retry()
    strict_return: bool = True
    on_dead_unstarted: bool = False
    max_payload: int = MAX_PAYLOAD
    max_submission: int = MAX_SUBMISSION
    interrupt_grace: float = 0.0
    timeout_grace: float = 0.0
    unknown_type_grace: float | None = None
    undecodable_grace: float = 600.0
    unhandled_grace: float = 0.1
    log_failures: bool = True
    logs: bool = True
    statistics: bool = True
    mask: tuple[str, ...] = ()
    release: str = ""
    on_failure: Callable[..., Any] | None = None
    codec: Codec = default_codec
    clock: Clock = SystemClock()
    random: random_module.Random = random_module.Random()
    generate_id: IdGenerator = generate_id

    def __post_init__(self) -> None:
        if self.heartbeat > self.lease / 2:
            raise InputError(
                f"heartbeat={self.heartbeat:g} is more than half of lease={self.lease:g}: "
                "a single late heartbeat would lose every item that the worker runs",
                parameters=("heartbeat",),
            )
        for name in ("max_payload", "max_submission"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError.of(name, value, "must be a whole number of bytes, 1 or more")
        for name in ("poll_interval", "lease", "heartbeat"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name}={getattr(self, name)!r} must be more than zero", parameters=(name,))


Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
HandlerScope: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""What is entered around each call of a handler, where the handler runs: in its thread, if it has one."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one worker. `id` is its id in the store."""

    id: str
    types: frozenset[str] | None = None
    queues: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None
    doer: BaseDoer
    middleware: tuple[Middleware, ...] = ()
    scope: HandlerScope | None = None
    """Not for handlers in processes."""
    accept: Accept | None = None
    backpressure: Backpressure | None = None
    on_backlog: OnBacklog | None = None
    backlog_after: float = 30.0
    backlog_every: float | None = None
    redrive: Redrive | None = None
    lifespan: Lifespan | None = None
    threads: int = 32
    processes: int | None = None
    last_supervisor_beat: Callable[[], float] | None = None
    """When the last heartbeat that another process sent for this worker was sent, by the monotonic clock."""
