"""The `call_next` of a middleware: it runs what is further inside, and refuses to be used wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

from treadle.base.callables import is_awaitable

from .context import Context

CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""What a middleware calls to run what is further inside."""
Middleware: TypeAlias = Callable[[Context, CallNext], Awaitable[Any]]
"""What is called around each handler: `async def m(ctx, call_next)`."""


class NextCall:
    """One middleware, with the `call_next` that it is given.

    inner: what `call_next` runs. what, given: the names of the middleware and of its first argument, for
    errors. once: it may not run again after it has returned.
    """

    __slots__ = (
        *("_call", "_ended", "_given", "_inner", "_is_over", "_is_running", "_middleware", "_once", "_what"),
        *("began", "failure", "returned", "value"),
    )

    def __init__(
        self,
        middleware: Callable[..., Awaitable[Any]],
        inner: Callable[[], Awaitable[Any]],
        what: str,
        given: str,
        *,
        once: bool,
    ) -> None:
        self._middleware: Final = middleware
        self._inner: Final = inner
        self._what: Final = what
        self._given: Final = given
        self._once: Final = once
        self._call: Coroutine[Any, Any, Any] | None = None
        """The call that has not ended."""
        self._is_running = False
        self._is_over = False
        """The middleware has returned."""
        self._ended: asyncio.Future[None] | None = None
        self.began = False
        self.returned = False
        self.value: Any = None
        """What the last call returned."""
        self.failure: BaseException | None = None
        """What the last call raised."""

    def __call__(self) -> Coroutine[Any, Any, Any]:
        if self._is_over:
            raise self.mistake("has called call_next() after it returned")
        if self._call is not None or (self._once and self.returned):
            raise self.mistake("has called call_next() twice")
        self._call = self._run()
        return self._call

    async def _run(self) -> Any:
        self.began = self._is_running = True
        self.failure = None
        try:
            self.value = await self._inner()
            self.returned = True
            return self.value
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._call, self._is_running = None, False
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    async def through(self, given: Any) -> Any:
        """What the middleware returns, for what it is `given`. If it has left a call to a task of its own,
        that call has ended."""
        try:
            answer: Any = self._middleware(given, self)
            if not is_awaitable(answer):
                example = f"async def m({self._given}, call_next)"
                raise TypeError(f"{self._what} must be async, as in `{example}`: {self._name()}")
            value = await answer
        except Exception:
            await self._end()
            raise
        finally:
            self._is_over = True
        if await self._end():
            raise self.mistake("has called call_next() without await")
        return value

    async def _end(self) -> bool:
        """Wait for a call that still runs. Whether one was made that never began."""
        self._is_over = True
        if self._call is None:
            return False
        if self._is_running:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended
            return False
        self._call.close()
        return True

    def mistake(self, problem: str) -> RuntimeError:
        """An error that names the middleware."""
        return RuntimeError(f"{self._what} {problem}: {self._name()}")

    def _name(self) -> str:
        middleware: Any = self._middleware
        name = getattr(middleware, "__qualname__", None)
        return repr(middleware) if name is None else f"{middleware.__module__}.{name}"
