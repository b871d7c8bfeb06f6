"""treadle: a durable, type-safe work queue and workflow engine.

from treadle import Treadle, work

@work
async def add(a: int, b: int) -> int:
    return a + b

async with Treadle("sqlite:///work.db", work=[add]) as app:
    assert await app.enqueue(add(1, 2)).result() == 3

This module has the names that most programs need. The rest is in submodules:

=======================  ====================================================================
`treadle.errors`         every exception
`treadle.events`         what `on_event` receives
`treadle.item`           states of items and groups, pages, counts, leases
`treadle.why`            what `app.why` answers
`treadle.bulk_action`    what `app.bulk` answers
`treadle.bulk_runner`    runs bulk actions in a process without workers
`treadle.worker_info`    what workers say about themselves
`treadle.options`        the options of `enqueue`, `ctx.queue`, `.next` and `@work`, as types
`treadle.doers`          how many items run at once, and in which order
`treadle.flow_control`   what `accept`, `backpressure`, `on_backlog` and `on_failure` receive
`treadle.ports`          a backend from a queue, a pub/sub and a key-value store of your own
`treadle.contrib.otel`   traces with OpenTelemetry
`treadle.metrics`        the names of the metrics
`treadle.store_metrics`  how the store stands, for Prometheus
`treadle.testing`        tools for tests
=======================  ====================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle import doers, errors, events, metrics
from treadle.app import Treadle
from treadle.backend import Backend
from treadle.base import VERSION
from treadle.base.ids import set_id_generator
from treadle.client import Client
from treadle.codec import default_codec
from treadle.define.condition import GroupRef, at_least, condition_met, group
from treadle.define.cron import next_after
from treadle.define.decorators import work
from treadle.define.dependency import dependency
from treadle.define.secret_values import Secret
from treadle.define.work import Work
from treadle.define.work_type import WorkType
from treadle.errors import (
    Abort,
    CycleError,
    Defer,
    DuplicateIdError,
    GroupFailed,
    InputError,
    NotFound,
    RetryAfter,
    TreadleError,
    UnknownWorkError,
    UnsupportedError,
    WaitTimeout,
    WorkCancelled,
    WorkFailed,
)
from treadle.flow_control import Failure, Redrive, adaptive_delay
from treadle.handle import Handle
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.retry import Retry, retry_call
from treadle.schedule import Schedule
from treadle.worker import Worker

if TYPE_CHECKING:
    from treadle.backends.memory import MemoryBackend

__version__ = VERSION

__all__ = [
    "Abort",
    "Backend",
    "Client",
    "Context",
    "CycleError",
    "Defer",
    "DuplicateIdError",
    "Failure",
    "GroupFailed",
    "GroupRef",
    "Handle",
    "InputError",
    "MemoryBackend",
    "NotFound",
    "Redrive",
    "Result",
    "Retry",
    "RetryAfter",
    "Schedule",
    "Secret",
    "Treadle",
    "TreadleError",
    "UnknownWorkError",
    "UnsupportedError",
    "WaitTimeout",
    "Work",
    "WorkCancelled",
    "WorkFailed",
    "WorkType",
    "Worker",
    "__version__",
    "adaptive_delay",
    "at_least",
    "condition_met",
    "default_codec",
    "dependency",
    "doers",
    "errors",
    "events",
    "group",
    "metrics",
    "next_after",
    "retry_call",
    "set_id_generator",
    "work",
]

# Imported at first use: a program on a database server needs no other store. Names that are not in `__all__`
# were public in this module once and stay importable, as do all errors.
_LAZY = {
    "treadle.backends.memory": ("MemoryBackend",),
    "treadle.base.timing": ("Clock", "SystemClock"),
    "treadle.codec": ("Codec",),
    "treadle.flow_control": (
        "AcceptInfo",
        "BacklogInfo",
        "BackpressureInfo",
        "FailureInfo",
        "UnhandledGroup",
    ),
    "treadle.item": ("Count", "GroupState", "ItemState", "Page"),
    "treadle.ports": (
        "PortsBackend",
        "PubSub",
        "Pulled",
        "Queue",
        "Store",
        "memory_pubsub",
        "memory_queue",
        "memory_store",
    ),
    "treadle.schedule": ("ScheduleHandle", "ScheduleState"),
}


if not TYPE_CHECKING:  # a checker shall see a misspelt name, and where a moved one lives now

    def __getattr__(name: str) -> Any:
        for module, names in _LAZY.items():
            if name in names:
                return getattr(import_module(module), name)
        error = getattr(errors, name, None)
        if isinstance(error, type) and issubclass(error, TreadleError):
            return error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
