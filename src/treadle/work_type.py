"""WorkType: what `@work` makes of a function. Calling it makes a `Work`.

A work type is complete with its name, its options and the signature of its calls. The function that
carries it out, its handler, may be absent: a producer can declare types whose code it does not have.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias

import msgspec
from typing_extensions import TypeIs, TypeVar

from .codec import Codec, Parameter, Shape, Signature, default_codec
from .context import Context
from .errors import DefinitionError
from .ids import check_name, generate_id
from .options import Input, RunIn, check_options
from .result import Result
from .signature import Handler, check_handler, inspect_handler, own_type
from .work import Work, WorkTypeBase

P = ParamSpec("P")
S = TypeVar("S")
G = TypeVar("G", default=S)
T = TypeVar("T")

Sometime: TypeAlias = T | Coroutine[Any, Any, T]
"""What a plain function returns, or an async one."""


class Batch(msgspec.Struct, frozen=True):
    """Many inputs in one call: flushed at `size` of them, or `max_wait` seconds after the first."""

    size: int
    max_wait: float


class WorkType(WorkTypeBase, Generic[P, S, G]):
    """A kind of work: P is the signature of its calls, S what `.result()` gives, G what the group
    gives.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        name: str,
        shown: Handler,
        options: Mapping[str, Any],
        *,
        handler: Handler | None = None,
        batch: Batch | None = None,
    ) -> None:
        """`shown` is what its calls look like; `options` are checked type options."""
        functools.update_wrapper(self, shown.fn)
        self.name = check_name(name, field="name")
        self.options = options
        self.batch = batch
        self._shown = shown
        self._handler = None if handler is None else self._placed(handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Work[S, G]:
        """A Work with these arguments and a fresh id. It runs nothing.

        Raises InputError, naming the parameter, for arguments that the annotations do not allow.
        """
        return Work(generate_id(), self.name, self.signature.bind(args, kwargs), self)

    def mint(self, input: Mapping[str, Any]) -> Work[S, G]:
        """The same, from arguments by name: what `enqueue("name", {...})` does."""
        return Work(generate_id(), self.name, self.signature.bind_names(input), self)

    # ----------------------------------------------------------------------------------- handling

    @property
    def fn(self) -> Callable[..., Any]:
        """The handler itself, to be called directly. DefinitionError if the type is only declared."""
        return self.required_handler.fn

    @property
    def has_handler(self) -> bool:
        """Whether this process has the code."""
        return self._handler is not None

    @property
    def required_handler(self) -> Handler:
        if self._handler is None:
            raise DefinitionError(
                f"{self.name!r} is only declared here: import its handler, or attach one with "
                f"@{self.__name__}.handler"
            )
        return self._handler

    def handler(
        self,
        fn: Callable[P, Sometime[S | Result[S, G]]]
        | Callable[Concatenate[Context, P], Sometime[S | Result[S, G]]],
        /,
    ) -> WorkType[P, S, G]:
        """Attach the function that carries this type out. TypeError if its calls look different."""
        if self._handler is not None:
            raise TypeError(f"{self.name!r} has a handler already, {self._handler.fn.__qualname__}")
        handler = inspect_handler(fn)
        check_handler(self.name, self._shown, handler)
        self._handler = self._placed(handler)
        functools.update_wrapper(self, handler.fn)
        self.__dict__.pop("signature", None)
        return self

    @property
    def run_in(self) -> RunIn:
        """Where the handler runs."""
        chosen: RunIn | None = self.options.get("run_in")
        is_async = self._handler is not None and self._handler.is_async
        return chosen or ("loop" if is_async else "thread")

    def _placed(self, handler: Handler) -> Handler:
        """`handler`, if it can run where the options say."""
        chosen = self.options.get("run_in")
        if handler.is_async and chosen in ("thread", "process"):
            raise TypeError(f"run_in={chosen!r} is for plain functions, and {self.name!r} is async")
        if handler.wants_context and chosen == "process":
            raise TypeError(
                f"{self.name!r} takes a Context, which does not leave its process: "
                "with run_in='process', take what the handler needs as arguments"
            )
        return handler

    def computed_options(self, input: Input) -> dict[str, Any]:
        """What the type's `options(input)` says, checked."""
        compute = self.options.get("options")
        if compute is None:
            return {}
        return check_options(compute(input) or {}, f"options(input) of {self.name!r}")

    # --------------------------------------------------------------------------------- on the wire

    @functools.cached_property
    def signature(self) -> Signature:
        """Its calls. Read when first needed: annotations may name what is defined after it."""
        types = self._shown.annotations()
        # Types are as declared, defaults are the handler's own: a stored call does not hold them.
        parameters = (self._handler or self._shown).parameters
        return Signature(
            self.name,
            [Parameter(each.name, types[each.name], each.default, each.kind) for each in parameters.values()],
        )

    @functools.cached_property
    def result_shape(self) -> Shape:
        """S, on the wire. A function that says nothing returns anything."""
        return Shape.for_type(own_type(self._shown.annotations()["return"]))

    def encode_input(self, input: Input, codec: Codec = default_codec) -> bytes:
        """`codec` is the app's; the type's own comes first, here as below."""
        return self.signature.encode(input, self.options.get("codec", codec))

    def decode_input(self, data: bytes, codec: Codec = default_codec) -> Input:
        return self.signature.decode(data, self.options.get("codec", codec))

    def encode_result(self, value: Any, codec: Codec = default_codec) -> bytes:
        return self.result_shape.encode(value, self.options.get("codec", codec))

    def decode_result(self, data: bytes, codec: Codec = default_codec) -> Any:
        return self.result_shape.decode(data, self.options.get("codec", codec))

    def arguments(self, input: Input) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the handler with, after its Context."""
        return self.signature.call(input)

    @property
    def failure_parameter(self) -> str:
        """Where the handler of a compensation is told of the failure: its only required parameter."""
        parameters = self._shown.parameters.values()
        required = [each.name for each in parameters if each.default is each.empty]
        names = required or [each.name for each in parameters][:1]
        if len(names) != 1:
            raise DefinitionError(f"{self.name!r} cannot be on_dead=: it must take one argument, a Failure")
        return names[0]

    def __reduce__(self) -> tuple[Any, ...]:
        # By reference, like a function: a process that runs it has its own.
        return _find, (self.__module__, self.name)

    def __repr__(self) -> str:
        return f"<WorkType {self.name}>"


def _find(module: str, name: str) -> WorkType[..., Any, Any]:
    for value in vars(importlib.import_module(module)).values():
        if _is_work_type(value) and value.name == name:
            return value
    raise DefinitionError(f"no work type {name!r} in {module}: it must stand at the top of its module")


def _is_work_type(value: object) -> TypeIs[WorkType[..., Any, Any]]:
    return isinstance(value, WorkType)
