"""ProcessPool: runs sync handlers in processes. Unlike threads, they can be ended one by one.

    run -> borrow a child -> its thread: send the call, wait for the answer -> return the child
                 |                                     |
                 '--- cancelled: kill the child -------'--- the child died: ProcessDied

`treadle.engine.run.pool_child` has the thread, `treadle.engine.run.process_child` is the other side.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from treadle.errors import Abort, BadResultError, HandlerError, InputError, RetryAfter, Stopped
from treadle.handler.result import Result
from treadle.logs.tracebacks import RemoteTraceback

from .pool_child import ADVICE, KILL_WAIT, PoolChild, ReadAnswer
from .process_messages import Raised, Reference, Returned, Unsendable

if TYPE_CHECKING:
    from .process_context import PoolContexts

RESULT_ADVICE: Final = (
    "define its `append=`, and the types of its works, at the top of a module, or run it in a thread"
)


class ProcessPool:
    """Runs functions in up to `size` processes (default: one per core), started when first needed."""

    def __init__(self, size: int | None = None) -> None:
        if size is not None and (type(size) is not int or size < 1):
            raise InputError.of("processes", size, "must be a whole number, 1 or more")
        self.size = size or os.cpu_count() or 1
        self._children: set[PoolChild] = set()
        self._idle: list[PoolChild] = []
        self._waiting: deque[Future[None]] = deque()
        self._references: dict[Callable[..., Any], Reference] = {}
        self._closed = False

    async def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        name: str = "",
        contexts: PoolContexts | None = None,
        carried: bytes | None = None,
        is_batch: bool = False,
    ) -> Any:
        """Call `fn` in a child process. Returns what it returns, raises what it raises.

        Cancelling this kills the child. If the child dies by itself, this call raises `ProcessDied`.

        contexts: those of the attempts that the call is for, if the function takes a Context first.
        carried: the context that the child enters around the call.
        is_batch: it returns a list of outputs. One that cannot be sent back is an error in the list.
        """
        what = name or fn.__qualname__
        request = self._request(fn, args, kwargs or {}, what, contexts, carried, is_batch)
        child = await self._borrow()
        try:
            answer = await child.call(request, what, contexts)
        except BaseException:
            # Cancelled, or the child died. A child that was still starting has not seen the call.
            if child.calling is None:
                self._return(child)
            else:
                await self._discard(child)
            raise
        self._return(child)
        if isinstance(answer, tuple):
            return _outputs(what, answer, contexts)
        if not isinstance(answer, Returned):
            raise _error(what, answer)
        if contexts is not None:
            contexts.returned(answer.created)
        return answer.value

    async def ready(self) -> None:
        """Return when a child is free and has started. Starting takes a while, which should not count against
        a call's timeout."""
        child = await self._borrow()
        try:
            await asyncio.wait([child.started])
        finally:
            self._return(child)

    async def close(self) -> None:
        """End all children. Idle ones end by themselves, busy ones are killed. Idempotent."""
        self._closed = True
        while self._waiting:
            self._wake_next()
        children, self._idle = list(self._children), []
        for child in children:
            child.stop()
        if children:
            await asyncio.wait([child.ended for child in children], timeout=KILL_WAIT)
        self._children.clear()

    def _request(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        contexts: PoolContexts | None,
        carried: bytes | None,
        is_batch: bool,
    ) -> bytes:
        reference = self._references.get(fn)
        if reference is None:
            reference = self._references[fn] = reference_to(fn)
        try:
            sent = None if contexts is None else contexts.sent()
            return pickle.dumps((reference, args, kwargs, sent, carried, is_batch))
        except Exception as error:
            raise BadArgumentError(name, error) from error

    # -- children --------------------------------------------------------------------------------------

    async def _borrow(self) -> PoolChild:
        while True:
            if self._closed:
                raise Stopped("the process pool")
            while self._idle:
                child = self._idle.pop()
                if child.is_alive():
                    return child
                self._remove(child)
            if len(self._children) < self.size:
                child = PoolChild(asyncio.get_running_loop())
                self._children.add(child)
                return child
            await self._wait_for_child()

    async def _wait_for_child(self) -> None:
        """Wait, in order of arrival, until a child may be free."""
        place: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._wake_next()
            raise

    def _return(self, child: PoolChild) -> None:
        if self._closed:
            child.stop()
            self._remove(child)
        else:
            self._idle.append(child)
            self._wake_next()

    async def _discard(self, child: PoolChild) -> None:
        child.kill()
        self._remove(child)
        self._wake_next()
        await asyncio.wait([child.ended], timeout=KILL_WAIT)

    def _remove(self, child: PoolChild) -> None:
        self._children.discard(child)
        child.stop()

    def _wake_next(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return


def _outputs(name: str, answers: Sequence[ReadAnswer], contexts: PoolContexts | None) -> list[Any]:
    """The outputs of a batch, with an error for each that has none."""
    if contexts is not None:
        contexts.returned(
            [each.created[0] if isinstance(each, Returned) and each.created else [] for each in answers]
        )
    return [each.value if isinstance(each, Returned) else _error(name, each) for each in answers]


def _error(name: str, answer: Raised | Unsendable | BadResultError) -> Exception:
    """The error of a call, or of an output of it, that returned nothing."""
    if isinstance(answer, BadResultError):
        return answer
    if isinstance(answer, Unsendable):
        return BadResultError(
            name,
            f"a {answer.kind}, which cannot be sent back from its process ({answer.problem}); "
            f"{RESULT_ADVICE if answer.kind == Result.__name__ else ADVICE}",
        )
    error = answer.error
    if answer.traceback:
        error.__cause__ = RemoteTraceback(answer.traceback)
        cause = error.cause if isinstance(error, Abort | RetryAfter) else None
        if isinstance(cause, BaseException):
            cause.__cause__ = error.__cause__  # what is stored is the cause
    return error


class BadArgumentError(HandlerError):
    """An argument cannot be pickled. Another attempt would not help."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(
            f"an argument of {name} cannot be sent to a process ({error}): take plain data, or run it in a "
            "thread"
        )


def reference_to(fn: Callable[..., Any]) -> Reference:
    """`fn` by name. `InputError` if the name does not refer to it."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    reference = Reference(module or "", qualname)
    try:
        found = reference.resolve()
    except (AttributeError, ImportError, ValueError):
        found = None
    if found is not fn:
        raise InputError.of(
            "run_in",
            "process",
            f"needs a function that {qualname or fn!r} of {module} names: define it at the top",
        )
    return reference
