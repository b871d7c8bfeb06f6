"""The parameters of a function: a call is bound, validated and written here, and read on a worker.

Only what the caller gave is stored. Defaults stay with the function, so that a stored call means
what the same call would mean in code.

Minting is on the hot path: for `add(a: int, b: int)` bind takes 1.2 us, encode 0.8, decode 1.6; with
a dataclass to look into 5, 1.8 and 3.5; without annotations 2.2, 4 and 2.
"""

from __future__ import annotations

import difflib
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter as Python
from typing import Any, Final

import msgspec
from typing_extensions import Unpack

from treadle.errors import DefinitionError, EncodeError, InputError

from . import hints
from .base import Codec
from .default import JsonCodec, default_codec
from .refused import Refused
from .shape import Shape, supported, write_plain

REQUIRED: Final = Python.empty

_BY_POSITION: Final = (Python.POSITIONAL_ONLY, Python.POSITIONAL_OR_KEYWORD)
_BY_NAME: Final = (Python.POSITIONAL_OR_KEYWORD, Python.KEYWORD_ONLY)
_EXACT: Final = frozenset((int, float, str, bool))
"""Values of just this type are what they must be."""
_FIRST_STEP: Final = re.compile(r"\$\.([^.\[]+)")


class Parameter(msgspec.Struct, frozen=True):
    """One parameter. `type` is what a value must be; of `*args` and `**kwargs`, each value."""

    name: str
    type: Any = Any
    default: Any = REQUIRED
    kind: Any = Python.POSITIONAL_OR_KEYWORD

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED and self.kind not in (Python.VAR_POSITIONAL, Python.VAR_KEYWORD)


class Signature:
    """What a work type can be called with; `name` is the work type's, for messages."""

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self._positions = tuple(each.name for each in parameters if each.kind in _BY_POSITION)
        self._names = frozenset(each.name for each in parameters if each.kind in _BY_NAME)
        self._required = frozenset(each.name for each in parameters if each.is_required)
        self._rest = _name_of(parameters, Python.VAR_POSITIONAL)
        self._extra = _name_of(parameters, Python.VAR_KEYWORD)
        self._by_position = len(self._positions) == len(self.parameters)
        self._arguments = msgspec.defstruct(
            "Arguments", [_field(name, each) for each in parameters], forbid_unknown_fields=True, kw_only=True
        )
        self._shape = Shape(self._arguments, from_dict=True)
        self._types = tuple(each.type for each in parameters)
        self._is_exact = self._by_position and all(
            isinstance(each, type) and each in _EXACT for each in self._types
        )

    @classmethod
    def for_function(
        cls,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        skip_first: bool = False,
        localns: Mapping[str, Any] | None = None,
    ) -> Signature:
        """The signature of `fn`, without its first parameter if that is the context.

        `localns`: names that annotations use and only the surroundings of `fn` know.
        """
        found = list(inspect.signature(fn).parameters.values())[skip_first:]
        return cls(
            name or fn.__qualname__,
            [Parameter(p.name, hints.resolve(fn, p.name, localns), p.default, p.kind) for p in found],
        )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by parameter name, validated; InputError names the parameter.

        What `*args` and `**kwargs` take stands under their own names, as a tuple and a dict.
        """
        if self._is_exact and not kwargs and tuple(map(type, args)) == self._types:
            return dict(zip(self._positions, args))  # noqa: B905  as many; half the time of the long way
        bound: dict[str, Any] = dict(zip(self._positions, args))  # noqa: B905  see below
        if len(args) > len(self._positions):
            self._bind_rest(bound, args)
        if kwargs:
            self._bind_named(bound, kwargs)
        return self._validated(bound)

    def bind_names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As `bind`, from every parameter by its name, positional-only and `*args` too."""
        known = [each.name for each in self.parameters]
        for name in given:
            if name not in known:
                raise self._unknown(name, known)
        return self._validated(dict(given))

    def encode(self, bound: Mapping[str, Any], codec: Codec = default_codec) -> bytes:
        """Write what `bind` gave; EncodeError with the path."""
        if self._shape.is_plain and type(codec) is JsonCodec:
            data = write_plain(bound)
            if data is not None:
                return data
        try:
            return self._shape.write(self._arguments(**bound), codec)
        except Refused as refused:
            raise EncodeError(refused.problem, path=refused.path) from refused

    def decode(self, data: bytes, codec: Codec = default_codec) -> dict[str, Any]:
        """What `bind` gave, from bytes; DecodeError if they are not a call of this function."""
        read = msgspec.structs.asdict(self._shape.decode(data, codec))
        if len(self._required) == len(read):
            return read
        return {name: value for name, value in read.items() if value is not msgspec.UNSET}

    def call(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments to call the function with."""
        if self._by_position and len(bound) == len(self.parameters):
            return tuple(bound.values()), {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in self.parameters:
            value = bound.get(each.name, each.default)
            if each.kind is Python.VAR_POSITIONAL:
                args.extend(bound.get(each.name, ()))
            elif each.kind is Python.VAR_KEYWORD:
                kwargs.update(bound.get(each.name, {}))
            elif each.kind in _BY_POSITION:
                args.append(value)
            elif each.name in bound:
                kwargs[each.name] = value
        return tuple(args), kwargs

    def _bind_rest(self, bound: dict[str, Any], args: Sequence[Any]) -> None:
        takes = len(self._positions)
        if self._rest is None:
            raise self._refused(f"takes {takes} positional arguments, {len(args)} were given", ())
        bound[self._rest] = tuple(args[takes:])

    def _bind_named(self, bound: dict[str, Any], kwargs: Mapping[str, Any]) -> None:
        extra: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name not in self._names:
                extra[name] = value
            elif name in bound:
                raise self._refused(f"parameter {name!r} is given twice", (name,))
            else:
                bound[name] = value
        if extra and self._extra is None:
            raise self._unknown(next(iter(extra)), self._names)
        if extra and self._extra is not None:
            bound[self._extra] = extra

    def _validated(self, bound: dict[str, Any]) -> dict[str, Any]:
        if not self._required <= bound.keys():
            missing = [each.name for each in self.parameters if each.name in self._required - bound.keys()]
            raise self._refused(f"missing {_listed(missing)}", missing)
        try:
            arguments = self._shape.check(bound)
        except Refused as refused:
            raise self._mismatch(refused) from refused
        if len(bound) == len(self.parameters):
            return msgspec.structs.asdict(arguments)
        return {name: getattr(arguments, name) for name in bound}

    def _mismatch(self, refused: Refused) -> InputError:
        step = _FIRST_STEP.match(refused.path)
        name = step[1] if step else ""
        where = "" if refused.path == f"$.{name}" else f" (at {refused.path[2:]})"
        return self._refused(f"parameter {name!r}: {refused.problem}{where}", (name,) if name else ())

    def _unknown(self, name: str, known: typing.Iterable[str]) -> InputError:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        return self._refused(f"unknown parameter {name!r}{hint}", (name,))

    def _refused(self, problem: str, parameters: Sequence[str]) -> InputError:
        return InputError(f"{self.name}: {problem}", parameters=parameters, work_type=self.name)


def _name_of(parameters: Sequence[Parameter], kind: Any) -> str | None:
    return next((each.name for each in parameters if each.kind is kind), None)


def _field(work_type: str, parameter: Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    try:
        tp = supported(_stored_type(parameter))
    except DefinitionError as error:
        raise DefinitionError(f"{work_type}: parameter {parameter.name!r}: {error}") from error
    return (parameter.name, tp) if parameter.is_required else (parameter.name, tp, msgspec.UNSET)


def _stored_type(parameter: Parameter) -> Any:
    if parameter.kind not in (Python.VAR_POSITIONAL, Python.VAR_KEYWORD):
        return parameter.type
    if typing.get_origin(parameter.type) in (Unpack, typing.Unpack):
        return typing.get_args(parameter.type)[0]
    each: Any = parameter.type
    return tuple[each, ...] if parameter.kind is Python.VAR_POSITIONAL else dict[str, each]


def _listed(names: Sequence[str]) -> str:
    return ("parameter " if len(names) == 1 else "parameters ") + ", ".join(repr(name) for name in names)
