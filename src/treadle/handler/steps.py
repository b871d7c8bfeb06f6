"""Steps: what a handler remembers from attempt to attempt, and how it waits without a worker.

`Step` has the options of a step. `StepRequests` are the requests of a Context, `SyncStepRequests` those of
its sync side. `treadle.engine.run.steps` carries them out.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, cast, overload

import msgspec
from typing_extensions import TypeVar

from treadle.base.callables import check_async, check_callable, check_may_block, check_plain, is_async
from treadle.base.ids import check_name
from treadle.base.timing import Duration, instant, seconds
from treadle.define.work import Work, check_takes_value, is_work, is_work_type, no_work
from treadle.errors import InputError
from treadle.flow_control import Undo
from treadle.retry import Retry

P = ParamSpec("P")
T = TypeVar("T")
X = TypeVar("X")
"""A connection, as the driver has it."""
V_contra = TypeVar("V_contra", contravariant=True, default=object)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")
W: TypeAlias = Work[T, Any]
"""A work with a value of this type."""


class Suspend(BaseException):
    """Ends an attempt that waits for a time, a signal or children. The engine raises it, and catches it.

    As `CancelledError` it is no `Exception`: let it pass. The handler starts again from the top when the wait
    is over.
    """


class Step(Generic[V_contra]):
    """A step with options: `ctx.step(CHARGE, pay, order)`. Make it once, as a constant of the module.

    retry: try the step again, within the attempt, when it raises. catch: exceptions that are its outcome: the
    failure is recorded, and raised again by each later attempt. undo: a work type that is queued if the item
    dies. Its only parameter is the step's value, or an `Undo`. timeout: seconds for one try. upcast: is given
    what a recorded value was stored as, and returns what it should be.

    The parameter is the type of the value, as the undo takes it: a step of another type is an error. Without
    an undo it fits every step.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        retry: Retry | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] = (),
        undo: Callable[[Undo[V_contra]], Work[Any, Any]],
        timeout: Duration | None = None,
        upcast: Callable[[Any], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        retry: Retry | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] = (),
        undo: Callable[[V_contra], Work[Any, Any]] | None = None,
        timeout: Duration | None = None,
        upcast: Callable[[Any], Any] | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        retry: Retry | None = None,
        catch: type[Exception] | tuple[type[Exception], ...] = (),
        undo: Callable[..., Work[Any, Any]] | None = None,
        timeout: Duration | None = None,
        upcast: Callable[[Any], Any] | None = None,
    ) -> None:
        self.name = check_name(name, field="name")
        self.retry = retry
        self.catch = _exceptions(catch)
        self.undo = None if undo is None else check_takes_value(undo)
        self.timeout = None if timeout is None else seconds(timeout, field="timeout")
        self.upcast = None if upcast is None else check_plain(upcast, "upcast")

    def __repr__(self) -> str:
        return f"<Step {self.name!r}>"


def _exceptions(catch: Any) -> tuple[type[Exception], ...]:
    classes: list[Any] = [*catch] if isinstance(catch, tuple) else [catch]
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            problem = "must be an exception class, or several in a tuple"
            raise InputError.of("catch", classes, problem)
    return tuple(classes)


class StoredFailure(msgspec.Struct, frozen=True):
    """A failure that a step has recorded."""

    type: str
    message: str
    args: list[Any] | None = None
    """The arguments of the exception. None: they cannot be stored."""


Until: TypeAlias = Duration | datetime
"""How long to sleep: seconds, a timedelta, or the instant at which it is over."""


class AttemptSteps(Protocol):
    """The steps of one attempt, as the engine has them."""

    async def call(self, step: Step[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...

    async def call_in_transaction(
        self, step: Step[Any], fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any: ...

    def call_from_thread(
        self, step: Step[Any], fn: Callable[..., Any], args: Any, kwargs: Any, *, within: bool
    ) -> Any: ...

    async def sleep(self, name: str, delay: float | None, until: float | None) -> None: ...

    async def signal(self, name: str, type: Any, timeout: float | None, step: str) -> Any: ...

    async def run(self, name: str, works: tuple[Work[Any, Any], ...]) -> Any: ...

    async def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    async def emit(self, chunk: Any) -> None: ...

    def key(self, name: str) -> str: ...


class StepRequests:
    """The requests of a Context about steps.

    Overloads are `async def`, and no type that is awaited names Any: mypy would take what `asyncio.gather`
    returns for different requests as Any.
    """

    __slots__ = ()

    def _steps(self, what: str) -> AttemptSteps:
        """The steps of this attempt. `what`: the method that asks."""
        raise NotImplementedError

    @overload
    async def step(
        self, name: str | Step[T], fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def step(
        self, name: str | Step[T], fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def step(
        self, name: str | Step[Any], fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call `fn`, record its value under this name, and return it. In a later attempt of the item: return
        the recorded value, without a call.

        The value is recorded before this returns. If the process dies between the two, `fn` is called again:
        give it `ctx.key(name)` as the idempotency key. A plain function runs in a thread. A name is used once
        in an attempt: in a loop, put the item into it, as in `f"page:{n}"`.
        """
        check_async("step")
        return self._steps("step").call(_step(name), _function(fn), args, kwargs)

    @overload
    async def step_tx(
        self,
        name: str | Step[T],
        fn: Callable[Concatenate[X, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    async def step_tx(
        self, name: str | Step[T], fn: Callable[Concatenate[X, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def step_tx(
        self, name: str | Step[Any], fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """As `step`, in a transaction on the backend's database: `fn(tx, ...)` writes with `tx`, and its
        writes and the step commit together. So they happen exactly once. `UnsupportedError` where
        `transaction()` is."""
        check_async("step_tx")
        return self._steps("step_tx").call_in_transaction(_step(name), _function(fn), args, kwargs)

    def sleep(self, name: str, for_or_until: Until) -> Coroutine[object, object, None]:
        """Sleep for this long, or until this instant, without a worker. The instant is recorded, by the
        store's clock. After five seconds or more the handler starts again from the top."""
        check_async("sleep")
        delay, until = _wake_up(for_or_until)
        return self._steps("sleep").sleep(check_name(name, field="name"), delay, until)

    @overload
    async def signal(
        self, name: str, type: type[T], timeout: Duration | None = None, *, step: str | None = None
    ) -> T | None: ...
    @overload
    async def signal(  # a union or a Literal: checkers do not know it as a type
        self, name: str, type: object, timeout: Duration | None = None, *, step: str | None = None
    ) -> Any: ...
    def signal(
        self, name: str, type: Any, timeout: Duration | None = None, *, step: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Wait for the next signal of this name to this item, without a worker, and return its value as this
        type. None if none came within `timeout` seconds.

        A signal that came before is taken at once. step: under which name the signal is recorded, if one name
        is waited for several times, as in `step=f"message:{n}"`.
        """
        check_async("signal")
        limit = None if timeout is None else seconds(timeout, field="timeout")
        own = check_name(name, field="name")
        recorded = own if step is None else check_name(step, field="step")
        return self._steps("signal").signal(own, type, limit, recorded)

    @overload
    async def run(  # pyright: ignore[reportOverlappingOverload]  # as asyncio.gather
        self, name: str, a: W[A], /
    ) -> tuple[A]: ...
    @overload
    async def run(self, name: str, a: W[A], b: W[B], /) -> tuple[A, B]: ...
    @overload
    async def run(self, name: str, a: W[A], b: W[B], c: W[C], /) -> tuple[A, B, C]: ...
    @overload
    async def run(self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], /) -> tuple[A, B, C, D]: ...
    @overload
    async def run(
        self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], /
    ) -> tuple[A, B, C, D, E]: ...
    @overload
    async def run(
        self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], f: W[F], /
    ) -> tuple[A, B, C, D, E, F]: ...
    @overload
    async def run(
        self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], f: W[F], g: W[G], /
    ) -> tuple[A, B, C, D, E, F, G]: ...
    @overload
    async def run(
        self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], f: W[F], g: W[G], h: W[H], /
    ) -> tuple[A, B, C, D, E, F, G, H]: ...
    @overload
    async def run(self, name: str, /, *works: W[T]) -> list[T]: ...
    def run(self, name: str, /, *works: Work[Any, Any]) -> Coroutine[Any, Any, Any]:
        """Queue these works as children, wait for their ends without a worker, and return their values in a
        list, in order. A child that died raises `WorkFailed` here."""
        check_async("run")
        return self._steps("run").run(check_name(name, field="name"), _works(works))

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Say how far this item is. `handle.progress()`, `treadle show` and the dashboard show the last that
        was said. It is written now and then, not with each call."""
        check_async("progress")
        return self._steps("progress").progress(done, total, message)

    def emit(self, chunk: Any) -> Coroutine[Any, Any, None]:
        """Add a chunk to the stream of this item, for `handle.stream()`. Chunks are written together, a tenth
        of a second after the first."""
        check_async("emit")
        return self._steps("emit").emit(chunk)

    def key(self, name: str) -> str:
        """A key that is the same in every attempt of this item: the idempotency key for another service. It
        is another one if a requeue has undone or forgotten the step of this name."""
        return self._steps("key").key(check_name(name, field="name"))


class SyncStepRequests:
    """The same for a handler that is a plain function. Each blocks until it is answered."""

    __slots__ = ()

    def _steps(self, what: str) -> AttemptSteps:
        raise NotImplementedError

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def step(self, name: str | Step[T], fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `Context.step`. `fn` is called in this thread."""
        check_may_block("ctx.sync.step()", "`await ctx.step(...)`")
        steps, plain = self._steps("step"), _plain(fn)
        value: T = steps.call_from_thread(_step(name), plain, args, kwargs, within=False)
        return value

    def step_tx(
        self, name: str | Step[T], fn: Callable[Concatenate[X, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `Context.step_tx`. `fn` is called in this thread, with what `ctx.sync.transaction()` gives."""
        check_may_block("ctx.sync.step_tx()", "`await ctx.step_tx(...)`")
        steps, plain = self._steps("step_tx"), _plain(fn)
        value: T = steps.call_from_thread(_step(name), plain, args, kwargs, within=True)
        return value

    def sleep(self, name: str, for_or_until: Until) -> None:
        """As `Context.sleep`."""
        self._ask("sleep", name, for_or_until)

    @overload
    def signal(
        self, name: str, type: type[T], timeout: Duration | None = None, *, step: str | None = None
    ) -> T | None: ...
    @overload
    def signal(
        self, name: str, type: object, timeout: Duration | None = None, *, step: str | None = None
    ) -> Any: ...
    def signal(
        self, name: str, type: Any, timeout: Duration | None = None, *, step: str | None = None
    ) -> Any:
        """As `Context.signal`."""
        return self._ask("signal", name, type, timeout, step=step)

    @overload
    def run(  # pyright: ignore[reportOverlappingOverload]  # as above
        self, name: str, a: W[A], /
    ) -> tuple[A]: ...
    @overload
    def run(self, name: str, a: W[A], b: W[B], /) -> tuple[A, B]: ...
    @overload
    def run(self, name: str, a: W[A], b: W[B], c: W[C], /) -> tuple[A, B, C]: ...
    @overload
    def run(self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], /) -> tuple[A, B, C, D]: ...
    @overload
    def run(self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], /) -> tuple[A, B, C, D, E]: ...
    @overload
    def run(
        self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], f: W[F], /
    ) -> tuple[A, B, C, D, E, F]: ...
    @overload
    def run(
        self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], f: W[F], g: W[G], /
    ) -> tuple[A, B, C, D, E, F, G]: ...
    @overload
    def run(
        self, name: str, a: W[A], b: W[B], c: W[C], d: W[D], e: W[E], f: W[F], g: W[G], h: W[H], /
    ) -> tuple[A, B, C, D, E, F, G, H]: ...
    @overload
    def run(self, name: str, /, *works: W[T]) -> list[T]: ...
    def run(self, name: str, /, *works: Work[Any, Any]) -> Any:
        """As `Context.run`."""
        return self._ask("run", name, *works)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """As `Context.progress`."""
        self._ask("progress", done, total, message)

    def emit(self, chunk: Any) -> None:
        """As `Context.emit`."""
        self._ask("emit", chunk)


def _step(name: str | Step[Any]) -> Step[Any]:
    return name if isinstance(name, Step) else Step(name)


def _works(given: tuple[Work[Any, Any], ...]) -> tuple[Work[Any, Any], ...]:
    for each in given:
        if not is_work(each):
            raise no_work(each, "ctx.run", '"papers", add(1, 2)', "give each of them, as in *works")
    return given


def _function(fn: Any) -> Callable[..., Any]:
    if is_work_type(fn):
        name = fn.__name__
        problem = f"is a work type: ctx.run(name, {name}(...)) runs an item of it, {name}.fn is its function"
        raise InputError.of("fn", fn, problem)
    if inspect.iscoroutine(fn):
        fn.close()
        problem = f"must be a function, its arguments after it, as in ctx.step(name, {fn.__name__}, 1)"
        raise InputError.of("fn", fn, problem)
    return cast("Callable[..., Any]", check_callable(fn, "fn"))


def _plain(fn: Any) -> Callable[..., Any]:
    if is_async(_function(fn)):
        raise TypeError("ctx.sync.step takes a plain function: an async one needs an async handler")
    return cast("Callable[..., Any]", fn)


def _wake_up(given: Until) -> tuple[float | None, float | None]:
    """A delay, or an instant."""
    if isinstance(given, datetime):
        return None, instant(given, field="until")
    return seconds(given, field="for"), None
