"""The arguments of a call: bound to parameters, validated and written by the caller, read by a worker.

Only the arguments that the caller gave are stored. Defaults stay with the function, so that a stored call
means the same as that call in code.

Every call of a work type passes through here. For `add(a: int, b: int)` bind takes 1.2 us, encode 0.8,
decode 1.6. With a dataclass to validate it is 5, 1.8 and 3.5. Without annotations it is 2.2, 4 and 2.
"""

from __future__ import annotations

import copy
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter as Python
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import inspect as info
from typing_extensions import Unpack

from treadle.base.wording import did_you_mean
from treadle.errors import (
    DecodeError,
    DefinitionError,
    EncodeError,
    InputError,
    class_name,
    message_of,
)

from .bad_value import BadValue
from .hooks import as_numbers, numbered
from .json_codec import MARK_BYTES, Codec, JsonCodec, default_codec
from .shape import Shape, supported, write_json
from .tree import parts

REQUIRED: Final = Python.empty

Upcast: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns stored arguments of an earlier version into those of this one."""

_BY_POSITION: Final = (Python.POSITIONAL_ONLY, Python.POSITIONAL_OR_KEYWORD)
_BY_NAME: Final = (Python.POSITIONAL_OR_KEYWORD, Python.KEYWORD_ONLY)
_EXACT: Final = frozenset((int, float, str, bool))
"""A value whose class is one of these needs no validation."""
_FIRST_STEP: Final = re.compile(r"\$\.([^.\[]+)")


class Parameter(msgspec.Struct, frozen=True):
    """One parameter. `type` is the type of its value; for `*args` and `**kwargs`, of each value."""

    name: str
    type: Any = Any
    default: Any = REQUIRED
    kind: Any = Python.POSITIONAL_OR_KEYWORD

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED and self.kind not in (Python.VAR_POSITIONAL, Python.VAR_KEYWORD)


class Arguments:
    """What a work type can be called with. `name` is the work type's name, for error messages."""

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self._positions = tuple(each.name for each in parameters if each.kind in _BY_POSITION)
        self._names = frozenset(each.name for each in parameters if each.kind in _BY_NAME)
        self._required = frozenset(each.name for each in parameters if each.is_required)
        self._rest = _name_of(parameters, Python.VAR_POSITIONAL)
        self._extra = _name_of(parameters, Python.VAR_KEYWORD)
        self._by_position = len(self._positions) == len(self.parameters)
        self._mutable = {each.name: each.default for each in parameters if _is_mutable(each.default)}
        """Defaults that one call could change for the next: each call gets copies."""
        self._arguments = msgspec.defstruct(
            "Arguments", [_field(name, each) for each in parameters], forbid_unknown_fields=True, kw_only=True
        )
        self._shape = Shape(self._arguments, from_dict=True)
        self._enums = {name: enums for name, tp in _types(self._arguments) if (enums := numbered(parts(tp)))}
        """The enums with numbers in each parameter that has some."""
        self._exact = tuple((each.name, each.type) for each in parameters)
        self._is_exact = self._by_position and all(
            isinstance(each, type) and each in _EXACT for _, each in self._exact
        )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by parameter name, validated. InputError names the parameter.

        The values of `*args` and `**kwargs` are stored under those names, as a tuple and a dict.
        """
        if self._is_exact and not kwargs and len(args) == len(self._exact):
            exact: dict[str, Any] = {}
            # Without zip(): that takes twice as long for one argument, and what follows longer still.
            n = 0
            for name, tp in self._exact:
                value = args[n]
                if type(value) is not tp:
                    break
                exact[name] = value
                n += 1  # noqa: SIM113  as zip(), enumerate() takes longer
            else:
                return exact
        bound: dict[str, Any] = dict(zip(self._positions, args))  # noqa: B905  lengths are checked next
        if len(args) > len(self._positions):
            self._bind_rest(bound, args)
        if kwargs:
            self._bind_named(bound, kwargs)
        return self._validated(bound)

    def bind_names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As `bind`, with every argument given by name, also positional-only ones and `*args`."""
        known = [each.name for each in self.parameters]
        for name in given:
            if name not in known:
                raise self._unknown(name, known)
        return self._validated(dict(given))

    def bind_json(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As `bind_names`, with values as in JSON: `"2030-01-31"` may be a date."""
        known = [each.name for each in self.parameters]
        for name in given:
            if name not in known:
                raise self._unknown(name, known)
        if not self._required <= given.keys():
            self._validated(dict(given))  # it raises, and names them
        try:
            return self._validated(self.decode(default_codec.encode(given)))
        except DecodeError as error:
            raise self._mismatch(BadValue(error.problem, error.path)) from None

    def encode(self, bound: Mapping[str, Any], codec: Codec = default_codec) -> bytes:
        """Write bound arguments. EncodeError has the path of the part at fault."""
        if self._shape.is_plain and type(codec) is JsonCodec:
            try:
                data = write_json(bound)
                if data.find(MARK_BYTES) < 0:
                    return data
            except Exception:  # noqa: BLE001  the code below finds what is wrong, and where
                pass
        try:
            return self._shape.write(self._arguments(**bound), codec)
        except BadValue as refused:
            raise EncodeError(refused.problem, path=refused.path) from refused

    def decode(
        self, data: bytes, codec: Codec = default_codec, upcast: Upcast | None = None
    ) -> dict[str, Any]:
        """Read bound arguments. DecodeError if the bytes are not a call of this function.

        upcast: changes the arguments, as they are stored, before they are validated.
        """
        decoded = self._shape.decode(data, codec, None if upcast is None else self._upcast_by(upcast))
        read = msgspec.structs.asdict(decoded)
        if len(self._required) == len(read):
            return read
        return {name: value for name, value in read.items() if value is not msgspec.UNSET}

    def _upcast_by(self, upcast: Upcast) -> Callable[[Any], Any]:
        def change(stored: Any) -> dict[str, Any]:
            if not isinstance(stored, dict):
                raise DecodeError(f"the arguments are not stored by name, but as a {class_name(stored)}")
            try:
                changed = upcast(cast("dict[str, Any]", stored))
            except Exception as error:
                raise DecodeError(f"upcast raised {class_name(error)}: {message_of(error)}") from error
            if not isinstance(changed, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise DecodeError(f"upcast must return the arguments, a dict, not a {class_name(changed)}")
            return changed

        return change

    def call(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments to call the function with."""
        if self._by_position and len(bound) == len(self.parameters):
            return tuple(bound.values()), {}
        if self._mutable:
            bound = {**copy.deepcopy(self._mutable), **bound}
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
            first = self.parameters[0]
            hint = ""
            if first.name in ("ctx", "context") and first.type is Any:
                hint = f". To receive the Context, annotate it: `{first.name}: Context`"
            raise self._refused(f"missing {_listed(missing)}{hint}", missing)
        for name in self._enums.keys() & bound.keys():
            bound[name] = as_numbers(bound[name], self._enums[name])
        try:
            arguments = self._shape.check(bound)
        except BadValue as refused:
            raise self._mismatch(refused) from refused
        if len(bound) == len(self.parameters):
            return msgspec.structs.asdict(arguments)
        return {name: getattr(arguments, name) for name in bound}

    def _mismatch(self, refused: BadValue) -> InputError:
        step = _FIRST_STEP.match(refused.path)
        name = step[1] if step else ""
        where = "" if refused.path == f"$.{name}" else f" (at {refused.path[2:]})"
        return self._refused(f"parameter {name!r}: {refused.problem}{where}", (name,) if name else ())

    def _unknown(self, name: str, known: typing.Iterable[str]) -> InputError:
        hint = did_you_mean(name, known)
        return self._refused(f"unknown parameter {name!r}{': ' if hint else ''}{hint}", (name,))

    def _refused(self, problem: str, parameters: Sequence[str]) -> InputError:
        return InputError(f"{self.name}: {problem}", parameters=parameters, work_type=self.name)


def _is_mutable(default: Any) -> bool:
    """Whether a default can be changed: a list, a dict, an instance of a dataclass that is not frozen."""
    try:
        hash(default)
    except TypeError:
        return True
    return False


def _name_of(parameters: Sequence[Parameter], kind: Any) -> str | None:
    return next((each.name for each in parameters if each.kind is kind), None)


def _field(work_type: str, parameter: Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    try:
        tp = supported(stored_type(parameter))
    except DefinitionError as error:
        raise DefinitionError(f"{work_type}: parameter {parameter.name!r}: {error}") from error
    return (parameter.name, tp) if parameter.is_required else (parameter.name, tp, msgspec.UNSET)


def stored_type(parameter: Parameter) -> Any:
    """The type of what is stored for a parameter. For `*args` and `**kwargs`, of the collection."""
    """The type of what is stored for a parameter: `*args` and `**kwargs` are collections."""
    if parameter.kind not in (Python.VAR_POSITIONAL, Python.VAR_KEYWORD):
        return parameter.type
    if typing.get_origin(parameter.type) in (Unpack, typing.Unpack):
        return typing.get_args(parameter.type)[0]
    each: Any = parameter.type
    return tuple[each, ...] if parameter.kind is Python.VAR_POSITIONAL else dict[str, each]


def _types(struct: type[msgspec.Struct]) -> list[tuple[str, info.Type]]:
    root = info.type_info(struct)
    assert isinstance(root, info.StructType)
    return [(field.name, field.type) for field in root.fields]


def _listed(names: Sequence[str]) -> str:
    return ("parameter " if len(names) == 1 else "parameters ") + ", ".join(repr(name) for name in names)
