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
from treadle.flow_control import Failure, Redrive, Undo, adaptive_delay
from treadle.handle import Handle
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.handler.steps import Step
from treadle.retry import Retry, retry_call
from treadle.schedule import Schedule
from treadle.worker import Worker

if TYPE_CHECKING:  # names that are imported at first use: see `_LAZY`
    from treadle.backends.memory import MemoryBackend
    from treadle.base.timing import Clock as Clock
    from treadle.base.timing import SystemClock as SystemClock
    from treadle.codec import Codec as Codec
    from treadle.errors import AccessDenied as AccessDenied
    from treadle.errors import AlreadyEnded as AlreadyEnded
    from treadle.errors import AttemptTimeout as AttemptTimeout
    from treadle.errors import BackendError as BackendError
    from treadle.errors import BadResultError as BadResultError
    from treadle.errors import ConflictError as ConflictError
    from treadle.errors import CronError as CronError
    from treadle.errors import DeadlineExceeded as DeadlineExceeded
    from treadle.errors import DecodeError as DecodeError
    from treadle.errors import DefinitionError as DefinitionError
    from treadle.errors import DuplicateKeyError as DuplicateKeyError
    from treadle.errors import DuplicateWorkError as DuplicateWorkError
    from treadle.errors import EncodeError as EncodeError
    from treadle.errors import HandlerError as HandlerError
    from treadle.errors import LeaseLost as LeaseLost
    from treadle.errors import LifecycleError as LifecycleError
    from treadle.errors import LongTransaction as LongTransaction
    from treadle.errors import MailboxFull as MailboxFull
    from treadle.errors import NotHoldable as NotHoldable
    from treadle.errors import NotStarted as NotStarted
    from treadle.errors import NotTriggerable as NotTriggerable
    from treadle.errors import NotUpdatable as NotUpdatable
    from treadle.errors import PayloadError as PayloadError
    from treadle.errors import PayloadTooLarge as PayloadTooLarge
    from treadle.errors import PlacementError as PlacementError
    from treadle.errors import ProcessDied as ProcessDied
    from treadle.errors import ReferencedError as ReferencedError
    from treadle.errors import RemoteError as RemoteError
    from treadle.errors import ScheduleError as ScheduleError
    from treadle.errors import SchemaError as SchemaError
    from treadle.errors import StepError as StepError
    from treadle.errors import StepFailed as StepFailed
    from treadle.errors import Stopped as Stopped
    from treadle.errors import StoreFull as StoreFull
    from treadle.errors import StoreMoved as StoreMoved
    from treadle.errors import StoreNotEmpty as StoreNotEmpty
    from treadle.errors import StoreTooSlow as StoreTooSlow
    from treadle.errors import StoreUnavailable as StoreUnavailable
    from treadle.errors import StoreUnfinished as StoreUnfinished
    from treadle.errors import StrictReturnError as StrictReturnError
    from treadle.errors import TenantElsewhere as TenantElsewhere
    from treadle.errors import TooManySteps as TooManySteps
    from treadle.errors import UntrustedSchema as UntrustedSchema
    from treadle.errors import WakeupsLost as WakeupsLost
    from treadle.errors import WrongStore as WrongStore
    from treadle.flow_control import AcceptInfo as AcceptInfo
    from treadle.flow_control import BacklogInfo as BacklogInfo
    from treadle.flow_control import BackpressureInfo as BackpressureInfo
    from treadle.flow_control import FailureInfo as FailureInfo
    from treadle.flow_control import UnhandledGroup as UnhandledGroup
    from treadle.item import Count as Count
    from treadle.item import GroupState as GroupState
    from treadle.item import GroupSummary as GroupSummary
    from treadle.item import ItemState as ItemState
    from treadle.item import Page as Page
    from treadle.ports import PortsBackend as PortsBackend
    from treadle.ports import PubSub as PubSub
    from treadle.ports import Pulled as Pulled
    from treadle.ports import Queue as Queue
    from treadle.ports import Store as Store
    from treadle.ports import memory_pubsub as memory_pubsub
    from treadle.ports import memory_queue as memory_queue
    from treadle.ports import memory_store as memory_store
    from treadle.schedule import ScheduleHandle as ScheduleHandle
    from treadle.schedule import ScheduleState as ScheduleState

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
    "Step",
    "Treadle",
    "TreadleError",
    "Undo",
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
    "treadle.item": ("Count", "GroupState", "GroupSummary", "ItemState", "Page"),
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


if not TYPE_CHECKING:  # a checker shall see a misspelt name

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
