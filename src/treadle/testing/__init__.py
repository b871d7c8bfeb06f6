"""What a test needs: time that only moves when told to, and the contract suites every backend
passes.

The contracts, and `Subject`, need pytest and pytest-asyncio: `pip install treadle[testing]`.
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
    # Lazily: a ManualClock is of use without pytest.
    if name not in _CONTRACTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import contract

    return getattr(contract, name)
