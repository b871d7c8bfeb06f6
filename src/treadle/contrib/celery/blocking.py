"""Blocking calls on the event loop of an app, for callers that are not async."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from treadle.client import Client

T = TypeVar("T")


def run_blocking(client: Client, coroutine: Coroutine[Any, Any, T], method: str, instead: str) -> T:
    """Run a coroutine on the app's loop, and wait for it here. RuntimeError in a thread that runs an event
    loop: the loop would stand still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return client.sync.call(coroutine)
    coroutine.close()
    raise RuntimeError(f"{method} would block the event loop of this thread: use `{instead}`")
