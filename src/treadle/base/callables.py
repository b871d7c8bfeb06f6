"""Functions that users give: hooks, folds, generators of ids. Some may be async, the others are refused then.

A plain hook is called where nothing can wait for it: between a commit and its announcement, or inside a pure
decision. An async function there would do nothing, silently. It is refused where it is given. Where that
cannot be seen (a lambda that returns a coroutine), the call fails and the coroutine is closed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable
from typing import Any, cast

from typing_extensions import TypeIs

from treadle.errors import InputError, shown


def check_callable(value: Any, field: str) -> Any:
    """Return a function that may be async, or raise InputError."""
    if not callable(value):
        raise InputError.of(field, value, "must be a function")
    return value


def check_list(value: Any, field: str, example: str) -> tuple[Any, ...]:
    """Return the members of a list, or raise TypeError for anything else, such as one member alone."""
    if isinstance(value, str | bytes) or callable(value) or not hasattr(value, "__iter__"):
        raise TypeError(f"{field} takes a list, as in {field}=[{example}], not {shown(value)}")
    return tuple(value)


def check_plain(value: Any, field: str) -> Any:
    """Return a function that is not async, or raise InputError."""
    if is_async(check_callable(value, field)):
        raise InputError.of(
            field, value, "must be a plain function: it is called where nothing can be awaited"
        )
    return value


def is_async(fn: Any) -> bool:
    """Whether a call of `fn` only makes a coroutine: an async function, a partial of one, or an object whose
    `__call__` is async."""
    inner: Any = fn
    while isinstance(inner, functools.partial):
        inner = cast("Any", inner).func
    call_method = getattr(inner.__class__, "__call__", None)  # noqa: B004  it is inspected
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (inner, call_method)
    )


def check_async(method: str) -> None:
    """Raise RuntimeError if a handler calls this method of its Context where nothing can be awaited: in a
    thread or a process."""
    if not runs_any_loop():
        raise RuntimeError(
            f"ctx.{method}() must be awaited, and this handler is a plain function: use ctx.sync.{method}(), "
            "or make the handler `async def`"
        )


def check_may_block(what: str, instead: str) -> None:
    """Raise RuntimeError in a thread that runs an event loop."""
    if runs_any_loop():
        raise RuntimeError(f"{what} would block the event loop that runs in this thread: use {instead}")


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs this event loop."""
    return runs_any_loop() and asyncio.get_running_loop() is loop


def runs_any_loop() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_not_awaitable(answer: Any, what: str) -> None:
    """Raise TypeError if a plain function returned something that waits to be awaited. Closes a coroutine.

    A task is no mistake: it runs by itself.
    """
    if answer is None or isinstance(answer, asyncio.Future) or not is_awaitable(answer):
        return
    if inspect.iscoroutine(answer):
        answer.close()
    raise TypeError(
        f"{what} returned a {type(answer).__name__}, which is not awaited: make {what} a plain function"
    )


async def call(fn: Any, *args: Any) -> Any:
    """Call a function that may be async, and return its value."""
    answer = fn(*args)
    return await answer if is_awaitable(answer) else answer


def is_awaitable(value: object) -> TypeIs[Awaitable[Any]]:
    """Whether a value can be awaited."""
    return inspect.isawaitable(value) and not isinstance(value, Unawaitable)


class Unawaitable:
    """Its `__await__` only raises, with a hint at what to do instead."""

    __slots__ = ()


def raised_by_user(error: BaseException) -> bool:
    """Whether the user's code, called from this task, raised `error`. False: this task is being ended, by a
    cancellation or by closing its coroutine."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return False
        return task is not None and not task.cancelling()
    return True
