"""The public names are two lists: a name is added or removed here on purpose."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest

import treadle

PUBLIC = [
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
"""What a first program and its error handling need."""

ELSEWHERE = {
    "treadle.base.timing": ["Clock", "SystemClock"],
    "treadle.codec": ["Codec"],
    "treadle.errors": [
        "AccessDenied",
        "AlreadyEnded",
        "AttemptTimeout",
        "BackendError",
        "BadResultError",
        "ConflictError",
        "CronError",
        "DeadlineExceeded",
        "DecodeError",
        "DefinitionError",
        "DuplicateKeyError",
        "DuplicateWorkError",
        "EncodeError",
        "HandlerError",
        "LeaseLost",
        "LifecycleError",
        "LongTransaction",
        "MailboxFull",
        "NotStarted",
        "NotHoldable",
        "NotTriggerable",
        "NotUpdatable",
        "PayloadError",
        "PayloadTooLarge",
        "ProcessDied",
        "ReferencedError",
        "RemoteError",
        "ScheduleError",
        "SchemaError",
        "StepError",
        "StepFailed",
        "Stopped",
        "StoreFull",
        "PlacementError",
        "StoreMoved",
        "StoreNotEmpty",
        "StoreTooSlow",
        "StoreUnavailable",
        "StoreUnfinished",
        "StrictReturnError",
        "TenantElsewhere",
        "TooManySteps",
        "UntrustedSchema",
        "WakeupsLost",
        "WrongStore",
    ],
    "treadle.flow_control": [
        "AcceptInfo",
        "BacklogInfo",
        "BackpressureInfo",
        "FailureInfo",
        "UnhandledGroup",
    ],
    "treadle.item": ["Count", "GroupState", "GroupSummary", "ItemState", "Page"],
    "treadle.ports": [
        "PortsBackend",
        "PubSub",
        "Pulled",
        "Queue",
        "Store",
        "memory_pubsub",
        "memory_queue",
        "memory_store",
    ],
    "treadle.schedule": ["ScheduleHandle", "ScheduleState"],
}
"""Public in a module of their own, and importable from `treadle` as well, where programs once found them."""

WEB = [
    "Accepted",
    "AcceptedResponse",
    "AcceptedWork",
    "WorkAccess",
    "WorkDeath",
    "WorkGroup",
    "WorkProgress",
    "WorkState",
    "accepted",
    "client",
    "lifespan",
    "work_router",
]
CONTRIB = {
    "treadle.contrib.celery": [
        "ApplyOptions",
        "CeleryGroup",
        "CeleryGroupResult",
        "CeleryResult",
        "CelerySignature",
        "CeleryTask",
        "chain",
        "chord",
        "group",
    ],
    "treadle.contrib.django": ["TreadleBackend", "TreadleTask", "app", "dashboard", "task_schedule"],
    "treadle.contrib.django.testing": ["arun_enqueued", "close_apps", "in_memory", "run_enqueued"],
    "treadle.contrib.fastapi": WEB,
    "treadle.contrib.flask": ["FlaskTreadle"],
    "treadle.contrib.starlette": WEB,
}
"""Public in modules that need another library, or stand for one."""


def test_the_public_names_are_these() -> None:
    assert sorted(treadle.__all__) == sorted(PUBLIC)
    assert sorted(dir(treadle)) == sorted(PUBLIC)


def test_every_public_name_exists() -> None:
    assert [name for name in treadle.__all__ if not hasattr(treadle, name)] == []


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("module", ELSEWHERE)
def test_names_that_moved_are_still_importable_from_treadle(module: str) -> None:
    # In a process of its own, where no test has imported the module before.
    program = f"import treadle, {module} as home\n" + "".join(
        f"assert treadle.{name} is home.{name}\n" for name in ELSEWHERE[module]
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("module", CONTRIB)
def test_the_names_of_modules_for_other_libraries_are_these(module: str) -> None:
    assert sorted(import_module(module).__all__) == CONTRIB[module]


def test_type_checkers_know_the_names_that_moved() -> None:
    """As if each was imported: the module's `__getattr__` is not for checkers."""
    tree = ast.parse(inspect.getsource(treadle))
    blocks = [
        each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
    ]
    known = {
        (each.module, name.asname)
        for block in blocks
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
    }
    moved = {(module, name) for module, names in ELSEWHERE.items() for name in names}
    assert known == moved | {("treadle.backends.memory", None)}


def test_unknown_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'treadle' has no attribute 'Nothing'"):
        _ = treadle.Nothing


def test_every_error_is_public() -> None:
    tree = [treadle.TreadleError]
    for error in tree:
        tree += error.__subclasses__()
    ours = {error.__name__ for error in tree if error.__module__ == "treadle.errors"}
    assert ours - set(PUBLIC) - set(ELSEWHERE["treadle.errors"]) == {"Directive"}


def test_the_version_is_the_installed_one() -> None:
    assert treadle.__version__ == version("treadle")
