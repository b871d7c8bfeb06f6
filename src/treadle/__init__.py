"""treadle: a durable, type-safe work queue and workflow engine.

from treadle import Treadle, work

@work
async def add(a: int, b: int) -> int:
    return a + b

async with Treadle("sqlite:///work.db", work=[add]) as app:
    assert await app.enqueue(add(1, 2)).result() == 3
"""

from typing import TYPE_CHECKING

from treadle import doers, errors, events, metrics
from treadle.app import Treadle
from treadle.backend import Backend
from treadle.client import Client
from treadle.clock import Clock, SystemClock
from treadle.codec import Codec, default_codec
from treadle.condition import at_least, condition_met
from treadle.context import Context
from treadle.cron import next_after
from treadle.decorators import work
from treadle.dependency import dependency
from treadle.errors import (
    Abort,
    AlreadyEnded,
    AttemptTimeout,
    BackendError,
    BadResultError,
    ConflictError,
    CronError,
    CycleError,
    DeadlineExceeded,
    DecodeError,
    Defer,
    DefinitionError,
    DuplicateIdError,
    DuplicateWorkError,
    EncodeError,
    GroupFailed,
    HandlerError,
    InputError,
    LeaseLost,
    LifecycleError,
    LongTransaction,
    NotFound,
    NotStarted,
    NotTriggerable,
    PayloadError,
    PayloadTooLarge,
    ProcessDied,
    ReferencedError,
    RemoteError,
    ScheduleError,
    SchemaError,
    Stopped,
    StoreFull,
    StoreUnavailable,
    StrictReturnError,
    TreadleError,
    UnknownWorkError,
    UnsupportedError,
    WaitTimeout,
    WorkCancelled,
    WorkFailed,
)
from treadle.flow_control import (
    AcceptInfo,
    BacklogInfo,
    BackpressureInfo,
    Failure,
    FailureInfo,
    Redrive,
    UnhandledGroup,
    adaptive_delay,
)
from treadle.handle import Handle
from treadle.ids import set_id_generator
from treadle.item import Count, GroupState, ItemState, Page
from treadle.result import Result
from treadle.retry import Retry, retry_call
from treadle.schedule import ScheduleHandle, ScheduleState
from treadle.work import Work
from treadle.work_type import WorkType
from treadle.worker import Worker

if TYPE_CHECKING:
    from treadle.backends.memory import MemoryBackend
    from treadle.ports import (
        PortsBackend,
        PubSub,
        Pulled,
        Queue,
        Store,
        memory_pubsub,
        memory_queue,
        memory_store,
    )

_PORTS = frozenset(("PubSub", "Pulled", "Queue", "Store", "memory_pubsub", "memory_queue", "memory_store"))

__version__ = "0.1.0"

__all__ = [
    "Abort",
    "AcceptInfo",
    "AlreadyEnded",
    "AttemptTimeout",
    "Backend",
    "BackendError",
    "BacklogInfo",
    "BackpressureInfo",
    "BadResultError",
    "Client",
    "Clock",
    "Codec",
    "ConflictError",
    "Context",
    "Count",
    "CronError",
    "CycleError",
    "DeadlineExceeded",
    "DecodeError",
    "Defer",
    "DefinitionError",
    "DuplicateIdError",
    "DuplicateWorkError",
    "EncodeError",
    "Failure",
    "FailureInfo",
    "GroupFailed",
    "GroupState",
    "Handle",
    "HandlerError",
    "InputError",
    "ItemState",
    "LeaseLost",
    "LifecycleError",
    "LongTransaction",
    "MemoryBackend",
    "NotFound",
    "NotStarted",
    "NotTriggerable",
    "Page",
    "PayloadError",
    "PayloadTooLarge",
    "PortsBackend",
    "ProcessDied",
    "PubSub",
    "Pulled",
    "Queue",
    "Redrive",
    "ReferencedError",
    "RemoteError",
    "Result",
    "Retry",
    "ScheduleError",
    "ScheduleHandle",
    "ScheduleState",
    "SchemaError",
    "Stopped",
    "Store",
    "StoreFull",
    "StoreUnavailable",
    "StrictReturnError",
    "SystemClock",
    "Treadle",
    "TreadleError",
    "UnhandledGroup",
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
    "memory_pubsub",
    "memory_queue",
    "memory_store",
    "metrics",
    "next_after",
    "retry_call",
    "set_id_generator",
    "work",
]


def __getattr__(name: str) -> object:
    # Lazily: who works on a server needs no other store.
    match name:
        case "MemoryBackend":
            from treadle.backends.memory import MemoryBackend

            return MemoryBackend
        case "PortsBackend":
            from treadle.ports import PortsBackend

            return PortsBackend
        case _ if name in _PORTS:
            from treadle import ports

            return getattr(ports, name)
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
