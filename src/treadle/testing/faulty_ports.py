"""Ports that fail when a test says so. `treadle.testing.faults` has the details.

faults = Faults()
queue = FaultyPort(memory_queue(), faults)
lost = faults.fail("push", when="after")      # it is pushed, and the answer is lost
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .faults import Faults


class FaultyPort:
    """Calls a port, except where `faults` strike. Several ports may share them. Its methods are async."""

    def __init__(self, port: Any, faults: Faults) -> None:
        self._port = port
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, name, getattr(self._port, name))

    async def _call(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            answer = method(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        fault = self.faults.find(name, args)
        return await (call() if fault is None else fault.strike(call))
