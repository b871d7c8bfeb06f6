"""One declared type: values of it are validated, written and read back as that very type.

Built once per type and kept. Types whose every part msgspec knows are written and read by it in one
go; the rest is lowered (see `lower`) and left to the codec.
"""

from __future__ import annotations

import types
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect as info

from treadle.errors import DecodeError, DefinitionError, EncodeError, InputError, shown

from . import hooks
from .base import Codec
from .default import JsonCodec, default_codec, is_marked
from .lower import Choice, is_open, lowering, parts
from .refused import Refused

# Given as builtin, these are taken as instances only: text is not silently parsed into a datetime.
_INSTANCES: Final = (datetime, date, time, timedelta, Decimal, UUID, bytes, bytearray)
_TEXT_LIKE: Final = (
    info.DateTimeType,
    info.DateType,
    info.TimeType,
    info.TimeDeltaType,
    info.DecimalType,
    info.UUIDType,
    info.BytesType,
    info.ByteArrayType,
)
_TIMES: Final = (info.DateTimeType, info.TimeType)
_CLASSES: Final = (info.StructType, info.DataclassType, info.NamedTupleType)
_NUMBERS: Final = (info.FloatType, info.CustomType)

_write = msgspec.json.Encoder(enc_hook=hooks.write).encode


class Shape:
    """A declared type on the wire. Get it from `Shape.for_type`."""

    def __init__(self, tp: Any, *, from_dict: bool = False) -> None:
        """`from_dict`: values of the class itself always come as dicts, which are looked into."""
        self.type = tp
        self._wire = supported(tp)
        root = info.type_info(self._wire)
        inside = list(parts(root))
        self._is_open = any(is_open(part) for part in inside)
        self._has_classes = any(isinstance(part, _CLASSES) for part in inside[from_dict:])
        self._has_numbers = any(isinstance(part, _NUMBERS) for part in inside)
        self._has_times = any(isinstance(part, _TIMES) for part in inside)
        self._builtin = _INSTANCES if any(isinstance(part, _TEXT_LIKE) for part in inside) else None
        self._is_simple = not any(isinstance(part, (*_TEXT_LIKE, info.CustomType)) for part in inside)
        self.is_plain = self._is_simple and not (
            self._is_open or self._has_classes or self._has_numbers or self._has_times
        )
        """Nothing but text, whole numbers and the like, also in lists: written in one go."""
        self._lower = lowering(root)
        self._lower_but_times = lowering(root, keep=(datetime, time))
        self._read = msgspec.json.Decoder(self._wire, dec_hook=_lift_hook).decode

    @classmethod
    def for_type(cls, tp: Any) -> Shape:
        """The shape of this type; raises DefinitionError for one that cannot be stored."""
        try:
            return _shape(tp)
        except TypeError:  # not hashable: an Annotated with a list inside, for instance
            return cls(tp)

    def validate(self, value: Any) -> Any:
        """`value` as this type, or InputError with the path. `"1"` is not an int, 1 is a float.

        Instances of dataclasses and the like are looked into: a field may hold anything at runtime.
        """
        try:
            return self.check(value)
        except Refused as refused:
            raise InputError(f"{refused.path}: {refused.problem}") from refused

    def encode(self, value: Any, codec: Codec = default_codec) -> bytes:
        """Validate and write; EncodeError with the path for what is not this type or has no form."""
        if self.is_plain and type(codec) is JsonCodec:
            try:
                data = write_plain(msgspec.convert(value, self._wire))
            except Exception:  # noqa: BLE001  the long way says what is wrong, and where
                data = None
            if data is not None:
                return data
        try:
            return self.write(self.check(value), codec)
        except Refused as refused:
            raise EncodeError(refused.problem, path=refused.path) from refused

    def decode(self, data: bytes, codec: Codec = default_codec) -> Any:
        """Read back as this type, or DecodeError with the path."""
        try:
            if type(codec) is JsonCodec and not is_marked(data):
                return self._read(data)
            return self.lift(codec.decode(data))
        except DecodeError:
            raise
        except Exception as error:
            refused = Refused.because(error)
            raise DecodeError(refused.problem, path=refused.path) from error

    def check(self, value: Any) -> Any:
        """`validate`, raising Refused."""
        try:
            checked = self._convert(value)
            if self._has_classes:
                self._convert(self._inside(checked))
        except Exception as error:
            raise Refused.because(error) from error
        return checked

    def write(self, checked: Any, codec: Codec) -> bytes:
        """`encode` for what has been validated already."""
        if not self._is_open and type(codec) is JsonCodec:
            try:
                data = _write(checked)
                if self._is_sound(data, checked):
                    return data
            except Exception:  # noqa: BLE001  the long way says what is wrong, and where
                pass
        return codec.encode(self.lower(checked))

    def lower(self, checked: Any) -> Any:
        """The tree that a codec writes; raises Refused."""
        try:
            tree = self._lower(checked)
            return tree if self._is_on_time(tree, checked) else self._lower_but_times(checked)
        except Exception as error:
            raise Refused.because(error) from error

    def lift(self, tree: Any) -> Any:
        """The value that was lowered to `tree`. Raises whatever a constructor of the type raises."""
        return msgspec.convert(tree, self._wire, dec_hook=_lift_hook)

    def _convert(self, value: Any) -> Any:
        if self._is_simple:  # options, even unset ones, take twice the time of a small value
            return msgspec.convert(value, self._wire)
        return msgspec.convert(value, self._wire, builtin_types=self._builtin, dec_hook=_check_hook)

    def _inside(self, value: Any) -> Any:
        """What instances hold, down to plain values; msgspec takes an instance's word for it."""
        try:
            return msgspec.to_builtins(value, builtin_types=self._builtin, enc_hook=hooks.write)
        except Exception:  # noqa: BLE001  something only the codec may know: it will judge
            return value

    def _is_on_time(self, tree: Any, checked: Any) -> bool:
        """Whether no datetime lost the seconds of its offset: if so, the codec gets it as it is."""
        return not self._has_times or self.lift(tree) == checked

    def _is_sound(self, data: bytes, value: Any) -> bool:
        """Whether msgspec wrote all there is: it makes null of NaN, and rounds an offset of seconds."""
        if is_marked(data) or (self._has_numbers and data.find(b"null") >= 0):
            return False
        return not self._has_times or self._read(data) == value


def write_plain(value: Any) -> bytes | None:
    """What needs no more than JSON has. None: this does, or has no form at all."""
    try:
        data = _write(value)
    except Exception:  # noqa: BLE001  the long way says what is wrong, and where
        return None
    return None if is_marked(data) else data


@lru_cache(maxsize=1024)
def _shape(tp: Any) -> Shape:
    return Shape(tp)


def supported(tp: Any) -> Any:
    """`tp`, with unions that msgspec cannot tell apart replaced by a Choice."""
    reason = _unsupported(tp)
    if reason is None:
        return tp
    replaced = _replaced(tp)
    if replaced is tp or _unsupported(replaced) is not None:
        raise DefinitionError(f"{shown(tp)} cannot be stored: {reason}")
    return replaced


def _unsupported(tp: Any) -> str | None:
    try:
        msgspec.json.Decoder(tp)
    except (TypeError, NameError) as error:
        return str(error)
    return None


def _replaced(tp: Any) -> Any:
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Union or origin is types.UnionType:
        members = {_name(member, args): Shape.for_type(member) for member in args}
        return type("Choice", (Choice,), {"members": members})
    if origin is typing.Annotated:
        return supported(args[0])
    if origin is None or origin is typing.Literal:
        return tp
    return origin[tuple(arg if arg is Ellipsis else supported(arg) for arg in args)]


def _name(tp: Any, siblings: tuple[Any, ...]) -> str:
    """What a member of a union is called on the wire: its module is named only to tell it apart."""
    if not isinstance(tp, type) or typing.get_args(tp):
        return str(tp)
    namesakes = [each for each in siblings if getattr(each, "__qualname__", None) == tp.__qualname__]
    return tp.__qualname__ if len(namesakes) == 1 else f"{tp.__module__}.{tp.__qualname__}"


def _check_hook(cls: Any, value: Any) -> Any:
    bare = hooks.bare(cls)
    return bare.check(value) if issubclass(bare, Choice) else hooks.read(cls, value)


def _lift_hook(cls: Any, value: Any) -> Any:
    bare = hooks.bare(cls)
    return bare.lift(value) if issubclass(bare, Choice) else hooks.read(cls, value)
