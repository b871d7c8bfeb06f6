"""Tools for tests.

ManualClock                       a clock that a test moves
run_inline, drain                 run everything that is due, and return when it is done
FaultyBackend, FaultyPort         a backend, or a port, that fails when a test says so
CountingBackend, WrappedBackend   a backend that counts its calls; the base class of backends around a backend
BackendContract, WorkerContract   the contract suites that every backend passes
QueueContract, PubSubContract, StoreContract   the contract suites of the three ports

The contracts and `Subject` need pytest and pytest-asyncio: `pip install 'treadle[testing]'`.
"""

from typing import TYPE_CHECKING

from .clock import ManualClock
from .counting import CountingBackend
from .faults import Faults, FaultyBackend
from .faulty_ports import FaultyPort
from .inline import drain, run_inline
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
    "Faults",
    "FaultyBackend",
    "FaultyPort",
    "ManualClock",
    "PubSubContract",
    "QueueContract",
    "StoreContract",
    "Subject",
    "WorkerContract",
    "WrappedBackend",
    "drain",
    "run_inline",
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
