"""Step calls: the functions of steps are called, on the event loop or in a thread. Values are recorded."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from treadle.backend import check_capable
from treadle.base.callables import is_async, is_awaitable
from treadle.codec import Shape, check_size
from treadle.define.signature import class_path
from treadle.engine.core import Core
from treadle.engine.guarded_telemetry import NOTHING
from treadle.engine.open_transaction import OpenTransaction, refuse_in_transaction
from treadle.engine.registry import AnyType
from treadle.errors import (
    DecodeError,
    Directive,
    InputError,
    PayloadError,
    StepError,
    StepFailed,
    Stopped,
    message_of,
)
from treadle.handler.context import blocking_connection
from treadle.handler.steps import Step, StepRequests, StoredFailure
from treadle.item import StepRecord
from treadle.retry import Retry

from .handler_pools import caught
from .held import HeldLease
from .step_records import INSIDE, StepBook

T = TypeVar("T")

LOOP_CHECK: Final = 1.0
"""Seconds after which a thread that waits for an answer checks that the worker's event loop still exists."""
CYCLES: Final = 3
"""Cycles of the event loop in which a handler may begin its next step, before its attempt is suspended."""
MORE_CYCLES: Final = 30
"""The same if several tasks have steps. The end of a task in a group is known two cycles later."""
_shapes: WeakKeyDictionary[Any, Shape] = WeakKeyDictionary()
_write_json: Final = msgspec.json.Encoder().encode
_failures: Final = msgspec.json.Decoder(StoredFailure)


class StepCalls:
    """The calls of steps in one attempt."""

    def __init__(self, core: Core, held: HeldLease, book: StepBook) -> None:
        self._core = core
        self._held = held
        self._book = book
        self._clock = core.settings.clock
        self.running: dict[asyncio.Task[Any], None] = {}
        """The tasks at work."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def call(self, step: Step[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        found = self._book.open(step.name)
        if found is not None:
            return self._replay(step, fn, found)
        with self._runs(step.name):
            call = functools.partial(_called, fn, args, kwargs)
            return await self._try(step, functools.partial(self._once, step, fn, call))

    async def call_in_transaction(
        self, step: Step[Any], fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        refuse_in_transaction(self._core.backend, "ctx.step_tx")
        check_capable(self._core.backend, "transactions")
        found = self._book.open(step.name)
        if found is not None:
            return self._replay(step, fn, found)
        with self._runs(step.name):

            def call(tx: Any) -> Awaitable[Any]:
                return _called(fn, (tx, *args), kwargs)

            return await self._try(step, functools.partial(self._once_within, step, fn, call))

    def call_from_thread(
        self, step: Step[Any], fn: Callable[..., Any], args: Any, kwargs: Any, *, within: bool
    ) -> Any:
        """The same for a handler in a thread, which calls `fn` itself."""
        assert self._core.loop is not None
        calls = ThreadCalls(self._core.loop)
        call = self.call_in_transaction if within else self.call
        return calls.serve(call(step, calls.handed_over(fn, step.name, within=within), args, kwargs))

    async def _try(self, step: Step[Any], once: Callable[[StepTry], Awaitable[Any]]) -> Any:
        """Call a step until it has a value, or fails for good. What the store raises is no failure of it."""
        tries = 0
        while True:
            this = StepTry(step, self._clock.monotonic())
            try:
                return await once(this)
            except Exception as error:
                if error is not this.error:
                    raise
                if isinstance(error, step.catch):
                    await self._record_failure(step, error, this.began)
                    raise
                tries += 1
                if not _is_tried_again(step.retry, error, tries):
                    raise
            assert step.retry is not None
            await self._clock.sleep(step.retry.delay(tries, self._core.settings.random.random))

    async def _once(
        self, step: Step[Any], fn: Callable[..., Any], call: Callable[[], Awaitable[Any]], this: StepTry
    ) -> Any:
        value = await this.call(call)
        await self._book.record(self._made(step, fn, value, this.began))
        return value

    def _made(self, step: Step[Any], fn: Callable[..., Any], value: Any, began: float) -> StepRecord:
        """The record of a step that has come to this value."""
        shape, codec, of_app = shape_of(fn), self._held.bound.codec, self._core.settings.codec
        try:
            data = shape.encode(value, codec)
            check_size(data, self._core.settings.max_payload, "the value of the step", step.name)
        except PayloadError as error:
            self._book.refuse(error, step.name)
        undo = None
        if step.undo is not None:
            undo = self._undo(step, value, data if codec is of_app else shape.encode(value, of_app))
        return StepRecord(name=step.name, value=data, took=self._clock.monotonic() - began, undo=undo)

    def _undo(self, step: Step[Any], value: Any, data: bytes) -> bytes:
        undo = cast("AnyType", step.undo)
        try:
            return self._core.item_builder.undo(undo, value, data)
        except InputError as error:
            raise StepError(f"the undo of the step {step.name!r} does not take its value: {error}") from error

    async def _record_failure(self, step: Step[Any], error: Exception, began: float) -> None:
        stored = StoredFailure(class_path(error), message_of(error), list(error.args))
        try:
            data = _write_json(stored)
        except Exception:  # noqa: BLE001  an exception may have any arguments
            data = _write_json(replace(stored, args=None))
        took = self._clock.monotonic() - began
        await self._book.record(StepRecord(name=step.name, kind="failure", value=data, took=took))

    async def _once_within(
        self, step: Step[Any], fn: Callable[..., Any], call: Callable[[Any], Awaitable[Any]], this: StepTry
    ) -> Any:
        """The same in a transaction of its own. It commits with the record of the step."""
        core = self._core
        transaction = OpenTransaction(core.backend, self._held.lease.tenant)
        async with self._book.output.beside_transaction() as take_output, transaction.stack:
            connection = await transaction.open()
            try:
                value = await this.call(functools.partial(call, connection))
                made = self._made(step, fn, value, this.began)
                transaction.is_open = False
                record = self._book.record_of(made, await take_output())
                (loss,) = await transaction.transaction.record([record])
                if loss is not None:
                    self._book.lose(loss)
            finally:
                transaction.is_open = False
        self._book.note(record.steps)
        for item, queued_at in transaction.stored:
            core.announcer.queued([item], queued_at)
        core.wakeups.ready(transaction.lines)
        return value

    def _replay(self, step: Step[Any], fn: Callable[..., Any], found: StepRecord) -> Any:
        if found.kind == "failure":
            raise _failure_of(found, step.catch)
        self._book.check_kind(found, "value")
        try:
            return shape_of(fn).decode(found.value or b"", self._held.bound.codec, step.upcast)
        except DecodeError as error:
            self._book.refuse(error, step.name)

    @contextmanager
    def _runs(self, name: str) -> Generator[None]:
        telemetry = self._core.telemetry
        token = INSIDE.set(name)
        try:
            with self.at_work(), NOTHING if telemetry is None else telemetry.step(name):
                yield
        finally:
            INSIDE.reset(token)

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Meanwhile no wait of another task suspends the attempt."""
        task = asyncio.current_task()
        assert task is not None
        self.running[task] = None
        self._idle.clear()
        try:
            yield
        finally:
            del self.running[task]
            if not self.running:
                self._idle.set()

    async def until_idle(self) -> None:
        """Return when no step runs, and the handler has had the chance to begin another."""
        cycles = 0
        while cycles < (MORE_CYCLES if self._book.has_branches else CYCLES):
            await self._idle.wait()
            await asyncio.sleep(0)
            cycles = 0 if self.running else cycles + 1


class StepTry:
    """One try of a step, and how its function failed, if it did."""

    def __init__(self, step: Step[Any], began: float) -> None:
        self._timeout = step.timeout
        self.began = began
        self.error: Exception | None = None

    async def call(self, fn: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await fn()
        except Exception as error:
            self.error = error
            raise


def _is_tried_again(retry: Retry | None, error: Exception, tries: int) -> bool:
    if retry is None or isinstance(error, Directive):
        return False
    return retry.attempts is None or tries < retry.attempts


class ThreadCalls:
    """Functions that a handler in a thread gives to its steps: the event loop asks for their calls, and the
    thread makes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def handed_over(self, fn: Callable[..., Any], name: str, *, within: bool) -> Callable[..., Any]:
        """An async function for the event loop, which has the thread call `fn`. within: its first argument is
        a connection."""

        @functools.wraps(fn)
        async def ask(*args: Any, **kwargs: Any) -> Any:
            if within:
                args = (blocking_connection(args[0], self._wait), *args[1:])
            answer = self._loop.create_future()
            self._asked.put(functools.partial(self._call, answer, name, fn, args, kwargs))
            return await answer

        return ask

    def _call(
        self, answer: asyncio.Future[Any], name: str, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        token = INSIDE.set(name)
        try:
            value, error = caught(functools.partial(fn, *args, **kwargs))
        finally:
            INSIDE.reset(token)
        self._loop.call_soon_threadsafe(_answer, answer, value, error)

    def _wait(self, request: Callable[[], Awaitable[T]]) -> T:
        return wait_on(self._loop, request)

    def serve(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Make the request on the event loop, and what it asks for in this thread."""
        task = begun_on(self._loop, request)
        task.add_done_callback(lambda _: self._asked.put(None))
        while not (task.done() and self._asked.empty()):
            try:
                asked = self._asked.get(timeout=LOOP_CHECK)
            except Empty:
                if self._loop.is_closed():
                    raise left_by(request) from None
                continue
            if asked is not None:
                asked()
        try:
            return task.result()
        except CancelledError:
            raise Stopped("the worker") from None


def wait_on(loop: asyncio.AbstractEventLoop, request: Callable[[], Awaitable[T]]) -> T:
    """What a request returns that is made on the event loop. `Stopped` if the loop ends before it does."""

    async def on_loop() -> T:
        return await request()

    coroutine = on_loop()
    answer = begun_on(loop, coroutine)
    while True:
        try:
            return answer.result(LOOP_CHECK)
        except CancelledError:
            raise Stopped("the worker") from None
        except TimeoutError:
            # Raised by the request itself, or by the wait for it.
            if answer.done():
                raise
            if loop.is_closed():
                raise left_by(coroutine) from None


def begun_on(loop: asyncio.AbstractEventLoop, request: Coroutine[Any, Any, T]) -> Future[T]:
    """Begin a request on the event loop. `Stopped` if the loop has ended."""
    try:
        return asyncio.run_coroutine_threadsafe(request, loop)
    except RuntimeError:
        raise left_by(request) from None


def left_by(request: Coroutine[Any, Any, Any]) -> Stopped:
    """The error of a request whose loop has ended, perhaps before the request began."""
    if inspect.getcoroutinestate(request) == inspect.CORO_CREATED:
        request.close()  # Python would warn that it was never awaited
    return Stopped("the worker")


def _answer(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


async def _called(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the function of a step: on the event loop if it is async, otherwise in a thread."""
    # Methods of a Context make coroutines, and are no async functions: see `StepRequests`.
    if is_async(fn) or isinstance(getattr(fn, "__self__", None), StepRequests):
        return await fn(*args, **kwargs)
    value = await asyncio.to_thread(fn, *args, **kwargs)
    return await value if is_awaitable(value) else value


def shape_of(fn: Callable[..., Any]) -> Shape:
    """How the values of a function are stored, by its return annotation."""
    inner: Any = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    try:
        found = _shapes.get(inner)
        if found is None:
            found = _shapes[inner] = Shape.for_type(_returned_type(inner))
    except TypeError:  # it cannot be referred to weakly
        return Shape.for_type(_returned_type(inner))
    return found


def _returned_type(fn: Any) -> Any:
    """What a function returns, or what its coroutine does. Any if it does not say so."""
    try:
        hints = typing.get_type_hints(fn if inspect.isroutine(fn) else type(fn).__call__, include_extras=True)
    except Exception:  # noqa: BLE001  an annotation may name what is only known to a type checker
        return Any
    tp = hints.get("return", Any)
    if typing.get_origin(tp) in (Awaitable, Coroutine):
        tp = typing.get_args(tp)[-1]
    return Any if isinstance(tp, TypeVar) else tp


def _failure_of(found: StepRecord, catch: Sequence[type[Exception]]) -> Exception:
    """The exception that a step has recorded, as one of its declared classes if it can be made."""
    stored = _failures.decode(found.value or b"")
    for each in catch:
        if f"{each.__module__}.{each.__qualname__}" == stored.type or each.__qualname__ == stored.type:
            try:
                return each(*(stored.args if stored.args is not None else [stored.message]))
            except Exception:  # noqa: BLE001  its class takes other arguments now
                break
    return StepFailed(stored.type, stored.message)
