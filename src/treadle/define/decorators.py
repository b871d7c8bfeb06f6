"""`work`: the decorator that makes work types of functions.

There is an overload for each form of a handler. A handler may take a Context, which is not part of the call
signature P. It may return a plain value (S and G are its type) or a Result (S and G are the Result's), or
either of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Never, ParamSpec, TypeAlias, overload

from typing_extensions import TypeVar, Unpack

from treadle.base.timing import Duration, seconds
from treadle.errors import InputError
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.options import TypeOptions, check_type_options

from .signature import Handler, batch_item, function_name, inspect_handler
from .work import check_takes_failure
from .work_type import AnyWorkType, Batch, WorkType, own_compensation

P = ParamSpec("P")
S = TypeVar("S")
G = TypeVar("G")
T = TypeVar("T")
A = TypeVar("A")
S2 = TypeVar("S2", default=Never)
G2 = TypeVar("G2", default=Never)

Async: TypeAlias = Coroutine[Any, Any, T]
Register: TypeAlias = Callable[[AnyWorkType], object]


class _Anything:
    """A class without instances. A parameter that accepts it has no annotation, or accepts any object. The
    overloads with it come first, so that type checkers do not take such a parameter for a Context.
    """


class Definer:
    """`work` itself, what `work(name=..., ...)` returns, and `app.work`, which also registers the type."""

    def __init__(self, options: TypeOptions | None = None, register: Register | None = None) -> None:
        self._options: TypeOptions = {} if options is None else options
        self._register = register

    @overload
    def __call__(self, fn: Callable[Concatenate[_Anything, ...], Async[T]], /) -> WorkType[..., T, T]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[_Anything, ...], T], /) -> WorkType[..., T, T]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], Async[Result[S, G]]], /
    ) -> WorkType[P, S, G]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], Async[T | Result[S2, G2]]], /
    ) -> WorkType[P, T | S2, T | G2]: ...
    @overload  # for mypy, which does not infer the union
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Context, P], Async[T]], /
    ) -> WorkType[P, T, T]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Result[S, G]], /) -> WorkType[P, S, G]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], T | Result[S2, G2]], /
    ) -> WorkType[P, T | S2, T | G2]: ...
    @overload  # for mypy
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Context, P], T], /
    ) -> WorkType[P, T, T]: ...
    @overload
    def __call__(self, fn: Callable[P, Async[Result[S, G]]], /) -> WorkType[P, S, G]: ...
    @overload
    def __call__(self, fn: Callable[P, Async[T]], /) -> WorkType[P, T, T]: ...
    @overload
    def __call__(self, fn: Callable[P, Result[S, G]], /) -> WorkType[P, S, G]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> WorkType[P, T, T]: ...
    @overload
    def __call__(self, /, **options: Unpack[TypeOptions]) -> Definer: ...
    def __call__(self, fn: Any = None, /, **options: Unpack[TypeOptions]) -> Any:
        """Make a work type of a function: `@work` or `@work(name=..., retry=..., ...)`."""
        check_type_options(options)
        merged: TypeOptions = {**self._options, **options}
        if fn is None:
            return Definer(merged, self._register)
        handler = inspect_handler(fn)
        return self._registered(_work_type(merged, handler, handler))

    @overload
    def declare(
        self,
        name: str,
        fn: Callable[Concatenate[Context, P], Async[Result[S, G]]],
        /,
        **options: Unpack[TypeOptions],
    ) -> WorkType[P, S, G]: ...
    @overload
    def declare(
        self, name: str, fn: Callable[Concatenate[Context, P], Async[T]], /, **options: Unpack[TypeOptions]
    ) -> WorkType[P, T, T]: ...
    @overload
    def declare(
        self,
        name: str,
        fn: Callable[Concatenate[Context, P], Result[S, G]],
        /,
        **options: Unpack[TypeOptions],
    ) -> WorkType[P, S, G]: ...
    @overload
    def declare(
        self, name: str, fn: Callable[Concatenate[Context, P], T], /, **options: Unpack[TypeOptions]
    ) -> WorkType[P, T, T]: ...
    @overload
    def declare(
        self, name: str, fn: Callable[P, Async[Result[S, G]]], /, **options: Unpack[TypeOptions]
    ) -> WorkType[P, S, G]: ...
    @overload
    def declare(
        self, name: str, fn: Callable[P, Async[T]], /, **options: Unpack[TypeOptions]
    ) -> WorkType[P, T, T]: ...
    @overload
    def declare(
        self, name: str, fn: Callable[P, Result[S, G]], /, **options: Unpack[TypeOptions]
    ) -> WorkType[P, S, G]: ...
    @overload
    def declare(
        self, name: str, fn: Callable[P, T], /, **options: Unpack[TypeOptions]
    ) -> WorkType[P, T, T]: ...
    def declare(self, name: str, fn: Any, /, **options: Unpack[TypeOptions]) -> Any:
        """Make a work type with the signature of `fn`. `fn` itself is never run.

        A producer can enqueue the type without its code. Workers attach the handler: `@the_type.handler`.
        """
        return self._registered(_work_type({**options, "name": name}, inspect_handler(fn)))

    def batch(
        self, *, size: int = 50, max_wait: Duration = 0.1, **options: Unpack[TypeOptions]
    ) -> BatchDefiner:
        """Make a work type of a function that takes a list of inputs and returns a list of outputs, in order.

        Each Work has one input, and its value is one output. The function is called when `size` inputs are
        there, or `max_wait` seconds after the first. An exception in the returned list fails only that item.

        It may take the contexts of its inputs first, in the same order: `contexts: list[Context]`. Then an
        output may be a Result of its context.
        """
        check_type_options(options)
        merged: TypeOptions = {**self._options, **options}
        return BatchDefiner(_checked_batch(size, max_wait), merged, self._registered)

    def _registered(self, work_type: AnyWorkType) -> AnyWorkType:
        if self._register is not None:
            self._register(work_type)
        return work_type


class BatchDefiner:
    """The decorator that `work.batch(...)` returns."""

    def __init__(self, batch: Batch, options: TypeOptions, register: Register) -> None:
        self._batch = batch
        self._options = options
        self._register = register

    @overload
    def __call__(
        self, fn: Callable[[list[Context], list[A]], Async[Sequence[Result[S, G] | Exception]]], /
    ) -> WorkType[[A], S, G]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[Context], list[A]], Async[Sequence[T | Exception]]], /
    ) -> WorkType[[A], T, T]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[Context], list[A]], Sequence[Result[S, G] | Exception]], /
    ) -> WorkType[[A], S, G]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[Context], list[A]], Sequence[T | Exception]], /
    ) -> WorkType[[A], T, T]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Async[Sequence[T | Exception]]], /) -> WorkType[[A], T, T]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Sequence[T | Exception]], /) -> WorkType[[A], T, T]: ...
    def __call__(self, fn: Any, /) -> Any:
        handler = inspect_handler(fn)
        work_type = _work_type(self._options, batch_item(handler), handler, self._batch)
        self._register(work_type)
        return work_type


def _work_type(
    options: TypeOptions, declared: Handler, handler: Handler | None = None, batch: Batch | None = None
) -> AnyWorkType:
    name, checked = options.get("name") or function_name(declared.fn), check_type_options(options)
    if inspect.isfunction(on_dead := checked.get("on_dead")):
        checked["on_dead"] = _compensation(own_compensation(name), inspect_handler(on_dead, lambdas=True))
    return WorkType(name, declared, checked, handler=handler, batch=batch)


def _compensation(name: str, handler: Handler) -> AnyWorkType:
    made = AnyWorkType(name, handler, {}, handler=handler)
    check_takes_failure(made)
    return made


def _checked_batch(size: int, max_wait: Duration) -> Batch:
    if type(size) is not int or size < 1:
        raise InputError.of("size", size, "must be a whole number, 1 or more")
    return Batch(size, seconds(max_wait, field="max_wait"))


work = Definer()
