"""The public API is a list, and this is it: a name is added or removed here on purpose."""

from importlib.metadata import version

import treadle

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert sorted(treadle.__all__) == sorted(PUBLIC)


def test_every_public_name_is_there() -> None:
    assert [name for name in treadle.__all__ if not hasattr(treadle, name)] == []


def test_every_error_is_public() -> None:
    tree = [treadle.TreadleError]
    for error in tree:
        tree += error.__subclasses__()
    public = {error.__name__ for error in tree if error.__module__ == "treadle.errors"}
    assert public - set(treadle.__all__) == {"Directive"}


def test_the_version_is_the_installed_one() -> None:
    assert treadle.__version__ == version("treadle")
