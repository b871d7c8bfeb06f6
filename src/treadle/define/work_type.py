"""WorkType: what `@work` makes of a function. Calling it makes a `Work`.

A work type has a name, options and the signature of its calls. The function that runs it, its handler, may be
absent: a producer can declare types whose code it does not have.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Never,
    NoReturn,
    ParamSpec,
    TypeAlias,
    cast,
    get_origin,
)
from weakref import WeakSet

import msgspec
from typing_extensions import TypeIs, TypeVar

from treadle.base import ids
from treadle.base.callables import check_not_awaitable
from treadle.codec import Arguments, Codec, Parameter, Shape, default_codec, plain_class_in, stored_type
from treadle.errors import DecodeError, DefinitionError, InputError, shown
from treadle.flow_control import Failure, Undo
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.options import Input, RunIn, check_options

from .signature import (
    GROUP_VALUE,
    Handler,
    batch_item,
    check_handler,
    group_type,
    inspect_handler,
    own_type,
    steps_used,
    type_text,
)
from .work import Work, WorkTypeBase

P = ParamSpec("P")
S = TypeVar("S")
G = TypeVar("G", default=S)
T = TypeVar("T")

MaybeAsync: TypeAlias = T | Coroutine[Any, Any, T]
"""The return value of a plain function, or of an async one."""


class Batch(msgspec.Struct, frozen=True):
    """Many inputs in one call: made when `size` inputs are there, or `max_wait` seconds after the first."""

    size: int
    max_wait: float


class WorkType(WorkTypeBase[S], Generic[P, S, G]):
    """A kind of work. P is the signature of its calls, S the type of the item's value, G of the group's."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        name: str,
        declared: Handler,
        options: Mapping[str, Any],
        *,
        handler: Handler | None = None,
        batch: Batch | None = None,
    ) -> None:
        """`declared` gives the signature of its calls. `options` are checked type options."""
        functools.update_wrapper(self, declared.fn)
        self.name = ids.check_name(name, field="name")
        self.options = options
        self.batch = batch
        self.aliases = tuple(each for each in options.get("aliases", ()) if each != name)
        self._declared = declared
        self._handler = None if handler is None else self._check_run_in(handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Work[S, G]:
        """Make a Work with these arguments and a new id. It runs nothing.

        InputError, naming the parameter, for arguments that the annotations do not allow.
        """
        arguments = self._arguments
        return Work(ids.current(), arguments.name, arguments.bind(args, kwargs), self)

    def from_input(self, input: Mapping[str, Any]) -> Work[S, G]:
        """Make a Work from arguments by parameter name, as `enqueue("name", {...})` does."""
        return Work(ids.current(), self.name, self._arguments.bind_names(input), self)

    # ------------------------------------------------------------------------------------ the handler

    @property
    def fn(self) -> Callable[..., Any]:
        """The handler function itself, to be called directly. DefinitionError if it is only declared."""
        return handler_of(self).fn

    @property
    def has_handler(self) -> bool:
        """Whether this process has the handler."""
        return self._handler is not None

    def handler(
        self,
        fn: Callable[P, MaybeAsync[S | Result[S, G]]]
        | Callable[Concatenate[Context, P], MaybeAsync[S | Result[S, G]]],
        /,
    ) -> WorkType[P, S, G]:
        """Attach the function that runs this type. TypeError if its signature is not the declared one."""
        if self._handler is not None:
            raise TypeError(f"{self.name!r} has a handler already, {self._handler.fn.__qualname__}")
        handler = inspect_handler(fn)
        check_handler(self.name, self._declared, handler)
        self._handler = self._check_run_in(handler)
        functools.update_wrapper(self, handler.fn)
        self.__dict__.pop("_arguments", None)
        return self

    @property
    def run_in(self) -> RunIn:
        """Where the handler runs."""
        chosen: RunIn | None = self.options.get("run_in")
        is_async = self._handler is not None and self._handler.is_async
        return chosen or ("loop" if is_async else "thread")

    def _check_run_in(self, handler: Handler) -> Handler:
        """Return `handler`, or raise TypeError if it cannot run where the options say."""
        chosen = self.options.get("run_in")
        if handler.is_async and chosen in ("thread", "process"):
            raise TypeError(f"run_in={chosen!r} is for plain functions, and {self.name!r} is async")
        if handler.wants_contexts and self.batch is None:
            raise TypeError(
                f"{self.name!r} takes a list of contexts, as batch functions do: take `ctx: Context`, or use "
                "@work.batch(...)"
            )
        if chosen == "process":
            self._check_importable(handler.fn)
        used = steps_used(handler.fn) if chosen == "process" or self.batch is not None else None
        if used is not None:
            where = "a batch" if self.batch is not None else "a handler with run_in='process'"
            raise TypeError(
                f"{self.name!r} uses ctx.{used}, and {where} has no steps: queue the work that needs them, "
                "or run it in a thread"
            )
        return handler

    def _check_importable(self, fn: Callable[..., Any]) -> None:
        """Raise TypeError if another process cannot import the function."""
        if "<" in fn.__qualname__:  # <locals> or <lambda>
            raise TypeError(
                f"{self.name!r} is defined inside a function, or is a lambda, and another process cannot "
                "import it: with run_in='process', define it at the top of a module"
            )
        main = sys.modules["__main__"]
        has_file = main.__spec__ is not None or Path(getattr(main, "__file__", None) or "").is_file()
        if fn.__module__ == "__main__" and not has_file:
            raise TypeError(
                f"{self.name!r} is defined in no file, and another process cannot import it: with "
                "run_in='process', define it in a module"
            )

    # ------------------------------------------------------------------------------------- as stored

    def encode_input(self, input: Input, codec: Codec = default_codec) -> bytes:
        """Write the arguments of a Work. `codec` is the app's; a codec of the type itself wins over it."""
        return self._arguments.encode(input, self.options.get("codec", codec))

    def decode_input(self, data: bytes, codec: Codec = default_codec) -> Input:
        """Read stored arguments, such as the `input` of an ItemState, through `upcast`. DecodeError."""
        upcast = self.options.get("upcast")
        return self._arguments.decode(data, self.options.get("codec", codec), upcast)

    def encode_result(self, value: Any, codec: Codec = default_codec) -> bytes:
        """Write a value that the handler returned. EncodeError."""
        return self._result_shape.encode(value, self.options.get("codec", codec))

    def decode_result(self, data: bytes, codec: Codec = default_codec) -> Any:
        """Read a stored value. DecodeError."""
        return self._result_shape.decode(data, self.options.get("codec", codec))

    @functools.cached_property
    def _arguments(self) -> Arguments:
        # Made at the first call: annotations may name classes that the module defines later.
        types = self._declared.annotations()
        # A result that cannot be stored is refused here, not after the handler ran. One that never returns
        # has no result.
        if types["return"] not in (NoReturn, Never):
            _ = self._result_shape
        # The types are those declared. The defaults are the handler's: a stored call does not hold them.
        parameters = (self._handler or self._declared).parameters
        return Arguments(
            self.name,
            [Parameter(each.name, types[each.name], each.default, each.kind) for each in parameters.values()],
        )

    @functools.cached_property
    def _result_shape(self) -> Shape:
        # A function without a return annotation may return any value.
        try:
            return Shape.for_type(own_type(self._declared.annotations()["return"]))
        except DefinitionError as error:
            raise DefinitionError(f"{self.name}: the result: {error}") from error

    @property
    def _failure_parameter(self) -> str:
        parameters = self._declared.parameters.values()
        required = [each.name for each in parameters if each.default is each.empty]
        names = required or [each.name for each in parameters][:1]
        if len(names) != 1:
            raise TypeError(f"{self.name!r} cannot be on_dead=: it must take one argument, a Failure")
        return names[0]

    @property
    def _undo_parameter(self) -> tuple[str, bool]:
        names = [*self._declared.parameters]
        if len(names) != 1:
            raise TypeError(
                f"{self.name!r} cannot be undo=: it must take one argument, the value of the step or an Undo"
            )
        try:
            annotation = self._declared.annotations().get(names[0])
        except (DefinitionError, TypeError):  # it names classes that the module defines later
            return names[0], False
        return names[0], annotation is Undo or get_origin(annotation) is Undo

    def _check_takes_failure(self) -> None:
        parameter = self._failure_parameter
        try:
            arguments = self._arguments
        except (DefinitionError, TypeError):
            return  # it names classes that the module defines later: checked again when it is registered
        try:
            arguments.decode(default_codec.encode({parameter: msgspec.structs.asdict(_FAILURE)}))
        except DecodeError:
            annotation = type_text(self._declared.annotations()[parameter])
            raise TypeError(
                f"{self.name!r} cannot be on_dead=: it gets a Failure, and its parameter {parameter!r} is "
                f"`{annotation}`: annotate it `Failure`, or give a call, as in "
                f"on_dead={self.__name__}(...)"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # By reference, like a function: the other process has its own copy.
        return _find, (self.__module__, self.name)

    def __repr__(self) -> str:
        return f"<WorkType {self.name}>"

    if not TYPE_CHECKING:  # with it, type checkers would allow every attribute

        def __getattr__(self, name: str) -> NoReturn:
            called = self.__dict__.get("__name__", "work")
            hint = f": submit a call of it, as in `await app.enqueue({called}(...))`"
            raise AttributeError(
                f"a work type has no attribute {name!r}{hint if name in _SUBMITTING else ''}"
            )


_FAILURE: Final = Failure(id="id", type="type", input={}, error="error", reason="exhausted")
"""What a type must take to be an `on_dead`."""
_SUBMITTING: Final = ("apply_async", "delay", "enqueue", "kick", "queue", "remote", "send", "submit")
"""How other libraries spell it."""

AnyWorkType: TypeAlias = WorkType[..., Any, Any]


def own_compensation(name: str) -> str:
    """The name of the type that `@work(on_dead=<function>)` makes of the function."""
    return f"{name}.on_dead"


def handler_of(work_type: AnyWorkType) -> Handler:
    """Return the handler of a work type, for this package. DefinitionError if the type is only declared."""
    handler = work_type._handler  # pyright: ignore[reportPrivateUsage]
    if handler is None:
        raise DefinitionError(
            f"{work_type.name!r} is only declared here: import its handler, or attach one with "
            f"@{work_type.__name__}.handler"
        )
    return handler


def defined_in(work_type: AnyWorkType) -> str | None:
    """Return the function inside which its handler is defined, so that no other process can import it. None
    if there is none, or if the type has a name of its own, under which another process may have a handler."""
    handler = work_type._handler  # pyright: ignore[reportPrivateUsage]
    if handler is None or "name" in work_type.options:
        return None
    place, inside, _ = handler.fn.__qualname__.rpartition(".<locals>.")
    return place if inside else None


def substitute_for(work_type: AnyWorkType, fn: Callable[..., Any]) -> Handler:
    """Return a function as a handler that may stand for that of a work type. TypeError if its signature is
    not the declared one."""
    handler = inspect_handler(fn, lambdas=True)
    checked = handler if work_type.batch is None else batch_item(handler)
    check_handler(work_type.name, work_type._declared, checked)  # pyright: ignore[reportPrivateUsage]
    return handler


def arguments_of(work_type: AnyWorkType) -> Arguments:
    """Return how the calls of a work type are bound and stored, for this package."""
    return work_type._arguments  # pyright: ignore[reportPrivateUsage]


def result_shape_of(work_type: AnyWorkType) -> Shape:
    """Return how the results of a work type are stored, for this package."""
    return work_type._result_shape  # pyright: ignore[reportPrivateUsage]


def declared_types(work_type: AnyWorkType) -> list[Mapping[str, Any]]:
    """Return the types of what is stored, by the names of the parameters, with those of `return` and
    `GROUP_VALUE`, as declared and as the handler has them. Without those that cannot be resolved."""
    found: list[Mapping[str, Any]] = []
    handlers = (work_type._declared, work_type._handler)  # pyright: ignore[reportPrivateUsage]
    for each in dict.fromkeys(handler for handler in handlers if handler is not None):
        with contextlib.suppress(DefinitionError, TypeError):
            found.append(_stored_types(each))
    return found


@functools.lru_cache(maxsize=1024)
def _stored_types(handler: Handler) -> Mapping[str, Any]:
    types = handler.annotations()
    own = {
        name: stored_type(Parameter(name, types[name], kind=parameter.kind))
        for name, parameter in handler.parameters.items()
    }
    return {**own, "return": own_type(types["return"]), GROUP_VALUE: group_type(types["return"])}


def json_input(work_type: AnyWorkType, given: Mapping[str, Any]) -> Input:
    """Return arguments that were typed as JSON, by parameter name, for this package. InputError names the
    parameter that the annotations do not allow."""
    return arguments_of(work_type).bind_json(given)


def json_result(work_type: AnyWorkType, value: Any) -> Any:
    """Return a value that was typed as JSON as the handler would return it, for this package. InputError."""
    try:
        shape = work_type._result_shape  # pyright: ignore[reportPrivateUsage]
        return shape.decode(default_codec.encode(value))
    except DecodeError as error:
        raise InputError(f"this is no result of {work_type.name!r}: {error}", parameters=("value",)) from None


def result_text(work_type: AnyWorkType) -> str:
    """Return the type of its result, as text. Empty if it is not known."""
    try:
        returned = own_type(work_type._declared.annotations()["return"])  # pyright: ignore[reportPrivateUsage]
    except (DefinitionError, TypeError):
        return ""
    return "" if returned is Any else type_text(returned)


_storable: Final[WeakSet[Handler]] = WeakSet()
"""The declarations that `check_storable` has accepted. A process may make many apps with the same types."""


def check_storable(work_type: AnyWorkType) -> None:
    """Raise DefinitionError if an annotation names a plain class, whose instances only a codec of the user
    could store. Annotations that cannot be resolved yet are not checked."""
    declared = work_type._declared  # pyright: ignore[reportPrivateUsage]
    if declared in _storable:
        return
    try:
        types = dict(declared.annotations())
    except (DefinitionError, TypeError):
        return
    returned = types.pop("return")
    named = {**{f"parameter {name!r}": each for name, each in types.items()}, "result": returned}
    for what, annotation in named.items():
        cls = _plain_class(annotation)
        if cls is not None:
            raise DefinitionError(
                f"{work_type.name}: the {what} has the class {cls.__qualname__}, whose instances cannot be "
                "stored: make it a dataclass, a msgspec.Struct or a pydantic model, or give the type a codec "
                "that knows it"
            )
    _storable.add(declared)


def _plain_class(annotation: Any) -> type[Any] | None:
    if (get_origin(annotation) or annotation) is Work:
        return None  # the error of a handler that returns one says what to do instead
    try:
        return plain_class_in(own_type(annotation))
    except (DefinitionError, TypeError):
        return None  # it cannot be stored for another reason: that is raised at the first call


def needed_arguments(fn: Callable[..., Any]) -> str:
    """Return the arguments without which `fn`, a work type or a function, cannot be called. "" if there are
    none, or if that is not known."""
    if _is_work_type(fn):
        parameters: Iterable[inspect.Parameter] = fn._declared.parameters.values()  # pyright: ignore[reportPrivateUsage]
    else:
        try:
            parameters = inspect.signature(fn).parameters.values()
        except (TypeError, ValueError):  # a function in C may have no signature
            return ""
    return ", ".join(each.name for each in parameters if each.default is each.empty and each.kind not in _ANY)


_ANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def computed_options(work_type: AnyWorkType, input: Input) -> dict[str, Any]:
    """Return what the type's `options(input)` computes, checked."""
    compute = work_type.options.get("options")
    if compute is None:
        return {}
    answer, where = compute(input), f"options(input) of {work_type.name!r}"
    check_not_awaitable(answer, where)
    if answer is not None and not isinstance(answer, Mapping):
        raise InputError(f"{where} must return a dict of options or None, not {shown(answer)}")
    return check_options(cast("Mapping[str, Any]", answer or {}), where)


def _find(module: str, name: str) -> AnyWorkType:
    for value in vars(importlib.import_module(module)).values():
        if _is_work_type(value) and value.name == name:
            return value
    raise DefinitionError(f"no work type {name!r} in {module}: define it at the top level of its module")


def _is_work_type(value: object) -> TypeIs[AnyWorkType]:
    return isinstance(value, WorkType)
