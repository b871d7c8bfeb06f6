"""Tools for tests.

ManualClock                       a clock that a test moves
run_inline, drain, travel         run everything that is due, and return when it is done; move the clock so
enqueued, assert_enqueued         what was enqueued, by type and arguments
crash_at                          a worker that dies at a chosen point
RecordingBackend, Statement       `ctx.transaction()` on memory, recorded
ManualClockBackend                a ManualClock for PostgreSQL
FaultyBackend, FaultyPort         a backend, or a port, that fails when a test says so
CountingBackend, WrappedBackend   a backend that counts its calls; the base class of backends around a backend
BackendContract, WorkerContract   the contract suites that every backend passes
QueueContract, PubSubContract, StoreContract   the contract suites of the three ports

The contracts and `Subject` need pytest and pytest-asyncio: `pip install 'treadle[testing]'`.
"""

from typing import TYPE_CHECKING

from .clock import ManualClock
from .counting import CountingBackend
from .crash import CrashPoint, crash_at
from .enqueued import assert_enqueued, enqueued
from .faults import Fault, Faults, FaultyBackend, FaultyPort
from .inline import drain, run_inline, travel
from .postgres_clock import ManualClockBackend
from .recorded import RecordingBackend, Statement
from .wrap import WrappedBackend

if TYPE_CHECKING:
    from .contract import (
        BackendContract,
        PubSubContract,
        QueueContract,
        StoreContract,
        Subject,
        WorkerContract,
    )

__all__ = [
    "BackendContract",
    "CountingBackend",
    "CrashPoint",
    "Fault",
    "Faults",
    "FaultyBackend",
    "FaultyPort",
    "ManualClock",
    "ManualClockBackend",
    "PubSubContract",
    "QueueContract",
    "RecordingBackend",
    "Statement",
    "StoreContract",
    "Subject",
    "WorkerContract",
    "WrappedBackend",
    "assert_enqueued",
    "crash_at",
    "drain",
    "enqueued",
    "run_inline",
    "travel",
]


_CONTRACTS = (
    "BackendContract",
    "PubSubContract",
    "QueueContract",
    "StoreContract",
    "Subject",
    "WorkerContract",
)


def __getattr__(name: str) -> object:
    # Imported on first use: the other tools work without pytest.
    if name not in _CONTRACTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import contract

    return getattr(contract, name)
