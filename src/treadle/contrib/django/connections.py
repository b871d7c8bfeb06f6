"""Connections: those of Django are closed around each handler if they are old or broken, as around requests.

A worker runs for weeks. Without this, a handler would get a connection that the server has closed since.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any

from treadle.base.callables import runs_any_loop
from treadle.handler.call_next import CallNext
from treadle.handler.context import Context

from .django_api import (
    SyncToAsync,
    ThreadSensitiveContext,
    close_old_connections,
    connections,
    reset_queries,
    sync_to_async,
)


@contextmanager
def fresh_connections() -> Generator[None]:
    """Around a handler in a thread: its connections are usable, and are not kept for longer than
    `CONN_MAX_AGE`. A thread that is in a transaction, as that of a test, keeps its connections."""
    _close_old()
    try:
        yield
    finally:
        _close_old()


def _close_old() -> None:
    reset_queries()
    if not any(each.in_atomic_block for each in connections.all(initialized_only=True)):
        close_old_connections()


@asynccontextmanager
async def fresh_async_connections() -> AsyncGenerator[None]:
    """Around a handler on the event loop. What it does in threads (`sync_to_async`, the ORM) happens in one
    thread of its own, as for a request, with its own connections. They are closed with it."""
    context = ThreadSensitiveContext()
    async with context:
        try:
            yield
        finally:
            if context in SyncToAsync.context_to_thread_executor:  # it has a thread
                await sync_to_async(connections.close_all)()


async def close_connections(ctx: Context, call_next: CallNext) -> Any:
    """A middleware: the connections of Django around every handler of an app that runs on the event loop.
    Those in threads: see `handler_scope`."""
    async with fresh_async_connections():
        return await call_next()


def handler_scope() -> AbstractContextManager[None]:
    """Entered around the call of a handler, in its thread."""
    return nullcontext() if runs_any_loop() else fresh_connections()
